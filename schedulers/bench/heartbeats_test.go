package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/projections"
	"anneal/schedulers"
	"anneal/workers/coordinator"
	"anneal/workers/protocol"
)

const (
	nodes    = 10_000
	interval = 2 * time.Second // between two heartbeats of a node
)

// TestHeartbeats measures the CPU time of a control plane to which 10,000 nodes send heartbeats. It
// includes the NATS server and the senders of the heartbeats. Goal: below one core.
func TestHeartbeats(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	log, world := eventlog.NewMemory(), projections.NewWorld()
	go func() { _ = world.Run(ctx, log) }()
	server, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", NoSync: true,
		VerifyNode: func(context.Context, natsserver.NodeLogin) error { return nil }})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	store, err := blobs.Open(ctx, blobs.Options{Dir: t.TempDir(), BaseURL: "http://127.0.0.1/blobs", Key: []byte(pepper)})
	require.NoError(t, err)
	agentSide := coordinator.New(coordinator.Options{Log: log, World: world, Blobs: store, Conn: server.Coordinator(),
		Logger: logger})
	go func() { _ = agentSide.Run(ctx) }()
	for _, scheduler := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{}, schedulers.Nodes{},
		schedulers.Allocations{}, schedulers.Drain{}} {
		go func() { _ = schedulers.Run(ctx, log, world, scheduler, logger) }()
	}
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := key.PublicKey()
	require.NoError(t, err)
	for i := range nodes {
		enroll := domain.EnrollNode{PublicKey: public, JoinToken: "bench"}
		_, err := eventlog.Do(ctx, log, world, eventlog.Request{Time: time.Now(), Actor: "bench"},
			domain.Intend(domain.Nodes, domain.NewName(domain.System, "nodes", fmt.Sprintf("n%d", i)),
				domain.Command[domain.Node](enroll)))
		require.NoError(t, err)
	}
	last, err := log.Last(ctx)
	require.NoError(t, err)
	require.NoError(t, world.WaitFor(ctx, last.Position))

	var replies atomic.Int64
	conn := server.Coordinator()
	inbox := nats.NewInbox()
	_, err = conn.Subscribe(inbox, func(*nats.Msg) { replies.Add(1) })
	require.NoError(t, err)
	round := func(number int) {
		began := time.Now()
		for i := range nodes {
			data, err := json.Marshal(protocol.Heartbeat{Version: protocol.Version, Boot: "b", Number: uint64(number),
				Node: domain.NodeSpec{Pool: "", Engines: []string{"train", "complete"}, Version: "v1",
					Capacity: domain.Resources{CPUMilli: 64_000, MemoryMiB: 1 << 19,
						Accelerators: map[string]int{"VENDOR_A_H100_80GB": 8}}}})
			require.NoError(t, err)
			node := fmt.Sprintf("n%d", i)
			require.NoError(t, conn.PublishRequest(protocol.HeartbeatSubject(node), inbox, data))
			if ahead := began.Add(interval * time.Duration(i) / nodes); i%50 == 0 && time.Now().Before(ahead) {
				<-time.After(time.Until(ahead)) // sends at a constant rate
			}
		}
	}
	for number := 1; replies.Load() < nodes && number < 50; number++ { // the first rounds register the nodes
		round(number)
	}
	const rounds = 5
	require.Eventually(t, func() bool { return replies.Load()%nodes == 0 }, time.Minute, 10*time.Millisecond)
	used := cpu(t)
	for number := range rounds {
		before := replies.Load()
		round(100 + number)
		require.Eventually(t, func() bool { return replies.Load() == before+nodes }, time.Minute, 10*time.Millisecond)
	}
	used = cpu(t) - used
	perHeartbeat := used / nodes / rounds
	fmt.Printf("%d nodes, a heartbeat every %s: %s of CPU time for each, %.2f cores\n", nodes, interval, perHeartbeat,
		perHeartbeat.Seconds()*nodes/interval.Seconds())
	require.Less(t, perHeartbeat.Seconds()*nodes/interval.Seconds(), 1.0)
	for row := range world.View().Nodes.All() {
		require.Equal(t, domain.NodeReady, row.State.State, row.Name)
	}
}

// cpu returns the CPU time of this process.
func cpu(t *testing.T) time.Duration {
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
