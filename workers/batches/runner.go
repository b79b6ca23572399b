// Package batches runs batches of requests to models: it validates the requests, sends them at low
// priority, and stores the results as files.
package batches

import (
	"context"
	"log/slog"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/sessions"
)

// A Gateway sends requests to models as the inference operations of the HTTP API do.
type Gateway interface {
	// Resolve returns the deployment to which a request with an API key for a model would be sent.
	// path is the path of the operation.
	Resolve(ctx context.Context, key domain.Name, path, model string) (domain.Name, error)
	// Load returns the number of requests that a deployment serves at a time (0 if it is unknown), and
	// whether other clients wait for its responses.
	Load(deployment domain.Name) (slots int, busy bool)
	// Send sends a request. It returns when the response is complete or ctx is done.
	Send(ctx context.Context, q Request) Response
}

// A Request is one request of a batch to a model.
type Request struct {
	Key domain.Name // API key that created the batch, in whose name the request is sent
	ID  string      // ID of the request; unchanged when the request is sent again, so that its usage is recorded once
	// Trace is the trace context of the HTTP request that created the batch.
	Trace domain.Trace
	Path  string
	Body  []byte
}

// A Response is the response to a Request, or its failure.
type Response struct {
	Status int
	Body   []byte // JSON body of the response, also of one with an error status
	// Waits reports that the deployment has no free capacity. The same request can succeed later.
	Waits bool
	// Unreachable reports that no replica responded, because its node failed or because the request
	// crashed it.
	Unreachable bool
	// Failed reports another failure of the server or the engine. Another attempt may succeed.
	Failed bool
}

// A Runner runs the batches of all accounts. Only one control plane at a time may run it.
type Runner struct {
	Log     eventlog.Log
	World   *projections.World // state of all resources; must fold the events of Log: see World.Run
	Blobs   *blobs.Store
	Gateway Gateway
	Now     func() time.Time
	Logger  *slog.Logger
}

const (
	firstPause = time.Second
	maxPause   = time.Minute
	// giveUpAfter is how long after its expireTime a batch fails when its files cannot be read or
	// written.
	giveUpAfter = time.Hour
)

// Run runs the batches of all accounts until ctx is done.
func (r *Runner) Run(ctx context.Context) error {
	gates := newGates(r.Gateway, r.Now)
	group := sessions.Group[domain.Batch]{World: r.World, Kind: domain.Batches,
		Needs: func(_ *projections.View, row *batchRow) bool { return row.State.Live() },
		Session: func(ctx context.Context, row *batchRow) {
			s := &session{Runner: r, gates: gates, name: row.Name, event: row.CreateEvent}
			s.run(ctx)
		}}
	return group.Run(ctx)
}

// A session runs one batch.
type session struct {
	*Runner
	gates *gates
	name  domain.Name
	event string // ID of the event that created the batch
	// created is the event that created the batch. The session's events and requests have its
	// correlation and trace. When it could not be read, only its ID is set.
	created eventlog.Event
}

// row returns the current state of the batch; false when the batch was deleted.
func (s *session) row() (*batchRow, bool) {
	row, ok := s.World.View().Batches.Get(s.name)
	return row, ok && row.CreateEvent == s.event
}

// run does the work for each state of the batch until the batch has ended. After an error it tries
// again.
func (s *session) run(ctx context.Context) {
	pause := firstPause
	s.created = eventlog.Event{ID: s.event}
	if row, ok := s.row(); ok {
		if e, err := s.Log.At(ctx, row.CreateVersion); err == nil && e.ID == s.event {
			s.created = e
		}
	}
	for ctx.Err() == nil {
		row, ok := s.row()
		if !ok || !row.State.Live() {
			return
		}
		err := s.step(ctx, row)
		if err == nil {
			pause = firstPause
			continue
		}
		if ctx.Err() != nil {
			return
		}
		s.Logger.Warn("cannot continue a batch: trying again after a pause", "batch", s.name, "error", err, "pause", pause)
		if s.Now().After(row.State.ExpireTime.Add(giveUpAfter)) {
			_ = s.record(ctx, failure("storage_unavailable", "the files of the batch could not be read or written for "+
				giveUpAfter.String()+": create the batch again")) // when this fails too, it is repeated after the pause
		}
		if !eventlog.Sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// step does the work for the current state of the batch. When it returns nil, the batch has the
// next state.
func (s *session) step(ctx context.Context, row *batchRow) error {
	switch row.State.State {
	case domain.BatchValidating:
		return s.validate(ctx, row)
	case domain.BatchInProgress:
		return s.process(ctx, row)
	}
	return s.conclude(ctx, row)
}

func failure(code, message string) domain.FailBatch {
	return domain.FailBatch{Failures: []domain.BatchError{{Code: code, Message: message}}}
}

// recordTimeout is the maximum time for recording an event or storing results.
const recordTimeout = 15 * time.Second

// record executes a command on the batch, and waits until the world has its event. When the batch
// has changed in the meantime, so that the command is refused, record returns nil, because the next
// step sees that change.
func (s *session) record(ctx context.Context, command domain.Command[domain.Batch]) error {
	err := s.do(ctx, domain.Intend(domain.Batches, s.name, command))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil
	}
	return err
}

func (s *session) do(ctx context.Context, intent domain.Intent) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	request := eventlog.Reaction(s.created, "task/batches", s.Now())
	change, err := eventlog.Do(ctx, s.Log, s.World, request, intent)
	if err != nil {
		return err
	}
	return s.World.WaitFor(ctx, change.Position())
}
