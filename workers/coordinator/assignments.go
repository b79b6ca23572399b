package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/secrets"
	"anneal/projections"
	"anneal/workers/protocol"
)

const maxInterval = 2 * time.Second // maximum interval of the heartbeats that agents are told to send

// An assigner computes the assignments of a node.
type assigner struct {
	recorder
	blobs      *blobs.Store
	openSecret secrets.OpenFunc
	gangSecret []byte
	interval   time.Duration // interval of the heartbeats that the agent is told to send
	idleAfter  time.Duration // time without use after which a training service stops
	logger     *slog.Logger
}

// assign returns what should run on the node: the attempts and replicas of its allocations. The
// attempt of a job that is being canceled or paused stays assigned until it reports that it has
// stopped.
func (a *assigner) assign(
	ctx context.Context, node string, session *nodeSession, heartbeat protocol.Heartbeat,
) (protocol.Assignments, error) {
	view := a.world.View()
	d := draft{space: draftSpace, Assignments: protocol.Assignments{Version: protocol.Version,
		Position: view.Position, Interval: a.interval, Acked: map[string]int{}}}
	attempts, replicas := map[string]bool{}, map[string]protocol.Replica{}
	for _, attempt := range heartbeat.Attempts {
		if j, ok := jobNamed(view, attempt.Job); ok && j.CreateTime.Equal(attempt.CreateTime) {
			attempts[attempt.ID()] = true
		}
	}
	for _, r := range heartbeat.Replicas {
		if hasReplica(view, nodeName(node), r) {
			replicas[r.ID()] = r
		}
	}
	wanted := map[string]bool{}
	for _, allocation := range allocations(view, node) {
		id := allocation.ID
		if r, ok := replicaOf(view, nodeName(node), allocation); ok {
			if listed, running := replicas[id]; running {
				d.Keep = append(d.Keep, id)
				a.assignAddons(ctx, node, view, listed, &d)
			} else {
				a.assignReplica(ctx, node, view, allocation, r, &d)
			}
			continue
		}
		j, ok := jobNamed(view, allocation.For)
		if !ok || !runsOn(view, j, nodeName(node), allocation.Attempt) {
			continue
		}
		wanted[id] = true
		switch {
		case attempts[id]:
			d.Keep = append(d.Keep, id)
			d.Acked[id] = ackedStep(view, j)
			// the other nodes of the attempt stop after its first node has stopped
			if j.Life.Stopping() && j.Life.Nodes[0] == nodeName(node) {
				d.Cancel = append(d.Cancel, id)
			} else if a.idle(view, j) {
				d.Idle = append(d.Idle, id)
			}
		case j.Life.Working():
			a.assignAttempt(ctx, node, view, j, &d)
		}
	}
	for _, assignment := range d.Train {
		session.started[assignment.ID()] = heartbeat.Boot
	}
	maps.DeleteFunc(session.started, func(id, _ string) bool { return !wanted[id] })
	maps.DeleteFunc(session.metrics, func(id string, _ storedMetrics) bool { return !wanted[id] })
	return d.Assignments, nil
}

// A draft collects the assignments for one reply. Assignments for which the reply has no space are
// sent in the replies to later heartbeats.
type draft struct {
	protocol.Assignments
	space int // bytes of the reply that are left for new assignments
}

// draftSpace is the number of bytes of a reply that new assignments may use. The remaining bytes
// are for the lists of allocation IDs.
const draftSpace = protocol.MaxMessage * 3 / 4

var errMessageFull = errors.New("the reply to the heartbeat has no space for the assignment")

// reserve deducts the size of an assignment from the space of the draft. It returns errMessageFull
// when too little is left, and a *domain.Error when no reply would have enough space.
func (d *draft) reserve(assignment any) error {
	data, err := protocol.Marshal(assignment)
	if err == nil && len(data) > draftSpace {
		err = domain.Errorf(domain.FailedPrecondition,
			"the list of files of model, adapter and dataset exceeds the limit of %d bytes: store fewer and larger "+
				"files",
			draftSpace)
	}
	if err == nil && len(data) > d.space {
		err = errMessageFull
	}
	if err == nil {
		d.space -= len(data)
	}
	return err
}

// ackedStep returns the step up to which the control plane has the metrics of the current attempt;
// the agent sends the rows from that step on. It is the step of the newest row in the live status.
// Without rows there, for example after a restart, it is the last step in the metrics file of the
// last checkpoint, but at most the checkpoint's step. Without a checkpoint it is 0, so that the
// agent sends all rows.
func ackedStep(v *projections.View, j job) int {
	published := 0
	if last, ok := j.Life.LastCheckpoint(); ok && j.Life.Progress != nil {
		published = min(last.Step, j.Life.Progress.Step)
	}
	progress, ok := j.progress(v)
	latest, any := v.Live.Latest(j.Name)
	switch {
	case !ok || !any:
		return published
	case progress.Attempt != j.Life.Attempt: // the current attempt computes the steps after that checkpoint again
		return min(latest.Step, published)
	}
	return latest.Step
}

// assignAttempt adds the current attempt of a job to the draft d. It fails a job that cannot start,
// for example because an input was deleted.
func (a *assigner) assignAttempt(ctx context.Context, node string, view *projections.View, j job, d *draft) {
	ctx, trace, span := a.startAssign(ctx, node, j.Name, domain.AllocationID(j.Name, j.Life.Attempt))
	assignment, err := a.trainAssignment(ctx, node, view, j)
	assignment.Trace = trace
	defer func() { span.End(err) }()
	if err == nil {
		if helps(assignment.Gang) {
			assignment = helperOf(assignment)
		}
		err = d.reserve(assignment)
	}
	switch {
	case err == nil:
		d.Train = append(d.Train, assignment)
	case isRefused(err):
		a.logger.Info("failing a job that cannot start", "job", j.Name, "error", err)
		err := a.doJob(ctx, node, j, domain.FailJob{Attempt: j.Life.Attempt, Status: domain.StatusOf(err)})
		if err != nil {
			a.logger.Warn("cannot record that a job failed: trying again at the next heartbeat", "job", j.Name, "error", err)
		}
	default:
		a.logger.Info("cannot assign an attempt yet: trying again at the next heartbeat", "job", j.Name, "error", err)
	}
}

func (a *assigner) trainAssignment(
	ctx context.Context, node string, view *projections.View, j job,
) (assignment protocol.TrainAssignment, err error) {
	assignment = protocol.TrainAssignment{Job: j.Name, Attempt: j.Life.Attempt, CreateTime: j.CreateTime,
		Method: j.Method, Settings: j.Settings, Seed: j.Seed, CPUMilli: j.Life.Resources.CPUMilli,
		Accelerators: j.Life.Resources.Accelerators, Gang: a.gangOf(view, j, nodeName(node))}
	if j.Service {
		return a.serviceAssignment(ctx, view, j, assignment)
	}
	if err := requireFreeOutput(view, j); err != nil {
		return assignment, err
	}
	model := j.BaseModel
	if model == "" {
		model = j.Adapter
	}
	base, adapter, err := a.modelFiles(ctx, view, model, "")
	if err != nil {
		return assignment, err
	}
	assignment.Base, assignment.Adapter, assignment.BaseModel = *base, adapter, model
	if row, ok := view.Models.Get(model); ok && row.State.Kind == domain.PEFTAddon {
		assignment.BaseModel = domain.Name(row.State.BaseModel)
	}
	if row, ok := view.Models.Get(j.Adapter); ok && j.KeepRank {
		assignment.Settings.LoraRank = row.State.LoraRank
	}
	data, err := a.datasetFiles(ctx, view, j.Dataset)
	if err != nil {
		return assignment, err
	}
	assignment.Data = *data
	if j.EvaluationData != "" {
		if assignment.Eval, err = a.datasetFiles(ctx, view, j.EvaluationData); err != nil {
			return assignment, err
		}
	}
	if j.Evaluator != "" && !helps(assignment.Gang) {
		if assignment.Evaluator, err = a.evaluator(ctx, node, view, j); err != nil {
			return assignment, err
		}
	}
	if last, ok := j.Life.LastCheckpoint(); ok {
		if assignment.Resume, err = a.fileSet(ctx, last.Files.Prefix, last.Files); err != nil {
			return assignment, err
		}
		assignment.ResumeStep = last.Step
	}
	assignment.LogURL, assignment.EarlierLogURL, err = signLogs(ctx, a.blobs, j)
	return assignment, err
}

// assignReplica adds a replica to the draft d. It removes a replica that cannot start, for example
// because its model was deleted.
func (a *assigner) assignReplica(
	ctx context.Context, node string, view *projections.View, allocation domain.Allocation, r domain.Replica, d *draft,
) {
	row, ok := view.Deployments.Get(allocation.For)
	if !ok {
		return
	}
	ctx, trace, span := a.startAssign(ctx, node, allocation.For, allocation.ID)
	assignment := protocol.ServeAssignment{Trace: trace, Deployment: allocation.For,
		Replica: r.ID, CreateTime: row.CreateTime,
		Trusted:   domain.Name(row.State.BaseModel).Account() == domain.System,
		MemoryMiB: allocation.Resources.MemoryMiB, Accelerators: allocation.Resources.Accelerators,
		Share: allocation.Resources.Share, ContextLength: row.State.MaxContextLength, LongPrompts: row.State.LongPrompts(),
		AddonSlots: projections.AddonSlots(view, &row.State),
		Speculation: engines.SpeculationMode{NgramLength: row.State.NgramSpeculationLength,
			Tokens: row.State.DraftTokenCount, Disabled: row.State.DisableSpeculativeDecoding}}
	base, adapter, err := a.modelFiles(ctx, view, domain.Name(row.State.BaseModel), row.State.ServedPrecision())
	defer func() { span.End(err) }()
	if err == nil {
		assignment.Base, assignment.Adapter = *base, adapter
		assignment.Speech, err = speechSettings(view, row)
	}
	if drafter := row.State.ServedDrafter(); err == nil && drafter != "" {
		assignment.Draft, err = a.draftFiles(ctx, view, domain.Name(drafter))
		assignment.DraftMemoryMiB = row.State.DraftMemoryMiB(projections.HostedBy(view, &row.State))
	}
	if err == nil {
		err = d.reserve(assignment)
	}
	switch {
	case err == nil:
		d.Serve = append(d.Serve, assignment)
	case isRefused(err):
		remove := domain.RemoveReplica{ID: r.ID, Reason: err.Error(), Failed: true}
		if err := a.do(ctx, node, domain.Intend(domain.Deployments, allocation.For, remove)); err != nil {
			a.logger.Warn("cannot remove a replica that cannot start: trying again at the next heartbeat",
				"deployment", allocation.For, "replica", r.ID, "error", err)
		}
	default:
		a.logger.Info("cannot assign a replica yet: trying again at the next "+
			"heartbeat", "deployment", allocation.For, "error", err)
	}
}
