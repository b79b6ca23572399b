package eventlog

import (
	"context"
	"iter"

	"anneal/eventlog/integrity"
)

// Files is a reader of the log of a stopped embedded server. It reads the log's block files without
// starting the server. The value is the directory of the streams, as in natsserver.Options.
type Files string

// Read yields the events after a position that match a filter, in order, and a DataLoss error at
// the first gap.
func (f Files) Read(ctx context.Context, filter string, cursor uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for stored, err := range integrity.Events(string(f), cursor) {
			var e Event
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				e, err = Decode(stored.Subject, stored.Header, stored.Body, stored.Position)
			}
			if err == nil && !matches(filter, stored.Subject) {
				continue
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}
