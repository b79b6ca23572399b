package metering

import (
	"cmp"
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
	// UsesStream is the JetStream stream of the bucket. If it is lost, only the times of last use are
	// lost.
	UsesStream = "KV_" + usesBucket
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

// LastUsed stores when resources, such as API keys, were last used, so that these times survive a
// restart. A power failure can lose the newest times, because no call waits for a sync.
type LastUsed struct {
	nc *nats.Conn
	kv jetstream.KeyValue
}

// OpenLastUsed returns a LastUsed on the JetStream bucket USES, which it creates if it does not
// exist.
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
		return nil, fmt.Errorf("open the JetStream bucket %s: %w", usesBucket, err)
	}
	return &LastUsed{nc, kv}, nil
}

func useKey(name domain.Name) string {
	return name.Account() + "." + name.Collection() + "." + name.ID()
}

// Keep records that a resource was used at a time.
func (u *LastUsed) Keep(ctx context.Context, name domain.Name, useTime time.Time) error {
	if _, err := u.kv.Put(ctx, useKey(name), []byte(useTime.UTC().Format(time.RFC3339))); err != nil {
		return fmt.Errorf("store the time of the last use of %s: %w", name, err)
	}
	return nil
}

// Forget deletes the recorded time of a resource.
func (u *LastUsed) Forget(ctx context.Context, name domain.Name) error {
	if err := u.kv.Purge(ctx, useKey(name)); err != nil {
		return fmt.Errorf("delete the time of the last use of %s: %w", name, err)
	}
	return nil
}

// Follow calls report for each stored time, and then for each time that any server stores, until
// ctx is done or the connection is closed. After an interruption it may report times again.
func (u *LastUsed) Follow(ctx context.Context, report func(name domain.Name, at time.Time)) error {
	for {
		err := u.followOnce(ctx, report)
		if u.nc.IsClosed() || !eventlog.Sleep(ctx, time.Second) {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

func (u *LastUsed) followOnce(ctx context.Context, report func(name domain.Name, at time.Time)) error {
	watcher, err := u.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return fmt.Errorf("follow the JetStream bucket %s: %w", usesBucket, err)
	}
	defer watcher.Stop() //nolint:errcheck // fails only when the connection is closed, which also ends the watch
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case entry, open := <-watcher.Updates():
			if !open {
				return errors.New("the JetStream bucket " + usesBucket + " stopped sending updates")
			}
			if entry == nil { // nil separates the existing records from new ones
				continue
			}
			parts := strings.Split(entry.Key(), ".")
			at, err := time.Parse(time.RFC3339, string(entry.Value()))
			if err == nil && len(parts) == 3 {
				report(domain.NewName(parts[0], parts[1], parts[2]), at)
			}
		}
	}
}
