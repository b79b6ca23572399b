package eventlog

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Verify compares the open stream of the log with check, the result of the check before the start.
// It returns the high-water mark with the hash chain up to the newest event, or an error when
// events are missing or differ from the mark.
func (l *JetStream) Verify(ctx context.Context, check integrity.CheckResult) (mark integrity.HighWaterMark,
	err error) {
	mark = check.Mark
	var state jetstream.StreamState
	err = Retry(ctx, func(ctx context.Context) error {
		stream, err := l.js.Stream(ctx, Stream)
		if err == nil {
			state = stream.CachedInfo().State
		}
		return err
	})
	if err != nil {
		return mark, fmt.Errorf("look up stream %s: %w", Stream, err)
	}
	switch {
	case state.LastSeq < mark.MinPosition():
		return mark, integrity.Damagef("the log ends at position %d, but according to its high-water mark it reached "+
			"position %d", state.LastSeq,
			mark.MinPosition())
	case state.Msgs > 0 && state.FirstSeq != 1 || state.Msgs != state.LastSeq:
		return mark, integrity.Damagef("the log has only %d events from position %d to %d: some are missing", state.Msgs,
			state.FirstSeq, state.LastSeq)
	// LastSeq is greater when events were restored from the readers' mirror
	case check.Read && state.LastSeq < check.Last:
		return mark, integrity.Damagef("according to its block files the log ends at position %d, but according to the "+
			"NATS server at %d", check.Last,
			state.LastSeq)
	}
	// events after the high-water mark, or all events, are not checked yet
	if mark.Position < state.LastSeq || !check.Read {
		if err := l.catchUp(ctx, &mark, state.LastSeq); err != nil {
			return mark, err
		}
	}
	mark.Durable = state.LastSeq
	return mark, nil
}

// catchUp reads the log up to the position upTo and extends the hash chain of a high-water mark. It
// returns an error when the log has a different event at the mark's position.
func (l *JetStream) catchUp(ctx context.Context, mark *integrity.HighWaterMark, upTo uint64) error {
	chain := mark.HashChain
	if mark.Position > 0 {
		chain = integrity.HashChain{Checkpoint: Checkpoint{Position: mark.Position - 1}, Hash: mark.Before}
	}
	for chain.Position < upTo {
		err := l.readChain(ctx, &chain, upTo, func() error {
			if chain.Position == mark.Position && chain != mark.HashChain {
				return integrity.Damagef(
					"the log has event %s with running hash %s at position %d, but the high-water mark has event %s with %s: it is "+
						"another log, or it was altered",
					chain.EventID, chain.Hash, chain.Position, mark.EventID, mark.Hash)
			}
			return nil
		})
		if err != nil && (domain.CodeOf(err) != domain.Unknown || !Sleep(ctx, 50*time.Millisecond)) {
			return err
		}
	}
	mark.HashChain = chain
	return nil
}

// readChain reads the log up to the position upTo and adds its events to chain. It calls visit
// after every event.
func (l *JetStream) readChain(ctx context.Context, chain *integrity.HashChain, upTo uint64, visit func() error) error {
	return l.messages(ctx, chain.Position, upTo, func(position uint64, m jetstream.Msg) error {
		err := chain.Extend(integrity.MessageOf(position, m.Subject(), nats.Header(m.Headers()), m.Data()))
		if err != nil {
			return err
		}
		return visit()
	})
}

// messages calls visit with the position and the message of every event after the position cursor,
// up to upTo.
func (l *JetStream) messages(ctx context.Context, cursor, upTo uint64, visit func(uint64, jetstream.Msg) error) error {
	messages, err := l.consume(ctx, everything, cursor)
	if err != nil {
		return err
	}
	defer messages.Stop()
	untilDone := jetstream.NextContext(ctx)
	for cursor < upTo {
		m, err := messages.Next(untilDone)
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		cursor = meta.Sequence.Stream
		if err := visit(cursor, m); err != nil {
			return err
		}
	}
	return nil
}
