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
	at   uint64          // position up to which the events were read
	last delivery.Cursor // last event of the account that was read
}

// next returns the next events, at most limit. grown is closed when there may be more; it is nil when
// there may be more already. After an error the position is unchanged.
func (s *source) next(ctx context.Context, limit int) (selected []eventlog.Event, grown <-chan struct{}, err error) {
	at, last, size := s.at, s.last, 0
	full := func() bool { return len(selected) == limit || size >= maxFileBytes }
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
				return nil, nil, fmt.Errorf("read events of %s: %w", s.name.Account(), err)
			}
			read(e)
			if full() {
				break
			}
		}
		if !full() {
			at = max(at, end) // events after the last one that was read belong to other accounts
		}
	}
	s.at, s.last = at, last
	return selected, grown, nil
}

// subjects returns the filter of the log for the events of the account.
func (s *source) subjects() string { return "events." + s.name.Account() + ".>" }

func (s *source) own(e eventlog.Event) bool { return e.Name.Account() == s.name.Account() }

// selects reports whether the subscription delivers an event of the account.
func (s *source) selects(e eventlog.Event) bool {
	if !s.spec.Selects(e.Type, e.Name, e.Time) {
		return false
	}
	_, visible := s.Visible(e)
	return visible
}

// confirm reports whether the log has the event of a cursor. It does not when it was restored from a
// backup.
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

// mismatch disables a subscription whose cursor the log does not have.
func (s *session) mismatch(ctx context.Context, cursor delivery.Cursor, then string) error {
	return s.disable(ctx, domain.DataLoss, "the log does not have event %s at position %d, which was the last event that "+
		"was delivered: the log was restored from a backup; %s", cursor.EventID, cursor.Position, then)
}
