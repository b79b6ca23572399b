package serve

import (
	"math"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// completeWithEcho runs a request and returns its chunks joined to one, the echoed part of the
// text, and the usage.
func completeWithEcho(
	t *testing.T, m engines.Model, req engines.CompletionRequest,
) (all engines.Chunk, echo string, usage engines.Usage) {
	all.Prompt = &engines.RenderedPrompt{}
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		assert.LessOrEqual(t, len(c.Tokens), engines.MaxChunk)
		if c.Prompt != nil {
			assert.LessOrEqual(t, len(c.Prompt.Tokens), engines.MaxChunk)
			all.Prompt.Text, all.Prompt.Tokens = all.Prompt.Text+c.Prompt.Text, append(all.Prompt.Tokens, c.Prompt.Tokens...)
		}
		if c.Echoed {
			assert.Empty(t, strings.TrimPrefix(all.Text, echo), "the echo comes first")
			echo += c.Text
		}
		all.Text, all.Raw, all.Tokens, all.Logprobs = all.Text+c.Text, all.Raw+c.Raw, append(all.Tokens, c.Tokens...),
			append(all.Logprobs, c.Logprobs...)
		all.Finish = c.Finish
		return nil
	})
	require.NoError(t, err)
	return all, echo, usage
}

// TestLogprobsMatchTraining checks that the logprobs of the echo and of the completion match
// those of the training pass.
func TestLogprobsMatchTraining(t *testing.T) {
	w := weights()
	prompt := append([]int{256}, ids(100, 1)...)
	for _, options := range []Options{{ChunkTokens: 200}, {ChunkTokens: 7}, {ChunkTokens: 32, Parallelism: 2}} {
		m := open(t, w, options)
		for _, last := range []int{0, 1, 40, 101, 500} {
			for _, maxTokens := range []int{0, 12} {
				req := engines.CompletionRequest{
					PromptTokens: prompt, MaxTokens: maxTokens, IgnoreEOS: true, TopLogprobs: 3, EchoLast: last,
				}
				if last == 500 {
					req.EchoLast, req.Echo = 0, true
				}
				all, _, usage := completeWithEcho(t, m, req)
				from := len(prompt) - min(last, len(prompt))
				text := append(append([]int(nil), prompt...), all.Tokens[len(prompt)-from:]...)
				require.Equal(t, text[from:], append([]int{}, all.Tokens...))
				require.Len(t, text, len(prompt)+maxTokens)
				require.Len(t, all.Logprobs, len(all.Tokens))
				require.Equal(t, engines.FinishLength, all.Finish)
				require.Equal(t, []int{len(prompt), maxTokens}, []int{usage.PromptTokens, usage.CompletionTokens})
				want := trained(w, text)
				for i, one := range all.Logprobs {
					require.Equal(t, all.Tokens[i], one.Token)
					if from+i == 0 {
						require.True(t, one.Unknown)
						continue
					}
					require.False(t, one.Unknown)
					row := want.Row(from + i - 1)
					require.InDelta(t, math.Log(float64(row[one.Token])), one.Logprob, 1e-4)
					for j, token := range topTokens(row, 3) {
						require.Equal(t, token, one.Top[j].Token)
						require.InDelta(t, math.Log(float64(row[token])), one.Top[j].Logprob, 1e-4)
					}
					if from+i >= len(prompt) {
						require.Zero(t, one.Sampling, "greedy decoding has probability 1")
					} else {
						require.InDelta(t, one.Logprob, one.Sampling, 0)
					}
				}
			}
		}
	}
}

// TestSamplingLogprob checks that a token has both the logprob of the model and the logprob of
// the distribution from which the token was sampled.
func TestSamplingLogprob(t *testing.T) {
	m := open(t, weights(), Options{})
	seed := uint64(5)
	all, _, _ := completeWithEcho(
		t, m, engines.CompletionRequest{
			Prompt: "x", MaxTokens: 30, IgnoreEOS: true, Logprobs: true, Temperature: 1, TopK: 2, Seed: &seed,
			LogitBias: map[int]float64{65: 100, 66: 100},
		})
	require.Len(t, all.Logprobs, 30)
	for _, one := range all.Logprobs {
		require.Contains(t, []int{65, 66}, one.Token)
		require.LessOrEqual(t, one.Logprob, 0.0)
		require.Greater(t, one.Sampling, one.Logprob, "only two of 260 tokens remain")
		require.Empty(t, one.Top)
	}
}

// TestOffsetsPointIntoTheText checks the offsets of logprobs in a text with characters of
// several tokens.
func TestOffsetsPointIntoTheText(t *testing.T) {
	m := open(t, weights(), Options{})
	all, echo, _ := completeWithEcho(t, m, engines.CompletionRequest{
		Prompt: "né東!", MaxTokens: 40, IgnoreEOS: true, Logprobs: true, Echo: true,
	})
	require.Equal(t, "né東!", echo)
	var starts []int
	for i, one := range all.Logprobs {
		if i <= 8 { // tokens of <|bos|> and of four characters
			starts = append(starts, one.Offset)
		}
		require.LessOrEqual(t, one.Offset, utf8.RuneCountInString(all.Text))
		if i > 0 {
			require.GreaterOrEqual(t, one.Offset, all.Logprobs[i-1].Offset)
		}
		require.True(t, utf8.ValidString(one.Text))
	}
	require.Equal(t, []int{0, 0, 1, 1, 2, 2, 2, 3, 4}, starts)
	require.Equal(t, "<|bos|>", all.Logprobs[0].Text)
	require.Equal(t, []byte{0xc3}, all.Logprobs[2].Bytes)
	require.Equal(t, "\uFFFD", all.Logprobs[2].Text)
}

func TestRawOutputSpellsSpecialTokens(t *testing.T) {
	w := weights()
	m := open(t, w, Options{})
	// The bias lets only the end token follow. The end token ends the completion, and only the
	// raw output has its text.
	end := map[int]float64{259: 100}
	all, _, _ := completeWithEcho(t, m,
		engines.CompletionRequest{Prompt: "ab", MaxTokens: 5, RawOutput: true, LogitBias: end})
	require.Equal(t, "<|bos|>ab", all.Prompt.Text)
	require.Equal(t, []int{256, 97, 98}, all.Prompt.Tokens)
	require.Equal(t, []string{"", "<|end|>", engines.FinishStop}, []string{all.Text, all.Raw, all.Finish})
	require.Equal(t, []int{259}, all.Tokens)
	// A prompt that exceeds the maximum of a chunk is split into chunks.
	all, _, _ = completeWithEcho(t, m,
		engines.CompletionRequest{PromptTokens: ids(150, 1), MaxTokens: 3, ReturnTokenIDs: true})
	require.Equal(t, ids(150, 1), all.Prompt.Tokens)
	require.Empty(t, all.Prompt.Text)
	require.Empty(t, all.Raw)
	// Only the raw output has the text that a stop sequence cut off.
	all, _, _ = completeWithEcho(t, m, engines.CompletionRequest{
		Prompt: "ab", MaxTokens: 5, RawOutput: true, Logprobs: true, LogitBias: map[int]float64{67: 100},
		Stop: []string{"CCC"},
	})
	require.Equal(t, []string{"", "CCC", engines.FinishStop}, []string{all.Text, all.Raw, all.Finish})
	require.Len(t, all.Logprobs, 3)
	require.Zero(t, all.Logprobs[2].Offset)
	// A request that generates no token returns the prompt.
	all, echo, _ := completeWithEcho(t, m, engines.CompletionRequest{Prompt: "ab", RawOutput: true, EchoLast: 1})
	require.Equal(t, []string{"b", "b", "<|bos|>ab", engines.FinishLength},
		[]string{all.Text, echo, all.Prompt.Text, all.Finish})
}

// TestOutputDoesNotDependOnLoad checks that requests of all kinds get equal outputs alone and
// concurrently with others.
func TestOutputDoesNotDependOnLoad(t *testing.T) {
	w := weights()
	alone, shared := open(t, w, Options{Slots: 1}), open(t, w, Options{Slots: 16, ChunkTokens: 24, Parallelism: 2})
	seed := uint64(9)
	var requests []engines.CompletionRequest
	for i := range 4 {
		prompt := ids(5+i*20, i)
		requests = append(requests,
			engines.CompletionRequest{PromptTokens: prompt, MaxTokens: 15, TopLogprobs: 2, Echo: true},
			engines.CompletionRequest{
				PromptTokens: prompt, MaxTokens: 15, Seed: &seed, Temperature: 1, MirostatTarget: 5, Logprobs: true,
			},
			engines.CompletionRequest{
				PromptTokens: prompt, MaxTokens: 15, FrequencyPenalty: 1, PresencePenalty: 0.5, RepetitionPenalty: 1.3,
			},
			engines.CompletionRequest{
				PromptTokens: prompt, MaxTokens: 15, Seed: &seed, Temperature: 1.2, MinP: 0.05, TypicalP: 0.9,
				LogitBias: map[int]float64{7: 3},
			})
	}
	var all sync.WaitGroup
	for i, req := range requests {
		want, _, _ := completeWithEcho(t, alone, req)
		all.Go(func() {
			got, _, _ := completeWithEcho(t, shared, req)
			assert.Equal(t, want, got, "request %d", i)
		})
	}
	all.Wait()
}

func TestParameterRanges(t *testing.T) {
	m := open(t, weights(), Options{})
	_, err := m.Complete(
		t.Context(), engines.CompletionRequest{
			Prompt: "a", MinP: 2, TypicalP: -1, FrequencyPenalty: 3, PresencePenalty: -3, RepetitionPenalty: 3,
			MirostatTarget: 0.5, MirostatRate: 2, LogitBias: map[int]float64{260: 1}, TopLogprobs: 21, EchoLast: -1,
		},
		func(engines.Chunk) error { return nil })
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	for _, field := range []string{
		"minP", "typicalP", "frequencyPenalty", "presencePenalty", "repetitionPenalty", "mirostatTarget", "mirostatRate",
		"logitBias", "topLogprobs", "echoLast",
	} {
		require.ErrorContains(t, err, field+": ")
	}
}

// TestLogprobsAreNormalized checks that the probabilities of all tokens of the vocabulary sum to
// 1, with the precision of float32, in which training and serving add them.
func TestLogprobsAreNormalized(t *testing.T) {
	w := weights()
	d := decoderOf(t, w)
	for seed := range 5 {
		logits := d.step([]span{{cache: newCache(&w.Config, 150), tokens: ids(20+seed, seed), last: true}}).Row(0)
		all := outputOptions{tokenizer: tokenizer.NewBytes(), top: w.Config.VocabSize}
		one := all.logprob(7, logits, 1)
		require.Len(t, one.Top, w.Config.VocabSize)
		sum, before := 0.0, 0.0
		for _, other := range one.Top {
			require.LessOrEqual(t, other.Logprob, before, "the likeliest comes first")
			before = other.Logprob
			sum += math.Exp(other.Logprob)
			if other.Token == 7 {
				require.InDelta(t, other.Logprob, one.Logprob, 0)
			}
		}
		require.InDelta(t, 1, sum, 1e-6)
	}
}
