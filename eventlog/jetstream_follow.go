package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Size of a follower's pull requests. It is large, so that messages arrive while the follower
// decodes others.
const (
	followEvents = 8192
	followBytes  = 16 << 20
)

// followHeartbeat is the interval at which the NATS server sends a heartbeat to a follower that has
// no events to receive. A follower that misses two heartbeats creates another consumer, on another
// server if this one hangs.
const followHeartbeat = time.Second

// Follow implements Log. When the consumer fails, for example because the server disconnects,
// Follow creates another one after the last event. It ends when ctx is done, the connection is
// closed, the stream is deleted, the disk or the mark has failed, the log was set back, or an event
// is missing or cannot be decoded. Without a filter Follow yields the event at every position, or a
// DataLoss error with the first missing position.
func (l *JetStream) Follow(ctx context.Context, filter string, cursor uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		outer := ctx
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go l.watchHistory(ctx, cancel)
		pause := 50 * time.Millisecond
		skipped := false // whether the previous consumer also found a gap after this position
		for {
			begun := cursor
			err := l.follow(ctx, FilterOf(filter), &cursor, yield)
			if err == nil {
				return
			}
			if cursor > begun {
				pause, skipped = 50*time.Millisecond, false
			}
			again := skipped
			skipped = domain.CodeOf(err) == domain.DataLoss
			if skipped && again || errors.Is(err, errUnreadable) || errors.Is(err, jetstream.ErrStreamNotFound) ||
				l.disk.broken() || l.mark.Err() != nil || l.nc.IsClosed() || !Sleep(ctx, pause) {
				if fault := l.history.failure(); fault != nil {
					err = fault
				}
				if outer.Err() != nil {
					err = outer.Err()
				}
				yield(Event{}, err)
				return
			}
			pause = min(2*pause, 2*time.Second)
		}
	}
}

var errUnreadable = errors.New("unreadable event")

const (
	// consumerTimeout is how long consume waits until the consumer is created. A request that arrives
	// while the cluster elects a leader is lost and must be repeated.
	consumerTimeout = 2 * time.Second
	// consumerInactive is the time after which the server deletes a consumer that no client reads.
	consumerInactive = time.Minute
)

// consume creates a consumer and returns its messages: those after a position that match a filter,
// in order. The messages end with an error when the consumer, its server or the connection fails.
// The caller then creates another consumer immediately; the ordered consumer of nats.go would pause
// for up to 10 s.
func (l *JetStream) consume(ctx context.Context, filter string, cursor uint64) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, consumerTimeout)
	defer cancel()
	consumer, err := l.js.CreateConsumer(ctx, Stream, jetstream.ConsumerConfig{
		Name:              nuid.Next(),
		FilterSubject:     filter,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       cursor + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: consumerInactive,
		Replicas:          1,
		MemoryStorage:     true,
	})
	if err != nil {
		return nil, err
	}
	return consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(followEvents, followBytes),
		jetstream.PullHeartbeat(followHeartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(true))
}

// follow yields the events of one consumer that follow the position *cursor, and advances *cursor.
// It returns nil when yield returns false, otherwise the error that ended the consumer.
func (l *JetStream) follow(ctx context.Context, filter string, cursor *uint64, yield func(Event, error) bool) error {
	messages, err := l.consume(ctx, filter, *cursor)
	if err != nil {
		return err
	}
	defer messages.Stop()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var position atomic.Uint64
	position.Store(*cursor)
	if filter == everything {
		go l.watchProgress(ctx, &position, stop)
	}
	untilDone := jetstream.NextContext(ctx)
	var stored integrity.Message
	for delivered := uint64(1); ; delivered++ {
		m, err := messages.Next(untilDone)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		e, err := decodeNext(m, delivered)
		if err != nil {
			return err
		}
		if delivered == 1 {
			if err := l.checkHistory(ctx); err != nil && (!l.filtered || domain.CodeOf(err) == domain.DataLoss) {
				return err
			}
		}
		if e.Position <= *cursor {
			return l.history.fail("the consumer delivered position %d after position %d", e.Position, *cursor)
		}
		if filter == everything && !l.filtered && e.Position != *cursor+1 {
			return integrity.GapError(*cursor+1, e.Position)
		}
		if err := l.disk.wait(ctx, e.Position); err != nil {
			return err
		}
		if filter == everything {
			if err := passStored(l, &stored, e.Position, m); err != nil {
				return err
			}
		}
		*cursor = e.Position
		position.Store(e.Position)
		l.history.saw(e.Position, e.ID)
		if !yield(e, nil) {
			return nil
		}
	}
}

// passStored passes an event in the form in which it is stored to the function of Observe and to
// the mark. stored is a buffer for the event.
func passStored(l *JetStream, stored *integrity.Message, position uint64, m jetstream.Msg) error {
	if l.observe == nil && !l.mark.Follows(position) {
		return l.mark.Err()
	}
	stored.Set(position, m.Subject(), nats.Header(m.Headers()), m.Data())
	if l.observe != nil {
		l.observe(*stored)
	}
	return l.mark.Extend(*stored)
}

// watchProgress calls stop when the consumer hangs: when the log has events after position, but
// position has not changed for two intervals. The server's heartbeats do not show whether its
// consumer delivers events.
func (l *JetStream) watchProgress(ctx context.Context, position *atomic.Uint64, stop context.CancelCauseFunc) {
	const interval = 2 * followHeartbeat
	stalled, behind := position.Load(), false
	for Sleep(ctx, interval) {
		at := position.Load()
		if at != stalled {
			stalled, behind = at, false
			continue
		}
		once, cancel := context.WithTimeout(ctx, interval)
		last, err := l.Last(once)
		cancel()
		if was := behind; err == nil && last.Position > at && was && position.Load() == at {
			stop(fmt.Errorf("the consumer delivers no events after position %d, but the log ends at %d", at, last.Position))
			return
		}
		behind = err == nil && last.Position > at
	}
}

// decodeNext decodes the n-th message of a consumer. It returns an error if messages before it were
// lost.
func decodeNext(m jetstream.Msg, n uint64) (Event, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Event{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if meta.Sequence.Consumer != n {
		return Event{}, fmt.Errorf("the consumer lost messages: number %d arrived after number "+
			"%d", meta.Sequence.Consumer, n-1)
	}
	e, err := Decode(m.Subject(), nats.Header(m.Headers()), m.Data(), meta.Sequence.Stream)
	if err != nil {
		return Event{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return e, nil
}
