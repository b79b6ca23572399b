package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShutdownDuringTraining checks that a server that shuts down waits only until its worker has
// stored a checkpoint, and that the training continues from the checkpoint after the next start.
func TestShutdownDuringTraining(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--listen", freePort(t))
	user := s.user()
	user.dataset("codes", 100)
	user.job("long", "codes", 400) // 10,000 steps, so that the first regular checkpoint comes much later
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
