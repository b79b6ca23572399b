package replay

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// Durations that a simulation assumes if the log of the period does not show them.
const (
	defaultStop  = 10 * time.Second // time from the request to stop an attempt until it has stopped
	defaultReady = 30 * time.Second // time from the placement of a replica until it is ready
)

// A period is a part of the log, prepared for simulations.
type period struct {
	from, to    time.Time
	first, last uint64
	base        *projections.World // world at the start of the period
	inputs      []input            // inputs in the order of the log
	running     map[domain.Name]*workload
	recorded    Result
	estimated   int
	// time from the request to stop an attempt until it has stopped; see defaultStop
	stop time.Duration
	// by deployment: time from the placement of a replica until it is ready; "" for all other
	// deployments
	ready map[domain.Name]time.Duration
	// specs for added nodes: by node type, of one node of the type, and by node ID, of that node
	specs map[string]domain.NodeSpec
	kinds map[domain.Name]string // by node: its type, as in nodeChange.kind
}

// An input is an event from outside of the schedulers.
type input struct {
	at    time.Time
	event eventlog.Event
	// command that the simulation decides again; if it is nil, the event is applied as it was
	// recorded
	intent  *domain.Intent
	creates bool      // the event creates the resource that it belongs to
	work    *workload // workload of the job that the event creates; nil for other events
}

// A reading holds the part of a period that was read so far, while read reads the log.
type reading struct {
	*period
	world  *projections.World
	meter  *meter                    // meter of the recorded period; nil before the period begins
	works  map[domain.Name]*workload // by job name: workload of the newest job with this name
	all    []*workload
	now    time.Time
	stops  map[domain.Name]time.Time // by job: when it was requested to stop, until it has stopped
	stop   median
	placed map[string]time.Time // by replica that is not ready yet: when it was placed
	ready  map[domain.Name]median
}

// read returns the period from the log. It reads the log up to its end, because the run times of
// jobs may be known only from events after the period.
func read(ctx context.Context, log projections.Reader, start, end time.Time) (*period, error) {
	if !end.After(start) {
		return nil, domain.Errorf(domain.InvalidArgument, "the period ends at %s, which is not after its start, %s",
			end.Format(time.RFC3339), start.Format(time.RFC3339))
	}
	r := &reading{period: &period{from: start, to: end, base: projections.NewWorld(),
		running: map[domain.Name]*workload{}, ready: map[domain.Name]time.Duration{}, specs: map[string]domain.NodeSpec{},
		kinds: map[domain.Name]string{}},
		works: map[domain.Name]*workload{}, stops: map[domain.Name]time.Time{}, placed: map[string]time.Time{},
		ready: map[domain.Name]median{}}
	ended := false
	for e, err := range log.Read(ctx, everything, 0) {
		if err != nil {
			return nil, err
		}
		if e.Time.After(r.now) { // time does not go back, although the clocks of control planes differ
			r.now = e.Time
		}
		if r.world == nil && r.now.After(start) {
			r.begin()
		}
		if !ended && r.now.After(end) {
			r.end()
			ended = true
		}
		if err := r.add(e, ended); err != nil {
			return nil, err
		}
		if ended && !slices.ContainsFunc(r.all, (*workload).open) {
			break
		}
	}
	if r.world == nil {
		return nil, domain.Errorf(domain.OutOfRange, "the log ends at %s, before the period begins at %s",
			r.now.Format(time.RFC3339), start.Format(time.RFC3339))
	}
	if !ended {
		r.end()
	}
	r.finish()
	return r.period, nil
}

// begin begins the period: it takes the current world as the base.
func (r *reading) begin() {
	r.world = projections.Fork(r.base)
	r.meter = newMeter(Recorded, r.base.View(), r.from)
	r.first = r.base.Position() + 1
	for row := range r.base.View().Jobs() {
		if life := row.State.Life(); !life.Terminal() {
			w := newWorkload(row.Name)
			w.resumeAt(life)
			r.running[row.Name], r.works[row.Name] = w, w
			r.all = append(r.all, w)
		}
	}
	for row := range r.base.View().Nodes.All() {
		if row.State.Registered() {
			r.learn(row.Name, row.State.NodeSpec)
		}
	}
}

// end ends the period. Later events only complete the workloads of its jobs.
func (r *reading) end() {
	r.last = r.world.Position()
	r.recorded = r.meter.result(r.world.View(), r.to)
}

func (r *reading) finish() {
	r.estimated = estimate(r.all, later(r.now, r.to), r.to.Sub(r.from))
	r.period.stop = r.stop.value(defaultStop)
	var all median
	for _, name := range slices.Sorted(maps.Keys(r.ready)) {
		all = append(all, r.ready[name]...)
		r.period.ready[name] = r.ready[name].value(0)
	}
	r.period.ready[""] = all.value(defaultReady)
	r.purgeEnded()
}

// purgeEnded removes the jobs that ended before the period from the base, so that plans take less
// time.
func (r *reading) purgeEnded() {
	for row := range r.base.View().Jobs() {
		if w := r.works[row.Name]; row.State.Life().Terminal() && (w == nil || w.ahead.IsZero()) {
			_ = r.base.Apply(purgeOf(row.Name, r.base.Position()+1, r.from))
		}
	}
}

// purgeOf returns a JobPurged event for a job.
func purgeOf(name domain.Name, position uint64, at time.Time) eventlog.Event {
	collection := name.Collection()
	return eventlog.Event{Position: position, ID: simulatedID(position), Name: name, Time: at,
		Record: domain.Record{Type: strings.TrimSuffix(collection, "s") + ".purged.v1", Data: json.RawMessage("{}")}}
}

// add folds an event of the log and, unless the period has ended, adds it to the period.
func (r *reading) add(e eventlog.Event, ended bool) error {
	if r.world == nil {
		return r.base.Apply(e)
	}
	existed := r.world.Lookup(e.Name).State != nil
	if err := r.world.Apply(e); err != nil {
		return err
	}
	collection := e.Name.Collection()
	if ended {
		if w := r.works[e.Name]; w != nil && isJob(collection) {
			r.follow(w, e)
		}
		return nil
	}
	r.meter.observe(e, r.world, r.now)
	in := input{at: r.now, event: e, creates: !existed}
	switch {
	case isJob(collection):
		r.job(in)
	case e.Name.Collection() == domain.Nodes.Collection:
		r.node(in)
	case collection == domain.Deployments.Collection:
		r.deployment(in)
	default:
		r.inputs = append(r.inputs, in)
	}
	return nil
}

// job adds an event of a job to the inputs of the period, to the job's workload, or to both.
func (r *reading) job(in input) {
	e := in.event
	_, change := kindAndChange(e)
	if in.creates {
		in.work = newWorkload(e.Name)
		r.works[e.Name] = in.work
		r.all = append(r.all, in.work)
		r.inputs = append(r.inputs, in)
		return
	}
	w := r.works[e.Name]
	if w == nil { // ignore the event: the job ended before the period
		w = newWorkload(e.Name)
		w.current().end = fails
		r.works[e.Name], r.running[e.Name] = w, w
		r.all = append(r.all, w)
	}
	r.follow(w, e)
	switch change {
	case "preempting.v1", "pausing.v1", "cancelling.v1":
		r.stops[e.Name] = r.now
	case "requeued.v1", "paused.v1", "cancelled.v1":
		if since, ok := r.stops[e.Name]; ok {
			r.stop = append(r.stop, r.now.Sub(since))
			delete(r.stops, e.Name)
		}
	}
	if cmd := commandOf(e); cmd != nil {
		intent := domain.IntendJob(e.Name, cmd)
		in.intent = &intent
		r.inputs = append(r.inputs, in)
	}
	if change == "stepGiven.v1" || change == "tracked.v1" {
		r.inputs = append(r.inputs, in)
	}
}

// follow adds an event of a job to the job's workload.
func (r *reading) follow(w *workload, e eventlog.Event) {
	switch _, change := kindAndChange(e); change {
	case "resumed.v1", "stepGiven.v1":
		w.next()
		w.ahead = r.now
	}
	w.observe(e, r.now)
}

// commandOf returns the command of a user that an event of a job records; nil for an event that is
// not an input.
func commandOf(e eventlog.Event) domain.Command[domain.JobLife] {
	if strings.HasPrefix(e.Actor, "scheduler/") {
		return nil
	}
	switch _, change := kindAndChange(e); change {
	case "cancelling.v1":
		return domain.CancelJob{}
	case "pausing.v1", "paused.v1":
		return domain.PauseJob{Reason: reasonOf(e)}
	case "resumed.v1":
		return domain.ResumeJob{}
	case "deleting.v1":
		return domain.DeleteJob{}
	case "prioritized.v1":
		var p domain.JobPrioritized
		if json.Unmarshal(e.Data, &p) == nil {
			return domain.SetJobPriority{Priority: cmp.Or(p.Priority, domain.PriorityNormal)}
		}
	}
	return nil
}

// node adds an event of a node to the inputs, unless the schedulers decided it.
func (r *reading) node(in input) {
	switch in.event.Type {
	case "allocation.placed.v1", "allocation.released.v1", "node.drained.v1":
		return
	case "node.registered.v1":
		var registered domain.NodeRegistered
		if json.Unmarshal(in.event.Data, &registered) == nil {
			r.learn(in.event.Name, registered.NodeSpec)
		}
	}
	r.inputs = append(r.inputs, in)
}

// learn records the spec of a node, so that settings can add nodes with the same spec.
func (r *reading) learn(name domain.Name, spec domain.NodeSpec) {
	if len(spec.Engines) == 0 {
		return // the agent is shutting down and has withdrawn its engines
	}
	kind, _ := spec.Capacity.Units()
	r.kinds[name] = cmp.Or(kind, cpus)
	for _, key := range []string{r.kinds[name], name.ID()} {
		if _, known := r.specs[key]; !known {
			r.specs[key] = spec
		}
	}
}

// deployment adds an event of a deployment to the inputs, unless the schedulers decided it: they
// decide about replicas, the states that follow from them, and failures because of missing
// capacity.
func (r *reading) deployment(in input) {
	e := in.event
	switch e.Type {
	case "deployment.ready.v1", "deployment.deleted.v1", "deployment.purged.v1", "replica.abandoned.v1",
		"replica.removed.v1":
		return
	case "replica.placed.v1":
		r.placed[string(e.Name)+"#"+fieldOf(e, "id")] = r.now
		return
	case "replica.advanced.v1":
		id := string(e.Name) + "#" + fieldOf(e, "id")
		if since, ok := r.placed[id]; ok && fieldOf(e, "state") == domain.ReplicaReady {
			r.ready[e.Name] = append(r.ready[e.Name], r.now.Sub(since))
			delete(r.placed, id)
		}
		return
	case "deployment.failed.v1":
		if statusOf(e).Code == domain.ResourceExhausted.String() {
			return
		}
	}
	r.inputs = append(r.inputs, in)
}

func fieldOf(e eventlog.Event, field string) string {
	var fields map[string]any
	_ = json.Unmarshal(e.Data, &fields)
	text, _ := fields[field].(string)
	return text
}

func reasonOf(e eventlog.Event) string {
	var pausing struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal(e.Data, &pausing)
	return pausing.Reason
}

func outputOf(e eventlog.Event) domain.Name { return domain.Name(fieldOf(e, "output")) }

func statusOf(e eventlog.Event) domain.Status {
	var failed struct {
		Status domain.Status `json:"status"`
	}
	_ = json.Unmarshal(e.Data, &failed)
	return failed.Status
}
