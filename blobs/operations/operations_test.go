package operations

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
)

var (
	run     = Lane{Account: "acme", Job: "event", ID: "run"}
	session = Lane{Account: "acme", Job: "event", ID: "session", Samples: true}
)

func bucket(t testing.TB, o blobs.Options) *blobs.Store {
	if o.Dir == "" && o.URL == "" {
		o.Dir = t.TempDir()
	}
	o.BaseURL, o.Key = "http://127.0.0.1:1/blobs", []byte("0123456789abcdef")
	b, err := blobs.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func op(seq int64, body string) Operation {
	return Operation{Seq: seq, Kind: "optim_step", Note: "note", Body: []byte(body), Hash: sha256.Sum256([]byte(body))}
}

func submit(t testing.TB, s *Store, lane Lane, seqs ...int64) {
	t.Helper()
	for _, seq := range seqs {
		created, err := s.Submit(t.Context(), lane, op(seq, fmt.Sprint("body ", seq)))
		require.NoError(t, err)
		require.True(t, created)
	}
}

func reasonOf(t *testing.T, err error) string {
	t.Helper()
	var refused *domain.Error
	require.ErrorAs(t, err, &refused)
	return refused.Reason
}

// TestOperations checks the life of the operations of a run, in a directory and in an object store,
// and that another store on the same bucket sees the same.
func TestOperations(t *testing.T) {
	for _, url := range []string{"", "mem://"} {
		t.Run("bucket "+url, func(t *testing.T) {
			b := bucket(t, blobs.Options{URL: url})
			s := New(b, nil)
			require.NoError(t, s.Create(t.Context(), run))
			require.NoError(t, s.Create(t.Context(), run))
			submit(t, s, run, 2, 1)

			created, err := s.Submit(t.Context(), run, op(1, "body 1"))
			require.NoError(t, err)
			require.False(t, created, "a repeated request is no new operation")
			_, err = s.Submit(t.Context(), run, op(1, "another"))
			require.Equal(t, ReasonSequenceReused, reasonOf(t, err))
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))

			for seq := range int64(2) {
				o, ok, err := s.Next(t.Context(), run, seq)
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, seq+1, o.Seq)
				require.Equal(t, fmt.Sprint("body ", seq+1), string(o.Body))
				require.Equal(t, sha256.Sum256(o.Body), o.Hash)
			}
			_, ok, err := s.Result(t.Context(), run, 1)
			require.NoError(t, err)
			require.False(t, ok)
			failure := &domain.Error{Code: domain.FailedPrecondition, Reason: "DIVERGED", Message: "the loss is not finite",
				Violations: []domain.Violation{{Field: "f", Description: "d"}}}
			require.NoError(t, s.Finish(t.Context(), run, 1, Result{Attempt: 1, Body: []byte{0, 255}}))
			require.NoError(t, s.Finish(t.Context(), run, 1, Result{Attempt: 2, Body: []byte("later")}))
			require.NoError(t, s.Finish(t.Context(), run, 2, Result{Attempt: 2, Err: failure}))
			require.Equal(t, domain.NotFound, domain.CodeOf(s.Finish(t.Context(), run, 3, Result{})))
			for _, reader := range []*Store{s, New(b, nil)} {
				r, err := reader.Wait(t.Context(), run, 1)
				require.NoError(t, err)
				require.Equal(t, []byte{0, 255}, r.Body, "the first result counts")
				require.Equal(t, 1, r.Attempt)
				require.Equal(t, "optim_step note", r.Kind+" "+r.Note)
				r, err = reader.Wait(t.Context(), run, 2)
				require.NoError(t, err)
				require.Equal(t, failure, r.Err)
				created, err := reader.Submit(t.Context(), run, op(2, "body 2"))
				require.NoError(t, err)
				require.False(t, created)
				_, err = reader.Wait(t.Context(), run, 9)
				require.Equal(t, ReasonUnknownOperation, reasonOf(t, err))
			}
		})
	}
}

// TestTrim checks that operations in a recovery checkpoint are deleted, that their results stay
// until they are old, and that neither is ever executed again.
func TestTrim(t *testing.T) {
	s := New(bucket(t, blobs.Options{}), nil)
	require.NoError(t, s.Create(t.Context(), run))
	submit(t, s, run, 1, 2, 3)
	for seq := range int64(2) {
		require.NoError(t, s.Finish(t.Context(), run, seq+1, Result{Body: []byte("r")}))
	}
	require.NoError(t, s.Trim(t.Context(), run, 2, time.Now().Add(-time.Hour)))
	created, err := s.Submit(t.Context(), run, op(2, "body 2"))
	require.NoError(t, err)
	require.False(t, created)
	_, err = s.Submit(t.Context(), run, op(2, "another"))
	require.Equal(t, ReasonSequenceReused, reasonOf(t, err))
	_, _, err = s.Next(t.Context(), run, 1)
	require.Equal(t, domain.DataLoss, domain.CodeOf(err), "the operation 2 cannot be executed again")
	o, ok, err := s.Next(t.Context(), run, 2)
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 3, o.Seq)
	r, err := s.Wait(t.Context(), run, 2)
	require.NoError(t, err)
	require.Equal(t, "r", string(r.Body))
	require.NoError(t, s.Finish(t.Context(), run, 2, Result{Body: []byte("again")}), "a result of a trimmed operation")

	require.NoError(t, s.Trim(t.Context(), run, 1, time.Now().Add(time.Hour)))
	_, err = s.Wait(t.Context(), run, 2)
	require.Equal(t, ReasonOperationExpired, reasonOf(t, err))
	_, err = s.Submit(t.Context(), run, op(2, "body 2"))
	require.Equal(t, ReasonOperationExpired, reasonOf(t, err))
	require.Equal(t, domain.OutOfRange, domain.CodeOf(err))
}

// TestLostOperations checks that the loss of what was acknowledged is DataLoss: of the whole
// journal, of an operation that was executed, and of bytes.
func TestLostOperations(t *testing.T) {
	dir := t.TempDir()
	s := New(bucket(t, blobs.Options{Dir: dir}), nil)
	_, err := s.Submit(t.Context(), run, op(1, "x"))
	require.Equal(t, ReasonJournalLost, reasonOf(t, err))
	_, _, err = s.Next(t.Context(), run, 0)
	require.Equal(t, ReasonJournalLost, reasonOf(t, err))

	require.NoError(t, s.Create(t.Context(), run))
	submit(t, s, run, 1, 2)
	require.NoError(t, s.Finish(t.Context(), run, 1, Result{}))
	require.NoError(t, os.Remove(filepath.Join(dir, filepath.FromSlash(run.operationKey(1)))))
	_, _, err = s.Next(t.Context(), run, 0)
	require.Equal(t, ReasonOperationLost, reasonOf(t, err))
	require.Equal(t, domain.DataLoss, domain.CodeOf(err))

	path := filepath.Join(dir, filepath.FromSlash(run.operationKey(2)))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := range data {
		damaged := append([]byte{}, data...)
		damaged[i] ^= 1
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		_, _, err = s.Next(t.Context(), run, 1)
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), "byte %d", i)
	}
	for i := range data { // an object store without digests
		damaged := append([]byte{}, data...)
		damaged[i] ^= 1
		if o, err := decodeOperation(damaged, 2); err == nil {
			require.Equal(t, "body 2", string(o.Body), "byte %d", i)
			require.EqualValues(t, 2, o.Seq)
		}
		_, err = decodeOperation(data[:i], 2)
		require.Equal(t, domain.DataLoss, domain.CodeOf(err))
	}
}

// TestWaiting checks that callers are woken without polling: by a submit, by a result, and by the
// notification of another control plane; and that they return when their context is done.
func TestWaiting(t *testing.T) {
	b := bucket(t, blobs.Options{URL: "mem://"})
	s, other := New(b, nil), New(b, nil)
	var announced []int64
	s.SetAnnounce(func(lane Lane, seqs ...int64) { announced = append(announced, seqs...) })
	require.NoError(t, s.Create(t.Context(), run))
	next := make(chan Operation)
	follow := func(at *Store, after int64) {
		go func() {
			o, _, err := at.Next(t.Context(), run, after)
			if err != nil {
				t.Error(err)
			}
			next <- o
		}()
	}
	until := func(at *Store, n int) {
		require.Eventually(t, func() bool { return at.Waiting() == n }, time.Minute, time.Millisecond)
	}
	follow(s, 0)
	until(s, 1)
	changed := s.Changed("acme", "event")
	submit(t, s, run, 1)
	require.EqualValues(t, 1, (<-next).Seq)
	<-changed

	results := make(chan Result)
	await := func(at *Store, seq int64) {
		go func() {
			r, err := at.Wait(t.Context(), run, seq)
			if err != nil {
				t.Error(err)
			}
			results <- r
		}()
	}
	await(s, 1)
	await(other, 1)
	until(s, 1)
	until(other, 1)
	require.NoError(t, s.Finish(t.Context(), run, 1, Result{Body: []byte("done")}))
	require.Equal(t, "done", string((<-results).Body))
	other.Notify(run, 7) // another operation
	other.Notify(run, 1)
	require.Equal(t, "done", string((<-results).Body))

	follow(other, 1)
	until(other, 1)
	submit(t, s, run, 2)
	other.Notify(run)
	require.EqualValues(t, 2, (<-next).Seq)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, ok, err := s.Next(ctx, run, 2)
	require.NoError(t, err)
	require.False(t, ok)
	_, err = s.Wait(ctx, run, 2)
	require.ErrorIs(t, err, context.Canceled)
	await(s, 0)
	until(s, 1)
	require.NoError(t, s.Finish(t.Context(), run, 0, Result{Attempt: 3}))
	require.Equal(t, 3, (<-results).Attempt, "the result of the creation of a run")
	until(s, 0)
	until(other, 0)
	require.Empty(t, s.memory.waiters)
	require.Equal(t, []int64{1, 1, 2, 0}, announced)
	body, err := s.Body(t.Context(), run, 2)
	require.NoError(t, err)
	require.Equal(t, "body 2", string(body))
}

// TestPendingSamples checks the list of sampling operations without results.
func TestPendingSamples(t *testing.T) {
	b := bucket(t, blobs.Options{})
	s := New(b, nil)
	second := session
	second.ID = "another"
	submit(t, s, session, 0, 5, 3)
	list := func(at *Store) []PendingSample {
		all, err := at.Pending(t.Context(), "acme", "event")
		require.NoError(t, err)
		return all
	}
	require.Equal(t, []PendingSample{{session, 0}, {session, 3}, {session, 5}}, list(s))
	submit(t, s, second, 1)
	require.NoError(t, s.Finish(t.Context(), session, 3, Result{}))
	require.Equal(t, []PendingSample{{session, 0}, {session, 5}, {second, 1}}, list(s))
	require.Equal(t, []PendingSample{{second, 1}, {session, 0}, {session, 5}}, list(New(b, nil)))
	other := New(b, nil)
	list(other)
	submit(t, s, second, 2)
	other.Notify(second)
	require.Len(t, list(other), 4)

	require.NoError(t, s.Sweep(t.Context(), "acme", "event", time.Now().Add(-time.Hour)))
	r, err := s.Wait(t.Context(), session, 3)
	require.NoError(t, err, "a young result stays")
	require.Empty(t, r.Body)
	created, err := s.Submit(t.Context(), session, op(3, "body 3"))
	require.NoError(t, err)
	require.False(t, created)
	require.NoError(t, s.Sweep(t.Context(), "acme", "event", time.Now().Add(time.Hour)))
	_, err = s.Wait(t.Context(), session, 3)
	require.Equal(t, ReasonOperationExpired, reasonOf(t, err))
	require.Len(t, list(s), 4)
	require.NoError(t, s.Discard(t.Context(), session))
	require.Equal(t, []PendingSample{{second, 1}, {second, 2}}, list(s))
	require.Error(t, s.Discard(t.Context(), run))
}

// TestConcurrentSubmits checks that of several submits of one sequence number by two control planes
// one is stored, and that each caller gets the right outcome.
func TestConcurrentSubmits(t *testing.T) {
	dir := t.TempDir()
	stores := []*Store{New(bucket(t, blobs.Options{Dir: dir}), nil), New(bucket(t, blobs.Options{Dir: dir}), nil)}
	require.NoError(t, stores[0].Create(t.Context(), run))
	for seq := int64(1); seq <= 20; seq++ {
		var created, repeated, reused atomic.Int64
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				ok, err := stores[i%2].Submit(t.Context(), run, op(seq, fmt.Sprint("body ", i/2)))
				switch {
				case ok:
					created.Add(1)
				case err == nil:
					repeated.Add(1)
				default:
					reused.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, created.Load())
		require.EqualValues(t, 1, repeated.Load())
		require.EqualValues(t, 4, reused.Load())
	}
}

// TestFaultsAtEveryEffect checks that an operation or a result that could not be stored is reported
// as an error, and that a repeated call stores it.
func TestFaultsAtEveryEffect(t *testing.T) {
	broken := errors.New("the disk is broken")
	fail := false
	s := New(bucket(t, blobs.Options{Intercept: func(_, _ string, do func() error) error {
		if fail {
			return broken
		}
		return do()
	}}), nil)
	steps := []func() error{
		func() error { return s.Create(t.Context(), run) },
		func() error { _, err := s.Submit(t.Context(), run, op(1, "x")); return err },
		func() error { return s.Finish(t.Context(), run, 1, Result{}) },
		func() error { return s.Trim(t.Context(), run, 1, time.Now().Add(time.Hour)) },
		func() error { _, err := s.Submit(t.Context(), session, op(1, "x")); return err },
		func() error { return s.Finish(t.Context(), session, 1, Result{}) },
		func() error { return s.Sweep(t.Context(), "acme", "event", time.Now().Add(time.Hour)) },
		func() error { _, err := s.Submit(t.Context(), session, op(2, "x")); return err },
		func() error { return s.Discard(t.Context(), session) },
		func() error { _, err := s.Submit(t.Context(), run, op(2, "x")); return err },
		func() error { _, err := s.End(t.Context(), run, time.Now()); return err },
	}
	for i, step := range steps {
		fail = true
		require.ErrorIs(t, step(), broken, "step %d", i)
		fail = false
		require.NoError(t, step(), "step %d", i)
	}
}

// TestLongErrors checks that a result keeps an error whose texts are too long, shortened.
func TestLongErrors(t *testing.T) {
	s := New(bucket(t, blobs.Options{}), nil)
	submit(t, s, session, 1)
	long := &domain.Error{Code: domain.InvalidArgument, Message: strings.Repeat("\x00", 1<<20)}
	for range 100 {
		long.Violations = append(long.Violations, domain.Violation{Field: long.Message, Description: long.Message})
	}
	require.NoError(t, s.Finish(t.Context(), session, 1, Result{Err: long}))
	r, err := s.Wait(t.Context(), session, 1)
	require.NoError(t, err)
	require.Equal(t, domain.InvalidArgument, r.Err.Code)
	created, err := s.Submit(t.Context(), session, op(1, "body 1"))
	require.NoError(t, err)
	require.False(t, created)
}

// BenchmarkSubmit measures how long a client waits until its operation is durable.
func BenchmarkSubmit(b *testing.B) {
	for _, size := range []int{1 << 10, 32 << 10, 900_000} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s := New(bucket(b, blobs.Options{}), nil)
			require.NoError(b, s.Create(b.Context(), run))
			body := strings.Repeat("x", size)
			seq := int64(0)
			for b.Loop() {
				seq++
				_, err := s.Submit(b.Context(), run, op(seq, body))
				require.NoError(b, err)
			}
		})
	}
}
