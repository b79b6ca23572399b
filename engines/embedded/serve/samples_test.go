package serve

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/fair"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

func openSamples(t *testing.T, w *llama.Weights, options Options) *Samples {
	tokens := tokenizer.NewBytes()
	s := NewSamples(llama.NewNet(w, nil, 1), w.Hash(), tokens, []int{tokens.EOS()}, options)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func sampleRequest(text string) engines.TrainSampleRequest {
	r := engines.TrainSampleRequest{N: 1, MaxTokens: 20, Temperature: 1, Seed: 3}
	for _, b := range []byte(text) {
		r.Prompt = append(r.Prompt, int32(b))
	}
	return r
}

// TestSamplesShareTheWeights checks that samples need no copy of the base model.
func TestSamplesShareTheWeights(t *testing.T) {
	net := llama.NewNet(weights(), nil, 1)
	d := netDecoder(net, 100, 1)
	require.Same(t, net.Head(), d.head)
	require.Nil(t, d.embed)
	require.Same(t, &net.Weights.Embed.Data[0], &d.table.Data[0])
	before := net.Projections(1)[llama.ToDown].Bytes()
	require.Equal(t, before, d.layers[1].down.Bytes())
}

// TestStopTexts checks that a sample ends with the token that completes a text, also if the text
// begins in the middle of a token or is the name of a special token.
func TestStopTexts(t *testing.T) {
	s := openSamples(t, repeater("abcé"), Options{})
	request := sampleRequest("a")
	request.Temperature = 0
	for stop, want := range map[string]string{"b": "b", "ca": "", "éa": "bc\xc3\xa9a", "cé": "bc\xc3\xa9", "zz": ""} {
		request.StopTexts = []string{"never", stop}
		got, err := s.Sample(t.Context(), nil, request)
		require.NoError(t, err)
		var text []byte
		for _, token := range got.Sequences[0].Tokens {
			text = append(text, byte(token))
		}
		require.Equal(t, want != "", got.Sequences[0].Stopped, stop)
		if want != "" {
			require.Equal(t, want, string(text))
		} else {
			require.Len(t, text, request.MaxTokens)
		}
	}
	decoder := stopTexts{decoder: s.tokenizer.NewRawDecoder(), stops: []string{"x" + s.special(t)}}
	require.False(t, decoder.completedBy('x'))
	require.True(t, decoder.completedBy(s.tokenizer.EOS()))
}

// special returns the text of the EOS token.
func (s *Samples) special(t *testing.T) string {
	text := s.tokenizer.NewRawDecoder().Next(s.tokenizer.EOS())
	require.NotEmpty(t, text)
	return text
}

// TestSampleFaults plants faults in the goroutine of the scheduler, and checks that only the call
// at fault fails, or all if that is not known, and that the process continues.
func TestSampleFaults(t *testing.T) {
	broken := &SampleWeights{&addon{id: "broken", adapter: &llama.PackedAdapter{}}}
	for _, workers := range []int{1, 3} {
		s := openSamples(t, weights(), Options{Parallelism: workers})
		request := sampleRequest("the quick brown fox")
		request.N = 3
		want, err := s.Sample(t.Context(), nil, request)
		require.NoError(t, err)
		for range 5 {
			var all sync.WaitGroup
			for i := range 6 {
				all.Go(func() {
					if i%3 == 1 {
						_, err := s.Sample(t.Context(), broken, request)
						assert.Equal(t, engines.EnginePanicked, reasonOf(err))
						return
					}
					got, err := s.Sample(t.Context(), nil, request)
					assert.NoError(t, err)
					assert.Equal(t, want.Sequences, got.Sequences)
				})
			}
			all.Wait()
		}
	}
}

func reasonOf(err error) string {
	var f *domain.Error
	if errors.As(err, &f) {
		return f.Reason
	}
	return ""
}

// TestFaultOfScheduler plants a fault outside of a step: the model is closed, and no call waits
// forever.
func TestFaultOfScheduler(t *testing.T) {
	s := openSamples(t, weights(), Options{})
	waiting := make(chan error)
	var damaged fair.Queue
	s.mu.Lock()
	go func() {
		_, err := s.Sample(t.Context(), nil, sampleRequest("abc"))
		waiting <- err
	}()
	s.calls = append(s.calls, &sampleCall{ctx: context.Background(), account: damaged.Join("", 1)}) // without a request
	s.mu.Unlock()
	s.model.signal()
	require.Equal(t, domain.Unavailable, domain.CodeOf(<-waiting))
	_, err := s.Sample(t.Context(), nil, sampleRequest("abc"))
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.Contains(t, err.Error(), "samples.go")
}

// TestSamplesAreServedFairly checks that an account with few samples does not wait for those that
// another one has queued.
func TestSamplesAreServedFairly(t *testing.T) {
	tokens := tokenizer.NewBytes()
	w := weights()
	options := New(Options{Slots: 2}).(completer).options
	m, blocks := modelOf(w.Config, tokens, nil, options)
	s := &Samples{model: m, tokenizer: tokens}
	m.samples = s
	sched := newScheduler(m, netDecoder(llama.NewNet(w, nil, 1), m.info.ContextLength, 1), 64, blocks)
	add := func(account string, n int) *sampleCall {
		request := sampleRequest("abcdef")
		request.N, request.Share.Account = n, account
		c := &sampleCall{
			ctx: t.Context(), request: &request, limit: request.MaxTokens, pending: n, done: make(chan struct{}),
		}
		s.add(c)
		return c
	}
	huge := add("huge", 1000)
	step := func() {
		sched.removeEnded()
		require.True(t, sched.admit())
		sched.step()
	}
	for range 200 {
		step()
	}
	later := add("huge", engines.MaxTrainSamples)
	small, before := add("small", 3), huge.next
	for small.pending > 0 {
		step()
	}
	require.LessOrEqual(t, huge.next-before, 5)
	require.NoError(t, small.err)
	require.Nil(t, later.result.Sequences, "calls that wait need no memory for samples")
	require.Nil(t, later.prompt)
}
