package metering

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog"
)

const (
	usesBucket = "USES"
	usesKept   = 400 * 24 * time.Hour
)

func EnsureLastUsed(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, jetstream.StreamConfig{
		Name:              "KV_" + usesBucket,
		Description:       "When each API key was last used, to the minute",
		Subjects:          []string{"$KV." + usesBucket + ".>"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, replicas),
		MaxMsgsPerSubject: 1,
		MaxMsgSize:        1 << 10,
		MaxAge:            usesKept,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
		DenyDelete:        true,
	}, replicas)
}

// LastUsed keep when resources were last used: pulse that outlives the process.
// Nothing waits for it to be on disk.
type LastUsed struct{ kv jetstream.KeyValue }

// OpenLastUsed keeps them in the JetStream bucket USES, made when missing.
func OpenLastUsed(ctx context.Context, nc *nats.Conn) (*LastUsed, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	if err := EnsureLastUsed(ctx, js, 0); err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, usesBucket)
	if err != nil {
		return nil, fmt.Errorf("eventlog: opening the bucket %s: %w", usesBucket, err)
	}
	return &LastUsed{kv}, nil
}

func useKey(name domain.Name) string {
	return name.Account() + "." + name.Collection() + "." + name.ID()
}

// Keep records when a resource was used.
func (u *LastUsed) Keep(ctx context.Context, name domain.Name, at time.Time) error {
	if _, err := u.kv.Put(ctx, useKey(name), []byte(at.UTC().Format(time.RFC3339))); err != nil {
		return fmt.Errorf("eventlog: keeping when %s was used: %w", name, err)
	}
	return nil
}

// Forget drops what is known of a resource.
func (u *LastUsed) Forget(ctx context.Context, name domain.Name) error {
	if err := u.kv.Purge(ctx, useKey(name)); err != nil {
		return fmt.Errorf("eventlog: forgetting when %s was used: %w", name, err)
	}
	return nil
}

// Follow tells all that is known, and then what any server records, until ctx
// is done.
func (u *LastUsed) Follow(ctx context.Context, tell func(name domain.Name, at time.Time)) error {
	watcher, err := u.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return fmt.Errorf("eventlog: following the bucket %s: %w", usesBucket, err)
	}
	defer watcher.Stop() //nolint:errcheck // nothing is left to stop when the connection is gone
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case entry, open := <-watcher.Updates():
			if !open {
				return errors.New("eventlog: the bucket " + usesBucket + " can no longer be followed")
			}
			if entry == nil { // all that was known is told
				continue
			}
			parts := strings.Split(entry.Key(), ".")
			at, err := time.Parse(time.RFC3339, string(entry.Value()))
			if err == nil && len(parts) == 3 {
				tell(domain.NewName(parts[0], parts[1], parts[2]), at)
			}
		}
	}
}
