package operations

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
)

// TestQueueIsBounded checks that an account can have only so many bytes without results, that
// repeated requests and other accounts are not affected, and that results make room: those that
// were stored here, those that another control plane announces, and those that it has stored
// without an announcement.
func TestQueueIsBounded(t *testing.T) {
	b, now := bucket(t, blobs.Options{URL: "mem://"}), time.Now()
	s, other := New(b, func() time.Time { return now }), New(b, nil)
	const parts = 4
	large := strings.Repeat("x", MaxQueuedBytes/parts)
	add := func(seq int64) error {
		_, err := s.Submit(t.Context(), session, op(seq, large))
		return err
	}
	full := func(seq int64) {
		t.Helper()
		err := add(seq)
		require.Equal(t, ReasonQueueFull, reasonOf(t, err))
		require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
		require.ErrorContains(t, err, "accounts/acme has 4 operations")
	}
	for seq := range int64(parts) {
		require.NoError(t, add(seq))
	}
	full(parts)
	require.NoError(t, add(0), "a repeated request")
	stranger := session
	stranger.Account = "stranger"
	_, err := s.Submit(t.Context(), stranger, op(0, large))
	require.NoError(t, err)

	require.NoError(t, s.Finish(t.Context(), session, 0, Result{}))
	require.NoError(t, add(4))
	full(5)
	require.NoError(t, other.Finish(t.Context(), session, 1, Result{}))
	s.Notify(session, 1)
	require.NoError(t, add(5))
	full(6)
	require.NoError(t, other.Finish(t.Context(), session, 2, Result{}))
	full(6)
	now = now.Add(pruneInterval)
	require.NoError(t, add(6))
	for seq := int64(3); seq < 7; seq++ {
		require.NoError(t, s.Finish(t.Context(), session, seq, Result{}))
	}
	n, bytes := s.Queued("acme")
	require.Zero(t, n+bytes)
}

// TestEndedRun checks that the operations of a run that has ended take no room, that its results are kept
// until the limit, and that those of another run are not affected.
func TestEndedRun(t *testing.T) {
	s := New(bucket(t, blobs.Options{URL: "mem://"}), nil)
	other := run
	other.ID = "other"
	for _, lane := range []Lane{run, other} {
		require.NoError(t, s.Create(t.Context(), lane))
		submit(t, s, lane, 1, 2, 5)
		require.NoError(t, s.Finish(t.Context(), lane, 1, Result{}))
	}
	n, _ := s.Queued("acme")
	require.Equal(t, 4, n)
	done, err := s.End(t.Context(), run, time.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.False(t, done)
	n, _ = s.Queued("acme")
	require.Equal(t, 2, n)
	_, err = s.Operation(t.Context(), run, 5)
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
	_, kept, err := s.Result(t.Context(), run, 1)
	require.NoError(t, err)
	require.True(t, kept)
	for _, expected := range []bool{true, true} {
		done, err = s.End(t.Context(), run, time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, expected, done)
	}
	_, kept, _ = s.Result(t.Context(), run, 1)
	require.False(t, kept)
	_, err = s.Operation(t.Context(), other, 5)
	require.NoError(t, err)
}
