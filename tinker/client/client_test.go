package client_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/tinker"
	"anneal/tinker/client"
)

var ctx = context.Background()

func pass(data ...tinker.Datum) tinker.ForwardBackwardInput {
	return tinker.ForwardBackwardInput{LossFn: "cross_entropy", Data: data}
}

// datum returns a datum of n tokens.
func datum(n int) tinker.Datum {
	return tinker.Datum{ModelInput: tinker.NewModelInput(make([]int32, n)...),
		LossFnInputs: map[string]tinker.Tensor{tinker.TargetTokens: tinker.NewInts(make([]int32, n))}}
}

func newModel(t *testing.T, s *client.Session) *client.Model {
	t.Helper()
	m, err := s.CreateModel(ctx, client.ModelConfig{BaseModel: "base", Lora: tinker.LoraConfig{Rank: 8}})
	require.NoError(t, err)
	return m
}

func TestLoop(t *testing.T) {
	s := newServer(t.TempDir())
	session := open(t, s)
	require.Equal(t, "session-1", session.ID())
	require.Equal(t, "the unembedding is not trained", session.Warning())
	m := newModel(t, session)
	require.Equal(t, "run-0", m.ID())
	forward, err := m.ForwardBackward(ctx, pass(datum(3), datum(4)))
	require.NoError(t, err)
	step, err := m.OptimStep(ctx, tinker.AdamParams{LearningRate: new(1e-3)})
	require.NoError(t, err)
	out, err := forward.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"loss:sum": 7}, out.Metrics)
	require.Equal(t, tinker.NewFloats(make([]float32, 4)), out.LossFnOutputs[1][tinker.Logprobs])
	stepped, err := step.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"step": 1, "grad_norm": 7}, stepped.Metrics)
	again, err := step.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, stepped, again)

	saved, err := m.Save(ctx, "final", client.SaveOptions{TTL: time.Hour})
	require.NoError(t, err)
	path, err := saved.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, "tinker://run-0/weights/final", path.Path)
	loaded, err := session.LoadModel(ctx, path.Path, true)
	require.NoError(t, err)
	require.Equal(t, "run-1", loaded.ID())

	sampler, err := m.Sampler(ctx)
	require.NoError(t, err)
	response, err := sampler.Sample(ctx, tinker.SampleRequest{Prompt: tinker.NewModelInput(5, 6), NumSamples: new(2)})
	require.NoError(t, err)
	require.Equal(t, []int32{5, 6}, response.Sequences[1].Tokens)
	base, err := session.Sampler(ctx, "base")
	require.NoError(t, err)
	require.NotEqual(t, sampler.ID(), base.ID())
	require.NoError(t, m.Unload(ctx))
}

func TestLargePassesAreDivided(t *testing.T) {
	s := newServer(t.TempDir())
	m := newModel(t, open(t, s))
	data := make([]tinker.Datum, 2500)
	for i := range data {
		data[i] = datum(1 + i%2)
	}
	future, err := m.ForwardBackward(ctx, pass(data...))
	require.NoError(t, err)
	out, err := future.Wait(ctx)
	require.NoError(t, err)
	require.Len(t, out.LossFnOutputs, 2500)
	require.Equal(t, 3750.0, out.Metrics["loss:sum"])
	require.Equal(t, 3, s.requests["forward_backward"], "a pass has at most 1024 data")
	big, err := m.ForwardBackward(ctx, pass(datum(50_000), datum(50_000), datum(100_000)))
	require.NoError(t, err)
	_, err = big.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, 6, s.requests["forward_backward"], "a pass has at most 900,000 bytes, or one datum")
}

func TestRefusedOperationsHaveNoNumber(t *testing.T) {
	s := newServer(t.TempDir())
	m := newModel(t, open(t, s))
	_, err := m.ForwardBackward(ctx, tinker.ForwardBackwardInput{LossFn: "mse", Data: []tinker.Datum{datum(1)}})
	require.ErrorContains(t, err, "must be one of")
	require.Zero(t, s.requests["forward_backward"], "the client checks passes before it sends the first")
	_, err = m.OptimStep(ctx, tinker.AdamParams{Beta1: new(2.0)})
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusBadRequest, refused.StatusCode)
	require.Equal(t, "INVALID_FIELDS", refused.Reason)
	require.Contains(t, refused.Message, "adam_params.beta1")
	step, err := m.OptimStep(ctx, tinker.AdamParams{})
	require.NoError(t, err)
	_, err = step.Wait(ctx)
	require.NoError(t, err, "no gap is in the numbers of operations")

	failing := datum(1)
	failing.LossFnInputs[tinker.TargetTokens] = tinker.NewInts([]int{404})
	future, err := m.Forward(ctx, pass(failing))
	require.NoError(t, err)
	_, err = future.Wait(ctx)
	var failed *client.OperationError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, tinker.CategoryUser, failed.Category)
}

// TestFaults loses and delays requests and responses of each operation, in virtual time.
func TestFaults(t *testing.T) {
	for name, fault := range map[string]func(path string, n int) (int, bool){
		"lost responses": func(_ string, n int) (int, bool) { return 0, n%2 == 1 },
		"conflicts":      func(_ string, n int) (int, bool) { return []int{409, 0}[n%2], false },
		"server errors":  func(_ string, n int) (int, bool) { return []int{0, 503}[n%2], false },
		"rate limits":    func(_ string, n int) (int, bool) { return []int{0, 429, 429}[n%3], false },
		"held polls": func(path string, n int) (int, bool) {
			return map[bool]int{true: 408}[path == "retrieve_future" && n%2 == 1], false
		},
		"proxy's mistake": func(path string, n int) (int, bool) {
			return map[bool]int{true: 400}[path == "retrieve_future" && n%3 == 1], false
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t.TempDir())
				s.setFault(fault)
				session := open(t, s)
				m := newModel(t, session)
				for i := range 5 {
					forward, err := m.ForwardBackward(ctx, pass(datum(i+1)))
					require.NoError(t, err)
					step, err := m.OptimStep(ctx, tinker.AdamParams{})
					require.NoError(t, err)
					_, err = forward.Wait(ctx)
					require.NoError(t, err)
					stepped, err := step.Wait(ctx)
					require.NoError(t, err)
					require.Equal(t, map[string]float64{"step": float64(i + 1), "grad_norm": float64(i + 1)}, stepped.Metrics,
						"each operation is executed once")
				}
				session.Close()
			})
		})
	}
}

func TestEndedContextsLoseNoOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t.TempDir())
		session := open(t, s)
		m := newModel(t, session)
		s.setFault(func(path string, _ int) (int, bool) { return 0, path == "forward_backward" })
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := m.ForwardBackward(short, pass(datum(3)))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = m.OptimStep(short, tinker.AdamParams{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		s.setFault(nil)
		step, err := m.OptimStep(ctx, tinker.AdamParams{})
		require.NoError(t, err)
		stepped, err := step.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, 3.0, stepped.Metrics["grad_norm"], "the pass was executed once")
		require.Equal(t, 1.0, stepped.Metrics["step"])

		// A wait that ends can be continued.
		s.setFault(func(path string, _ int) (int, bool) { return map[bool]int{true: 503}[path == "retrieve_future"], false })
		step, err = m.OptimStep(ctx, tinker.AdamParams{})
		require.NoError(t, err)
		short, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err = step.Wait(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		s.setFault(nil)
		_, err = step.Wait(ctx)
		require.NoError(t, err)
		session.Close()
	})
}

func TestGivesUpAfterRetryFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t.TempDir())
		session := open(t, s)
		m := newModel(t, session)
		s.setFault(func(string, int) (int, bool) { return 503, false })
		begin := time.Now()
		_, err := m.OptimStep(ctx, tinker.AdamParams{})
		var last *client.Error
		require.ErrorAs(t, err, &last)
		require.Equal(t, 503, last.StatusCode)
		require.InDelta(t, (5 * time.Minute).Seconds(), time.Since(begin).Seconds(), 31)
		session.Close()
	})
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t.TempDir())
		session := open(t, s)
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, 6, s.count(&s.heartbeats))
		session.Close()
		time.Sleep(time.Minute)
		require.Equal(t, 6, s.count(&s.heartbeats))
	})
}

func TestConcurrentCalls(t *testing.T) {
	s := newServer(t.TempDir())
	session := open(t, s)
	m := newModel(t, session)
	sampler, err := m.Sampler(ctx)
	require.NoError(t, err)
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			future, err := m.ForwardBackward(ctx, pass(datum(2)))
			if err == nil {
				_, err = future.Wait(ctx)
			}
			_, sampleErr := sampler.Sample(ctx, tinker.SampleRequest{Prompt: tinker.NewModelInput(1)})
			if err := errors.Join(err, sampleErr); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	step, err := m.OptimStep(ctx, tinker.AdamParams{})
	require.NoError(t, err)
	stepped, err := step.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, 100.0, stepped.Metrics["grad_norm"])
}

func TestLostSamplesAreRequestedAgain(t *testing.T) {
	s := newServer(t.TempDir())
	sampler, err := open(t, s).Sampler(ctx, "base")
	require.NoError(t, err)
	s.setFault(func(path string, n int) (int, bool) {
		return map[bool]int{true: 410}[path == "retrieve_future" && n == 1], false
	})
	_, err = sampler.Sample(ctx, tinker.SampleRequest{Prompt: tinker.NewModelInput(1)})
	require.NoError(t, err)
	require.Equal(t, 2, s.requests["asample"])
}

func TestURLs(t *testing.T) {
	_, err := client.New(client.Options{URL: "job.example.com"})
	require.ErrorContains(t, err, `must begin with http:// or https://, is "job.example.com"`)
}
