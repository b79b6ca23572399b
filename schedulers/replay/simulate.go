package replay

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

const (
	minSaves       = time.Minute // minimum time between two simulated checkpoints of an attempt
	maxCheckpoints = 100         // maximum number of simulated checkpoints of an attempt
)

// A simulation repeats the inputs of a period with a virtual clock, and lets the schedulers decide.
type simulation struct {
	*period
	settings   Settings
	world      *projections.World
	meter      *meter
	step       time.Duration
	now        time.Time
	timers     timers
	jobs       map[domain.Name]*run
	schedulers []*planner
	actor      string                 // actor of the events that the simulation applies
	recorded   func(e eventlog.Event) // called for each event; nil except in tests
}

// A run is the simulated execution of a job's workload.
type run struct {
	*workload
	segment int
	done    bool          // the current segment of the workload has ended
	saved   time.Duration // work of the current segment that its last checkpoint contains
	began   time.Time     // time at which the running attempt began
	crashes int           // number of crashes in the current segment that were simulated so far
}

// newSimulation returns a simulation of the period, which must not be changed any more.
func newSimulation(p *period, settings Settings, step time.Duration) *simulation {
	s := &simulation{period: p, settings: settings, world: projections.Fork(p.base), step: step, now: p.from,
		jobs: map[domain.Name]*run{}}
	s.world.SetClock(func() time.Time { return s.now })
	for name, w := range p.running {
		s.jobs[name] = &run{workload: w}
	}
	s.schedulers = planners(s.world.View())
	return s
}

// run simulates the period and returns the result.
func (s *simulation) run(ctx context.Context) (Result, error) {
	s.meter = newMeter(s.settings.Name, s.world.View(), s.from)
	fail := func(err error) (Result, error) { return Result{Name: s.settings.Name}, err }
	s.resume()
	if err := s.settings.begin(s); err != nil {
		return fail(err)
	}
	if err := s.plan(); err != nil {
		return fail(err)
	}
	inputs := s.inputs
	for {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		until, ok := s.next(inputs)
		if !ok {
			break
		}
		var err error
		if inputs, err = s.advance(inputs, until); err != nil {
			return fail(err)
		}
		s.now = until
		if err := s.plan(); err != nil {
			return fail(err)
		}
	}
	if _, err := s.advance(inputs, s.to); err != nil { // what happens after the last plan
		return fail(err)
	}
	s.now = s.to
	if err := s.plan(); err != nil {
		return fail(err)
	}
	return s.meter.result(s.world.View(), s.to), nil
}

// advance applies the inputs and fires the timers up to the time end, in the order of their times.
// It returns the inputs after that time.
func (s *simulation) advance(inputs []input, end time.Time) ([]input, error) {
	for {
		at, timed := s.timers.first()
		timed = timed && !at.After(end)
		given := len(inputs) > 0 && !inputs[0].at.After(end)
		switch {
		case timed && (!given || at.Before(inputs[0].at)):
			t := heap.Pop(&s.timers).(timer)
			s.now = later(s.now, t.at)
			if err := s.fire(t); err != nil {
				return nil, err
			}
		case given:
			s.now = later(s.now, inputs[0].at)
			if err := s.input(inputs[0]); err != nil {
				return nil, err
			}
			inputs = inputs[1:]
		default:
			return inputs, nil
		}
	}
}

// next returns the time at which the schedulers plan next; false at the end of the period.
func (s *simulation) next(inputs []input) (time.Time, bool) {
	until := s.to
	if len(inputs) > 0 {
		until = earlier(until, inputs[0].at)
	}
	if at, ok := s.timers.first(); ok {
		until = earlier(until, at)
	}
	for _, p := range s.schedulers {
		if !p.again.IsZero() {
			until = earlier(until, p.again)
		}
	}
	until = later(until, s.now.Add(s.step))
	return until, until.Before(s.to)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// resume adds timers for what exists when the period begins: for the ends of running attempts, and
// for replicas that become ready.
func (s *simulation) resume() {
	v := s.world.View()
	for row := range v.Jobs() {
		life := row.State.Life()
		if r := s.jobs[row.Name]; r != nil && life.Active() && life.StartTime != nil {
			s.started(r, life, *life.StartTime)
			if life.Stopping() {
				s.at(s.now.Add(s.stop), timer{job: row.Name, attempt: life.Attempt, does: stops})
			}
		}
	}
	for row := range v.Deployments.All() {
		for _, r := range row.State.Ordered() {
			if r.State != domain.ReplicaReady {
				s.placed(row.Name, r)
			}
		}
	}
}

// input applies an input. It ignores an event of a resource that does not exist in the simulation.
func (s *simulation) input(in input) error {
	name := in.event.Name
	if s.settings.drops(in) {
		return nil
	}
	if in.intent != nil {
		s.try(*in.intent)
		return nil
	}
	if !in.creates && s.world.Lookup(name).State == nil {
		return nil
	}
	if in.work != nil {
		s.jobs[name] = &run{workload: in.work}
	}
	if err := s.apply(name, s.settings.change(in.event.Record)); err != nil {
		return err
	}
	s.settings.repeat(s, name)
	return nil
}

// try decides an intent and applies its event. It reports whether there was an event, and returns
// the error if the intent is refused. No other goroutine changes the world, so no decision has to
// be repeated.
func (s *simulation) try(intent domain.Intent) (applied bool, err error) {
	row := s.world.Lookup(intent.Name)
	if intent.IsStale(row.Version) {
		return false, domain.ErrStale
	}
	record, err := intent.Decide(row.State, s.now)
	if err != nil || record.Type == "" {
		return false, err
	}
	return true, s.apply(intent.Name, record)
}

func simulatedID(position uint64) string { return fmt.Sprintf("simulated-%d", position) }

// apply folds an event at the current simulated time, and adds timers for what follows from it.
func (s *simulation) apply(name domain.Name, record domain.Record) error {
	e := eventlog.Event{Record: record, Position: s.world.Position() + 1, Name: name, Time: s.now, Actor: s.actor}
	e.ID = simulatedID(e.Position)
	if err := s.world.Apply(e); err != nil {
		return err
	}
	s.meter.observe(e, s.world, s.now)
	if s.recorded != nil {
		s.recorded(e)
	}
	switch {
	case isJob(name.Collection()):
		s.follow(e)
	case record.Type == "replica.placed.v1":
		if d, ok := s.world.Lookup(name).State.(domain.Deployment); ok {
			s.placed(name, d.Replicas[fieldOf(e, "id")])
		}
	}
	for _, p := range s.schedulers {
		p.due = p.due || p.reacts(e)
	}
	return nil
}

// follow adds timers for what follows from an event of a job.
func (s *simulation) follow(e eventlog.Event) {
	r, life := s.jobs[e.Name], lifeOf(s.world, e.Name)
	if r == nil || life == nil {
		return
	}
	switch _, change := kindAndChange(e); change {
	case "started.v1":
		if r.done && r.segment+1 < len(r.segments) {
			r.segment++
			r.done, r.saved, r.crashes = false, 0, 0
		}
		s.started(r, life, s.now)
	case "preempting.v1", "pausing.v1", "cancelling.v1":
		if life.Active() {
			s.at(s.now.Add(s.stop), timer{job: e.Name, attempt: life.Attempt, does: stops})
		}
	}
	if life.Terminal() && !r.ahead.After(s.now) {
		s.at(s.now, timer{job: e.Name, does: purges})
	}
}

// started adds timers for the checkpoints and the end of an attempt that began at the given time.
func (s *simulation) started(r *run, life *domain.JobLife, began time.Time) {
	r.began = began
	part := r.segments[r.segment]
	left := max(0, part.work-r.saved)
	t := timer{job: r.name, attempt: life.Attempt, does: ends}
	if r.crashes < len(part.crashes) && part.crashes[r.crashes] < left {
		left, t.does = part.crashes[r.crashes], crashes
	}
	s.at(later(s.now, began.Add(left)), t)
	if r.saves > 0 {
		every := max(r.saves, minSaves, left/maxCheckpoints)
		first := began.Add(every)
		for first.Before(s.now) {
			first = first.Add(every)
		}
		s.at(first, timer{job: r.name, attempt: life.Attempt, does: saves, every: every})
	}
}

// placed adds the timer at which a replica becomes ready.
func (s *simulation) placed(deployment domain.Name, r domain.Replica) {
	after := cmp.Or(s.ready[deployment], s.ready[""])
	s.at(s.now.Add(after), timer{job: deployment, replica: r.ID, node: r.Node, does: serves})
}

// fire executes a timer. It ignores a timer of an attempt that has ended.
func (s *simulation) fire(t timer) error {
	if t.does == serves {
		_, err := s.try(domain.Intend(domain.Deployments, t.job, domain.Command[domain.Deployment](
			domain.AdvanceReplica{ID: t.replica, State: domain.ReplicaReady, Node: t.node})))
		return unexpected(err)
	}
	life, r := lifeOf(s.world, t.job), s.jobs[t.job]
	if life == nil || r == nil {
		return nil
	}
	if t.does == purges {
		if !life.Terminal() {
			return nil
		}
		delete(s.jobs, t.job)
		return s.apply(t.job, purgeOf(t.job, 0, s.now).Record)
	}
	if life.Attempt != t.attempt || !life.Active() {
		return nil
	}
	part := r.segments[r.segment]
	switch t.does {
	case saves:
		if !life.Stopping() {
			s.save(r, life)
			s.at(s.now.Add(t.every), t)
		}
		return nil
	case stops:
		if !life.Stopping() {
			return nil
		}
		s.save(r, life)
		_, err := s.try(domain.IntendJob(t.job, life.ConfirmStop(t.attempt)))
		return unexpected(err)
	case crashes:
		r.crashes++
		_, err := s.try(domain.IntendJob(t.job, domain.RequeueJob{Attempt: t.attempt, Reason: "the attempt failed"}))
		return unexpected(err)
	}
	r.done = true
	var err error
	switch job, _ := projections.CurrentJob(s.world, t.job); {
	case part.end == fails:
		_, err = s.try(domain.IntendJob(t.job, domain.FailJob{Attempt: t.attempt, Status: part.failure}))
	case job.State.Spec().Waits:
		_, err = s.try(domain.Intend(domain.TrainerJobs, t.job, domain.Command[domain.TrainerJob](
			domain.FinishTrainStep{Attempt: t.attempt, Output: part.output})))
	default:
		_, err = s.try(domain.IntendJob(t.job, domain.CompleteJob{Attempt: t.attempt, Output: part.output}))
	}
	return unexpected(err)
}

// save records a checkpoint of the running attempt.
func (s *simulation) save(r *run, life *domain.JobLife) {
	step := 1
	if last, ok := life.LastCheckpoint(); ok {
		step = last.Step + 1
	}
	since := r.began
	if last, ok := life.LastCheckpoint(); ok && last.Attempt == life.Attempt {
		since = later(since, last.Time)
	}
	applied, err := s.try(domain.IntendJob(r.name, domain.RecordCheckpoint{
		JobCheckpoint: domain.JobCheckpoint{Attempt: life.Attempt, Step: step}}))
	if err == nil && applied {
		r.saved += max(0, s.now.Sub(since))
	}
}

// unexpected returns err, or nil if err is the refusal of a command.
func unexpected(err error) error {
	var refused *domain.Error
	if errors.As(err, &refused) && refused.Code != domain.Internal {
		return nil
	}
	return err
}

// execute executes one step of a plan, as schedulers.Run does. It reports whether the step was
// refused.
func (s *simulation) execute(step schedulers.Step) (refused bool, err error) {
	reserved := false
	for _, intent := range step.Intents() {
		applied, err := s.try(intent)
		switch {
		case unexpected(err) != nil:
			return true, err
		case err != nil && reserved && step.Abandon != nil:
			_, err = s.try(*step.Abandon)
			return true, unexpected(err)
		case err != nil:
			return true, nil
		}
		reserved = reserved || applied
	}
	return false, nil
}

// lifeOf returns the lifecycle state of a job; nil if the job does not exist.
func lifeOf(world *projections.World, name domain.Name) *domain.JobLife {
	row, ok := projections.CurrentJob(world, name)
	if !ok {
		return nil
	}
	return row.State.Life()
}
