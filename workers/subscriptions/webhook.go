package subscriptions

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"anneal/blobs/delivery"
	"anneal/domain"
	"anneal/eventlog"
)

const (
	roundEvents   = 64 // maximum number of new events in a round; after a crash they may be sent twice
	maxConcurrent = 8  // maximum number of resources of a subscription whose events are sent concurrently
	// saveIdleEvery is the interval at which the cursor is stored even if no event was sent.
	saveIdleEvery = 30 * time.Second
	// downAfter is the number of consecutive failures after which the webhook counts as down. The next
	// success then makes all retries due.
	downAfter = 8
)

// A webhook delivers the events of a subscription to its webhook, in rounds. In a round, the events
// of one resource are sent in order, and those of different resources concurrently. The state is
// stored after each round, so each event is sent at least once. When an event fails, it waits for a
// retry together with all later events of its resource; the events of other resources are still
// sent.
type webhook struct {
	*session
	source   source
	state    delivery.State
	saved    time.Time
	failures int // number of consecutive failed attempts to send an event to the webhook
}

// run delivers events until ctx is done or the subscription was disabled. It returns an error after
// a failure of the server, such as of its disk.
func (w *webhook) run(ctx context.Context) (err error) {
	if w.state, err = delivery.Load(ctx, w.Blobs, w.name, w.event); err != nil {
		return err
	}
	if w.state.Cursor == (delivery.Cursor{}) {
		w.state.Cursor.Position = w.start
	}
	row, ok := w.row()
	if !ok {
		return nil
	}
	w.saved = w.Now()
	for i := range w.state.Retries { // the subscription was resumed or the server restarted, so retry all events now
		w.state.Retries[i].Due = time.Time{}
	}
	if ok, err := w.redeliver(ctx, &row.State); !ok {
		return err
	}
	w.source = source{session: w.session, spec: row.State.SubscriptionSpec, at: w.state.Cursor.Position,
		last: w.state.Cursor}
	for ctx.Err() == nil {
		position := w.World.Position()
		row, ok := w.row()
		if !ok {
			return nil
		}
		if row.State.Redelivers || row.State.Redelivery.Number > w.state.Redelivery {
			if ok, err := w.redeliver(ctx, &row.State); !ok {
				return err
			}
			w.source.at, w.source.last = w.state.Cursor.Position, w.state.Cursor
		}
		if err := w.turn(ctx, &row.State, position); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// turn runs one round. When there is nothing to send, it waits until there may be.
func (w *webhook) turn(ctx context.Context, s *domain.Subscription, position uint64) error {
	var fresh []eventlog.Event
	var grown <-chan struct{}
	full := len(w.state.Retries) >= w.Policy.Retries
	if !full {
		var err error
		if fresh, grown, err = w.source.next(ctx, roundEvents, maxPageBytes); err != nil {
			return err
		}
	}
	queues, due := w.queues(fresh)
	w.note(fresh)
	moved := w.source.last != w.state.Cursor
	if len(fresh) > 0 || len(queues) > 0 {
		return w.round(ctx, s, queues)
	}
	if moved && w.Now().Sub(w.saved) >= saveIdleEvery {
		if err := w.save(ctx); err != nil {
			return err
		}
	}
	if !full && grown == nil {
		return nil // the source may have more events
	}
	wait := saveIdleEvery
	if !due.IsZero() {
		wait = min(wait, max(due.Sub(w.Now()), 0))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-grown: // a nil channel, which is never ready, when no further events may be read
	case <-w.World.Changed(position): // the world has changed: a redelivery may be requested
	case <-timer.C:
	}
	return nil
}

// A letter is an event to deliver in a round. content is nil when the event must be read from the
// log again.
type letter struct {
	delivery.Letter
	content *eventlog.Event
}

// queues returns the events to send in the next round, by resource: the retries that are due, which
// it removes from the state, and the new events in fresh. New events of a resource that has an
// earlier event waiting join the retries instead. due is the time of the next retry; zero when
// there is none.
func (w *webhook) queues(fresh []eventlog.Event) (queues map[domain.Name][]letter, due time.Time) {
	now := w.Now()
	queues = map[domain.Name][]letter{}
	blocked := map[domain.Name]bool{}
	w.state.Retries = slices.DeleteFunc(w.state.Retries, func(l delivery.Letter) bool {
		_, open := queues[l.Resource]
		if blocked[l.Resource] || !open && l.Due.After(now) {
			if !blocked[l.Resource] && (due.IsZero() || l.Due.Before(due)) {
				due = l.Due
			}
			blocked[l.Resource] = true
			return false
		}
		queues[l.Resource] = append(queues[l.Resource], letter{Letter: l})
		return true
	})
	for i := range fresh {
		e := &fresh[i]
		l := delivery.Letter{Cursor: delivery.Cursor{Position: e.Position, EventID: e.ID}, Type: e.Type, Resource: e.Name}
		if blocked[e.Name] {
			w.state.Retries = append(w.state.Retries, l)
			continue
		}
		queues[e.Name] = append(queues[e.Name], letter{l, e})
	}
	return queues, due
}

// An outcome is the result of sending the events of one resource in a round.
type outcome struct {
	left      []letter // events that were not delivered and wait for a retry, in order
	dead      []letter
	delivered int
	failed    int // number of failed attempts to send an event in this round
	err       error
	last      string // text of the error of the last failed attempt; "" if none failed
}

// round sends the events in queues and stores the new state. It disables the subscription when the
// webhook wants no more events or there are too many dead letters.
func (w *webhook) round(ctx context.Context, s *domain.Subscription, queues map[domain.Name][]letter) error {
	sign, err := w.signerOf(ctx, s)
	if err != nil {
		w.putBack(queues)
		if code := domain.CodeOf(err); code == domain.NotFound || code == domain.DataLoss {
			return errors.Join(w.save(ctx), w.disable(ctx, code, "the signing secret of the subscription cannot be "+
				"decrypted: rotate it, then resume the subscription"))
		}
		return err
	}
	free, results := make(chan struct{}, maxConcurrent), make(chan outcome, len(queues))
	var sending sync.WaitGroup
	for _, queue := range queues {
		free <- struct{}{}
		sending.Go(func() {
			results <- w.sendAll(ctx, s.Webhook.URL, sign, queue)
			<-free
		})
	}
	sending.Wait()
	close(results)
	var failed error
	gone, overflow, recovered := false, false, false
	for r := range results {
		failed = errors.Join(failed, r.err)
		gone = gone || r.last == errGone.Error()
		if r.delivered > 0 {
			recovered = recovered || w.failures >= downAfter
			w.failures = 0
			w.state.LastDelivery = w.Now()
		}
		w.state.Delivered += int64(r.delivered)
		w.Metrics.count(r)
		if r.failed > 0 {
			w.failures += r.failed
			w.state.LastError, w.state.LastFailure = r.last, w.Now()
		}
		for _, l := range r.left {
			w.state.Retries = append(w.state.Retries, l.Letter)
		}
		for _, l := range r.dead {
			// there are too many dead letters, so the event keeps waiting for a retry and is not
			// lost
			if len(w.state.DeadLetters) >= w.Policy.DeadLetters {
				overflow, w.state.Retries = true, append(w.state.Retries, l.Letter)
				continue
			}
			w.state.DeadLetters = append(w.state.DeadLetters, l.Letter)
		}
	}
	w.order(recovered)
	if err := errors.Join(failed, w.save(ctx)); err != nil {
		return err
	}
	switch {
	case gone:
		return w.disable(ctx, domain.FailedPrecondition, "the webhook responds with status 410 (Gone), so it wants no more "+
			"events; to deliver them again, resume the subscription")
	case overflow:
		return w.disable(ctx, domain.ResourceExhausted, "%d events could not be delivered within %s each, which is the "+
			"maximum number of dead letters: repair the webhook, request the redelivery of the dead letters, then resume the "+
			"subscription", w.Policy.DeadLetters, w.Policy.GiveUp)
	}
	return nil
}

// putBack moves the events of a round that did not take place into the retries.
func (w *webhook) putBack(queues map[domain.Name][]letter) {
	for _, queue := range queues {
		for _, l := range queue {
			w.state.Retries = append(w.state.Retries, l.Letter)
		}
	}
	w.order(false)
}

// order sorts retries and dead letters by position. With allDue it makes all retries due.
func (w *webhook) order(allDue bool) {
	byPosition := func(a, b delivery.Letter) int {
		switch {
		case a.Position < b.Position:
			return -1
		case a.Position > b.Position:
			return 1
		}
		return 0
	}
	slices.SortFunc(w.state.Retries, byPosition)
	slices.SortFunc(w.state.DeadLetters, byPosition)
	for i := range w.state.Retries {
		if allDue {
			w.state.Retries[i].Due = time.Time{}
		}
	}
}

// sendAll sends the events of one resource in order, until one fails.
func (w *webhook) sendAll(ctx context.Context, address string, sign signer, queue []letter) (out outcome) {
	for i := range queue {
		l := &queue[i]
		if out.err = w.read(ctx, l); out.err != nil {
			out.left = queue[i:]
			return out
		}
		err := w.send(ctx, address, sign, *l.content)
		switch {
		case err == nil:
			out.delivered++
			continue
		case ctx.Err() != nil: // the subscription was paused, or the server is shutting down
			out.left = queue[i:]
			return out
		}
		now := w.Now()
		if l.Attempts++; l.Since.IsZero() {
			l.Since = now
		}
		out.failed++
		l.Last, l.Error, out.last = now, err.Error(), err.Error()
		if now.Sub(l.Since) >= w.Policy.GiveUp && !errors.Is(err, errGone) {
			out.dead = append(out.dead, *l)
			continue
		}
		l.Due = now.Add(w.backoff(l.Attempts, err))
		out.left = queue[i:]
		return out
	}
	return out
}

// read reads the event of a letter from the log, unless the letter already has it.
func (w *webhook) read(ctx context.Context, l *letter) error {
	if l.content != nil {
		return nil
	}
	e, err := w.Log.At(ctx, l.Position)
	if err == nil && e.ID != l.EventID {
		err = domain.Errorf(domain.DataLoss, "the log has event %s at position %d, not %s", e.ID, l.Position, l.EventID)
	}
	l.content = &e
	if err != nil {
		l.content = nil
	}
	return err
}

// backoff returns the time until the next attempt after the given number of failed attempts. It
// grows exponentially. A random part of up to half keeps a webhook that was down from receiving all
// retries at once.
func (w *webhook) backoff(attempts int, err error) time.Duration {
	wait := min(w.Policy.FirstBackoff<<min(attempts-1, 20), w.Policy.MaxBackoff)
	wait = wait/2 + rand.N(max(wait/2, 1))
	var refused refusedError
	if errors.As(err, &refused) {
		wait = max(wait, refused.after)
	}
	return wait
}

// save stores the state, even when ctx is done.
func (w *webhook) save(ctx context.Context) error {
	if w.source.last.Position > w.state.Cursor.Position {
		w.state.Cursor = w.source.last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := delivery.Save(ctx, w.Blobs, w.name, w.event, &w.state); err != nil {
		return err
	}
	w.saved = w.Now()
	return nil
}

// note sets session.oldest to the time of the oldest event that is not delivered, for the metric of
// the lag.
func (w *webhook) note(fresh []eventlog.Event) {
	oldest := int64(0)
	if len(fresh) > 0 {
		oldest = fresh[0].Time.UnixNano()
	}
	for _, l := range w.state.Retries {
		if since := l.Since; !since.IsZero() && (oldest == 0 || since.UnixNano() < oldest) {
			oldest = since.UnixNano()
		}
	}
	w.oldest.Store(oldest)
}

// redeliver begins a requested redelivery that has not begun yet. It also checks that the log has
// the last delivered event; otherwise it disables the subscription and returns false.
func (w *webhook) redeliver(ctx context.Context, s *domain.Subscription) (bool, error) {
	known, err := w.confirm(ctx, w.state.Cursor)
	if err != nil {
		return false, err
	}
	pending := s.Redelivery.Number > w.state.Redelivery
	position := uint64(s.Redelivery.Position)
	if pending && position > 0 && (!known || position <= w.state.Cursor.Position) {
		if err := w.rewind(ctx, position, known); err != nil {
			return false, err
		}
		known = true
	}
	if !known {
		return false, w.mismatch(ctx, w.state.Cursor, "request a redelivery from a position, then resume the subscription")
	}
	if pending {
		if err := w.startRedelivery(ctx, s.Redelivery); err != nil {
			return false, err
		}
	}
	if !s.Redelivers {
		return true, nil
	}
	return true, w.record(ctx, domain.CompleteRedelivery{Number: s.Redelivery.Number})
}

// rewind moves the cursor back to before a position, so that later events are sent again, and
// removes retries and dead letters for them. When the log lacks the cursor's event (known is
// false), it also removes retries and dead letters whose events the log lacks.
func (w *webhook) rewind(ctx context.Context, position uint64, known bool) error {
	var failed error
	obsolete := func(l delivery.Letter) bool {
		if known || l.Position >= position {
			return l.Position >= position
		}
		found, err := w.confirm(ctx, l.Cursor)
		failed = errors.Join(failed, err)
		return !found
	}
	w.state.Retries = slices.DeleteFunc(w.state.Retries, obsolete)
	w.state.DeadLetters = slices.DeleteFunc(w.state.DeadLetters, obsolete)
	w.state.Cursor = delivery.Cursor{Position: position - 1}
	return failed
}

// startRedelivery makes the requested dead letters due for a retry, and stores that the redelivery
// has begun.
func (w *webhook) startRedelivery(ctx context.Context, r domain.Redelivery) error {
	if r.DeadLetters {
		for _, l := range w.state.DeadLetters {
			l.Attempts, l.Since, l.Due = 0, time.Time{}, time.Time{}
			w.state.Retries = append(w.state.Retries, l)
		}
		w.state.DeadLetters = nil
	}
	w.state.Redelivery = r.Number
	w.order(false)
	w.source.last = w.state.Cursor
	return w.save(ctx)
}
