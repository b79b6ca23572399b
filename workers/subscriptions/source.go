package subscriptions

import (
	"context"
	"fmt"

	"anneal/blobs/delivery"
	"anneal/domain"
	"anneal/eventlog"
)

// A source reads the events that a subscription selects, in the order of the log.
type source struct {
	*session
	spec domain.SubscriptionSpec
	at   uint64 // position up to which the source has read
	// position and ID of the account's last event up to at, even if the subscription does not
	// select it
	last delivery.Cursor
}

// next returns the next events, at most limit of at most about maxBytes of data. grown is closed when
// there are more events; it is nil when there may be more already. After an error, the next call
// returns the same events.
func (s *source) next(ctx context.Context, limit, maxBytes int) (selected []eventlog.Event,
	grown <-chan struct{}, err error) {
	at, last, size := s.at, s.last, 0
	full := func() bool { return len(selected) == limit || size >= maxBytes }
	read := func(e eventlog.Event) {
		at = e.Position
		if !s.own(e) {
			return
		}
		last = delivery.Cursor{Position: e.Position, EventID: e.ID}
		if s.selects(e) {
			selected, size = append(selected, e), size+len(e.Data)
		}
	}
	recent, end, complete, grown := s.tail.Since(at)
	for i, e := range recent {
		read(e)
		if full() && i < len(recent)-1 {
			grown = nil
			break
		}
	}
	if !complete {
		grown = nil
		for e, err := range s.Log.Read(ctx, s.subjects(), at) {
			if err != nil {
				return nil, nil, fmt.Errorf("read events of account %s: %w", s.name.Account(), err)
			}
			read(e)
			if full() {
				break
			}
		}
		if !full() {
			at = max(at, end) // the events after the last one of the account belong to other accounts
		}
	}
	s.at, s.last = at, last
	return selected, grown, nil
}

// isOld reports whether next reads from the log, because the tail does not have the events any more.
func (s *source) isOld() bool {
	_, _, complete, _ := s.tail.Since(s.at)
	return !complete
}

// subjects returns the filter for the events of the account in the log.
func (s *source) subjects() string { return "events." + s.name.Account() + ".>" }

func (s *source) own(e eventlog.Event) bool { return e.Name.Account() == s.name.Account() }

// selects reports whether the subscription delivers an event of its account.
func (s *source) selects(e eventlog.Event) bool {
	if !s.spec.Selects(e.Type, e.Name, e.Time) {
		return false
	}
	_, visible := s.Visible(e)
	return visible
}

// confirm reports whether the log has the event of a cursor. The log may lack the event after it
// was restored from a backup.
func (s *session) confirm(ctx context.Context, cursor delivery.Cursor) (bool, error) {
	if cursor.EventID == "" {
		return true, nil
	}
	e, err := s.Log.At(ctx, cursor.Position)
	if domain.CodeOf(err) == domain.NotFound {
		return false, nil
	}
	return err == nil && e.ID == cursor.EventID, err
}

// mismatch disables a subscription whose last delivered event is not in the log. The text then says
// what the user must do.
func (s *session) mismatch(ctx context.Context, cursor delivery.Cursor, then string) error {
	return s.disable(ctx, domain.DataLoss, "the log does not have event %s at position %d, which was the last event that "+
		"was delivered: the log was restored from a backup; %s", cursor.EventID, cursor.Position, then)
}
