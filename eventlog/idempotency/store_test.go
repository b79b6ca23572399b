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
)

// What Answers promise, whatever they are kept in.
var answerPromises = []struct {
	name string
	test func(*testing.T, *idempotency.Store)
}{
	{"an answer is given again for a day", testAnswerKept},
	{"a claim that nobody finished lapses with its lease", testLease},
	{"a renewed claim holds on", testRenewal},
	{"a released key may be claimed at once, by its own request", testRelease},
	{"who lost the claim stores nothing", testLostClaim},
	{"of many claims at once one is fresh", testClaimRace},
	{"an answer has a limit", testAnswerLimit},
	{"an account has room for so many", testRoomForAnswers},
	{"an account has room for so many bytes", testRoomForBytes},
}

func openLocalAnswers(t testing.TB, s *natsserver.Server, dir string) *idempotency.Store {
	t.Helper()
	a, err := idempotency.OpenLocal(t.Context(), s.Control(), kv.LocalOptions{Dir: filepath.Join(dir, "answers"), Made: filepath.Join(dir, "answers.made")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, a.Close()) })
	return a
}

// What was answered before the store was one of files is still answered, also
// when the server ends without a word.
func TestAnswersAreMigrated(t *testing.T) {
	dir, s := t.TempDir(), servertest.Start(t)
	before, err := idempotency.Open(t.Context(), s.Control())
	require.NoError(t, err)
	now := time.Now()
	for i := range 50 {
		require.NoError(t, before.Store(t.Context(), mustClaim(t, before, fmt.Sprint("acme.", i), "body", now), []byte("done")))
	}
	a := openLocalAnswers(t, s, dir)
	count, _ := a.Kept("acme.")
	require.Equal(t, 50, count)
	for i := range 50 {
		require.Equal(t, "done", string(mustClaim(t, a, fmt.Sprint("acme.", i), "body", now.Add(time.Minute)).Response))
	}
	ids, err := before.Records().Keys(t.Context())
	require.NoError(t, err)
	require.Empty(t, ids)
}

// A request whose record may have been lost is not carried out again.
func TestLostAnswersAreNotFresh(t *testing.T) {
	dir, s, now := t.TempDir(), servertest.Start(t), time.Now()
	a := openLocalAnswers(t, s, dir)
	for _, key := range []string{"acme.1", "acme.2"} {
		require.NoError(t, a.Store(t.Context(), mustClaim(t, a, key, "body", now), []byte("answer of "+key)))
	}
	require.NoError(t, a.Close())
	for _, name := range []string{"keys.1", "keys.2"} {
		path := filepath.Join(dir, "answers", name)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		at := bytes.LastIndex(content, []byte("acme.1"))
		content[at]++
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	for range 2 { // it is remembered
		again := openLocalAnswers(t, s, dir)
		require.Equal(t, "answer of acme.2", string(mustClaim(t, again, "acme.2", "body", now).Response))
		_, err := again.Claim(t.Context(), "acme.3", []byte("body"), time.Now(), lease)
		var refusal *domain.Error
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, idempotency.ReasonLost, refusal.Reason)
		require.Equal(t, idempotency.Fresh, mustClaim(t, again, "acme.3", "body", time.Now().Add(idempotency.Retention+time.Minute)).State)
		require.NoError(t, again.Records().Delete(t.Context(), "acme.3"))
		require.NoError(t, again.Close())
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "answers", "lost")))
	require.Equal(t, idempotency.Fresh, mustClaim(t, openLocalAnswers(t, s, dir), "acme.3", "body", time.Now()).State)
}

// Two changes for each request that may be repeated: its claim and its answer.
func BenchmarkAnswers(b *testing.B) {
	s := servertest.Start(b, func(o *natsserver.Options) { o.NoSync = false })
	bucket, err := idempotency.Open(b.Context(), s.Control())
	require.NoError(b, err)
	for kind, answers := range map[string]*idempotency.Store{"bucket": bucket, "files": openLocalAnswers(b, s, b.TempDir())} {
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

func TestAnswers(t *testing.T) {
	for _, promise := range answerPromises {
		t.Run("files: "+promise.name, func(t *testing.T) { promise.test(t, openLocalAnswers(t, servertest.Start(t), t.TempDir())) })
		t.Run("memory: "+promise.name, func(t *testing.T) { promise.test(t, idempotency.NewMemory()) })
		t.Run("JetStream: "+promise.name, func(t *testing.T) {
			answers, err := idempotency.Open(t.Context(), servertest.Start(t).Control())
			require.NoError(t, err)
			promise.test(t, answers)
		})
	}
}

var dawn = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

const lease = 30 * time.Second

func mustClaim(t *testing.T, a *idempotency.Store, key, digest string, now time.Time) idempotency.Claim {
	t.Helper()
	claim, err := a.Claim(t.Context(), key, []byte(digest), now, lease)
	require.NoError(t, err)
	return claim
}

func testAnswerKept(t *testing.T, a *idempotency.Store) {
	claim := mustClaim(t, a, "k", "body", dawn)
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
		again := mustClaim(t, a, step.key, step.digest, dawn.Add(step.at))
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
	first := mustClaim(t, a, "k", "body", dawn)
	during := mustClaim(t, a, "k", "body", dawn.Add(lease-1))
	require.Equal(t, idempotency.InProgress, during.State)
	assert.True(t, during.Lease.Equal(dawn.Add(lease)))
	assert.Equal(t, idempotency.Mismatch, mustClaim(t, a, "k", "other", dawn.Add(time.Second)).State)

	second := mustClaim(t, a, "k", "body", dawn.Add(lease))
	require.Equal(t, idempotency.Resumed, second.State)
	assert.Equal(t, first.Seed, second.Seed, "what it makes up is what the first made up")
	assert.Equal(t, idempotency.InProgress, mustClaim(t, a, "k", "body", dawn.Add(lease+1)).State)
	require.NoError(t, a.Store(t.Context(), second, []byte("done")))
	assert.Equal(t, idempotency.Fresh, mustClaim(t, a, "k", "body", dawn.Add(idempotency.Retention)).State, "a day from the first claim")
}

func testRenewal(t *testing.T, a *idempotency.Store) {
	first := mustClaim(t, a, "k", "body", dawn)
	renewed, err := a.Renew(t.Context(), first, dawn.Add(lease/2), lease)
	require.NoError(t, err)
	require.Equal(t, idempotency.InProgress, mustClaim(t, a, "k", "body", dawn.Add(lease)).State)
	require.ErrorIs(t, a.Store(t.Context(), first, []byte("x")), eventlog.ErrConflict, "the newest claim counts")
	require.NoError(t, a.Store(t.Context(), renewed, []byte("done")))
	require.Equal(t, "done", string(mustClaim(t, a, "k", "body", dawn.Add(lease)).Response))

	lost := mustClaim(t, a, "lost", "body", dawn)
	mustClaim(t, a, "lost", "body", dawn.Add(lease))
	_, err = a.Renew(t.Context(), lost, dawn.Add(lease), lease)
	require.ErrorIs(t, err, eventlog.ErrConflict)
}

func testRelease(t *testing.T, a *idempotency.Store) {
	first := mustClaim(t, a, "k", "body", dawn)
	require.NoError(t, a.Release(t.Context(), first))
	assert.Equal(t, idempotency.Mismatch, mustClaim(t, a, "k", "other", dawn).State)
	second := mustClaim(t, a, "k", "body", dawn)
	require.Equal(t, idempotency.Resumed, second.State)
	assert.Equal(t, first.Seed, second.Seed)
}

func testLostClaim(t *testing.T, a *idempotency.Store) {
	first := mustClaim(t, a, "k", "body", dawn)
	second := mustClaim(t, a, "k", "body", dawn.Add(lease))
	require.ErrorIs(t, a.Store(t.Context(), first, []byte("late")), eventlog.ErrConflict)
	require.ErrorIs(t, a.Release(t.Context(), first), eventlog.ErrConflict)
	require.NoError(t, a.Store(t.Context(), second, []byte("done")))
	assert.Equal(t, "done", string(mustClaim(t, a, "k", "body", dawn.Add(lease)).Response))
}

func testClaimRace(t *testing.T, a *idempotency.Store) {
	const racers = 8
	states := make([]idempotency.ClaimState, racers)
	var all sync.WaitGroup
	for i := range racers {
		all.Go(func() {
			claim, err := a.Claim(context.WithoutCancel(t.Context()), "k", []byte("body"), dawn, lease)
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

func testAnswerLimit(t *testing.T, a *idempotency.Store) {
	claim := mustClaim(t, a, "k", "body", dawn)
	for _, size := range []int{0, idempotency.MaxResponse + 1} {
		assert.Equal(t, domain.InvalidArgument, domain.CodeOf(a.Store(t.Context(), claim, make([]byte, size))), size)
	}
	require.NoError(t, a.Store(t.Context(), claim, make([]byte, idempotency.MaxResponse)))
	assert.Len(t, mustClaim(t, a, "k", "body", dawn).Response, idempotency.MaxResponse)
}

func TestAnswersOutliveTheServer(t *testing.T) {
	dir := t.TempDir()
	run := func(use func(*idempotency.Store)) {
		s := servertest.Start(t, func(o *natsserver.Options) { o.Dir, o.NoSync = dir, false })
		answers, err := idempotency.Open(t.Context(), s.Control())
		require.NoError(t, err)
		use(answers)
		s.Close()
	}
	run(func(a *idempotency.Store) {
		require.NoError(t, a.Store(t.Context(), mustClaim(t, a, "k", "body", dawn), []byte("done")))
		mustClaim(t, a, "lost", "body", dawn)
	})
	run(func(a *idempotency.Store) {
		assert.Equal(t, idempotency.Completed, mustClaim(t, a, "k", "body", dawn).State)
		assert.Equal(t, idempotency.InProgress, mustClaim(t, a, "lost", "body", dawn).State)
		assert.Equal(t, idempotency.Resumed, mustClaim(t, a, "lost", "body", dawn.Add(lease)).State)
	})
}

func noRoomFor(t *testing.T, a *idempotency.Store, key string, now time.Time) (free time.Time) {
	t.Helper()
	claim, err := a.Claim(t.Context(), key, []byte("body"), now, lease)
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err), "%v", err)
	var f *domain.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, idempotency.ReasonFull, f.Reason)
	require.Contains(t, f.Message, "ask again after "+claim.Lease.UTC().Format(time.RFC3339))
	return claim.Lease
}

func testRoomForAnswers(t *testing.T, a *idempotency.Store) {
	a.Limit = idempotency.Limit{Count: 2, Bytes: 1 << 20}
	require.NoError(t, a.Store(t.Context(), mustClaim(t, a, "acme.1", "body", dawn), []byte("done")))
	mustClaim(t, a, "acme.2", "body", dawn.Add(time.Hour))
	require.Equal(t, dawn.Add(idempotency.Retention), noRoomFor(t, a, "acme.3", dawn.Add(2*time.Hour)))
	require.Equal(t, idempotency.Fresh, mustClaim(t, a, "other.1", "body", dawn).State, "another account has its own room")
	require.Equal(t, idempotency.Completed, mustClaim(t, a, "acme.1", "body", dawn.Add(3*time.Hour)).State, "what is kept is answered")
	require.Equal(t, idempotency.Resumed, mustClaim(t, a, "acme.2", "body", dawn.Add(3*time.Hour)).State)

	require.Equal(t, idempotency.Fresh, mustClaim(t, a, "acme.3", "body", dawn.Add(idempotency.Retention)).State, "the first has lapsed")
	require.Equal(t, dawn.Add(time.Hour+idempotency.Retention), noRoomFor(t, a, "acme.1", dawn.Add(idempotency.Retention)), "its place is taken")
	require.Equal(t, idempotency.Fresh, mustClaim(t, a, "acme.2", "body", dawn.Add(time.Hour+idempotency.Retention)).State, "a key that lapsed keeps its place")
}

func testRoomForBytes(t *testing.T, a *idempotency.Store) {
	a.Limit = idempotency.Limit{Count: 100, Bytes: 4 << 10}
	long := make([]byte, 4<<10)
	first, second := mustClaim(t, a, "acme.1", "body", dawn), mustClaim(t, a, "acme.2", "body", dawn)
	require.NoError(t, a.Store(t.Context(), first, long))
	noRoomFor(t, a, "acme.3", dawn)
	require.NoError(t, a.Store(t.Context(), second, long), "who is at work may answer")
	noRoomFor(t, a, "acme.3", dawn)
	require.Equal(t, idempotency.Fresh, mustClaim(t, a, "acme.3", "body", dawn.Add(idempotency.Retention)).State)
}

// What other servers keep, and what was kept before this one began, takes room
// as well.
func TestRoomIsSharedByServers(t *testing.T) {
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
	noRoomFor(t, other, "acme.4", now)
}
