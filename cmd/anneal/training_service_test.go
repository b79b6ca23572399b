package main_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

var rewardLine = regexp.MustCompile(`reward ([0-9.]+)`)

// TestTrainingServiceLoops runs the loops of examples/arithmetic-loop against a server with a
// worker. They raise their mean reward by more than 0.5 within 40 steps.
func TestTrainingServiceLoops(t *testing.T) {
	t.Parallel()
	s := serve(t, filepath.Join(t.TempDir(), "data"), "--direct-domain", "direct.example.com")
	address := strings.TrimPrefix(s.context.Address, "http://")
	job := s.request(t, "POST", "/v1/accounts/default/rlorTrainerJobs?rlorTrainerJobId=loop",
		`{"serviceMode":true,"trainingConfig":{"baseModel":"accounts/default/models/anneal-base"}}`)
	match := regexp.MustCompile(`"directRouteHandle":\s*"([^"]+)"`).FindStringSubmatch(job)
	require.Len(t, match, 2, "%s", job)
	t.Run("Go", func(t *testing.T) {
		program := filepath.Join(t.TempDir(), "arithmetic-loop")
		out, err := exec.Command("go", "build", "-o", program, "anneal/examples/arithmetic-loop").CombinedOutput()
		require.NoError(t, err, "%s", out)
		raisesReward(t, exec.Command(program, "-connect", address), "TINKER_BASE_URL=http://"+match[1],
			"TINKER_API_KEY="+s.context.APIKey)
	})
	t.Run("Python", func(t *testing.T) {
		python, err := exec.LookPath("python3")
		if err != nil {
			t.Skip("python3 is not installed")
		}
		packages, err := filepath.Abs(filepath.Join("..", "..", "tinker", "client", "testdata", "python"))
		require.NoError(t, err)
		raisesReward(t, exec.Command(python, filepath.Join("..", "..", "examples", "arithmetic-loop", "loop.py"),
			"default/anneal-base"), "TINKER_BASE_URL=http://"+address, "TINKER_HOST="+match[1],
			"TINKER_API_KEY=tml-"+s.context.APIKey, "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	})
	require.Zero(t, s.end())
}

func raisesReward(t *testing.T, loop *exec.Cmd, environment ...string) {
	t.Helper()
	loop.Env = append(os.Environ(), environment...)
	out, err := loop.CombinedOutput()
	require.NoError(t, err, "%s", out)
	sum := [2]float64{} // of the first and the last five steps
	matches := rewardLine.FindAllSubmatch(out, -1)
	require.Len(t, matches, 40, "%s", out)
	for i, match := range matches {
		reward, err := strconv.ParseFloat(string(match[1]), 64)
		require.NoError(t, err)
		if i < 5 {
			sum[0] += reward
		} else if i >= 35 {
			sum[1] += reward
		}
	}
	t.Logf("mean reward of the first five steps %.3f, of the last five %.3f", sum[0]/5, sum[1]/5)
	require.Greater(t, (sum[1]-sum[0])/5, 0.5, "%s", out)
	require.Contains(t, string(out), "saved tinker://")
}

// request sends a request with the key of the context, and returns the body of the response.
func (s *plane) request(t *testing.T, method, path, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.context.Address+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.context.APIKey)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text := string(testutil.ReadAll(t, response.Body))
	require.Equal(t, http.StatusOK, response.StatusCode, fmt.Sprint(method, " ", path, ": ", text))
	return text
}
