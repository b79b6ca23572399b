package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
)

// keepMirror makes the readers' mirror of the log, or mends it. A mirror that
// remembers what the log has lost is made anew: its positions would lie.
func keepMirror(ctx context.Context, keeper *nats.Conn, log *JetStream, replicas int) error {
	js, err := jetstream.New(keeper)
	if err != nil {
		return fmt.Errorf("eventlog: %w", err)
	}
	return persist(ctx, func(ctx context.Context) error { return mendMirror(ctx, keeper, js, log, replicas) })
}

func mendMirror(ctx context.Context, keeper *nats.Conn, js jetstream.JetStream, log *JetStream, replicas int) error {
	there, err := js.Stream(ctx, Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return makeMirror(ctx, js, replicas)
	case err != nil:
		return fmt.Errorf("eventlog: looking for the readers' mirror: %w", err)
	}
	mirror := &JetStream{nc: keeper, js: js, ackWait: log.ackWait}
	last, err := mirror.Last(ctx)
	if err != nil {
		return fmt.Errorf("eventlog: looking into the readers' mirror: %w", err)
	}
	if last.Position > 0 {
		e, err := log.At(ctx, last.Position)
		if err != nil && domain.CodeOf(err) != domain.NotFound {
			return err
		}
		if e.ID != last.EventID {
			if err := js.DeleteStream(ctx, Stream); err != nil {
				return fmt.Errorf("eventlog: the readers' mirror holds what the log has lost, and cannot be made anew: %w", err)
			}
			return makeMirror(ctx, js, replicas)
		}
	}
	if config := there.CachedInfo().Config; replicas > 0 && config.Replicas != replicas {
		return makeMirror(ctx, js, replicas)
	}
	return nil
}

func makeMirror(ctx context.Context, js jetstream.JetStream, replicas int) error {
	config := mirrorOf(Stream, replicas)
	config.Description = "The log as its readers see it: same events, same positions"
	if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
		return fmt.Errorf("eventlog: making the readers' mirror: %w", err)
	}
	return nil
}

// mirrorOf is the readers' mirror of a stream.
func mirrorOf(stream string, replicas int) jetstream.StreamConfig {
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
		config.PersistMode = jetstream.AsyncPersistMode // what a power failure takes, the stream gives again
	}
	return config
}
