package metering

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"anneal/eventlog"
)

// Stream is the JetStream stream of the usage records. It is separate from the log: no decision
// depends on it, and old records are deleted.
const Stream = "USAGE"

// Limits of the usage stream and of each of its mirrors. At a limit the NATS server deletes the
// oldest records.
const (
	MaxAge     = 35 * 24 * time.Hour // a month, plus some days for reading the records of that month
	MaxRecords = 2_000_000
	// MaxBytes has space for MaxRecords records of 1 KiB. Most records take about 800 bytes with their
	// headers.
	MaxBytes = 2 << 30
)

const (
	// usageRepeats is the time within which the NATS server drops a message that has the ID of an
	// earlier message. A restart takes less time, and so does the takeover of a batch by another
	// control plane. The server keeps the IDs of that time in memory.
	usageRepeats = 2 * time.Minute
	// maxUsage is the maximum size of a usage record in bytes. Without the metadata a record has at
	// most 10 KiB, because user, model and resource names have at most 512 characters each.
	maxUsage = MaxMetadataSize + 10<<10
)

// EnsureStream creates or updates the stream of usage records. The NATS server reserves the
// stream's maximum size. When the server does not have that much space, the stream gets no limit in
// bytes, because the control plane must start even on a nearly full disk. The embedded server never
// lacks the space: see package natsserver.
func EnsureStream(ctx context.Context, js jetstream.JetStream, replicas int) error {
	config := bounded(jetstream.StreamConfig{
		Name:        Stream,
		Description: "Usage of requests to models: one CloudEvent per request, kept for 35 days",
		Subjects:    []string{"usage.>"},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, replicas),
		Duplicates:  usageRepeats,
		AllowDirect: true,
		DenyDelete:  true,
		DenyPurge:   true,
	})
	return withinSpace(config, func(config jetstream.StreamConfig) error {
		return eventlog.EnsureStream(ctx, js, config, replicas)
	})
}

func bounded(config jetstream.StreamConfig) jetstream.StreamConfig {
	config.MaxMsgSize, config.MaxAge, config.MaxMsgs, config.MaxBytes, config.Discard = maxUsage, MaxAge,
		MaxRecords, MaxBytes, jetstream.DiscardOld
	return config
}

// noStorage is the code of the JetStream error "insufficient storage resources available".
const noStorage jetstream.ErrorCode = 10047

// withinSpace calls ensure with a stream's configuration. When the NATS server cannot reserve the
// stream's maximum size, it calls ensure again without the limit in bytes.
func withinSpace(config jetstream.StreamConfig, ensure func(jetstream.StreamConfig) error) error {
	err := ensure(config)
	var refused *jetstream.APIError
	if !errors.As(err, &refused) || refused.ErrorCode != noStorage {
		return err
	}
	slog.Warn("the NATS server cannot reserve the maximum size of the stream, so the stream is limited by its number of "+
		"messages only: raise max_file_store", "stream", config.Name, "bytes", config.MaxBytes, "messages", config.MaxMsgs)
	config.MaxBytes = -1
	return ensure(config)
}

// EnsureMirror creates the mirror of the usage stream for readers, in the NATS account READERS: a
// reader's consumer can deliver messages to any subject of its NATS account, so readers get no
// access to the account of the stream. When a power failure removed the newest records of the
// stream, so that the mirror has more records, EnsureMirror deletes the mirror and creates it
// again.
func EnsureMirror(ctx context.Context, readers, control jetstream.JetStream, replicas int) error {
	return eventlog.Retry(ctx, func(ctx context.Context) error {
		there, err := readers.Stream(ctx, Stream)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("look up the readers' mirror of the usage stream: %w", err)
		}
		kept, failed := control.Stream(ctx, Stream)
		if failed != nil {
			return fmt.Errorf("look up stream %s: %w", Stream, failed)
		}
		if err == nil && there.CachedInfo().State.LastSeq > kept.CachedInfo().State.LastSeq {
			if err := readers.DeleteStream(ctx, Stream); err != nil {
				return fmt.Errorf("delete the readers' mirror of the usage stream: %w", err)
			}
		}
		return withinSpace(MirrorConfig(replicas), func(config jetstream.StreamConfig) error {
			if _, err := readers.CreateOrUpdateStream(ctx, config); err != nil {
				return fmt.Errorf("create the readers' mirror of the usage stream: %w", err)
			}
			return nil
		})
	})
}

// MirrorConfig returns the JetStream configuration of a mirror of the usage stream.
func MirrorConfig(replicas int) jetstream.StreamConfig {
	config := bounded(eventlog.MirrorConfig(Stream, replicas))
	config.MaxMsgSize = -1 // the mirrored stream already limits the size of messages
	return config
}
