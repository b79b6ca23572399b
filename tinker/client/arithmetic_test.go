package client_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/train/pool"
)

// arithmeticDir is the directory of the example.
var arithmeticDir = filepath.Join("..", "..", "examples", "arithmetic-loop")

// TestArithmeticLoop runs the example against a pool of the shipped base model.
func TestArithmeticLoop(t *testing.T) {
	program := filepath.Join(t.TempDir(), "arithmetic-loop")
	out, err := exec.Command("go", "build", "-o", program, "anneal/examples/arithmetic-loop").CombinedOutput()
	require.NoError(t, err, "%s", out)
	raiseReward(t, exec.Command(program))
}

// TestArithmeticLoopInPython runs the example in Python. Its package tinker is a stand-in, which
// sends the requests with Python's standard library: the public package is not installed here.
func TestArithmeticLoopInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	packages, err := filepath.Abs(filepath.Join("testdata", "python"))
	require.NoError(t, err)
	loop := exec.Command(python, filepath.Join(arithmeticDir, "loop.py"), "base")
	loop.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	raiseReward(t, loop)
}

var rewardLine = regexp.MustCompile(`reward ([0-9.]+)`)

// raiseReward runs a loop, and requires that it raises its mean reward by 0.5.
func raiseReward(t *testing.T, loop *exec.Cmd) {
	t.Helper()
	if testing.Short() {
		t.Skip("trains for some seconds")
	}
	s := newServer(t.TempDir())
	p, err := pool.Opener{}.OpenTrainPool(context.Background(), engines.TrainPoolRequest{
		BaseDir: filepath.Join("..", "..", "engines", "embedded", "base", "model"), MaxTokens: 128})
	require.NoError(t, err)
	s.pool = p
	web := httptest.NewServer(s)
	defer web.Close()
	if loop.Env == nil {
		loop.Env = os.Environ()
	}
	loop.Env = append(loop.Env, "TINKER_BASE_URL="+web.URL, "TINKER_API_KEY=tml-key")
	out, err := loop.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "saved tinker://run-0/sampler_weights/final")
	var rewards []float64
	for _, match := range rewardLine.FindAllSubmatch(out, -1) {
		reward, err := strconv.ParseFloat(string(match[1]), 64)
		require.NoError(t, err)
		rewards = append(rewards, reward)
	}
	require.Len(t, rewards, 40, "%s", out)
	t.Log(rewards)
	mean := func(values []float64) (sum float64) {
		for _, value := range values {
			sum += value / float64(len(values))
		}
		return sum
	}
	require.Greater(t, mean(rewards[35:])-mean(rewards[:5]), 0.5, "%s", out)
}
