package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/sandbox"
	"anneal/internal/server"
)

// TestDemo runs the demo. It checks that three trained models are better than the base model on
// held-out rows: one trained on example responses, one on preference pairs, which also retains most
// of the earlier tasks, and one on an evaluator's scores. The demo also transcribes speech and
// verifies the log.
func TestDemo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it trains three times")
	}
	dir := filepath.Join(t.TempDir(), "demo")
	out, err := exec.Command(binary(t), "demo", "--data", dir).CombinedOutput()
	printed := string(out)
	require.NoError(t, err, printed)

	numbers := func(pattern string) (found []float64) {
		match := regexp.MustCompile(`(?m)` + pattern).FindStringSubmatch(printed)
		require.NotNil(t, match, "%s in\n%s", pattern, printed)
		for _, text := range match[1:] {
			number, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			found = append(found, number)
		}
		return found
	}
	tuned := numbers(`^anneal-base +64 +(\d+) .*\npacking-codes +64 +(\d+) `)
	require.Greater(t, tuned[1]-tuned[0], 48.0, printed)
	preferred := numbers(`^anneal-base +48 +(\d+) .*\nloudly +48 +(\d+) `)
	require.Greater(t, preferred[1]-preferred[0], 24.0, printed)
	retained := numbers(`^anneal-base +40 +(\d+) .*\nloudly +40 +(\d+) `)
	require.GreaterOrEqual(t, retained[1], 0.8*retained[0], printed)
	if sandbox.New(sandbox.Options{}).Check(t.Context()) == nil {
		scores := numbers(`^anneal-base +48 .* ([\d.]+)\nshout +48 .* ([\d.]+)$`)
		require.GreaterOrEqual(t, scores[1]-scores[0], 0.5, printed)
	} else {
		require.Contains(t, printed, "Skipped: the evaluator's code cannot run here.", printed)
	}
	if server.SpeechInstalled() == nil {
		require.Contains(t, printed, "\ngo forward ten meters\n")
	} else {
		require.Contains(t, printed, "Skipped: speech cannot be transcribed here.", printed)
	}
	require.Contains(t, printed, ": equal\n")

	again, err := exec.Command(binary(t), "demo", "--data", dir).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(again), "contains an earlier demo")
	require.DirExists(t, filepath.Join(dir, "server"))
	require.NoError(t, os.RemoveAll(dir))
}
