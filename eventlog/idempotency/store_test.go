package idempotency_test

import (
	"anneal/eventlog/servertest"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/kv"
	"anneal/eventlog/natsserver"
	"anneal/internal/testutil"
)

// storePromises lists the guarantees that a Store must give on every kind of storage, with their
// tests.
var storePromises = []struct {
	name string
	test func(*testing.T, *idempotency.Store)
}{
	{"a response is replayed for a day", testResponseIsReplayed},
	{"an unfinished claim ends with its lease", testLease},
	{"a renewed claim keeps the key", testRenewal},
	{"a released key can be claimed again by its own request", testRelease},
	{"a lost claim stores no response", testLostClaim},
	{"one of many concurrent claims is fresh", testClaimRace},
	{"the size of a response is limited", testResponseLimit},
	{"the responses of an account are limited", testCountLimit},
	{"the bytes of an account's responses are limited", testBytesLimit},
}

func openLocal(t testing.TB, s *natsserver.Server, dir string) *idempotency.Store {
	t.Helper()
	a, err := idempotency.OpenLocal(t.Context(), s.Control(),
		kv.LocalOptions{Dir: filepath.Join(dir, "answers"), CreatedFile: filepath.Join(dir, "answers.made")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, a.Close()) })
	return a
}

// TestRecordsAreMigrated checks that OpenLocal migrates the responses that an earlier version kept
// in the bucket ANSWERS, and empties the bucket.
func TestRecordsAreMigrated(t *testing.T) {
	dir, s := t.TempDir(), servertest.Start(t)
	before, err := idempotency.Open(t.Context(), s.Control())
	require.NoError(t, err)
	now := time.Now()
	for i := range 50 {
		require.NoError(t, before.Store(t.Context(), mustClaim(t, before, fmt.Sprint("acme.", i), "body", now),
			[]byte("done")))
	}
	a := openLocal(t, s, dir)
	count, _ := a.Kept("acme.")
	require.Equal(t, 50, count)
	for i := range 50 {
		require.Equal(t, "done", string(mustClaim(t, a, fmt.Sprint("acme.", i), "body", now.Add(time.Minute)).Response))
	}
	ids, err := before.Records().Keys(t.Context())
	require.NoError(t, err)
	require.Empty(t, ids)
}

// TestKeysOfLostRecordsAreNotFresh checks that Claim refuses unknown keys for a day after records
// were damaged in both files, or until the operator removes the file "lost".
func TestKeysOfLostRecordsAreNotFresh(t *testing.T) {
	dir, s, now := t.TempDir(), servertest.Start(t), time.Now()
	a := openLocal(t, s, dir)
	for _, key := range []string{"acme.1", "acme.2"} {
		require.NoError(t, a.Store(t.Context(), mustClaim(t, a, key, "body", now), []byte("answer of "+key)))
	}
	require.NoError(t, a.Close())
	for _, name := range []string{"keys.1", "keys.2"} {
		path := filepath.Join(dir, "answers", name)
		content := testutil.ReadFile(t, path)
		at := bytes.LastIndex(content, []byte("acme.1"))
		content[at]++
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	for range 2 { // the second OpenLocal reads the recorded loss
		again := openLocal(t, s, dir)
		require.Equal(t, "answer of acme.2", string(mustClaim(t, again, "acme.2", "body", now).Response))
		_, err := again.Claim(t.Context(), "acme.3", []byte("body"), time.Now(), lease)
		var lost *domain.Error
		require.ErrorAs(t, err, &lost)
		require.Equal(t, idempotency.ReasonLost, lost.Reason)
		require.Equal(t, idempotency.Fresh,
			mustClaim(t, again, "acme.3", "body", time.Now().Add(idempotency.Retention+time.Minute)).State)
		require.NoError(t, again.Records().Delete(t.Context(), "acme.3"))
		require.NoError(t, again.Close())
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "answers", "lost")))
	require.Equal(t, idempotency.Fresh, mustClaim(t, openLocal(t, s, dir), "acme.3", "body", time.Now()).State)
}

// BenchmarkStore measures a claim and the storing of its response, in requests per second.
func BenchmarkStore(b *testing.B) {
	s := servertest.Start(b, func(o *natsserver.Options) { o.NoSync = false })
	bucket, err := idempotency.Open(b.Context(), s.Control())
	require.NoError(b, err)
	for kind, answers := range map[string]*idempotency.Store{"bucket": bucket,
		"files": openLocal(b, s, b.TempDir())} {
		answers.Limit = idempotency.Limit{Count: 1 << 30, Bytes: 1 << 40}
		b.Run(kind, func(b *testing.B) {
			var n atomic.Int64
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					key := fmt.Sprintf("acme.%s-%d-%d", kind, b.N, n.Add(1))
					claim, err := answers.Claim(b.Context(), key, []byte("body"), time.Now(), lease)
					if err == nil {
						err = answers.Store(b.Context(), claim, make([]byte, 500))
					}
					if err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

func TestStore(t *testing.T) {
	for _, promise := range storePromises {
		t.Run("files: "+promise.name,
			func(t *testing.T) { promise.test(t, openLocal(t, servertest.Start(t), t.TempDir())) })
		t.Run("memory: "+promise.name, func(t *testing.T) { promise.test(t, idempotency.NewMemory()) })
		t.Run("JetStream: "+promise.name, func(t *testing.T) {
			answers, err := idempotency.Open(t.Context(), servertest.Start(t).Control())
			require.NoError(t, err)
			promise.test(t, answers)
		})
	}
}

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

const lease = 30 * time.Second

func mustClaim(t *testing.T, a *idempotency.Store, key, digest string, now time.Time) idempotency.Claim {
	t.Helper()
	claim, err := a.Claim(t.Context(), key, []byte(digest), now, lease)
	require.NoError(t, err)
	return claim
}

func testResponseIsReplayed(t *testing.T, a *idempotency.Store) {
	claim := mustClaim(t, a, "k", "body", start)
	require.Equal(t, idempotency.Fresh, claim.State)
	require.Len(t, claim.Seed, 32)
	require.NoError(t, a.Store(t.Context(), claim, []byte("done")))
	for _, step := range []struct {
		key, digest string
		at          time.Duration
		want        idempotency.ClaimState
	}{
		{"k", "body", time.Second, idempotency.Completed},
		{"k", "other", time.Second, idempotency.Mismatch},
		{"k2", "other", time.Second, idempotency.Fresh},
		{"k", "body", idempotency.Retention - time.Nanosecond, idempotency.Completed},
		{"k", "other", idempotency.Retention - time.Nanosecond, idempotency.Mismatch},
		{"k", "other", idempotency.Retention, idempotency.Fresh},
		{"k", "body", idempotency.Retention + time.Second, idempotency.Mismatch},
	} {
		again := mustClaim(t, a, step.key, step.digest, start.Add(step.at))
		require.Equal(t, step.want, again.State, "%+v", step)
		if step.want == idempotency.Completed {
			assert.Equal(t, "done", string(again.Response))
		} else {
			assert.Empty(t, again.Response)
		}
		if step.want == idempotency.Fresh {
			assert.NotEqual(t, claim.Seed, again.Seed)
		}
	}
}

func testLease(t *testing.T, a *idempotency.Store) {
	first := mustClaim(t, a, "k", "body", start)
	during := mustClaim(t, a, "k", "body", start.Add(lease-1))
	require.Equal(t, idempotency.InProgress, during.State)
	assert.True(t, during.Lease.Equal(start.Add(lease)))
	assert.Equal(t, idempotency.Mismatch, mustClaim(t, a, "k", "other", start.Add(time.Second)).State)

	second := mustClaim(t, a, "k", "body", start.Add(lease))
	require.Equal(t, idempotency.Resumed, second.State)
	assert.Equal(t, first.Seed, second.Seed, "it generates the same IDs as the first")
	assert.Equal(t, idempotency.InProgress, mustClaim(t, a, "k", "body", start.Add(lease+1)).State)
	require.NoError(t, a.Store(t.Context(), second, []byte("done")))
	assert.Equal(t, idempotency.Fresh, mustClaim(t, a, "k", "body", start.Add(idempotency.Retention)).State,
		"a day from the first claim")
}

func testRenewal(t *testing.T, a *idempotency.Store) {
	first := mustClaim(t, a, "k", "body", start)
	renewed, err := a.Renew(t.Context(), first, start.Add(lease/2), lease)
	require.NoError(t, err)
	require.Equal(t, idempotency.InProgress, mustClaim(t, a, "k", "body", start.Add(lease)).State)
	require.ErrorIs(t, a.Store(t.Context(), first, []byte("x")), eventlog.ErrConflict, "the newest claim counts")
	require.NoError(t, a.Store(t.Context(), renewed, []byte("done")))
	require.Equal(t, "done", string(mustClaim(t, a, "k", "body", start.Add(lease)).Response))

	lost := mustClaim(t, a, "lost", "body", start)
	mustClaim(t, a, "lost", "body", start.Add(lease))
	_, err = a.Renew(t.Context(), lost, start.Add(lease), lease)
	require.ErrorIs(t, err, eventlog.ErrConflict)
}

func testRelease(t *testing.T, a *idempotency.Store) {
	first := mustClaim(t, a, "k", "body", start)
	require.NoError(t, a.Release(t.Context(), first))
	assert.Equal(t, idempotency.Mismatch, mustClaim(t, a, "k", "other", start).State)
	second := mustClaim(t, a, "k", "body", start)
	require.Equal(t, idempotency.Resumed, second.State)
	assert.Equal(t, first.Seed, second.Seed)
}

func testLostClaim(t *testing.T, a *idempotency.Store) {
	first := mustClaim(t, a, "k", "body", start)
	second := mustClaim(t, a, "k", "body", start.Add(lease))
	require.ErrorIs(t, a.Store(t.Context(), first, []byte("late")), eventlog.ErrConflict)
	require.ErrorIs(t, a.Release(t.Context(), first), eventlog.ErrConflict)
	require.NoError(t, a.Store(t.Context(), second, []byte("done")))
	assert.Equal(t, "done", string(mustClaim(t, a, "k", "body", start.Add(lease)).Response))
}

func testClaimRace(t *testing.T, a *idempotency.Store) {
	const racers = 8
	states := make([]idempotency.ClaimState, racers)
	var all sync.WaitGroup
	for i := range racers {
		all.Go(func() {
			claim, err := a.Claim(context.WithoutCancel(t.Context()), "k", []byte("body"), start, lease)
			assert.NoError(t, err)
			states[i] = claim.State
		})
	}
	all.Wait()
	count := map[idempotency.ClaimState]int{}
	for _, state := range states {
		count[state]++
	}
	assert.Equal(t, map[idempotency.ClaimState]int{idempotency.Fresh: 1, idempotency.InProgress: racers - 1}, count)
}

func testResponseLimit(t *testing.T, a *idempotency.Store) {
	claim := mustClaim(t, a, "k", "body", start)
	for _, size := range []int{0, idempotency.MaxResponse + 1} {
		assert.Equal(t, domain.InvalidArgument, domain.CodeOf(a.Store(t.Context(), claim, make([]byte, size))), size)
	}
	require.NoError(t, a.Store(t.Context(), claim, make([]byte, idempotency.MaxResponse)))
	assert.Len(t, mustClaim(t, a, "k", "body", start).Response, idempotency.MaxResponse)
}

func TestResponsesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	run := func(use func(*idempotency.Store)) {
		s := servertest.Start(t, func(o *natsserver.Options) { o.Dir, o.NoSync = dir, false })
		answers, err := idempotency.Open(t.Context(), s.Control())
		require.NoError(t, err)
		use(answers)
		s.Close()
	}
	run(func(a *idempotency.Store) {
		require.NoError(t, a.Store(t.Context(), mustClaim(t, a, "k", "body", start), []byte("done")))
		mustClaim(t, a, "lost", "body", start)
	})
	run(func(a *idempotency.Store) {
		assert.Equal(t, idempotency.Completed, mustClaim(t, a, "k", "body", start).State)
		assert.Equal(t, idempotency.InProgress, mustClaim(t, a, "lost", "body", start).State)
		assert.Equal(t, idempotency.Resumed, mustClaim(t, a, "lost", "body", start.Add(lease)).State)
	})
}

func retryAfter(t *testing.T, a *idempotency.Store, key string, now time.Time) (free time.Time) {
	t.Helper()
	claim, err := a.Claim(t.Context(), key, []byte("body"), now, lease)
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err), "%v", err)
	var f *domain.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, idempotency.ReasonFull, f.Reason)
	require.Contains(t, f.Message, "retry after "+claim.Lease.UTC().Format(time.RFC3339))
	return claim.Lease
}

func testCountLimit(t *testing.T, a *idempotency.Store) {
	a.Limit = idempotency.Limit{Count: 2, Bytes: 1 << 20}
	require.NoError(t, a.Store(t.Context(), mustClaim(t, a, "acme.1", "body", start), []byte("done")))
	mustClaim(t, a, "acme.2", "body", start.Add(time.Hour))
	require.Equal(t, start.Add(idempotency.Retention), retryAfter(t, a, "acme.3", start.Add(2*time.Hour)))
	require.Equal(t, idempotency.Fresh, mustClaim(t, a, "other.1", "body", start).State,
		"another account has its own limit")
	require.Equal(t, idempotency.Completed, mustClaim(t, a, "acme.1", "body", start.Add(3*time.Hour)).State,
		"kept responses are replayed")
	require.Equal(t, idempotency.Resumed, mustClaim(t, a, "acme.2", "body", start.Add(3*time.Hour)).State)

	require.Equal(t, idempotency.Fresh, mustClaim(t, a, "acme.3", "body", start.Add(idempotency.Retention)).State,
		"the first has expired")
	require.Equal(t, start.Add(time.Hour+idempotency.Retention),
		retryAfter(t, a, "acme.1", start.Add(idempotency.Retention)),
		"its capacity is used again")
	require.Equal(t, idempotency.Fresh,
		mustClaim(t, a, "acme.2", "body", start.Add(time.Hour+idempotency.Retention)).State,
		"an expired key keeps its record")
}

func testBytesLimit(t *testing.T, a *idempotency.Store) {
	a.Limit = idempotency.Limit{Count: 100, Bytes: 4 << 10}
	long := make([]byte, 4<<10)
	first, second := mustClaim(t, a, "acme.1", "body", start), mustClaim(t, a, "acme.2", "body", start)
	require.NoError(t, a.Store(t.Context(), first, long))
	retryAfter(t, a, "acme.3", start)
	require.NoError(t, a.Store(t.Context(), second, long), "a request in progress can store its response")
	retryAfter(t, a, "acme.3", start)
	require.Equal(t, idempotency.Fresh, mustClaim(t, a, "acme.3", "body", start.Add(idempotency.Retention)).State)
}

// TestServersShareTheLimit checks that the keys of an account that other servers claim, and keys
// that were stored before this server started, count toward the account's limit.
func TestServersShareTheLimit(t *testing.T) {
	nc := servertest.Start(t).Control()
	open := func() *idempotency.Store {
		a, err := idempotency.Open(t.Context(), nc)
		require.NoError(t, err)
		a.Limit = idempotency.Limit{Count: 3, Bytes: 1 << 20}
		return a
	}
	one, other, now := open(), open(), time.Now()
	mustClaim(t, one, "acme.1", "body", now)
	var following sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); following.Wait() })
	following.Go(func() { assert.ErrorIs(t, other.Follow(ctx), context.Canceled) })
	require.NoError(t, one.Store(t.Context(), mustClaim(t, one, "acme.2", "body", now), make([]byte, 5000)))
	mustClaim(t, one, "acme.3", "body", now)
	require.Eventually(t, func() bool {
		count, bytes := other.Kept("acme.")
		_, same := one.Kept("acme.")
		return count == 3 && bytes == same
	}, time.Minute, time.Millisecond)
	retryAfter(t, other, "acme.4", now)
}
