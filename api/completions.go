package api

import (
	"reflect"

	"anneal/api/wire"
	"anneal/engines"
	"anneal/eventlog/metering"
)

func inferenceOperations() []operation {
	return []operation{
		{id: "createCompletion", method: "POST", path: "/inference/v1/completions", tag: "inference", summary: "Continue a prompt", gate: toModels,
			about: "With stream it answers server-sent events, the last of which is [DONE].",
			body:  reflect.TypeFor[CompletionBody](), answer: reflect.TypeFor[Completion](), streams: reflect.TypeFor[Completion](), replies: performanceReplies, handle: complete},
		{id: "createChatCompletion", method: "POST", path: "/inference/v1/chat/completions", tag: "inference", summary: "Answer a conversation", gate: toModels,
			about: "The model's own chat template makes a prompt of the messages. With stream it answers server-sent events, the last of which is [DONE].",
			body:  reflect.TypeFor[ChatBody](), answer: reflect.TypeFor[ChatCompletion](), streams: reflect.TypeFor[ChatChunk](), replies: performanceReplies, handle: converse},
		{id: "listInferenceModels", method: "GET", path: "/inference/v1/models", tag: "inference", summary: "List the models that completions can be asked of", gate: toModels,
			answer: reflect.TypeFor[inferenceModelList](), handle: inferenceModels},
	}
}

// performanceReplies are the headers that tell how an answer came about; a
// stream has none, since they are known at its end.
var performanceReplies = []parameter{
	{"anneal-warning", wire.Text, "A parameter that is not known and was ignored; one header for each of the first 32, and one that counts the others."},
	{"anneal-prompt-tokens", wire.Int, "Tokens of the prompts."},
	{"anneal-cached-prompt-tokens", wire.Int, "Those of them that were computed before."},
	{"anneal-server-time-to-first-token", wire.Text, "Seconds until the first token."},
	{"anneal-server-processing-time", wire.Text, "Seconds until the last."},
	{"anneal-deployment", wire.Text, "The deployment that answered."},
	{"anneal-backend-host", wire.Text, "The node that answered."},
	{"anneal-num-concurrent-requests", wire.Int, "How many requests its replica had from this server, this one among them."},
	{"anneal-tokenizer-duration", wire.Text, "Seconds of making tokens of the prompt."},
	{"anneal-prefill-queue-duration", wire.Text, "Seconds of waiting for the model."},
	{"anneal-tokenizer-queue-duration", wire.Text, "Seconds of waiting for the tokenizer: 0.000000 where the engine cuts a text at once."},
	{"anneal-generation-queue-duration", wire.Text, "Seconds between the prompt's being read and the first step of generation: 0.000000 where a request that has a slot takes part in every step."},
	{"anneal-prefill-duration", wire.Text, "Seconds of reading the prompt."},
	{"anneal-speculation-prompt-tokens", wire.Int, "Tokens of the prediction that the request came with."},
	{"anneal-speculation-prompt-matched-tokens", wire.Int, "Those of them that the answer took over."},
	{"anneal-speculation-generated-tokens", wire.Int, "Tokens that were guessed and read ahead."},
	{"anneal-speculation-acceptance", wire.Text, "What share of them was right: of the first token of each guess, of the second and so on, separated by commas."},
}

// Completion is the answer to a completion request, or one piece of it.
type Completion struct {
	ID          string         `json:"id"`
	Object      string         `json:"object"`
	Created     int64          `json:"created"` // Unix seconds
	Model       string         `json:"model"`
	Choices     []Choice       `json:"choices"`
	Usage       *Usage         `json:"usage"`
	PerfMetrics map[string]any `json:"perf_metrics,omitempty"`
}

// Choice is one continuation, or one piece of it.
type Choice struct {
	Index          int                 `json:"index"`
	Text           string              `json:"text"`
	Logprobs       *CompletionLogprobs `json:"logprobs"`
	FinishReason   *string             `json:"finish_reason"`
	RawOutput      *RawOutput          `json:"raw_output,omitempty"`
	PromptTokenIDs []int               `json:"prompt_token_ids,omitempty"` // when return_token_ids was asked for
	TokenIDs       []int               `json:"token_ids,omitempty"`
}

// complete answers POST /inference/v1/completions.
func complete(c *call) (any, error) {
	q, err := c.question(readCompletion)
	if err != nil {
		return nil, err
	}
	return c.infer(q, completionForm{}, "cmpl-")
}

// A completionForm answers with completions.
type completionForm struct{}

func (completionForm) envelope(g *generation, usage *Usage, choices ...Choice) Completion {
	return Completion{ID: g.id, Object: "text_completion", Created: g.now.Unix(), Model: g.q.model, Choices: choices, Usage: usage}
}

func (f completionForm) whole(g *generation) any {
	answer := f.envelope(g, &g.usage)
	answer.PerfMetrics = g.metricsIn()
	for _, h := range g.all {
		one := Choice{Index: h.index, Text: h.Text, Logprobs: completionLogprobs(h.Logprobs, g.q.legacyTop), FinishReason: &h.Finish, RawOutput: h.raw(g.q)}
		if g.q.settings.ReturnTokenIDs {
			one.PromptTokenIDs, one.TokenIDs = h.prompt.Tokens, h.Tokens
		}
		answer.Choices = append(answer.Choices, one)
	}
	return answer
}

func (f completionForm) piece(g *generation, h *heard, c engines.Chunk) any {
	one := Choice{Index: h.index, Text: c.Text, Logprobs: completionLogprobs(c.Logprobs, g.q.legacyTop)}
	if g.q.settings.ReturnTokenIDs {
		if c.Prompt != nil {
			one.PromptTokenIDs = c.Prompt.Tokens
		}
		if !c.Echoed {
			one.TokenIDs = c.Tokens
		}
	}
	if one.Text == "" && one.Logprobs == nil && one.PromptTokenIDs == nil && one.TokenIDs == nil {
		return nil
	}
	return f.envelope(g, nil, one)
}

func (f completionForm) end(g *generation, h *heard, usage *Usage) any {
	answer := f.envelope(g, usage, Choice{Index: h.index, FinishReason: &h.Finish, RawOutput: h.raw(g.q)})
	if usage != nil {
		answer.PerfMetrics = g.metricsIn()
	}
	return answer
}

func (completionForm) closing(*generation) any { return nil }

func (completionForm) kind() string { return metering.Completion }
