package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Size of a follower's pull requests: large enough that the connection is never idle while it
// decodes.
const (
	followEvents = 8192
	followBytes  = 16 << 20
)

// followHeartbeat is the interval at which the server sends an idle follower a message. A follower
// that misses two of these messages creates another consumer, on another server if this one hangs.
const followHeartbeat = time.Second

// Follow implements Log. When the consumer fails, for example because the server disconnects,
// Follow creates another one after the last event. It ends when ctx is done, the connection is
// closed, the stream is deleted, the disk or the mark has failed, the log was set back, or an event
// is missing or cannot be decoded. Without a filter Follow yields the event at every position, or a
// DataLoss error with the first missing position.
func (l *JetStream) Follow(ctx context.Context, filter string, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		outer := ctx
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go l.watchHistory(ctx, cancel)
		pause := 50 * time.Millisecond
		skipped := false // the previous consumer also found a gap after this position
		for {
			begun := after
			err := l.follow(ctx, FilterOf(filter), &after, yield)
			if err == nil {
				return
			}
			if after > begun {
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
	// consumerTimeout is how long consume waits for the consumer. A request that arrives during an
	// election is lost, and would be waited for in vain.
	consumerTimeout = 2 * time.Second
	// consumerInactive is the time after which the server deletes a consumer that nobody reads.
	consumerInactive = time.Minute
)

// consume returns the messages that match a filter after a position, in order, from a new consumer.
// They end with an error when the consumer, its server or the connection fails: the caller creates
// another consumer at once, which the ordered consumer of nats.go does with pauses of up to 10 s.
func (l *JetStream) consume(ctx context.Context, filter string, after uint64) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, consumerTimeout)
	defer cancel()
	consumer, err := l.js.CreateConsumer(ctx, Stream, jetstream.ConsumerConfig{
		Name:              nuid.Next(),
		FilterSubject:     filter,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       after + 1,
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

// follow yields the events of one consumer after the position *after, and updates the
// position. It returns nil when yield returns false.
func (l *JetStream) follow(ctx context.Context, filter string, after *uint64, yield func(Event, error) bool) error {
	messages, err := l.consume(ctx, filter, *after)
	if err != nil {
		return err
	}
	defer messages.Stop()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var position atomic.Uint64
	position.Store(*after)
	if filter == everything {
		go l.watchProgress(ctx, &position, stop)
	}
	untilDone := jetstream.NextContext(ctx)
	for delivered := uint64(1); ; delivered++ {
		m, err := messages.Next(untilDone)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		e, err := opened(m, delivered)
		if err != nil {
			return err
		}
		if delivered == 1 {
			if err := l.checkHistory(ctx); err != nil && (!l.filtered || domain.CodeOf(err) == domain.DataLoss) {
				return err
			}
		}
		if e.Position <= *after {
			return l.history.fail("it delivered position %d after position %d", e.Position, *after)
		}
		if filter == everything && !l.filtered && e.Position != *after+1 {
			return integrity.GapError(*after+1, e.Position)
		}
		if err := l.disk.wait(ctx, e.Position); err != nil {
			return err
		}
		if filter == everything {
			message := func() integrity.Message {
				return integrity.MessageOf(e.Position, m.Subject(), nats.Header(m.Headers()), m.Data())
			}
			if l.observe != nil {
				message = sync.OnceValue(message)
				l.observe(message())
			}
			if err := l.mark.Extend(e.Position, message); err != nil {
				return err
			}
		}
		*after = e.Position
		position.Store(e.Position)
		l.history.saw(e.Position, e.ID)
		if !yield(e, nil) {
			return nil
		}
	}
}

// watchProgress calls stop when the log has events after the position, and the position has not
// changed for two intervals. The heartbeats of the server do not show that its consumer delivers.
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

// opened returns the event in a message that is the n-th of its consumer. It returns an error if
// messages of the consumer were lost before it.
func opened(m jetstream.Msg, n uint64) (Event, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Event{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if meta.Sequence.Consumer != n {
		return Event{}, fmt.Errorf("message %d of the consumer arrived after message %d", meta.Sequence.Consumer, n-1)
	}
	e, err := Decode(m.Subject(), nats.Header(m.Headers()), m.Data(), meta.Sequence.Stream)
	if err != nil {
		return Event{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return e, nil
}
