package secrets

import (
	"context"
	"io"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/eventlog"
	"anneal/eventlog/keyfile"
	"anneal/eventlog/kv"
)

// The JetStream key-value bucket KEYS has no history. Its stream allows deleting single messages
// and overwriting them on disk, by which a data key is erased. Reads go to the stream's leader, so
// that a new data key is visible immediately.
const (
	BucketStream = "KV_KEYS"
	keysSubject  = "$KV.KEYS."
)

func EnsureBucket(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, jetstream.StreamConfig{
		Name:              BucketStream,
		Description:       "Wrapped data keys of sealed values; deleting one deletes its value",
		Subjects:          []string{keysSubject + ">"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, replicas),
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
	}, replicas)
}

// OpenLocalVault opens a Vault that keeps the data keys in two local files, which are synced at
// every write. It moves data keys that an earlier version of anneal kept in the JetStream bucket
// KEYS to the files.
func OpenLocalVault(ctx context.Context, nc *nats.Conn, ring *KeyRing, where kv.LocalOptions) (*Vault, error) {
	keys, err := kv.OpenLocal("data keys", where, keyfile.Options{Wipe: true}, func(store *keyfile.Store) error {
		return migrateKeys(ctx, nc, where, store)
	})
	if err != nil {
		return nil, err
	}
	if lost := keys.Lost(); len(lost) > 0 && where.Log != nil {
		where.Log.Error("data keys were damaged in both local files and are lost: set the secret values that they "+
			"encrypt again", "keys", lost)
	}
	return &Vault{ring, keys}, nil
}

// Close closes the files of a local vault; for other vaults it does nothing.
func (v *Vault) Close() error {
	if local, ok := v.keys.(io.Closer); ok {
		return local.Close()
	}
	return nil
}

// migrateKeys copies the data keys of the bucket KEYS to store, verifies the copies, and then
// overwrites the data keys in the bucket. When a crash interrupts it, the next start repeats it.
func migrateKeys(ctx context.Context, nc *nats.Conn, options kv.LocalOptions, store *keyfile.Store) error {
	from, err := kv.OpenBucket(ctx, nc, BucketStream, "data keys", EnsureBucket)
	if err != nil {
		return err
	}
	moved, err := kv.Migrate(ctx, from, store)
	if err != nil {
		return err
	}
	ids, err := from.Keys(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := from.DeleteUnsynced(ctx, id); err != nil {
			return err
		}
	}
	if err := eventlog.RequestSync(ctx, nc, BucketStream); err != nil {
		return err
	}
	if moved > 0 && options.Log != nil {
		options.Log.Info("the data keys of sealed values were moved from NATS to local files", "keys", moved,
			"to", options.Dir)
	}
	return nil
}

// OpenVault opens a Vault that keeps the data keys in the JetStream bucket KEYS, which it creates
// if it does not exist.
func OpenVault(ctx context.Context, nc *nats.Conn, ring *KeyRing) (*Vault, error) {
	keys, err := kv.OpenBucket(ctx, nc, BucketStream, "data keys", EnsureBucket)
	if err != nil {
		return nil, err
	}
	return &Vault{ring, keys}, nil
}
