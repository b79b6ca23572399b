package inference

import (
	"anneal/api/request"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// Completion is the response to a completion request, or one event of its stream.
type Completion struct {
	ID          string         `json:"id"`
	Object      string         `json:"object"`
	Created     int64          `json:"created"` // Unix seconds
	Model       string         `json:"model"`
	Choices     []Choice       `json:"choices"`
	Usage       *Usage         `json:"usage"`
	PerfMetrics map[string]any `json:"perf_metrics,omitempty"`
}

// Choice is one completion of a prompt or, in a stream, the part of it that an event adds.
type Choice struct {
	Index        int                 `json:"index"`
	Text         string              `json:"text"`
	Logprobs     *CompletionLogprobs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`
	RawOutput    *RawOutput          `json:"raw_output,omitempty"`
	// only if the request has return_token_ids
	PromptTokenIDs []int `json:"prompt_token_ids,omitempty"`
	TokenIDs       []int `json:"token_ids,omitempty"`
}

// createCompletion handles POST /inference/v1/completions.
func createCompletion(c *call) (any, error) {
	q, err := c.readRequest(readCompletion)
	if err != nil {
		return nil, err
	}
	return c.generate(q, completionEncoder{}, "cmpl-")
}

// A completionEncoder encodes responses to completion requests.
type completionEncoder struct{}

func (completionEncoder) event(g *generation, usage *Usage, choices ...Choice) Completion {
	return Completion{ID: g.id, Object: "text_completion", Created: g.Time.Unix(), Model: g.q.model, Choices: choices,
		Usage: usage}
}

func (e completionEncoder) full(g *generation) any {
	response := e.event(g, &g.usage)
	response.PerfMetrics = g.bodyMetrics()
	for _, c := range g.choices {
		out := Choice{Index: c.index, Text: c.Text, Logprobs: completionLogprobs(c.Logprobs, g.q.legacyLogprobs),
			FinishReason: &c.Finish, RawOutput: c.rawOutput(g.q)}
		if g.q.settings.ReturnTokenIDs {
			out.PromptTokenIDs, out.TokenIDs = c.prompt.Tokens, c.Tokens
		}
		response.Choices = append(response.Choices, out)
	}
	return response
}

func (e completionEncoder) chunk(g *generation, c *choice, chunk engines.Chunk) any {
	out := Choice{Index: c.index, Text: chunk.Text, Logprobs: completionLogprobs(chunk.Logprobs, g.q.legacyLogprobs)}
	if g.q.settings.ReturnTokenIDs {
		if chunk.Prompt != nil {
			out.PromptTokenIDs = chunk.Prompt.Tokens
		}
		if !chunk.Echoed {
			out.TokenIDs = chunk.Tokens
		}
	}
	if out.Text == "" && out.Logprobs == nil && out.PromptTokenIDs == nil && out.TokenIDs == nil {
		return nil
	}
	return e.event(g, nil, out)
}

func (e completionEncoder) finish(g *generation, c *choice, usage *Usage) any {
	event := e.event(g, usage, Choice{Index: c.index, FinishReason: &c.Finish, RawOutput: c.rawOutput(g.q)})
	if usage != nil {
		event.PerfMetrics = g.bodyMetrics()
	}
	return event
}

func (completionEncoder) trailer(*generation) any { return nil }

func (completionEncoder) failure(*generation, request.InferenceErrorBody) any { return nil }

func (completionEncoder) endsWithDone() bool { return true }

func (completionEncoder) kind() string { return metering.Completion }
