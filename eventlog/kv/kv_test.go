package kv_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/keyfile"
	"anneal/eventlog/kv"
	"anneal/eventlog/secrets"
	"anneal/eventlog/servertest"
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

// TestBucketWithoutLeader checks that each operation on a bucket whose stream does not respond, as
// during an election, is refused as unavailable: an operator has nothing to look for.
func TestBucketWithoutLeader(t *testing.T) {
	conn := servertest.Start(t).Control()
	keys, err := kv.OpenBucket(t.Context(), conn, secrets.BucketStream, "data keys", secrets.EnsureBucket)
	require.NoError(t, err)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	// without the stream, no server receives the messages on its subjects
	require.NoError(t, js.DeleteStream(t.Context(), secrets.BucketStream))
	for name, call := range map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, _, err := keys.Get(ctx, "a"); return err },
		"put":    func(ctx context.Context) error { _, err := keys.Put(ctx, "a", []byte("1"), 0); return err },
		"delete": func(ctx context.Context) error { return keys.Delete(ctx, "a") },
		"keys":   func(ctx context.Context) error { _, err := keys.Keys(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			err := call(t.Context())
			require.Equal(t, domain.Unavailable, domain.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "data keys")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, call(ctx), context.Canceled)
		})
	}
}

// TestPutOutlivesAnElection checks that a record is stored that was put while the stream had no
// leader.
func TestPutOutlivesAnElection(t *testing.T) {
	conn := servertest.Start(t).Control()
	keys, err := kv.OpenBucket(t.Context(), conn, secrets.BucketStream, "data keys", secrets.EnsureBucket)
	require.NoError(t, err)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), secrets.BucketStream)
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), secrets.BucketStream))
	sent, put := conn.Stats().OutMsgs, make(chan error, 1)
	go func() {
		_, err := keys.Put(t.Context(), "a", []byte("1"), 0)
		put <- err
	}()
	require.Eventually(t, func() bool { return conn.Stats().OutMsgs >= sent+5 || len(put) > 0 }, time.Minute,
		time.Millisecond)
	_, err = js.CreateStream(t.Context(), stream.CachedInfo().Config)
	require.NoError(t, err)
	require.NoError(t, <-put)
}

func testKeyRevisions(t *testing.T, keys kv.Store) {
	ctx := t.Context()
	_, revision, err := keys.Get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, revision)
	first := mustPut(t, keys, "a", []byte("1"), 0)
	require.NotZero(t, first)
	_, err = keys.Put(ctx, "a", []byte("x"), 0)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	_, err = keys.Put(ctx, "b", []byte("x"), first)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	second := mustPut(t, keys, "a", []byte("2"), first)
	_, err = keys.Put(ctx, "a", []byte("x"), first)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	record, revision, err := keys.Get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "2", string(record))
	require.Equal(t, second, revision)
	mustPut(t, keys, "b", []byte("3"), 0)
	ids, err := keys.Keys(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, ids)
}

func testKeyErased(t *testing.T, keys kv.Store) {
	ctx := t.Context()
	require.NoError(t, keys.Delete(ctx, "a"), "a missing key is no error")
	first := mustPut(t, keys, "a", []byte("1"), 0)
	require.NoError(t, keys.Delete(ctx, "a"))
	_, revision, err := keys.Get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, revision)
	ids, err := keys.Keys(ctx)
	require.NoError(t, err)
	require.Empty(t, ids)
	_, err = keys.Put(ctx, "a", []byte("2"), first)
	require.ErrorIs(t, err, eventlog.ErrConflict)
	second := mustPut(t, keys, "a", []byte("2"), 0)
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
		mustPut(t, keys, id, []byte("1"), 0)
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

func mustPut(t testing.TB, keys kv.Store, id string, record []byte, revision uint64) uint64 {
	t.Helper()
	stored, err := keys.Put(t.Context(), id, record, revision)
	require.NoError(t, err)
	return stored
}
