package api

import (
	"reflect"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/engines"
	"anneal/eventlog/metering"
)

func inferenceOperations(s *Server) []request.Operation {
	return []request.Operation{
		{ID: "createCompletion", Method: "POST", Path: "/inference/v1/completions", Tag: "inference", Summary: "Continue a prompt", Gate: request.ToModels,
			Description: "With stream it answers server-sent events, the last of which is [DONE].",
			Body:        reflect.TypeFor[CompletionBody](), Response: reflect.TypeFor[Completion](), Streamed: reflect.TypeFor[Completion](), ResponseHeaders: performanceReplies, Handle: s.handle(complete)},
		{ID: "createChatCompletion", Method: "POST", Path: "/inference/v1/chat/completions", Tag: "inference", Summary: "Answer a conversation", Gate: request.ToModels,
			Description: "The model's own chat template makes a prompt of the messages. With stream it answers server-sent events, the last of which is [DONE].",
			Body:        reflect.TypeFor[ChatBody](), Response: reflect.TypeFor[ChatCompletion](), Streamed: reflect.TypeFor[ChatChunk](), ResponseHeaders: performanceReplies, Handle: s.handle(converse)},
		{ID: "listInferenceModels", Method: "GET", Path: "/inference/v1/models", Tag: "inference", Summary: "List the models that completions can be asked of", Gate: request.ToModels,
			Response: reflect.TypeFor[inferenceModelList](), Handle: s.handle(inferenceModels)},
	}
}

// performanceReplies are the headers that tell how an answer came about; a
// stream has none, since they are known at its end.
var performanceReplies = []request.Parameter{
	{Name: "anneal-warning", Kind: wire.Text, Description: "A parameter that is not known and was ignored; one header for each of the first 32, and one that counts the others."},
	{Name: "anneal-prompt-tokens", Kind: wire.Int, Description: "Tokens of the prompts."},
	{Name: "anneal-cached-prompt-tokens", Kind: wire.Int, Description: "Those of them that were computed before."},
	{Name: "anneal-server-time-to-first-token", Kind: wire.Text, Description: "Seconds until the first token."},
	{Name: "anneal-server-processing-time", Kind: wire.Text, Description: "Seconds until the last."},
	{Name: "anneal-deployment", Kind: wire.Text, Description: "The deployment that answered."},
	{Name: "anneal-backend-host", Kind: wire.Text, Description: "The node that answered."},
	{Name: "anneal-num-concurrent-requests", Kind: wire.Int, Description: "How many requests its replica had from this server, this one among them."},
	{Name: "anneal-tokenizer-duration", Kind: wire.Text, Description: "Seconds of making tokens of the prompt."},
	{Name: "anneal-prefill-queue-duration", Kind: wire.Text, Description: "Seconds of waiting for the model."},
	{Name: "anneal-tokenizer-queue-duration", Kind: wire.Text, Description: "Seconds of waiting for the tokenizer: 0.000000 where the engine cuts a text at once."},
	{Name: "anneal-generation-queue-duration", Kind: wire.Text, Description: "Seconds between the prompt's being read and the first step of generation: 0.000000 where a request that has a slot takes part in every step."},
	{Name: "anneal-prefill-duration", Kind: wire.Text, Description: "Seconds of reading the prompt."},
	{Name: "anneal-speculation-prompt-tokens", Kind: wire.Int, Description: "Tokens of the prediction that the request came with."},
	{Name: "anneal-speculation-prompt-matched-tokens", Kind: wire.Int, Description: "Those of them that the answer took over."},
	{Name: "anneal-speculation-generated-tokens", Kind: wire.Int, Description: "Tokens that were guessed and read ahead."},
	{Name: "anneal-speculation-acceptance", Kind: wire.Text, Description: "What share of them was right: of the first token of each guess, of the second and so on, separated by commas."},
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
	return Completion{ID: g.id, Object: "text_completion", Created: g.Time.Unix(), Model: g.q.model, Choices: choices, Usage: usage}
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
