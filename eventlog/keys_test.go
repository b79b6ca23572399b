package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/keyfile"
)

// What every keyStore promises, whatever it is made of.
var keyPromises = []struct {
	name string
	test func(*testing.T, keyStore)
}{
	{"a key is put over the revision it was read at", testKeyRevisions},
	{"an erased key is gone and may come again", testKeyErased},
	{"of racing puts one wins", testKeyRace},
	{"concurrent erasures are one", testKeyErasures},
}

func TestKeyStores(t *testing.T) {
	stores := map[string]func(*testing.T) keyStore{
		"memory": func(*testing.T) keyStore { return newMemoryKeys() },
		"file": func(t *testing.T) keyStore {
			store, err := keyfile.Open(t.TempDir(), keyfile.Options{Wipe: true})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, store.Close()) })
			return localKeys{store, "data keys", nil}
		},
		"bucket": func(t *testing.T) keyStore {
			keys, err := openBucket(t.Context(), start(t).Control(), keysStream, "data keys", ensureKeys)
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

func testKeyRevisions(t *testing.T, keys keyStore) {
	ctx := t.Context()
	_, revision, err := keys.get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, revision)
	first, err := keys.put(ctx, "a", []byte("1"), 0)
	require.NoError(t, err)
	require.NotZero(t, first)
	_, err = keys.put(ctx, "a", []byte("x"), 0)
	require.ErrorIs(t, err, ErrConflict)
	_, err = keys.put(ctx, "b", []byte("x"), first)
	require.ErrorIs(t, err, ErrConflict)
	second, err := keys.put(ctx, "a", []byte("2"), first)
	require.NoError(t, err)
	_, err = keys.put(ctx, "a", []byte("x"), first)
	require.ErrorIs(t, err, ErrConflict)
	record, revision, err := keys.get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "2", string(record))
	require.Equal(t, second, revision)
	_, err = keys.put(ctx, "b", []byte("3"), 0)
	require.NoError(t, err)
	ids, err := keys.ids(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, ids)
}

func testKeyErased(t *testing.T, keys keyStore) {
	ctx := t.Context()
	require.NoError(t, keys.erase(ctx, "a"), "no key is no error")
	first, err := keys.put(ctx, "a", []byte("1"), 0)
	require.NoError(t, err)
	require.NoError(t, keys.erase(ctx, "a"))
	_, revision, err := keys.get(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, revision)
	ids, err := keys.ids(ctx)
	require.NoError(t, err)
	require.Empty(t, ids)
	_, err = keys.put(ctx, "a", []byte("2"), first)
	require.ErrorIs(t, err, ErrConflict)
	second, err := keys.put(ctx, "a", []byte("2"), 0)
	require.NoError(t, err)
	require.Greater(t, second, first, "a revision is not used again")
}

func testKeyRace(t *testing.T, keys keyStore) {
	const racers = 8
	won := make([]error, racers)
	var all sync.WaitGroup
	for i := range racers {
		all.Go(func() { _, won[i] = keys.put(context.WithoutCancel(t.Context()), "a", fmt.Append(nil, i), 0) })
	}
	all.Wait()
	winner := -1
	for i, err := range won {
		if err == nil {
			require.Equal(t, -1, winner)
			winner = i
			continue
		}
		require.ErrorIs(t, err, ErrConflict)
	}
	record, _, err := keys.get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(winner), string(record))
}

func testKeyErasures(t *testing.T, keys keyStore) {
	for i := range 30 {
		id := fmt.Sprint("k", i)
		_, err := keys.put(t.Context(), id, []byte("1"), 0)
		require.NoError(t, err)
		failed := make([]error, 8)
		var all sync.WaitGroup
		for i := range failed {
			all.Go(func() {
				failed[i] = keys.erase(context.WithoutCancel(t.Context()), id)
				if _, revision, err := keys.get(context.WithoutCancel(t.Context()), id); err != nil || revision > 0 {
					failed[i] = errors.Join(failed[i], err, errors.New("the key is still there"))
				}
			})
		}
		all.Wait()
		require.NoError(t, errors.Join(failed...))
	}
}
