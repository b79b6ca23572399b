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

// A LocalStore says where records lie that no other server shares: in a folder
// of the data folder, each in two files that are synced before a change is
// acknowledged. See the package keyfile.
type LocalOptions struct {
	Dir  string // of the two files
	Made string // a file outside of Dir that says that the store was made: then it may not be missing
	Log  *slog.Logger
}

// localKeys is a keyStore on a keyfile.Store.
type Local struct {
	store *keyfile.Store
	what  string // it holds, for messages
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

// Lost are the records that were found damaged in both files at the start.
func (k Local) Lost() []keyfile.Lost { return k.store.Lost() }

// Infos describes every record.
func (k Local) Infos() []keyfile.Info { return k.store.Infos() }

func (k Local) Keys(context.Context) ([]string, error) { return k.store.Keys(), nil }

func (k Local) fault(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, keyfile.ErrConflict):
		return eventlog.ErrConflict
	case errors.Is(err, keyfile.ErrDamaged):
		return domain.Errorf(domain.DataLoss, "a record of the %s is damaged in both copies: restore %s from a backup", k.what, k.what)
	}
	return domain.Errorf(domain.Unavailable, "the disk of the %s failed (%v): see to it, then start again", k.what, err)
}

// openLocal opens a store. migrate, if any, brings over the records of a JetStream
// bucket that an earlier version kept; it is called until it has succeeded once.
func OpenLocal(what string, l LocalOptions, opts keyfile.Options, migrate func(*keyfile.Store) error) (Local, error) {
	if l.Log == nil {
		l.Log = slog.New(slog.DiscardHandler)
	}
	_, err := os.Stat(l.Made)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Local{}, domain.Errorf(domain.FailedPrecondition, "the store of the %s cannot be opened: %v", what, err)
	}
	opts.Exists = err == nil
	opts.Repaired = func(why string) {
		l.Log.Warn("a key store was repaired from its other copy", "store", l.Dir, "why", why)
	}
	store, err := keyfile.Open(l.Dir, opts)
	if err != nil {
		return Local{}, domain.Errorf(domain.FailedPrecondition, "the store of the %s cannot be opened: %v", what, err)
	}
	if !opts.Exists {
		if err = migrate(store); err == nil {
			err = disk.WriteFile(l.Made, []byte("made "+time.Now().UTC().Format(time.RFC3339)+"\n"))
		}
		if err != nil {
			_ = store.Close()
			return Local{}, err
		}
	}
	return Local{store, what, disk.On(filepath.Dir(l.Dir))}, nil
}

// migrate copies a bucket's records and reads them again from the store.
func Migrate(ctx context.Context, from *Bucket, store *keyfile.Store) (moved int, err error) {
	ids, err := from.Keys(ctx)
	if err != nil {
		return 0, err
	}
	const atOnce = 32 // share a sync
	failed, free := make(chan error, len(ids)), make(chan struct{}, atOnce)
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
		return 0, fmt.Errorf("eventlog: moving the %s out of NATS: %w", from.what, err)
	}
	return len(store.Keys()), nil
}

func migrateOne(ctx context.Context, from *Bucket, store *keyfile.Store, id string) error {
	record, revision, err := from.Get(ctx, id)
	if err != nil || revision == 0 { // it was deleted by another tool
		return err
	}
	there, known, err := store.Get(ctx, id)
	if err == nil && known == 0 {
		if _, err = store.Put(ctx, id, record, 0); err == nil {
			there, _, err = store.Get(ctx, id)
		}
	}
	if err == nil && string(there) != string(record) {
		err = domain.Errorf(domain.DataLoss, "the record of %s is not what was written", id)
	}
	return err
}
