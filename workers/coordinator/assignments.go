package coordinator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/protocol"
)

const (
	downloadWithin = 24 * time.Hour // how long signed URLs of an order are good
	maxInterval    = 2 * time.Second
)

// orders is what should run on the node: what its allocations are for, as far
// as the world still wants it. A job that is being cancelled stays until its
// attempt is reported stopped.
func (d *Coordinator) orders(ctx context.Context, node string, book *nodeBook, beat protocol.Heartbeat) (protocol.Assignments, error) {
	view := d.World.View()
	orders := draft{room: roomForWork, Assignments: protocol.Assignments{Version: protocol.Version, Position: view.Position,
		Interval: min(maxInterval, d.LostAfter/5), Acked: map[string]int{}}}
	attempts, replicas := map[string]bool{}, map[string]protocol.Replica{}
	for _, a := range beat.Attempts {
		if j, ok := jobNamed(view, a.Job); ok && j.CreateTime.Equal(a.CreateTime) {
			attempts[a.ID()] = true
		}
	}
	for _, r := range beat.Replicas {
		if replicaOn(view, nodeName(node), r) {
			replicas[r.ID()] = r
		}
	}
	wanted := map[string]bool{}
	for _, a := range allocated(view, node) {
		if r, ok := replicaOf(view, nodeName(node), a); ok {
			if listed, running := replicas[a.ID]; running {
				orders.Keep = append(orders.Keep, a.ID)
				d.equip(ctx, node, view, listed, &orders)
			} else {
				d.serve(ctx, node, view, a, r, &orders)
			}
			continue
		}
		j, ok := jobNamed(view, a.For)
		if !ok || !given(j, nodeName(node), a.Attempt) {
			continue
		}
		wanted[a.ID] = true
		cancelling := j.Life.State == domain.JobCancellingState
		switch {
		case attempts[a.ID]:
			orders.Keep = append(orders.Keep, a.ID)
			orders.Acked[a.ID] = acked(view, j)
			if cancelling {
				orders.Cancel = append(orders.Cancel, a.ID)
			}
		case j.Life.Working():
			d.train(ctx, node, view, j, &orders)
		}
	}
	for _, order := range orders.Train {
		book.given[order.ID()] = beat.Boot
	}
	maps.DeleteFunc(book.given, func(id, _ string) bool { return !wanted[id] })
	maps.DeleteFunc(book.shown, func(id string, _ shown) bool { return !wanted[id] })
	return orders.Assignments, nil
}

// A draft is orders in the making. New work is added while there is room in
// the message; the rest comes with the next.
type draft struct {
	protocol.Assignments
	room int // bytes
}

const roomForWork = protocol.MaxMessage * 3 / 4

var errLater = errors.New("the message is full")

// fit takes the room that an order needs. One that no message could carry is a
// fault.
func (o *draft) fit(order any) error {
	data, err := protocol.Marshal(order)
	if err == nil && len(data) > roomForWork {
		err = domain.Errorf(domain.FailedPrecondition, "the files of model, adapter and dataset are too many to be listed in one message: store fewer and larger ones")
	}
	if err == nil && len(data) > o.room {
		err = errLater
	}
	if err == nil {
		o.room -= len(data)
	}
	return err
}

// acked is the step of the newest row of the attempt that is in the pulse.
func acked(v *projections.View, j job) int {
	progress, ok := j.progress(v)
	latest, any := v.Live.Latest(j.Name)
	if !ok || !any || progress.Attempt != j.Life.Attempt {
		return 0
	}
	return latest.Step
}

// train adds the order to begin a job's attempt, or ends a job whose inputs
// are gone.
func (d *Coordinator) train(ctx context.Context, node string, view *projections.View, j job, orders *draft) {
	order, err := d.trainOrder(ctx, view, j)
	if err == nil {
		err = orders.fit(order)
	}
	switch {
	case err == nil:
		orders.Train = append(orders.Train, order)
	case isFault(err):
		d.log.Info("a job cannot begin", "job", j.Name, "error", err)
		if err := d.do(ctx, node, domain.IntendJob(j.Name, domain.FailJob{Attempt: j.Life.Attempt, Status: domain.StatusOf(err)})); err != nil {
			d.log.Warn("a job that cannot begin could not be failed", "job", j.Name, "error", err)
		}
	default:
		d.log.Info("an order waits for the next beat", "job", j.Name, "error", err)
	}
}

func (d *Coordinator) trainOrder(ctx context.Context, view *projections.View, j job) (order protocol.TrainAssignment, err error) {
	order = protocol.TrainAssignment{Job: j.Name, Attempt: j.Life.Attempt, CreateTime: j.CreateTime, Method: j.Method, Settings: j.Settings, Seed: seedOf(j.Name), CPUMilli: j.Life.Takes.CPUMilli}
	if err := free(view, j); err != nil {
		return order, err
	}
	named := j.BaseModel
	if named == "" {
		named = j.Adapter
	}
	base, adapter, err := d.model(ctx, view, named, "")
	if err != nil {
		return order, err
	}
	order.Base, order.Adapter = *base, adapter
	if row, ok := view.Models.Get(j.Adapter); ok && j.KeepRank {
		order.Settings.LoraRank = row.State.LoraRank
	}
	data, err := d.dataset(ctx, view, j.Dataset)
	if err != nil {
		return order, err
	}
	order.Data = *data
	if j.EvaluationData != "" {
		if order.Eval, err = d.dataset(ctx, view, j.EvaluationData); err != nil {
			return order, err
		}
	}
	if j.Evaluator != "" {
		if order.Evaluator, err = d.evaluator(ctx, view, j); err != nil {
			return order, err
		}
	}
	if last, ok := j.Life.LastCheckpoint(); ok {
		if order.Resume, err = d.folder(ctx, last.Files.Folder, last.Files); err != nil {
			return order, err
		}
		order.ResumeStep = last.Step
	}
	return order, nil
}

// evaluator is the code that the job began with, and what it is given. Its
// secrets are opened for this order alone.
func (d *Coordinator) evaluator(ctx context.Context, view *projections.View, j job) (*protocol.Evaluator, error) {
	row, ok := view.Evaluators.Get(j.Evaluator)
	if !ok {
		return nil, domain.Errorf(domain.FailedPrecondition, "the evaluator %s does not exist (any more)", j.Evaluator)
	}
	build, ok := row.State.BuildOf(j.Life.EvaluatorRevision)
	if !ok || build.Entry.File == "" {
		return nil, domain.Errorf(domain.FailedPrecondition, "revision %d of %s is not there to be run (any more): create another job", j.Life.EvaluatorRevision, j.Evaluator)
	}
	code, err := d.folder(ctx, keyOf(build.Files.Folder, row.CreateTime), build.Files)
	if err != nil {
		return nil, err
	}
	order := &protocol.Evaluator{Code: *code, EntryFile: build.Entry.File, EntryFunc: build.Entry.Func}
	if len(row.State.Secrets) > 0 {
		if d.OpenSecret == nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "the evaluator %s names secrets, and this server opens none", j.Evaluator)
		}
		order.Env, err = eventlog.Secrets{Rows: d.World, Open: d.OpenSecret}.Values(ctx, j.Name.Account(), string(j.Evaluator)+": secrets", row.State.Secrets)
	}
	return order, err
}

// free refuses a job whose output model another has made: better before the
// training than after.
func free(v *projections.View, j job) error {
	row, taken := v.Models.Get(domain.NewName(j.Name.Account(), "models", j.OutputModel))
	if taken && row.State.SourceJob != j.Name {
		return &domain.Error{Code: domain.AlreadyExists, Reason: "OUTPUT_MODEL_TAKEN",
			Message: "outputModel: the model " + string(row.Name) + " exists already: name another, or delete that one"}
	}
	return nil
}

// model is the folders of a model: its own, in the precision that is asked for
// if there is such a copy, and when it is an addon its base's and its own. The
// base of an addon is as it was trained on: the addon would refuse another.
func (d *Coordinator) model(ctx context.Context, view *projections.View, name domain.Name, precision string) (base, adapter *protocol.FileSet, err error) {
	row, err := ready(view, name)
	if err != nil {
		return nil, nil, err
	}
	files := row.State.Prepared(precision)
	if row.State.Kind == domain.PEFTAddon {
		if adapter, err = d.folder(ctx, keyOf(row.State.Files.Folder, row.CreateTime), row.State.Files); err != nil {
			return nil, nil, err
		}
		if row, err = ready(view, domain.Name(row.State.BaseModel)); err != nil {
			return nil, nil, err
		}
		if row.State.Kind == domain.PEFTAddon {
			return nil, nil, domain.Errorf(domain.FailedPrecondition, "the base of an addon, %s, is an addon itself", row.Name)
		}
		files = row.State.Files
	}
	base, err = d.folder(ctx, keyOf(files.Folder, row.CreateTime), files)
	return base, adapter, err
}

// listened is how the model of a deployment is listened with; nil for one that
// answers. A model that was made anew may be of another kind.
func listened(v *projections.View, deployment *projections.Row[domain.Deployment]) (*domain.SpeechSettings, error) {
	row, err := ready(v, domain.Name(deployment.State.BaseModel))
	if err == nil && row.State.SpeechFormat() != deployment.State.SpeechFormat {
		err = domain.Errorf(domain.FailedPrecondition, "the model %s is not of the format that the deployment was made for: create another deployment", row.Name)
	}
	if err != nil {
		return nil, err
	}
	return row.State.Speech, nil
}

func ready(v *projections.View, name domain.Name) (*projections.Row[domain.Model], error) {
	row, ok := v.Models.Get(name)
	switch {
	case !ok:
		return nil, domain.Errorf(domain.FailedPrecondition, "the model %s does not exist (any more)", name)
	case row.State.State != domain.ModelReady:
		return nil, domain.Errorf(domain.FailedPrecondition, "the model %s is %s: upload its weights first", name, row.State.State)
	}
	return row, nil
}

func (d *Coordinator) dataset(ctx context.Context, view *projections.View, name domain.Name) (*protocol.FileSet, error) {
	row, ok := view.Datasets.Get(name)
	switch {
	case !ok:
		return nil, domain.Errorf(domain.FailedPrecondition, "the dataset %s does not exist (any more)", name)
	case row.State.State != domain.DatasetReady:
		return nil, domain.Errorf(domain.FailedPrecondition, "the dataset %s is %s: upload its rows first", name, row.State.State)
	}
	return d.folder(ctx, keyOf(row.State.Files.Folder, row.CreateTime), row.State.Files)
}

// keyOf tells a folder from one that had the same name before: what was
// deleted may be made again with other content.
func keyOf(folder string, created time.Time) string {
	return folder + "@" + created.UTC().Format(time.RFC3339Nano)
}

// folder is stored files with the URLs to fetch them.
func (d *Coordinator) folder(ctx context.Context, key string, files domain.Files) (*protocol.FileSet, error) {
	if len(files.Sizes) == 0 || len(files.Sizes) > protocol.MaxFiles {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s has %d files: 1 to %d can be used", files.Folder, len(files.Sizes), protocol.MaxFiles)
	}
	folder := &protocol.FileSet{Key: key}
	for _, name := range slices.Sorted(maps.Keys(files.Sizes)) {
		url, err := d.Blobs.SignGet(ctx, files.Folder+name, downloadWithin)
		if err != nil {
			return nil, err
		}
		folder.Files = append(folder.Files, protocol.File{Name: name, Size: files.Sizes[name], Sum: files.Sums[name], URL: url})
	}
	return folder, nil
}

// serve adds the order to load a replica, or removes a replica whose model is
// gone.
func (d *Coordinator) serve(ctx context.Context, node string, view *projections.View, a domain.Allocation, r domain.Replica, orders *draft) {
	row, ok := view.Deployments.Get(a.For)
	if !ok {
		return
	}
	order := protocol.ServeAssignment{Deployment: a.For, Replica: r.ID, CreateTime: row.CreateTime, Trusted: domain.Name(row.State.BaseModel).Account() == domain.System, MemoryMiB: a.Takes.MemoryMiB, ContextLength: row.State.MaxContextLength, Accelerators: a.Takes.Accelerators,
		Speculation: engines.SpeculationMode{NgramLength: row.State.NgramSpeculationLength, Tokens: row.State.DraftTokenCount}}
	base, adapter, err := d.model(ctx, view, domain.Name(row.State.BaseModel), row.State.Served())
	if err == nil {
		order.Base, order.Adapter = *base, adapter
		order.Speech, err = listened(view, row)
	}
	if err == nil {
		err = orders.fit(order)
	}
	switch {
	case err == nil:
		orders.Serve = append(orders.Serve, order)
	case isFault(err):
		err := d.do(ctx, node, domain.Intend(domain.Deployments, a.For, domain.RemoveReplica{ID: r.ID, Reason: err.Error(), Failed: true}))
		if err != nil {
			d.log.Warn("a replica without a model could not be removed", "deployment", a.For, "replica", r.ID, "error", err)
		}
	default:
		d.log.Info("an order waits for the next beat", "deployment", a.For, "error", err)
	}
}
