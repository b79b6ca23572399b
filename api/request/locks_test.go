package request

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestLocks checks that requests with one key hold the lock one after the other, that requests with
// different keys do not wait, that a wait ends with its context, and that no key keeps memory after
// the last request.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks
		holders := map[string]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		count := func(key string, n int) {
			mu.Lock()
			defer mu.Unlock()
			holders[key] += n
			require.LessOrEqual(t, holders[key], 1)
		}
		begin := time.Now()
		for i := range 1000 {
			key := fmt.Sprint("key", i%100)
			all.Go(func() {
				leave, err := l.enter(t.Context(), key)
				require.NoError(t, err)
				count(key, 1)
				time.Sleep(time.Second)
				count(key, -1)
				leave()
			})
		}
		all.Wait()
		require.Equal(t, 10*time.Second, time.Since(begin), "ten requests of each key, one after the other")
		require.Empty(t, l.keys)

		leave, err := l.enter(t.Context(), "accounts/acme/models/m")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), writeTime)
		defer cancel()
		_, err = l.enter(ctx, "accounts/acme/models/m")
		require.Equal(t, domain.Unavailable, domain.CodeOf(err))
		require.ErrorContains(t, err, "accounts/acme/models/m")
		require.Len(t, l.keys, 1)
		leave()
		require.Empty(t, l.keys)
	})
}
