// Package subscriptions delivers the events of accounts to the targets of their subscriptions:
// webhooks (by the specification Standard Webhooks) and files in object stores.
package subscriptions

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
	"anneal/workers/sessions"
)

// A Runner delivers the events of all subscriptions. One control plane at a time should run it.
// When two run it, webhooks receive events more than once, and files are written twice with the
// same content.
type Runner struct {
	Log     eventlog.Log
	World   *projections.World // state of all resources; must fold the events of Log: see World.Run
	Blobs   *blobs.Store
	Open    secrets.OpenFunc
	Webhook *http.Client // HTTP client for webhooks
	Store   *http.Client // HTTP client for object stores
	// Visible returns an event as readers of its account may see it; false for an event that they may
	// not see.
	Visible func(eventlog.Event) (eventlog.Event, bool)
	Now     func() time.Time
	Logger  *slog.Logger
	Metrics *Metrics
	Policy  Policy // a zero field means that of DefaultPolicy

	slots *slots
}

// A Policy has the times and limits of deliveries.
type Policy struct {
	FirstBackoff time.Duration // pause after the first failed attempt to send an event; doubled after each further one
	MaxBackoff   time.Duration
	GiveUp       time.Duration // time from the first attempt for an event until the event becomes a dead letter
	FileInterval time.Duration // maximum time from an event until the file with it is written
	FileEvents   int           // maximum number of events in a file
	DeadLetters  int           // maximum number of dead letters of a subscription
	Retries      int           // number of events waiting for a retry at which a subscription reads no further events
	LargeFiles   int           // maximum number of files above maxSmallFile, and of reads of old events, in memory
}

// DefaultPolicy is the Policy of a server.
var DefaultPolicy = Policy{FirstBackoff: 5 * time.Second, MaxBackoff: 3 * time.Hour, GiveUp: 72 * time.Hour,
	FileInterval: time.Minute, FileEvents: 50_000, DeadLetters: 1000, Retries: 256, LargeFiles: 4}

// RequestTimeout is the maximum time of one request to a webhook.
const RequestTimeout = 15 * time.Second

const (
	firstPause    = time.Second
	maxPause      = time.Minute
	recordTimeout = 15 * time.Second // maximum time for recording an event or storing the state of a delivery
)

// Run delivers the events of all subscriptions until ctx is done.
func (r *Runner) Run(ctx context.Context) error {
	if r.Policy == (Policy{}) {
		r.Policy = DefaultPolicy
	}
	r.slots = newSlots(max(r.Policy.LargeFiles, 1))
	tail := eventlog.NewTail(r.Log, r.Logger)
	defer tail.Close()
	tail.Start(r.World.Position())
	group := sessions.Group[domain.Subscription]{World: r.World, Kind: domain.Subscriptions, Needs: delivers,
		Others: []domain.AnyKind{domain.Accounts}, Session: func(ctx context.Context, row *subscriptionRow) {
			s := &session{Runner: r, tail: tail, name: row.Name, event: row.CreateEvent, start: startOf(row)}
			s.run(ctx)
		}}
	return group.Run(ctx)
}

type subscriptionRow = projections.Row[domain.Subscription]

// delivers reports whether events are delivered to a subscription: it is ACTIVE, and its account is
// not suspended.
func delivers(v *projections.View, row *subscriptionRow) bool {
	account, ok := v.Accounts.Get(domain.Name("accounts/" + row.Name.Account()))
	return row.State.State == domain.SubscriptionActive && (!ok || !account.State.Suspended())
}

// startOf returns the position after which the events of a subscription begin.
func startOf(row *subscriptionRow) uint64 {
	switch s := &row.State; {
	case s.StartPosition != nil:
		return uint64(*s.StartPosition)
	case s.StartTime != nil:
		return 0 // begin with the first event; Selects then skips those before StartTime
	}
	return row.CreateVersion
}

// A session delivers the events of one subscription while it is ACTIVE.
type session struct {
	*Runner
	tail  *eventlog.Tail
	name  domain.Name
	event string // ID of the event that created the subscription
	start uint64 // position after which the events of the subscription begin

	// oldest is the time, in Unix nanoseconds, of the oldest event that was read but not delivered; 0
	// when there is none.
	oldest atomic.Int64
}

// row returns the subscription; false when its events are not delivered any more.
func (s *session) row() (*subscriptionRow, bool) {
	view := s.World.View()
	row, ok := view.Subscriptions.Get(s.name)
	return row, ok && row.CreateEvent == s.event && delivers(view, row)
}

// run delivers events until the subscription is not ACTIVE any more or ctx is done. After an error
// it begins again, from the stored state.
func (s *session) run(ctx context.Context) {
	s.Metrics.begin(s)
	defer s.Metrics.end(s)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		row, ok := s.row()
		if !ok || ctx.Err() != nil {
			return
		}
		began := s.Now()
		var err error
		if row.State.Webhook != nil {
			err = (&webhook{session: s}).run(ctx)
		} else {
			err = newFiles(s).run(ctx)
		}
		if ctx.Err() != nil || err == nil {
			return
		}
		if s.Now().Sub(began) > maxPause {
			pause = firstPause
		}
		s.Logger.Warn("cannot deliver the events of a subscription: trying again after a "+
			"pause", "subscription", s.name, "error", err, "pause", pause)
		if !eventlog.Sleep(ctx, pause) {
			return
		}
	}
}

// record executes a command on the subscription, and waits until the world has its event. It
// returns nil when the command is refused because the subscription has changed.
func (s *session) record(ctx context.Context, command domain.Command[domain.Subscription]) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	change, err := eventlog.Do(ctx, s.Log, s.World, eventlog.Request{Time: s.Now(), Actor: "task/subscriptions"},
		domain.Intend(domain.Subscriptions, s.name, command).Of(s.event))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil
	case domain.OK:
		return s.World.WaitFor(ctx, change.Position())
	}
	return err
}

// disable disables the subscription. The message says what its user must correct.
func (s *session) disable(ctx context.Context, code domain.Code, format string, args ...any) error {
	return s.record(ctx, domain.DisableSubscription{Status: domain.StatusOf(domain.Errorf(code, format, args...))})
}

// encode returns an event as the target receives it: a CloudEvent in JSON, with secrets removed.
func (r *Runner) encode(e eventlog.Event) ([]byte, error) {
	shown, _ := r.Visible(e)
	return json.Marshal(eventlog.Structured(shown))
}
