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

// follow yields the events of one ordered consumer after the position *after, and updates the
// position. It returns nil when yield returns false.
func (l *JetStream) follow(ctx context.Context, filter string, after *uint64, yield func(Event, error) bool) error {
	consumer, err := l.js.OrderedConsumer(ctx, Stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    *after + 1,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(followEvents, followBytes),
		jetstream.PullHeartbeat(followHeartbeat))
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
	untilDone, checked := jetstream.NextContext(ctx), ""
	for {
		m, err := messages.Next(untilDone)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		e, name, err := opened(m)
		if err != nil {
			return err
		}
		if name != checked { // the ordered consumer was created or recreated
			if err := l.checkHistory(ctx); err != nil && (!l.filtered || domain.CodeOf(err) == domain.DataLoss) {
				return err
			}
			checked = name
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
			err := l.mark.Extend(e.Position, func() integrity.Message {
				return integrity.MessageOf(e.Position, m.Subject(), nats.Header(m.Headers()), m.Data())
			})
			if err != nil {
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

// watchProgress calls stop when the log has events after the position, and the position has not changed
// for two intervals. After a long interruption, the ordered consumer of nats.go can wait more than
// 10 s before it recreates its consumer on the server; a new ordered consumer delivers immediately.
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

// opened returns the event in a message, and the name of the consumer that delivered it.
func opened(m jetstream.Msg) (e Event, consumer string, err error) {
	meta, err := m.Metadata()
	if err != nil {
		return Event{}, "", fmt.Errorf("%w: %w", errUnreadable, err)
	}
	e, err = Decode(m.Subject(), nats.Header(m.Headers()), m.Data(), meta.Sequence.Stream)
	if err != nil {
		return Event{}, "", fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return e, meta.Consumer, nil
}
