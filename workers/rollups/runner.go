// Package rollups sums up usage by hour: the usage records of requests to models, and the time for
// which accelerators were allocated to jobs and deployments. The sums are recorded as events of the
// log.
package rollups

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/metering"
	"anneal/projections"
)

// Records reads the usage stream. *metering.Reader implements it.
type Records interface {
	State(ctx context.Context) (metering.State, error)
	Read(ctx context.Context, after, through uint64, visit func(metering.Record)) error
	Known(ctx context.Context, ids map[string]bool, since time.Time, through uint64) (map[string]bool, error)
}

const (
	// Grace is the time from the end of an hour until its usage is rolled up. Records that arrive
	// later are recorded as corrections.
	Grace = 5 * time.Minute
	// MaxWaiting is the number of usage records after which a window ends before its hour does. It is
	// a fraction of metering.MaxRecords, beyond which the stream deletes records.
	MaxWaiting = metering.MaxRecords / 8
	interval   = 15 * time.Second
	// repeatTime is how far before a window records are searched for the first record of a repeated
	// request. It is longer than a batch takes.
	repeatTime = 48 * time.Hour
	actor      = "task/usage"
)

// A Runner rolls up usage, and returns the usage that is not rolled up yet. Several control planes
// may run one, because the log accepts each window and each part once.
type Runner struct {
	Log     eventlog.Log
	World   *projections.World
	Records Records
	Now     func() time.Time
	Logger  *slog.Logger
	// MaxWaiting is used instead of the constant MaxWaiting if it is positive.
	MaxWaiting uint64

	busy busy
	// allocations at the end of the last complete window; nil until this process has computed them
	folded  *accelerators
	pending *pending
	// end of the last hour whose window was not opened because it has no usage; kept so that the
	// hour is not examined again
	idle   time.Time
	opened time.Time // end of the hour that was the newest complete one when this process last opened a window
}

// busy is a mutex that is locked with a context. A window can take minutes, and a request whose
// client has disconnected must not wait for it.
type busy struct {
	once  sync.Once
	taken chan struct{}
}

func (b *busy) lock(ctx context.Context) error {
	b.once.Do(func() { b.taken = make(chan struct{}, 1) })
	select {
	case b.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *busy) unlock() { <-b.taken }

// pending is the usage after the last complete window, as far as it was read.
type pending struct {
	base     base
	plan     *plan
	devices  *accelerators
	sequence uint64
}

// A base describes the end of the last complete window, at which the next one begins.
type base struct {
	window  uint64
	to      domain.UsageCursor
	until   time.Time
	stream  time.Time
	numbers map[string]uint64
	// newStream says that the usage stream was created again after the last complete window.
	newStream bool
}

func baseOf(row *projections.Row[domain.UsageRollup]) base {
	w := row.State.Window
	b := base{window: w.Number, to: w.To, until: w.Until, stream: w.Stream, numbers: row.State.Numbers}
	if !row.State.Done {
		b.window, b.to, b.until, b.newStream = w.Number-1, w.From, w.Since, row.State.NewStream
	}
	return b
}

func (r *Runner) ledger() *projections.Row[domain.UsageRollup] {
	if row, ok := projections.TableOf(r.World.View(), domain.UsageRollups).Get(domain.UsageLedger); ok {
		return row
	}
	return &projections.Row[domain.UsageRollup]{State: domain.UsageRollup{Done: true}}
}

// Run rolls up usage until ctx is done. It tries again after errors.
func (r *Runner) Run(ctx context.Context) error {
	for {
		more, err := r.Step(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.Logger.Warn("cannot roll up usage: trying again; sums of usage are read from the records until "+
				"then", "error", err, "after", interval)
		}
		if more && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

// Step makes one step: it completes the open window, or opens the next one if it is due. more
// reports whether another step may be due immediately.
func (r *Runner) Step(ctx context.Context) (more bool, err error) {
	if err := r.busy.lock(ctx); err != nil {
		return false, err
	}
	defer r.busy.unlock()
	row := r.ledger()
	if row.State.Exists() && !row.State.Done {
		return true, r.write(ctx, row)
	}
	from, until := baseOf(row), r.Now().UTC().Add(-Grace).Truncate(time.Hour)
	stream, err := r.Records.State(ctx)
	if err != nil {
		return false, err
	}
	window := domain.UsageWindow{Number: from.window + 1, From: from.to, Since: from.until, Until: until,
		Stream: stream.Created}
	if restarted(from, stream) {
		window.From.Sequence = 0
	}
	if !until.After(from.until) {
		waiting := stream.Last - window.From.Sequence
		if waiting < cmp.Or(r.MaxWaiting, MaxWaiting) && (waiting == 0 || !r.behind(from, until)) {
			return false, nil
		}
		window.Until = from.until // end the window now, because the stream would delete records before this hour ends
	}
	window.To = domain.UsageCursor{Sequence: stream.Last, Position: r.World.View().Position}
	if stream.Last == window.From.Sequence {
		if r.idle.Equal(until) {
			return false, nil
		}
		used, err := r.devicesUsed(ctx, from, window, stream)
		if err != nil {
			return false, err
		}
		if !used {
			r.idle = until
			return false, nil
		}
	}
	err = r.do(ctx, domain.Intend(domain.UsageRollups, domain.UsageLedger,
		domain.Command[domain.UsageRollup](domain.OpenUsageWindow{UsageWindow: window})))
	if err == nil {
		r.opened = until
	}
	return true, err
}

// behind reports whether hourEnd, the end of the newest complete hour, is more than an hour before
// the end of the last window. Then the clock of the control plane that opened that window was
// ahead, and Step does not wait until hourEnd passes the end of the window. behind is false if this
// process has already opened a window since hourEnd became the newest, so that it opens at most one
// such window an hour.
func (r *Runner) behind(last base, hourEnd time.Time) bool {
	return hourEnd.Add(time.Hour).Before(last.until) && !hourEnd.Equal(r.opened)
}

// restarted reports whether the usage stream was created again, or has lost records, since the last
// window.
func restarted(from base, stream metering.State) bool {
	return from.window > 0 && (!stream.Created.Equal(from.stream) || stream.Last < from.to.Sequence)
}

func (r *Runner) do(ctx context.Context, intent domain.Intent) error {
	change, err := eventlog.Do(ctx, r.Log, r.World, eventlog.Request{Time: r.Now().UTC(), Actor: actor}, intent)
	if err != nil {
		return fmt.Errorf("record the usage of %s: %w", intent.Name, err)
	}
	return r.World.WaitFor(ctx, change.Position())
}

// write records the rows of the open window and completes it.
func (r *Runner) write(ctx context.Context, row *projections.Row[domain.UsageRollup]) error {
	window := row.State.Window
	p, devices, err := r.planOf(ctx, baseOf(row), window)
	if err != nil {
		return err
	}
	for _, intent := range p.intents() {
		if err := r.do(ctx, intent); err != nil {
			return err
		}
	}
	if err := r.do(ctx, domain.Intend(domain.UsageRollups, domain.UsageLedger,
		domain.Command[domain.UsageRollup](p.completed()))); err != nil {
		return err
	}
	r.folded = devices
	return nil
}

// planOf returns the plan of a window and the allocations at the window's end.
func (r *Runner) planOf(ctx context.Context, from base, window domain.UsageWindow) (*plan, *accelerators, error) {
	p := newPlan(window, from)
	stream, err := r.Records.State(ctx)
	if err != nil {
		return nil, nil, err
	}
	// if the stream was replaced, the records of the new one belong to the next window
	if stream.Created.Equal(window.Stream) {
		if err := r.readRecords(ctx, p, window.From.Sequence, window.To.Sequence, true); err != nil {
			return nil, nil, err
		}
	}
	devices, err := r.devicesAt(ctx, window.From.Position)
	if err != nil {
		return nil, nil, err
	}
	devices = devices.clone()
	if err := r.follow(ctx, devices, window.Since, window.To.Position, p.addCharge); err != nil {
		return nil, nil, err
	}
	devices.charge(window.Since, window.Until, p.addCharge)
	return p, devices, nil
}

// readRecords reads a range of the usage stream into a plan. With lookUp, it looks for records of
// batch requests that repeat a record of an earlier window; their usage is not counted again.
func (r *Runner) readRecords(ctx context.Context, p *plan, after, through uint64, lookUp bool) error {
	var repeatable []metering.Record
	err := r.Records.Read(ctx, after, through, func(one metering.Record) {
		if lookUp && one.Repeatable() {
			repeatable = append(repeatable, one)
			return
		}
		p.addRecord(one, false)
	})
	if err != nil || len(repeatable) == 0 {
		return err
	}
	ids, first := map[string]bool{}, repeatable[0].Time
	for _, one := range repeatable {
		if ids[one.ID] = true; one.Time.Before(first) {
			first = one.Time
		}
	}
	known, err := r.Records.Known(ctx, ids, first.Add(-repeatTime), after)
	for _, one := range repeatable {
		p.addRecord(one, known[one.ID])
	}
	return err
}

// devicesAt returns the allocations at a position of the log, the end of a complete window. The
// caller must not change them.
func (r *Runner) devicesAt(ctx context.Context, position uint64) (*accelerators, error) {
	if r.folded != nil && r.folded.position <= position {
		err := r.follow(ctx, r.folded, time.Time{}, position, func(charge) {})
		return r.folded, err
	}
	devices := newAccelerators()
	if err := r.follow(ctx, devices, time.Time{}, position, func(charge) {}); err != nil {
		return nil, err
	}
	r.folded = devices
	return devices, nil
}

// follow folds the events of nodes up to position into devices.
func (r *Runner) follow(ctx context.Context, devices *accelerators, charged time.Time, position uint64,
	visit func(charge)) error {
	if devices.position >= position {
		return nil
	}
	for e, err := range r.Log.Read(ctx, nodeEvents, devices.position) {
		if err != nil {
			return fmt.Errorf("read events of nodes: %w", err)
		}
		if e.Position > position {
			break
		}
		if err := devices.apply(e, charged, visit); err != nil {
			return err
		}
	}
	devices.position = position
	return nil
}

// devicesUsed reports whether accelerators were allocated at any time in a window.
func (r *Runner) devicesUsed(ctx context.Context, from base, window domain.UsageWindow, stream metering.State) (
	used bool, err error) {
	now, err := r.pendingOf(ctx, from, stream)
	if err != nil {
		return false, err
	}
	if err := r.follow(ctx, now.devices, from.until, window.To.Position, now.plan.addCharge); err != nil {
		return false, err
	}
	now.devices.charge(from.until, window.Until, func(charge) { used = true })
	return used || len(now.plan.groups) > 0, nil
}

// pendingOf returns the usage after the last complete window, as far as it was read. last describes
// the end of that window.
func (r *Runner) pendingOf(ctx context.Context, last base, stream metering.State) (*pending, error) {
	if r.pending != nil && r.pending.base.window == last.window && r.pending.base.until.Equal(last.until) &&
		r.pending.plan.window.Stream.Equal(stream.Created) {
		return r.pending, nil
	}
	devices, err := r.devicesAt(ctx, last.to.Position)
	if err != nil {
		return nil, err
	}
	window := domain.UsageWindow{Number: last.window + 1, From: last.to, Since: last.until, Stream: stream.Created}
	if restarted(last, stream) {
		window.From.Sequence, last.newStream = 0, !stream.Created.Equal(last.stream)
	}
	r.pending = &pending{base: last, devices: devices.clone(), sequence: window.From.Sequence,
		plan: newPlan(window, last)}
	return r.pending, nil
}

// Pending returns the usage after the last complete window, the number of that window, and the time
// until which usage is rolled up. A request of a batch that was sent twice may be counted twice
// until its hour is rolled up.
func (r *Runner) Pending(ctx context.Context) (all []domain.AccountUsage, window uint64, end time.Time, err error) {
	if err := r.busy.lock(ctx); err != nil {
		return nil, 0, time.Time{}, fmt.Errorf("the usage of an hour is still being rolled up: try again: %w", err)
	}
	defer r.busy.unlock()
	from := baseOf(r.ledger())
	stream, err := r.Records.State(ctx)
	if err != nil {
		return nil, 0, time.Time{}, err
	}
	if r.pending != nil && stream.Last < r.pending.sequence {
		r.pending = nil
	}
	now, err := r.pendingOf(ctx, from, stream)
	if err != nil {
		return nil, 0, time.Time{}, err
	}
	if err := r.readRecords(ctx, now.plan, now.sequence, stream.Last, false); err != nil {
		r.pending = nil
		return nil, 0, time.Time{}, err
	}
	now.sequence = stream.Last
	position := r.World.View().Position
	if err := r.follow(ctx, now.devices, from.until, position, now.plan.addCharge); err != nil {
		r.pending = nil
		return nil, 0, time.Time{}, err
	}
	for g := range now.plan.groups {
		for _, row := range now.plan.rowsOf(g) {
			all = append(all, domain.AccountUsage{Account: g.account, UsageRow: row})
		}
	}
	open := newPlan(now.plan.window, base{})
	now.devices.charge(from.until, r.Now().UTC().Truncate(time.Millisecond), open.addCharge)
	for g := range open.groups {
		for _, row := range open.rowsOf(g) {
			all = append(all, domain.AccountUsage{Account: g.account, UsageRow: row})
		}
	}
	return all, from.window, from.until, nil
}
