package kv_test

import (
	"anneal/eventlog/servertest"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/eventlog"
	"anneal/eventlog/keyfile"
	"anneal/eventlog/kv"
	"anneal/eventlog/secrets"
)

// keyPromises lists the guarantees that every implementation of Store must give, with their tests.
var keyPromises = []struct {
	name string
	test func(*testing.T, kv.Store)
}{
	{"a key is put over the revision at which it was read", testKeyRevisions},
	{"an erased key is gone and can be put again", testKeyErased},
	{"one of several concurrent puts wins", testKeyRace},
	{"concurrent erasures all succeed", testKeyErasures},
}

func TestKeyStores(t *testing.T) {
	stores := map[string]func(*testing.T) kv.Store{
		"memory": func(*testing.T) kv.Store { return kv.NewMemory() },
		"file": func(t *testing.T) kv.Store {
			dir := t.TempDir()
			opts := kv.LocalOptions{Dir: filepath.Join(dir, "keys"), CreatedFile: filepath.Join(dir, "keys.made")}
			store, err := kv.OpenLocal("data keys", opts, keyfile.Options{Wipe: true}, func(*keyfile.Store) error { return nil })
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, store.Close()) })
			return store
		},
		"bucket": func(t *testing.T) kv.Store {
			keys, err := kv.OpenBucket(t.Context(), servertest.Start(t).Control(), secrets.BucketStream, "data keys",
				secrets.EnsureBucket)
			require.NoError(t, err)
			return keys
		},
	}
	for kind, open := range stores {
		for _, promise := range keyPromises {
			t.Run(kind+": "+promise.name, func(t *testing.T) { promise.test(t, open(t)) })
		}
	}
}

func testKeyRevisions(t *testing.T, keys kv.Store) {
	ctx := t.Context()
	_, revision, err := keys.Get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, revision)
	first, err := keys.Put(ctx, "a", []byte("1"), 0)
	require.NoError(t, err)
	require.NotZero(t, first)
	_, err = keys.Put(ctx, "a", []byte("x"), 0)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	_, err = keys.Put(ctx, "b", []byte("x"), first)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	second, err := keys.Put(ctx, "a", []byte("2"), first)
	require.NoError(t, err)
	_, err = keys.Put(ctx, "a", []byte("x"), first)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	record, revision, err := keys.Get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "2", string(record))
	require.Equal(t, second, revision)
	_, err = keys.Put(ctx, "b", []byte("3"), 0)
	require.NoError(t, err)
	ids, err := keys.Keys(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, ids)
}

func testKeyErased(t *testing.T, keys kv.Store) {
	ctx := t.Context()
	require.NoError(t, keys.Delete(ctx, "a"), "a missing key is no error")
	first, err := keys.Put(ctx, "a", []byte("1"), 0)
	require.NoError(t, err)
	require.NoError(t, keys.Delete(ctx, "a"))
	_, revision, err := keys.Get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, revision)
	ids, err := keys.Keys(ctx)
	require.NoError(t, err)
	require.Empty(t, ids)
	_, err = keys.Put(ctx, "a", []byte("2"), first)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	second, err := keys.Put(ctx, "a", []byte("2"), 0)
	require.NoError(t, err)
	require.Greater(t, second, first, "a revision is not reused")
}

func testKeyRace(t *testing.T, keys kv.Store) {
	const racers = 8
	won := make([]error, racers)
	var all sync.WaitGroup
	for i := range racers {
		all.Go(func() { _, won[i] = keys.Put(context.WithoutCancel(t.Context()), "a", fmt.Append(nil, i), 0) })
	}
	all.Wait()
	winner := -1
	for i, err := range won {
		if err == nil {
			require.Equal(t, -1, winner)
			winner = i
			continue
		}
		require.ErrorIs(t, err, eventlog.ErrConflict)
	}
	record, _, err := keys.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(winner), string(record))
}

func testKeyErasures(t *testing.T, keys kv.Store) {
	for i := range 30 {
		id := fmt.Sprint("k", i)
		_, err := keys.Put(t.Context(), id, []byte("1"), 0)
		require.NoError(t, err)
		failed := make([]error, 8)
		var all sync.WaitGroup
		for i := range failed {
			all.Go(func() {
				failed[i] = keys.Delete(context.WithoutCancel(t.Context()), id)
				if _, revision, err := keys.Get(context.WithoutCancel(t.Context()), id); err != nil || revision > 0 {
					failed[i] = errors.Join(failed[i], err, errors.New("the key still exists"))
				}
			})
		}
		all.Wait()
		require.NoError(t, errors.Join(failed...))
	}
}
