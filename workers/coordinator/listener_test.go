package coordinator_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/engines/simulated"
	"anneal/eventlog"
	"anneal/workers/coordinator"
	"anneal/workers/protocol"
)

// A separatedLog is a log whose leader may be out of reach.
type separatedLog struct {
	eventlog.Log
	away  atomic.Bool
	asked atomic.Int64 // number of requests for the end of the log while the leader was out of reach
}

func (l *separatedLog) Last(ctx context.Context) (eventlog.Checkpoint, error) {
	if l.away.Load() {
		l.asked.Add(1)
		return eventlog.Checkpoint{}, errors.New("no leader")
	}
	return l.Log.Last(ctx)
}

// listening starts a coordinator with a log whose leader may be out of reach, and returns them with
// the coordinator's connection.
func listening(t *testing.T) (*cluster, *separatedLog, *nats.Conn) {
	c := start(t)
	c.stop()
	log, conn := &separatedLog{Log: c.log}, c.server.Coordinator()
	c.background(coordinator.New(coordinator.Options{Log: log, World: c.world, Blobs: c.blobs, Conn: conn,
		LostAfter: 2 * time.Second, Logger: testLog}).Run)
	c.receivesAll()
	return c, log, conn
}

// receivesAll waits until the coordinator has received all heartbeats that were sent before now.
func (c *cluster) receivesAll() {
	now := time.Now()
	require.Eventually(c, func() bool { return c.world.Live().View().ReceivedUntil().After(now) }, waitTimeout,
		time.Millisecond)
}

// TestSilenceNeedsTheLog checks that a coordinator which receives its own probes, but does not
// reach the leader of the log, does not claim to have received all heartbeats: its NATS server is
// separated from the others, to which the nodes are connected. When it is back, the time after
// which silent nodes are lost starts again.
func TestSilenceNeedsTheLog(t *testing.T) {
	c, log, _ := listening(t)
	log.away.Store(true)
	away := time.Now()
	require.Eventually(t, func() bool { return log.asked.Load() > 2 && time.Since(away) > 2*time.Second }, waitTimeout,
		time.Millisecond)
	require.True(t, c.world.Live().View().ReceivedUntil().Before(away))
	back := time.Now()
	log.away.Store(false)
	c.receivesAll()
	require.True(t, c.world.Live().View().Seen(nodeName("any")).After(back))
}

// TestReconnectStartsTheTimeoutAgain checks that a coordinator whose connection was interrupted,
// even for a moment, does not count the time before: it may have missed heartbeats.
func TestReconnectStartsTheTimeoutAgain(t *testing.T) {
	c, _, conn := listening(t)
	before := time.Now()
	require.False(t, c.world.Live().View().Seen(nodeName("any")).After(before))
	reconnects := conn.Stats().Reconnects
	require.NoError(t, conn.ForceReconnect())
	require.Eventually(t, func() bool { return conn.Stats().Reconnects > reconnects }, waitTimeout, time.Millisecond)
	c.receivesAll()
	require.True(t, c.world.Live().View().Seen(nodeName("any")).After(before))
}

// TestHeartbeatsAreShared checks that coordinators share the heartbeats that they receive: a node
// that one of them receives is not silent for the others.
func TestHeartbeatsAreShared(t *testing.T) {
	c, _, _ := listening(t)
	shared := make(chan string, 100)
	other := c.server.Coordinator()
	subscribe(t, other, protocol.HeartbeatSubject("_received"), func(m *nats.Msg) { shared <- string(m.Data) })
	require.NoError(t, other.Flush())
	began := time.Now()
	require.NoError(t, other.Publish(protocol.HeartbeatSubject("_received"),
		[]byte(`{"by":"another coordinator","nodes":{"n2":1,"_probe":0,"n3":-1}}`)))
	require.Contains(t, <-shared, "another coordinator")
	last := func() time.Time { return c.world.Live().View().LastHeartbeat(nodeName("n2")) }
	require.Eventually(t, func() bool { return !last().IsZero() }, waitTimeout, time.Millisecond)
	require.WithinRange(t, last(), began.Add(-time.Second), time.Now())
	require.Zero(t, c.world.Live().View().LastHeartbeat(nodeName("n3")), "a heartbeat of the future")

	c.agent("n1", simulated.New(simulated.Options{}))
	require.Contains(t, <-shared, `"nodes":{"n1":`)
}
