package main_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
	"anneal/tinker"
	"anneal/tinker/client"
)

// TestTrainingServiceSurvivesKills kills the server with its worker at random points of a training
// loop. The client gets no errors, and all results, also those of the final weights, are
// bit-identical to those of the same loop without kills.
func TestTrainingServiceSurvivesKills(t *testing.T) {
	t.Parallel()
	kills := testutil.Variable(t, "ANNEAL_SERVICE_KILLS", 3)
	address := freePort(t)
	s := serve(t, filepath.Join(t.TempDir(), "data"), "--direct-domain", "direct.example.com", "--listen", address)
	job := s.request(t, "POST", "/v1/accounts/default/rlorTrainerJobs?rlorTrainerJobId=loop",
		`{"serviceMode":true,"trainingConfig":{"baseModel":"accounts/default/models/anneal-base"}}`)
	match := regexp.MustCompile(`"directRouteHandle":\s*"([^"]+)"`).FindStringSubmatch(job)
	require.Len(t, match, 2, "%s", job)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	c, err := client.New(client.Options{URL: "http://" + match[1], APIKey: s.context.APIKey,
		HTTPClient: &http.Client{Transport: transport}})
	require.NoError(t, err)
	steps := 4 * kills
	expected := trainingLoop(t, c, steps, func(int) {})
	random := rand.New(rand.NewPCG(3, 3))
	at := map[int]bool{}
	for len(at) < kills {
		at[random.IntN(killPoints*steps)] = true
	}
	results := trainingLoop(t, c, steps, func(point int) {
		if at[point] {
			s.kill()
			s.start()
		}
	})
	require.Equal(t, len(expected), len(results))
	for i := range expected {
		require.Equal(t, expected[i], results[i], "result %d", i)
	}
	require.Zero(t, s.end())
}

// killPoints is the number of points in each step of trainingLoop.
const killPoints = 4

// trainingLoop trains a new model and returns the results of all operations as JSON. It calls
// reached with the number of each point of the loop: before and after each request, and after the
// result of a pass.
func trainingLoop(t *testing.T, c *client.Client, steps int, reached func(point int)) (results []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	session, err := c.OpenSession(ctx, client.SessionOptions{})
	require.NoError(t, err)
	defer session.Close()
	capabilities, err := c.Capabilities(ctx)
	require.NoError(t, err)
	model, err := session.CreateModel(ctx, client.ModelConfig{BaseModel: capabilities.SupportedModels[0].ModelName,
		Lora: tinker.LoraConfig{Rank: 8, Seed: new(int64(4))}})
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(9, 9))
	record := func(result any, err error) {
		t.Helper()
		require.NoError(t, err)
		text, err := json.Marshal(result)
		require.NoError(t, err)
		results = append(results, string(text))
	}
	for step := range steps {
		var data []tinker.Datum
		for range 8 {
			tokens, targets := make([]int32, 32), make([]int32, 32)
			for i := range tokens {
				tokens[i], targets[i] = int32(random.IntN(256)), int32(random.IntN(256))
			}
			data = append(data, tinker.Datum{ModelInput: tinker.NewModelInput(tokens...),
				LossFnInputs: map[string]tinker.Tensor{"target_tokens": tinker.NewInts(targets)}})
		}
		reached(killPoints * step)
		pass, err := model.ForwardBackward(ctx, tinker.ForwardBackwardInput{Data: data, LossFn: "cross_entropy"})
		require.NoError(t, err)
		reached(killPoints*step + 1)
		adam, err := model.OptimStep(ctx, tinker.AdamParams{LearningRate: new(1e-3)})
		require.NoError(t, err)
		reached(killPoints*step + 2)
		result, err := pass.Wait(ctx)
		record(result, err)
		reached(killPoints*step + 3)
		stepped, err := adam.Wait(ctx)
		record(stepped, err)
	}
	return results
}
