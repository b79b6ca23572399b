package natsserver

import (
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/internal/testutil"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// consumed creates the directory of a server with a consumer that acknowledged some of its
// messages. It returns the directory and the path of the consumer's state file.
func consumed(t *testing.T) (dir, state string) {
	dir = filepath.Join(t.TempDir(), "nats")
	s := mustStart(t, Options{Dir: dir})
	for _, id := range []string{"a", "b", "c", "d"} {
		logtest.Append(t, s.Log(), logtest.Write(id, 0))
	}
	c, err := s.js.CreateOrUpdateConsumer(t.Context(), eventlog.Stream,
		jetstream.ConsumerConfig{Durable: "work", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	for i := range 3 {
		m, err := c.Next()
		require.NoError(t, err)
		if i != 1 {
			require.NoError(t, m.DoubleAck(t.Context()))
		}
	}
	s.Close()
	return dir, filepath.Join(dir, "jetstream", "CONTROL", "streams", eventlog.Stream, "obs", "work", "o.dat")
}

// TestDamagedConsumersAreRecreated checks that the server starts with any damage to the state file
// of a consumer, and that the consumer can then be created again.
func TestDamagedConsumersAreRecreated(t *testing.T) {
	dir, state := consumed(t)
	whole := testutil.ReadFile(t, state)
	require.True(t, readableConsumer(whole), "%x", whole)
	many := binary.AppendUvarint(append([]byte{}, whole[:6]...), 1<<40)
	damaged := [][]byte{{}, {22}, {21, 2}, {22, 9}, many, whole[:4]}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		flipped := append([]byte{}, whole...)
		flipped[random.IntN(len(flipped))] ^= byte(1) << random.IntN(8)
		damaged = append(damaged, flipped)
	}
	for _, content := range damaged {
		require.NoError(t, os.WriteFile(state, content, 0o600))
		s, err := Start(Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err, "%x", content)
		_, err = s.js.CreateOrUpdateConsumer(t.Context(), eventlog.Stream,
			jetstream.ConsumerConfig{Durable: "work", AckPolicy: jetstream.AckExplicitPolicy})
		require.NoError(t, err, "%x", content)
		s.Close()
	}
}
