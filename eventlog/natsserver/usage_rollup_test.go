package natsserver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog/metering"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/workers/rollups"
)

// A meteredServer is an installation with two runners of roll-ups, which can be killed and started
// again.
type meteredServer struct {
	*testing.T
	store   string
	now     time.Time
	server  *Server
	world   *projections.World
	runners []*rollups.Runner
	stop    context.CancelFunc
}

func (m *meteredServer) begin() {
	var err error
	m.server, err = Start(Options{Dir: m.store})
	require.NoError(m, err)
	records, err := metering.NewReader(m.server.control)
	require.NoError(m, err)
	var ctx context.Context
	ctx, m.stop = context.WithCancel(m.Context())
	m.world = projections.NewWorld()
	log, world := m.server.Log(), m.world
	go func() { _ = world.Run(ctx, log) }()
	last, err := log.Last(ctx)
	require.NoError(m, err)
	require.NoError(m, world.WaitFor(ctx, last.Position))
	m.runners = nil
	for range 2 {
		now := m.now
		m.runners = append(m.runners, &rollups.Runner{Log: log, World: world, Records: records, MaxWaiting: 300,
			Now: func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler)})
	}
}

// rollUp lets both runners make some steps concurrently.
func (m *meteredServer) rollUp(steps int) {
	var both sync.WaitGroup
	for _, runner := range m.runners {
		runner.Now = func() time.Time { return m.now }
		both.Go(func() {
			for range steps {
				_, _ = runner.Step(m.Context())
			}
		})
	}
	both.Wait()
}

// TestRolledUpUsageIsExact checks that the roll-ups and the pending usage have each metered request
// once, although meters and runners are killed and the NATS server restarts at random, while
// requests are metered. Set ANNEAL_KILLS for more than a few kills.
func TestRolledUpUsageIsExact(t *testing.T) {
	kills := testutil.Variable(t, "ANNEAL_KILLS", 5)
	random := testutil.Random(t)
	m := &meteredServer{T: t, store: t.TempDir(), now: usageTime}
	m.begin()
	dir := t.TempDir()
	open := func() *metering.Meter {
		meter, err := metering.NewMeter(metering.MeterOptions{Conn: m.server.control, Dir: dir, ID: "cp-1",
			Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return meter
	}
	meter := open()
	want := map[string]int64{}
	for range kills {
		for range random.IntN(400) {
			m.now = m.now.Add(time.Duration(random.IntN(60)) * time.Second)
			one := usageOf("acme", metering.Chat)
			one.Time, one.Model, one.PromptTokens, one.AudioSeconds = m.now, fmt.Sprint("m", random.IntN(3)), 7, 0
			require.NoError(t, meter.Record(one))
			want[m.now.Truncate(time.Hour).Format(time.RFC3339)+" "+one.Model]++
			if random.IntN(50) == 0 {
				m.rollUp(1 + random.IntN(2))
			}
		}
		dir = killMeter(t, meter, dir)
		if random.IntN(2) == 0 {
			m.stop()
			m.server.Close()
			m.begin()
		}
		meter = open()
	}
	require.NoError(t, meter.Drain(t.Context()))
	require.NoError(t, meter.Close())
	t.Cleanup(func() { m.stop(); m.server.Close() })

	m.rollUp(1)
	require.Equal(t, want, m.usage(), "with the pending usage")
	m.now = m.now.Add(2 * time.Hour)
	m.rollUp(5)
	require.Equal(t, want, m.usage(), "rolled up")
}

// usage returns the number of requests by hour and model: those that are rolled up in the log, and
// those that are pending.
func (m *meteredServer) usage() map[string]int64 {
	got := map[string]int64{}
	rows, window, _, err := m.runners[0].Pending(m.Context())
	require.NoError(m, err)
	add := func(row domain.UsageRow) {
		require.Equal(m, 7*row.Requests, row.PromptTokens)
		got[row.Hour.UTC().Format(time.RFC3339)+" "+row.Model] += row.Requests
	}
	for _, row := range rows {
		add(row.UsageRow)
	}
	for e, err := range m.server.Log().Read(m.Context(), "events.acme.usageRollups.*", 0) {
		require.NoError(m, err)
		event, err := domain.UsageRollups.Decode(e.Record)
		require.NoError(m, err)
		part, _ := domain.UsagePartOf(event)
		for _, row := range part.Rows {
			if part.Window <= window {
				add(row)
			}
		}
	}
	return got
}
