package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
)

// Limits of one page of Read. firstEvents is the number of events on the first page, which is small
// because many callers read no further. Each page has pageGrowth times as many events as the page
// before, up to pageEvents, and at most pageBytes.
const (
	firstEvents = 64
	pageGrowth  = 4
	pageEvents  = 1024
	pageBytes   = 8 << 20
	// slowPageBytes is the size to which pages shrink on a connection that is too slow for larger
	// ones.
	slowPageBytes = 64 << 10
)

// Read implements Log. It creates no consumer. It asks the stream's leader for the last position,
// then gets the events up to that position from any server that has stored them. So it yields every
// event that was acknowledged before the call.
//
// For each event that a filter selects, the server searches its index of subjects, which takes
// longer than reading the event. When most events match the filter, Read therefore requests all
// events and filters them itself.
func (l *JetStream) Read(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		filter := FilterOf(filter)
		newest, found, err := l.fromLeader(ctx, map[string]any{"last_by_subj": filter})
		if err != nil {
			yield(Event{}, err)
			return
		}
		if !found {
			return
		}
		asked := filter
		for limit := firstEvents; after < newest.Position; limit = min(pageGrowth*limit, pageEvents) {
			page, _, err := l.page(ctx, asked, after+1, limit)
			if err != nil && asked != filter { // an event that does not match the filter may be unreadable
				asked = filter
				page, _, err = l.page(ctx, asked, after+1, limit)
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			before, matched := after, uint64(0)
			for _, e := range page {
				if e.Position > newest.Position {
					return
				}
				after = e.Position
				if asked != filter && !matches(filter, e.Name.Subject()) {
					continue
				}
				if matched++; !yield(e, nil) {
					return
				}
			}
			if asked = filter; len(page) > 0 && 2*matched >= after-before {
				asked = everything
			}
			if len(page) == 0 && !Sleep(ctx, 2*time.Millisecond) { // the replica that replied has not stored the next events yet
				yield(Event{}, ctx.Err())
				return
			}
		}
	}
}

func FilterOf(filter string) string {
	if filter == "" || filter == ">" {
		return everything
	}
	return filter
}

// Count implements Log. It requests one event, because the server's reply has the number of later
// events that match the filter. A server of a cluster counts only the events that it has received.
// Count also calls Last, which waits until the counted events are on disk.
func (l *JetStream) Count(ctx context.Context, filter string) (uint64, error) {
	page, left, err := l.page(ctx, FilterOf(filter), 1, 1)
	if err == nil && l.disk != nil && len(page) > 0 {
		_, err = l.Last(ctx)
	}
	if err != nil {
		return 0, err
	}
	return uint64(len(page)) + left, nil
}

// page reads at most limit events that match a filter and have at least the position first. It
// reads from any replica. left is the number of matching events after the returned ones.
func (l *JetStream) page(ctx context.Context, filter string, first uint64, limit int) (events []Event, left uint64,
	err error) {
	err = l.retryRead(ctx, func(ctx context.Context) error {
		began := time.Now()
		events, left, err = l.pageOnce(ctx, filter, first, limit, l.pageSize.bytes())
		l.pageSize.adjust(err, time.Since(began), l.ackWait/2)
		if len(events) > 0 && errors.Is(err, context.DeadlineExceeded) {
			return nil // the next page continues after the events that have arrived
		}
		return err
	})
	return events, left, err
}

// A pageSize is the maximum size of the next page in bytes. After a page that did not arrive in
// time, because the connection is slow, pages are smaller. They grow again while they arrive
// quickly.
type pageSize struct{ halvings atomic.Int32 } // number of times that pageBytes is halved

func (p *pageSize) bytes() int { return max(pageBytes>>p.halvings.Load(), slowPageBytes) }

// adjust adjusts the size after a page for which a read has waited; it waits at most for limit.
func (p *pageSize) adjust(err error, waited, limit time.Duration) {
	halvings := p.halvings.Load()
	switch {
	case errors.Is(err, context.DeadlineExceeded) && p.bytes() > slowPageBytes:
		p.halvings.CompareAndSwap(halvings, halvings+2)
	case err == nil && halvings > 0 && waited < limit/8:
		p.halvings.CompareAndSwap(halvings, halvings-1)
	}
}

// retryRead repeats a read while the NATS cluster does not reply or reports no responders, as
// during the election of a leader. It returns an error after twice the AckWait.
func (l *JetStream) retryRead(parent context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, 2*l.ackWait)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		if err := l.history.failure(); err != nil {
			return err
		}
		once, cancel := context.WithTimeout(ctx, l.ackWait/2)
		err := try(once)
		cancel()
		switch {
		case err == nil:
			return nil
		case parent.Err() != nil:
			return parent.Err()
		case !notTaken(err) && !errors.Is(err, context.DeadlineExceeded):
			return err
		case !Sleep(ctx, pause):
			if parent.Err() != nil {
				return parent.Err()
			}
			return domain.Errorf(domain.Unavailable, "the event log does not respond (%v): try again", err)
		}
	}
}

// pageOnce requests a page of at most limit events and size bytes. With an error, it returns the
// events that have arrived before.
func (l *JetStream) pageOnce(ctx context.Context, filter string, from uint64, limit, size int) (page []Event,
	left uint64, err error) {
	inbox := l.nc.NewInbox()
	sub, err := l.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	asked := map[string]any{"seq": from, "batch": limit, "max_bytes": size}
	if filter != everything { // without next_by_subj, the server does not search its index of subjects
		asked["next_by_subj"] = filter
	}
	request, err := json.Marshal(asked)
	if err != nil {
		return nil, 0, err
	}
	if err := l.nc.PublishRequest("$JS.API.DIRECT.GET."+Stream, inbox, request); err != nil {
		return nil, 0, err
	}
	last := uint64(0) // position of the last event of the page
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return page, left, err
		}
		switch status := HeaderValue(m.Header, "Status"); status {
		case "":
		case "204", "404": // status "no more messages"
			return page, left, nil
		default:
			return page, left, fmt.Errorf("read events that match %s: status %s %s", filter, status, m.Header.Get("Description"))
		}
		var position, pending uint64
		position, err = strconv.ParseUint(HeaderValue(m.Header, jetstream.SequenceHeader), 10, 64)
		if err == nil {
			pending, err = strconv.ParseUint(HeaderValue(m.Header, "Nats-Num-Pending"), 10, 64)
		}
		if err != nil {
			return page, left, fmt.Errorf("read events that match %s: %w", filter, err)
		}
		if before := HeaderValue(m.Header, "Nats-Last-Sequence"); before != strconv.FormatUint(last, 10) {
			return page, left, fmt.Errorf("the events between %d and %d were lost with the connection: %w", last, position,
				context.DeadlineExceeded)
		}
		e, err := Decode(HeaderValue(m.Header, jetstream.SubjectHeader), m.Header, m.Data, position)
		if err != nil {
			return page, left, err
		}
		page, left, last = append(page, e), pending, position
	}
}

// At implements Log.
func (l *JetStream) At(ctx context.Context, position uint64) (Event, error) {
	if position > 0 {
		e, found, err := l.fromLeader(ctx, map[string]any{"seq": position})
		if err != nil || found {
			return e, err
		}
	}
	return Event{}, domain.Errorf(domain.NotFound, "the event log has no event at position %d", position)
}

// Last implements Log.
func (l *JetStream) Last(ctx context.Context) (Checkpoint, error) {
	e, _, err := l.fromLeader(ctx, map[string]any{"last_by_subj": everything})
	return Checkpoint{Position: e.Position, EventID: e.ID}, err
}

// fromLeader reads the message that query selects from the stream's leader, because only the leader
// certainly has every acknowledged event. found is false when no message matches.
func (l *JetStream) fromLeader(ctx context.Context, query map[string]any) (e Event, found bool, err error) {
	request, err := json.Marshal(query)
	if err != nil {
		return Event{}, false, err
	}
	err = l.retryRead(ctx, func(ctx context.Context) error {
		e, found, err = l.fromLeaderOnce(ctx, request)
		return err
	})
	if err == nil {
		err = l.disk.wait(ctx, e.Position)
	}
	if err != nil {
		return Event{}, false, err
	}
	return e, found, nil
}

func (l *JetStream) fromLeaderOnce(ctx context.Context, request []byte) (Event, bool, error) {
	stored, found, err := readLeader(ctx, l.nc, request)
	if err != nil || !found {
		return Event{}, false, err
	}
	e, err := Decode(stored.Subject, stored.Header, stored.Data, stored.position)
	return e, err == nil, err
}

// A storedMessage is a message of the log's stream with its position.
type storedMessage struct {
	*nats.Msg
	position uint64
}

// readLeader sends a request for one message to the leader of the log's stream. found is false when
// no message matches.
func readLeader(ctx context.Context, nc *nats.Conn, request []byte) (m storedMessage, found bool, err error) {
	reply, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+Stream, request)
	if err != nil {
		return m, false, err
	}
	var answer struct {
		Message struct {
			Subject  string `json:"subject"`
			Sequence uint64 `json:"seq"`
			Header   []byte `json:"hdrs"`
			Data     []byte `json:"data"`
		} `json:"message"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return m, false, fmt.Errorf("parse the NATS server's reply: %w", err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode == codeNoMessage {
			return m, false, nil
		}
		return m, false, answer.Error
	}
	stored := answer.Message
	header, err := nats.DecodeHeadersMsg(stored.Header)
	if err != nil {
		return m, false, fmt.Errorf("decode the event at position %d: %w", stored.Sequence, err)
	}
	return storedMessage{&nats.Msg{Subject: stored.Subject, Header: header, Data: stored.Data}, stored.Sequence}, true, nil
}

// Acknowledged returns the position up to which a durable consumer has acknowledged every event
// that it received; 0 when the consumer does not exist. durable is the consumer's name.
func (l *JetStream) Acknowledged(ctx context.Context, durable string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.ackWait)
	defer cancel()
	c, err := l.js.Consumer(ctx, Stream, durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("eventlog: look up consumer %s: %w", durable, err)
	}
	return c.CachedInfo().AckFloor.Stream, nil
}
