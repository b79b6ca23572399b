package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A server that is asked to end lets its worker save what it has trained, and
// waits for nothing else: the next start goes on from there.
func TestServerEndsWhileItTrains(t *testing.T) {
	s := serve(t, t.TempDir(), "--listen", freePort(t))
	user := s.user()
	user.dataset("codes", 100)
	user.job("long", "codes", 400) // 10,000 steps: its first own checkpoint is far away
	const one = "/supervisedFineTuningJobs/long"
	eventually(t, "it trains", func() bool {
		percent, _ := at(user.get(one), "jobProgress.epoch").(float64)
		return percent > 0
	})
	require.Empty(t, user.list(one+"/checkpoints", "checkpoints"))
	require.Zero(t, s.end())

	s.start()
	user = s.user()
	saved := user.list(one+"/checkpoints", "checkpoints")
	require.Len(t, saved, 1)
	require.Positive(t, saved[0]["step"])
	user.must("DELETE", one, nil)
	require.Zero(t, s.end())
}
