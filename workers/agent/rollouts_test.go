package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// keptRollouts returns rollouts that are kept, but not uploaded.
func keptRollouts() *rollouts {
	return &rollouts{attempt: &attempt{log: slog.New(slog.DiscardHandler)}, wake: make(chan struct{}, 1)}
}

// ofStep returns n rollouts of a step whose responses have a length.
func ofStep(step, n, length int, evaluation bool) (all []engines.Rollout) {
	for i := range n {
		all = append(all, engines.Rollout{Step: step, Row: i + 1, Candidate: 1, Evaluation: evaluation,
			Input: []byte("{}"), Response: strings.Repeat("x", length)})
	}
	return all
}

// counts returns the number of rollouts of each step in a rollouts file.
func counts(t *testing.T, path string) map[string]int {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	found := map[string]int{}
	require.NoError(t, engines.ReadRollouts(f, func(r *engines.Rollout, _ []byte) bool {
		found[fmt.Sprint(r.Step, r.Evaluation)]++
		return true
	}))
	return found
}

// TestRolloutsContinueFromACheckpoint checks that the rollouts of a checkpoint are those up to its
// step, and that an attempt that resumes from it has each rollout once.
func TestRolloutsContinueFromACheckpoint(t *testing.T) {
	first, dir := keptRollouts(), t.TempDir()
	first.add(ofStep(1, 4, 10, false))
	first.add(ofStep(1, 2, 10, true))
	first.add(ofStep(2, 4, 10, false))
	first.add(ofStep(3, 4, 10, false)) // generated after step 2, but before its checkpoint is written
	first.write(dir, 2)
	require.Equal(t, map[string]int{"1 false": 4, "1 true": 2, "2 false": 4},
		counts(t, filepath.Join(dir, engines.RolloutsFile)))
	second, dir2 := keptRollouts(), t.TempDir()
	second.read(dir)
	require.Len(t, second.wake, 1, "the rollouts of the earlier attempt are uploaded under the new one")
	second.add(ofStep(2, 3, 10, false))
	second.add(ofStep(3, 4, 10, false))
	second.write(dir2, 3)
	require.Equal(t, map[string]int{"1 false": 4, "1 true": 2, "2 false": 3, "3 false": 4},
		counts(t, filepath.Join(dir2, engines.RolloutsFile)))
	keptRollouts().read(t.TempDir()) // a checkpoint of an earlier version has no rollouts
}

// TestRolloutsAreThinned checks the limits: of all rollouts, and of one step. The first step and
// all of the newest steps are kept.
func TestRolloutsAreThinned(t *testing.T) {
	r, dir := keptRollouts(), t.TempDir()
	const steps = 400
	for step := 1; step <= steps; step++ {
		r.add(ofStep(step, 10, 10<<10, false))
		require.LessOrEqual(t, r.size, engines.MaxRolloutsBytes)
		if step%10 == 0 {
			r.add(ofStep(step, 5, 1000, true))
		}
	}
	r.write(dir, steps)
	found := counts(t, filepath.Join(dir, engines.RolloutsFile))
	require.Equal(t, 10, found["1 false"])
	for step := steps - 10; step <= steps; step++ {
		require.Equal(t, 10, found[fmt.Sprint(step, " false")], step)
	}
	for step := 2; step+40 <= steps; step += 20 {
		kept := 0
		for at := step; at < step+40; at++ {
			kept += found[fmt.Sprint(at, " false")]
		}
		require.Positive(t, kept, "the sample of earlier steps has no gap after step %d", step)
	}
	require.Greater(t, r.size, engines.MaxRolloutsBytes/4)

	// Thinning ends also for files that no agent has written, and for the rollouts that follow
	// them.
	line := func(step, length int) string {
		return fmt.Sprintf(`{"step":%d,"evaluation":true,"row":1,"response":"%s"}`, step, strings.Repeat("x", length))
	}
	for name, content := range map[string]string{
		"one step":            strings.Repeat(line(1, 1000)+"\n", 9000),
		"the first step only": strings.Repeat(line(1, 0)+"\n"+line(-1<<40+1, 500)+"\n", 20_000),
		"negative steps":      strings.Repeat(line(-3, 1000)+"\n"+line(-4, 1000)+"\n", 5000),
		"a huge line":         line(1, 10) + "\n" + line(2, 9<<20),
		"no newline": strings.Repeat(line(1, 1<<20-100)+"\n", 7) +
			line(1, engines.MaxRolloutsBytes-7*(len(line(1, 1<<20-100))+1)-len(line(1, 0))),
		"large lines": strings.Repeat(line(1, 1<<20-100)+"\n"+line(1<<62+1, 1<<20-100)+"\n", 8),
		"many steps": func() string {
			var all strings.Builder
			for i := 0; all.Len() < 8<<20; i++ {
				all.WriteString(line(i<<40+1, 100_000) + "\n")
			}
			return all.String()
		}(),
	} {
		crafted, dir := keptRollouts(), t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, engines.RolloutsFile), []byte(content), 0o600))
		crafted.read(dir)
		require.LessOrEqual(t, crafted.size, engines.MaxRolloutsBytes, name)
		for step := 1; step <= 12; step++ {
			crafted.add(ofStep(step, 100, 10_000, false))
			require.LessOrEqual(t, crafted.size, engines.MaxRolloutsBytes, name)
		}
		require.Equal(t, 12, crafted.batches[len(crafted.batches)-1].step, name)
	}

	large := keptRollouts()
	large.add(ofStep(1, 2000, 1000, false))
	require.LessOrEqual(t, large.size, engines.MaxStepRolloutsBytes)
	require.Greater(t, large.size, engines.MaxStepRolloutsBytes/2)
}
