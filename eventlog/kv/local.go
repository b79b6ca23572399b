package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/keyfile"
)

// LocalOptions configure a Local.
type LocalOptions struct {
	Dir         string // directory of the two files of package keyfile
	CreatedFile string // file outside of Dir that OpenLocal creates, so that a later start notices when Dir is missing
	Log         *slog.Logger
}

// A Local is a Store in two local files of package keyfile, for a control plane with the embedded
// NATS server.
type Local struct {
	store *keyfile.Store
	what  string // what the records are, such as "data keys", for error messages
	space *disk.Space
}

func (k Local) Get(ctx context.Context, id string) ([]byte, uint64, error) {
	value, revision, err := k.store.Get(ctx, id)
	return value, revision, k.fault(err)
}

func (k Local) Put(ctx context.Context, id string, record []byte, revision uint64) (uint64, error) {
	if err := k.space.Check(disk.Events, int64(len(record))); err != nil {
		return 0, err
	}
	revision, err := k.store.Put(ctx, id, record, revision)
	return revision, k.fault(err)
}

func (k Local) Delete(ctx context.Context, id string) error {
	return k.fault(k.store.Erase(ctx, id))
}

// Close closes the files.
func (k Local) Close() error { return k.store.Close() }

// Lost returns the records that were damaged in both files when the store was opened.
func (k Local) Lost() []keyfile.Lost { return k.store.Lost() }

// Infos returns the keyfile.Info of every record.
func (k Local) Infos() []keyfile.Info { return k.store.Infos() }

func (k Local) Keys(context.Context) ([]string, error) { return k.store.Keys(), nil }

func (k Local) fault(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, keyfile.ErrConflict):
		return eventlog.ErrConflict
	case errors.Is(err, keyfile.ErrDamaged):
		return domain.Errorf(domain.DataLoss, "a record of the %s is damaged in both local files: restore the %s from a "+
			"backup",
			k.what, k.what)
	}
	return domain.Errorf(domain.Unavailable, "the disk with the %s failed (%v): check the disk, then restart the "+
		"server", k.what,
		err)
}

// OpenLocal opens a store in local files. what says what the records are, such as "data keys", for
// error messages. migrate copies the records that an earlier version of anneal kept in a JetStream
// bucket; OpenLocal calls it at each start until it has succeeded once.
func OpenLocal(what string, l LocalOptions, opts keyfile.Options, migrate func(*keyfile.Store) error) (Local, error) {
	if l.Log == nil {
		l.Log = slog.New(slog.DiscardHandler)
	}
	_, err := os.Stat(l.CreatedFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Local{}, domain.Errorf(domain.FailedPrecondition, "cannot open the local store of the %s: %v", what, err)
	}
	opts.Exists = err == nil
	opts.OnWarning = func(message string) {
		l.Log.Warn(message, "directory", l.Dir, "records", what)
	}
	store, err := keyfile.Open(l.Dir, opts)
	if err != nil {
		return Local{}, domain.Errorf(domain.FailedPrecondition, "cannot open the local store of the %s: %v", what, err)
	}
	if !opts.Exists {
		if err = migrate(store); err == nil {
			err = disk.WriteFile(l.CreatedFile, []byte("made "+time.Now().UTC().Format(time.RFC3339)+"\n"))
		}
		if err != nil {
			_ = store.Close()
			return Local{}, err
		}
	}
	return Local{store, what, disk.On(filepath.Dir(l.Dir))}, nil
}

// Migrate copies the records of a bucket to a local store, and reads each copy back to verify it.
// It returns the number of records in the store.
func Migrate(ctx context.Context, from *Bucket, store *keyfile.Store) (moved int, err error) {
	ids, err := from.Keys(ctx)
	if err != nil {
		return 0, err
	}
	const concurrency = 32 // number of concurrent writes, which share one sync
	failed, free := make(chan error, len(ids)), make(chan struct{}, concurrency)
	for _, id := range ids {
		free <- struct{}{}
		go func() {
			failed <- migrateOne(ctx, from, store, id)
			<-free
		}()
	}
	for range ids {
		err = errors.Join(err, <-failed)
	}
	if err != nil {
		return 0, fmt.Errorf("move the %s from NATS to local files: %w", from.what, err)
	}
	return len(store.Keys()), nil
}

func migrateOne(ctx context.Context, from *Bucket, store *keyfile.Store, id string) error {
	record, revision, err := from.Get(ctx, id)
	if err != nil || revision == 0 { // another tool has deleted the record
		return err
	}
	there, known, err := store.Get(ctx, id)
	if err == nil && known == 0 {
		if _, err = store.Put(ctx, id, record, 0); err == nil {
			there, _, err = store.Get(ctx, id)
		}
	}
	if err == nil && string(there) != string(record) {
		err = domain.Errorf(domain.DataLoss, "the local copy of the record %s differs from the record in NATS", id)
	}
	return err
}
