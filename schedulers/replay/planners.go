package replay

import (
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

const (
	maxRounds = 20  // maximum number of plans of each scheduler at one simulated time
	maxSteps  = 256 // maximum steps of a plan that are executed, as in schedulers.Run
	// value of LostAfter in simulations: nodes are lost only when the log has such an event
	never = 100 * 365 * 24 * time.Hour
)

// A planner is a scheduler with the condition for its next plan. On a server, every scheduler plans
// after every event, and most plans are empty. A planner plans only after events to which its
// scheduler reacts, to save time.
type planner struct {
	schedulers.Scheduler
	reacts func(e eventlog.Event) bool // reports whether an event can change the plan
	due    bool
	again  time.Time
}

// planners returns the schedulers of a simulation, ordered so that few of them have to plan again
// at the same time: allocations are released before jobs start.
func planners(v *projections.View) []*planner {
	open := map[domain.Name]bool{}
	for row := range v.Jobs() {
		if life := row.State.Life(); !life.Working() || life.Stopping() {
			open[row.Name] = true
		}
	}
	deployments := v.Deployments.Len() > 0
	return []*planner{
		{Scheduler: schedulers.Nodes{LostAfter: never, ForgetAfter: never}, reacts: ofNode, due: true},
		{Scheduler: schedulers.Drain{}, reacts: drains(v), due: true},
		{Scheduler: schedulers.Expiry{}, reacts: setsDeadline, due: true},
		{Scheduler: schedulers.Allocations{}, reacts: endsWork, due: true},
		{Scheduler: schedulers.Jobs{}, reacts: enablesWork(open, deployments), due: true},
		{Scheduler: schedulers.Replicas{}, reacts: enablesReplicas(deployments), due: true},
	}
}

// ofNode reports whether an event changes a node itself, and not only its allocations.
func ofNode(e eventlog.Event) bool { return strings.HasPrefix(e.Type, "node.") }

// drains returns a function that reports, given each event, whether the drain of a node may be in
// progress.
func drains(v *projections.View) func(eventlog.Event) bool {
	draining := false
	for row := range v.Nodes.All() {
		draining = draining || row.State.Draining()
	}
	return func(e eventlog.Event) bool {
		draining = draining || e.Type == "node.draining.v1"
		return draining
	}
}

// setsDeadline reports whether the event may change the time at which a job or deployment expires.
func setsDeadline(e eventlog.Event) bool {
	_, change := kindAndChange(e)
	return change == "created.v1" || change == "resumed.v1" || strings.HasPrefix(e.Type, "deployment.")
}

// endsWork reports whether an event may end an attempt or a replica.
func endsWork(e eventlog.Event) bool {
	switch _, change := kindAndChange(e); change {
	case "created.v1", "validating.v1", "preparing.v1", "queued.v1", "held.v1", "started.v1", "checkpointed.v1",
		"idled.v1", "woken.v1", "writing.v1", "tracked.v1", "prioritized.v1", "preempting.v1", "pausing.v1",
		"purged.v1":
		return false
	}
	return isJob(e.Name.Collection()) || e.Name.Collection() == domain.Deployments.Collection
}

// enablesWork returns a function that reports whether an event may change the plan of Jobs. It
// returns false for events that Jobs itself records when a job starts or waits. It also returns
// false for all events while open is empty and there is no deployment, whose replicas would wait in
// the queue of jobs. open has the jobs that are neither running nor ended, or that were requested
// to stop.
func enablesWork(open map[domain.Name]bool, deployments bool) func(eventlog.Event) bool {
	return func(e eventlog.Event) bool {
		deployments = deployments || e.Name.Collection() == domain.Deployments.Collection
		_, change := kindAndChange(e)
		job := isJob(e.Name.Collection())
		switch change {
		case "started.v1", "completed.v1", "failed.v1", "cancelled.v1", "expired.v1", "purged.v1":
			if job {
				delete(open, e.Name)
			}
		case "held.v1", "checkpointed.v1", "tracked.v1":
		default:
			if job {
				open[e.Name] = true
			}
		}
		switch change {
		case "held.v1", "started.v1", "checkpointed.v1", "placed.v1", "tracked.v1", "purged.v1", "completed.v1":
			return false
		}
		return deployments || len(open) > 0
	}
}

// enablesReplicas returns a function that reports whether an event may change the plan of Replicas.
// It returns false until there is a deployment.
func enablesReplicas(deployments bool) func(eventlog.Event) bool {
	return func(e eventlog.Event) bool {
		deployments = deployments || e.Name.Collection() == domain.Deployments.Collection
		_, change := kindAndChange(e)
		return deployments && change != "checkpointed.v1" && change != "tracked.v1"
	}
}

// plan executes the plans of the schedulers that are due, until no scheduler is due.
func (s *simulation) plan() error {
	for range maxRounds {
		planned := false
		for _, p := range s.schedulers {
			if !p.due && (p.again.IsZero() || p.again.After(s.now)) {
				continue
			}
			planned = true
			plan := p.Plan(s.world.View(), s.now)
			p.due, p.again = false, plan.Again
			if !p.again.After(s.now) {
				p.again = time.Time{}
			}
			s.actor = "scheduler/" + p.Name()
			for _, step := range plan.Steps {
				refused, err := s.execute(step)
				if err != nil {
					return err
				}
				if again := s.now.Add(time.Minute); refused && (p.again.IsZero() || again.Before(p.again)) {
					p.again = again
				}
			}
			s.actor = ""
			p.due = p.due || len(plan.Steps) >= maxSteps
		}
		if !planned {
			return nil
		}
	}
	return nil
}
