package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog/integrity"
)

// EnsureMirror creates or updates the mirror of the log for readers. keeper is a connection into
// the NATS account READERS.
func EnsureMirror(ctx context.Context, keeper *nats.Conn, log *JetStream, replicas int) error {
	js, err := jetstream.New(keeper)
	if err != nil {
		return fmt.Errorf("eventlog: %w", err)
	}
	return Retry(ctx, func(ctx context.Context) error { return mendMirror(ctx, keeper, js, log, replicas) })
}

func mendMirror(ctx context.Context, keeper *nats.Conn, js jetstream.JetStream, log *JetStream, replicas int) error {
	there, err := js.Stream(ctx, Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return makeMirror(ctx, js, replicas)
	case err != nil:
		return fmt.Errorf("look up the readers' mirror of the log: %w", err)
	}
	mirror := &JetStream{nc: keeper, js: js, ackWait: log.ackWait}
	last, err := mirror.Last(ctx)
	if err != nil {
		return fmt.Errorf("read the readers' mirror of the log: %w", err)
	}
	if err := reconcileMirror(ctx, mirror, log, last); err != nil {
		return err
	}
	if config := there.CachedInfo().Config; replicas > 0 && config.Replicas != replicas {
		return makeMirror(ctx, js, replicas)
	}
	return nil
}

// reconcileMirror compares the newest event of the mirror with the log. It never deletes the
// mirror, which may have the only copy of events that the log lost: it appends these events to the
// log, at their positions. It returns an error when the mirror and the log have different events at
// a position.
func reconcileMirror(ctx context.Context, mirror, log *JetStream, last Checkpoint) error {
	if last.Position == 0 {
		return nil
	}
	end, err := log.Last(ctx)
	if err != nil {
		return err
	}
	there := last
	shared := min(end.Position, last.Position)
	if shared > 0 {
		e, err := log.At(ctx, shared)
		if err == nil && shared < last.Position {
			var m Event
			m, err = mirror.At(ctx, shared)
			there = Checkpoint{Position: m.Position, EventID: m.ID}
		}
		if err != nil && domain.CodeOf(err) != domain.NotFound {
			return err
		}
		if e.ID == "" || e.ID != there.EventID {
			return integrity.Damagef(
				"the readers' mirror has event %s at position %d, but the log has event %q: the log or the mirror has lost "+
					"events",
				there.EventID, shared, e.ID)
		}
	}
	if last.Position <= end.Position {
		return nil
	}
	slog.Warn("the readers' mirror has events that the log has lost: appending them to the log again",
		"first", end.Position+1, "last", last.Position)
	return restore(ctx, log, mirror, end.Position, last.Position)
}

// restore appends the events of a mirror after the position cursor, up to upTo, to the log, at the
// same positions.
func restore(ctx context.Context, log, mirror *JetStream, cursor, upTo uint64) error {
	return mirror.messages(ctx, cursor, upTo, func(position uint64, m jetstream.Msg) error {
		if position != cursor+1 {
			return integrity.GapError(cursor+1, position)
		}
		header := nats.Header{jetstream.ExpectedLastSeqHeader: {strconv.FormatUint(cursor, 10)}}
		for name, values := range m.Headers() {
			if integrity.IsAttribute(name) {
				header[name] = values
			}
		}
		reply, err := log.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: m.Subject(), Header: header, Data: m.Data()})
		if err != nil {
			return fmt.Errorf("append the event of position %d: %w", position, err)
		}
		got, err := acknowledged(reply.Data)
		if err == nil && got != position {
			err = fmt.Errorf("the log stored the event at position %d", got)
		}
		if err != nil {
			return integrity.Damagef("cannot restore the event at position %d from the readers' mirror: %v", position, err)
		}
		cursor = position
		return nil
	})
}

func makeMirror(ctx context.Context, js jetstream.JetStream, replicas int) error {
	config := MirrorConfig(Stream, replicas)
	config.Description = "Mirror of the event log for readers: same events, same positions"
	if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
		return fmt.Errorf("create the readers' mirror of the log: %w", err)
	}
	return nil
}

// MirrorConfig returns the JetStream configuration of the readers' mirror of a stream.
func MirrorConfig(stream string, replicas int) jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:        stream,
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, replicas),
		AllowDirect: true,
		DenyDelete:  true,
		DenyPurge:   true,
		Mirror: &jetstream.StreamSource{Name: stream, External: &jetstream.ExternalStream{
			APIPrefix: "control.api", DeliverPrefix: "mirror.readers",
		}},
	}
	if config.Replicas == 1 {
		// after a power failure, the stream sends again the messages that the mirror lost
		config.PersistMode = jetstream.AsyncPersistMode
	}
	return config
}
