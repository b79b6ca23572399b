package idempotency

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/keyfile"
	"anneal/eventlog/kv"
)

// ReasonLost is the reason of the error for a claim that is refused because stored records were
// lost.
const ReasonLost = "IDEMPOTENCY_RECORDS_LOST"

// OpenLocal opens a store that keeps its records in two local files, which are synced at every
// write. It moves records that an earlier version of anneal kept in the JetStream bucket ANSWERS to
// the files.
//
// The store opens even if records are damaged in both files. For a day after such a loss, claims of
// unknown keys are refused, because a request whose record was lost could otherwise be executed
// twice.
func OpenLocal(ctx context.Context, nc *nats.Conn, where kv.LocalOptions) (*Store, error) {
	lostFile := filepath.Join(where.Dir, "lost")
	opts := keyfile.Options{Keep: Retention + time.Hour, AcceptLoss: true, BeforeLoss: func(lost []keyfile.Lost) error {
		return recordLoss(lostFile, lost, where)
	}}
	records, err := kv.OpenLocal("idempotency keys", where, opts,
		func(store *keyfile.Store) error { return migrateAnswers(ctx, nc, where, store) })
	if err != nil {
		return nil, err
	}
	a := &Store{Limit: DefaultLimit, records: records, lostFile: lostFile}
	if err := a.applyLoss(); err != nil {
		_ = records.Close()
		return nil, err
	}
	for _, info := range records.Infos() {
		a.kept.note(info.Key, info.Revision, int64(info.Size), info.Written.Add(Retention))
	}
	return a, nil
}

// recordLoss writes the current time to a file, from which applyLoss learns of the loss after a
// restart. It is called before the damaged records are removed from the store.
func recordLoss(file string, lost []keyfile.Lost, where kv.LocalOptions) error {
	if where.Log != nil {
		where.Log.Error("records of idempotency keys are damaged in both local files: requests with a new idempotency "+
			"key are refused for a day, because they may have been executed before; to accept them earlier, delete the file "+
			"and restart the server",
			"records", lost, "file", file)
	}
	return disk.WriteFile(file, []byte(time.Now().UTC().Format(time.RFC3339)+"\n"))
}

// applyLoss reads the time of the last loss from its file and sets lostUntil to a day later. Until
// then new keys are refused.
func (a *Store) applyLoss() error {
	now := time.Now().UTC()
	text, err := os.ReadFile(a.lostFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	at, unreadable := time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	if unreadable != nil {
		at = now
	}
	if a.lostUntil = at.Add(Retention); !now.Before(a.lostUntil) {
		a.lostUntil = time.Time{}
		return os.Remove(a.lostFile)
	}
	return err
}

// recordsLost returns the error for a claim of an unknown key while new keys are refused after a
// loss.
func (a *Store) recordsLost() error {
	return &domain.Error{Code: domain.Unavailable, Reason: ReasonLost,
		Message: fmt.Sprintf("records of idempotency keys were lost to a damaged disk, so it is unknown whether this "+
			"request was executed before: nothing was done; check whether it took effect, then send it without an "+
			"idempotency key, or after %s",
			a.lostUntil.Format(time.RFC3339))}
}

// Close closes the two local files; for other stores it does nothing.
func (a *Store) Close() error {
	if local, ok := a.records.(io.Closer); ok {
		return local.Close()
	}
	return nil
}

// migrateAnswers copies the records of the bucket ANSWERS to store and empties the bucket. When a
// crash interrupts it, the next start repeats it.
func migrateAnswers(ctx context.Context, nc *nats.Conn, options kv.LocalOptions, store *keyfile.Store) error {
	from, err := kv.OpenBucket(ctx, nc, BucketStream, "idempotency keys", EnsureBucket)
	if err != nil {
		return err
	}
	moved, err := kv.Migrate(ctx, from, store)
	if err != nil {
		return err
	}
	if err := from.Purge(ctx); err != nil {
		return fmt.Errorf("empty the JetStream bucket ANSWERS after moving its idempotency keys to local files: %w", err)
	}
	if moved > 0 && options.Log != nil {
		options.Log.Info("idempotency keys were moved from NATS to local files", "answers", moved, "to", options.Dir)
	}
	return nil
}
