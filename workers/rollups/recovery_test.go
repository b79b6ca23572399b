package rollups

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/metering"
)

// TestUsageOfANewStream checks that each record is rolled up once when the stream of usage records was
// created again: with control planes that continue their numbers, that begin them again, and that send
// again what is rolled up.
func TestUsageOfANewStream(t *testing.T) {
	requests := func(b *harness, r *Runner) (n int64) {
		rows, window, _, err := r.Pending(t.Context())
		require.NoError(t, err)
		sums, _ := b.rolledUp(window)
		for _, row := range rows {
			sums.add(row.Account, row.UsageRow)
		}
		for _, amounts := range sums {
			n += amounts.Requests
		}
		return n
	}
	for name, again := range map[string]func(b *harness, old []metering.Record){
		"numbers continue":    func(*harness, []metering.Record) {},
		"numbers begin again": func(b *harness, _ []metering.Record) { b.numbers = map[string]uint64{} },
		"records are sent again": func(b *harness, old []metering.Record) {
			b.stream.all = append(b.stream.all, old[5:]...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t, 1)
			r := b.runner()
			for range 12 {
				b.record("cp-0", b.now, "")
			}
			b.now = b.now.Add(time.Hour + Grace)
			stepAll(t, r)
			require.EqualValues(t, 12, requests(b, r))

			old := b.stream.all
			b.now = b.now.Add(time.Minute)
			b.stream.created, b.stream.all = b.now, nil
			again(b, old)
			for range 12 {
				b.record("cp-0", b.now.Add(time.Second), "")
			}
			require.EqualValues(t, 24, requests(b, r), "before the window")
			require.EqualValues(t, 24, requests(b, r), "again")
			b.now = b.now.Add(time.Hour)
			more, err := r.Step(t.Context())
			require.NoError(t, err)
			require.True(t, more, "a window is open")
			require.EqualValues(t, 24, requests(b, b.runner()), "another control plane, while the window is open")
			stepAll(t, b.runner())
			require.EqualValues(t, 24, requests(b, r), "after the window")
		})
	}
}

// TestUsageAfterAWrongClock checks that records are rolled up every hour although a window was opened by a
// clock that was years ahead: the stream would delete them before that window ends.
func TestUsageAfterAWrongClock(t *testing.T) {
	b := newHarness(t, 1)
	r := b.runner()
	b.record("cp-0", b.now, "")
	b.skew = 3 * 365 * 24 * time.Hour
	stepAll(t, r)
	require.EqualValues(t, 1, b.checkLedger())
	b.skew = 0
	for hour := range 3 {
		b.now = b.now.Add(time.Hour)
		for range 3 {
			b.record("cp-0", b.now, "")
		}
		stepAll(t, r)
		require.EqualValues(t, 1+3*(hour+1), b.checkLedger())
		b.record("cp-0", b.now, "")
		stepAll(t, r)
		require.EqualValues(t, 1+3*(hour+1), b.checkLedger(), "one window in an hour")
		b.stream.all = b.stream.all[:len(b.stream.all)-1]
		b.numbers["cp-0"]--
	}
	got, _ := b.rolledUp(math.MaxUint64)
	require.Equal(t, b.wanted(b.now), got)
}

// A stuck stream blocks until it is released.
type stuck struct {
	*stream
	entered, release chan struct{}
}

func (s stuck) State(ctx context.Context) (metering.State, error) {
	s.entered <- struct{}{}
	<-s.release
	return s.stream.State(ctx)
}

// TestPendingEndsWithItsContext checks that a request for usage whose client has disconnected does not wait
// for a window that is being rolled up.
func TestPendingEndsWithItsContext(t *testing.T) {
	b := newHarness(t, 1)
	r := b.runner()
	records := stuck{b.stream, make(chan struct{}), make(chan struct{})}
	r.Records = records
	done := make(chan error)
	go func() {
		_, err := r.Step(context.WithoutCancel(t.Context()))
		done <- err
	}()
	<-records.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _, err := r.Pending(ctx)
	require.ErrorIs(t, err, context.Canceled)
	close(records.release)
	require.NoError(t, <-done)
}

// TestStreamIsReplacedWhileAWindowIsOpen checks that a window takes no records from a stream that was created
// after it was opened, so that the next window has each of them once.
func TestStreamIsReplacedWhileAWindowIsOpen(t *testing.T) {
	b := newHarness(t, 1)
	r := b.runner()
	for range 12 {
		b.record("cp-0", b.now, "")
	}
	b.now = b.now.Add(time.Hour + Grace)
	more, err := r.Step(t.Context())
	require.NoError(t, err)
	require.True(t, more)
	b.stream.created, b.stream.all, b.numbers = b.now, nil, map[string]uint64{}
	for range 20 {
		b.record("cp-0", b.now.Add(time.Second), "")
	}
	stepAll(t, r)
	b.now = b.now.Add(time.Hour)
	stepAll(t, b.runner())
	got, _ := b.rolledUp(math.MaxUint64)
	require.Equal(t, b.wanted(b.now), got)
}
