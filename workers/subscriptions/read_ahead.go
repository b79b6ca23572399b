package subscriptions

import (
	"context"

	"anneal/eventlog"
)

// pagesAhead is the number of pages that are read and encoded before they are used, besides the one
// that is being read.
const pagesAhead = 1

// A page is a result of source.next.
type page struct {
	events []eventlog.Event
	lines  [][]byte        // lines[i] is the encoding of events[i]
	grown  <-chan struct{} // result grown of source.next: closed when the log has more events
	err    error
	after  source // the state of the source after the events
}

// A reader reads pages of a source while the caller uses earlier ones.
type reader struct {
	pages <-chan page // closed after a page with an error, and after the last page that the log has now
	stop  func()      // ends the reader, and returns when it has ended
}

// readAhead starts a reader of the events after the state of the source. Its pages have at most about
// maxBytes of data.
func (s source) readAhead(ctx context.Context, maxBytes int, encode func([]eventlog.Event) ([][]byte, error)) *reader {
	ctx, cancel := context.WithCancel(ctx)
	pages := make(chan page, pagesAhead)
	go func() {
		defer close(pages)
		for more := true; more; {
			var p page
			if p.events, p.grown, p.err = s.next(ctx, readEvents, maxBytes); p.err == nil {
				p.lines, p.err = encode(p.events)
			}
			p.after = s
			more = p.err == nil && p.grown == nil
			select {
			case pages <- p:
			case <-ctx.Done():
				return
			}
		}
	}()
	return &reader{pages: pages, stop: func() {
		cancel()
		for range pages {
		}
	}}
}
