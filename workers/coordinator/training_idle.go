package coordinator

import (
	"context"
	"sync"
	"time"

	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/protocol"
)

// idle reports whether the training service of a job has been idle for idleAfter: no session has
// sent a heartbeat, and no operation was submitted or finished.
func (a *assigner) idle(v *projections.View, j job) bool {
	if !j.Service || a.idleAfter <= 0 || j.Life.StartTime == nil {
		return false
	}
	since := v.Live.TrainingActivity(j.Name)
	if j.Life.StartTime.After(since) {
		since = *j.Life.StartTime
	}
	return a.now().Sub(since) >= a.idleAfter
}

// serviceAssignment completes the assignment of an attempt that serves training runs.
func (a *assigner) serviceAssignment(ctx context.Context, view *projections.View, j job,
	assignment protocol.TrainAssignment) (protocol.TrainAssignment, error) {
	base, _, err := a.modelFiles(ctx, view, j.Base, "")
	if err != nil {
		return assignment, err
	}
	assignment.Serve, assignment.Base, assignment.BaseModel = true, *base, j.Base
	if row, ok := view.Models.Get(j.Base); ok && row.State.Kind == domain.PEFTAddon {
		assignment.BaseModel = domain.Name(row.State.BaseModel)
	}
	assignment.LogURL, assignment.EarlierLogURL, err = signLogs(ctx, a.blobs, j)
	return assignment, err
}

// stopService makes a job IDLE whose attempt has stopped because the training service is idle.
func (r *reports) stopService(ctx context.Context, node string, j job, attempt int) error {
	return r.do(ctx, node, domain.Intend(domain.TrainerJobs, j.Name,
		domain.Command[domain.TrainerJob](domain.StopService{Attempt: attempt})).Of(j.Event))
}

// A serviceProgress records which attempts have stored results of operations since this process
// started.
type serviceProgress struct {
	mu       sync.Mutex
	attempts map[string]int // by ID of the event that created the job: number of the attempt
}

func (p *serviceProgress) record(j job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempts[j.Event] = j.Life.Attempt
}

// made reports whether the current attempt of a job has made progress. If such an attempt is lost,
// the loss does not count as a failure of the job: otherwise a service that runs for weeks would
// fail after some restarts. An operation that crashes the agent each time still fails the job.
func (p *serviceProgress) made(v *projections.View, j job) bool {
	p.mu.Lock()
	attempt := p.attempts[j.Event]
	p.mu.Unlock()
	return attempt == j.Life.Attempt || projections.ServiceProgressed(v, j.Name, j.Life.Attempt)
}

const sweepInterval = time.Minute // interval at which sweep deletes old results

// sweep deletes old results of samples, and the operations of runs that have ended, from the journals of
// jobs until ctx is done.
func (t *training) sweep(ctx context.Context) {
	ended := map[domain.Name]bool{}
	for eventlog.Sleep(ctx, sweepInterval) {
		view := t.world.View()
		ended = t.endRuns(ctx, view, ended)
		for row := range projections.UnfinishedJobs(view) {
			j := jobOf(row)
			if !j.Service {
				continue
			}
			err := t.journal.Sweep(ctx, j.Name.Account(), j.Event, t.now().Add(-keepResults))
			if err != nil && ctx.Err() == nil {
				t.logger.Warn("cannot delete old results of samples: trying again", "job", j.Name, "error", err)
			}
		}
	}
}

// endRuns deletes the operations and old results of runs that accept no more operations, except of those
// in done. It returns the runs of which nothing is left.
func (t *training) endRuns(ctx context.Context, view *projections.View, done map[domain.Name]bool) (
	left map[domain.Name]bool,
) {
	left = map[domain.Name]bool{}
	for row := range view.Runs.All() {
		switch {
		case row.State.Live():
		case done[row.Name]:
			left[row.Name] = true
		default:
			lane := operations.Lane{Account: row.Name.Account(), Job: row.State.JobEvent, ID: row.Name.ID()}
			all, err := t.journal.End(ctx, lane, t.now().Add(-keepResults))
			if err != nil && ctx.Err() == nil {
				t.logger.Warn("cannot delete the operations of a training run that has ended: trying again", "run", row.Name,
					"error", err)
			}
			if err == nil && all {
				left[row.Name] = true
			}
		}
	}
	return left
}
