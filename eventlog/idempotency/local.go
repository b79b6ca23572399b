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

// ReasonAnswersLost is why a claim is refused after records were lost.
const ReasonLost = "IDEMPOTENCY_RECORDS_LOST"

// OpenLocalAnswers keeps answers in two files that are always synced. Those in
// the bucket ANSWERS, where an earlier version kept them, are brought over.
//
// Records that are damaged in both files do not stop the start. For a day from
// then on a key that is not known is refused: a request that was carried out
// before is not carried out again because its record was lost.
func OpenLocal(ctx context.Context, nc *nats.Conn, where kv.LocalOptions) (*Store, error) {
	lostFile := filepath.Join(where.Dir, "lost")
	opts := keyfile.Options{Keep: Retention + time.Hour, AcceptLoss: true, Losing: func(lost []keyfile.Lost) error {
		return noteLoss(lostFile, lost, where)
	}}
	records, err := kv.OpenLocal("answers", where, opts, func(store *keyfile.Store) error { return migrateAnswers(ctx, nc, where, store) })
	if err != nil {
		return nil, err
	}
	a := &Store{Limit: DefaultLimit, records: records, lostFile: lostFile}
	if err := a.recallLoss(); err != nil {
		_ = records.Close()
		return nil, err
	}
	for _, info := range records.Infos() {
		a.kept.note(info.Key, info.Revision, int64(info.Size), info.Written.Add(Retention))
	}
	return a, nil
}

// noteLoss writes down when records were found lost, before they are forgotten.
func noteLoss(file string, lost []keyfile.Lost, where kv.LocalOptions) error {
	if where.Log != nil {
		where.Log.Error("idempotency records are lost: new idempotency keys are refused for a day; to accept them earlier, delete the file and restart",
			"records", lost, "file", file)
	}
	return disk.WriteFile(file, []byte(time.Now().UTC().Format(time.RFC3339)+"\n"))
}

// recallLoss refuses new keys for a day after the last loss that was noted.
func (a *Store) recallLoss() error {
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

// recordsLost refuses a key that is not known.
func (a *Store) recordsLost() error {
	return &domain.Error{Code: domain.Unavailable, Reason: ReasonLost,
		Message: fmt.Sprintf("records of idempotency keys were lost to a damaged disk, so it is not known whether this request was "+
			"carried out before: nothing was done; look at what exists, then send it without an idempotency key, or after %s",
			a.lostUntil.Format(time.RFC3339))}
}

// Close closes the files of local answers.
func (a *Store) Close() error {
	if local, ok := a.records.(io.Closer); ok {
		return local.Close()
	}
	return nil
}

// migrateAnswers copies the records of the bucket ANSWERS and empties it. It
// may be interrupted anywhere and repeated.
func migrateAnswers(ctx context.Context, nc *nats.Conn, to kv.LocalOptions, store *keyfile.Store) error {
	from, err := kv.OpenBucket(ctx, nc, BucketStream, "answers", EnsureBucket)
	if err != nil {
		return err
	}
	moved, err := kv.Migrate(ctx, from, store)
	if err != nil {
		return err
	}
	if err := from.Purge(ctx); err != nil {
		return fmt.Errorf("eventlog: emptying the bucket of the answers: %w", err)
	}
	if moved > 0 && to.Log != nil {
		to.Log.Info("the answers under idempotency keys were moved out of NATS", "answers", moved, "to", to.Dir)
	}
	return nil
}
