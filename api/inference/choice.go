package inference

import (
	"anneal/domain"
	"anneal/engines"
)

// A choice is one completion of a prompt, and contains what has been generated so far.
type choice struct {
	engines.Chunk // all chunks so far, concatenated; with echo, Text and Logprobs include the prompt
	index         int
	prompt        engines.RenderedPrompt
	started       bool // the client was sent the first event of the choice
	counted       bool // generation.usage includes the usage of this choice
	usage         Usage
	servedBy      domain.Name // deployment of the newest attempt; "" if the target has no release
}

// append appends a chunk to the choice.
func (c *choice) append(chunk engines.Chunk) {
	c.Text, c.Reasoning, c.Raw = c.Text+chunk.Text, c.Reasoning+chunk.Reasoning, c.Raw+chunk.Raw
	c.Logprobs = append(c.Logprobs, chunk.Logprobs...)
	if !chunk.Echoed {
		c.Tokens = append(c.Tokens, chunk.Tokens...)
	}
	for _, delta := range chunk.ToolCalls {
		c.appendToolCall(delta)
	}
	if chunk.Prompt != nil {
		c.prompt.Text += chunk.Prompt.Text
		c.prompt.Grammar += chunk.Prompt.Grammar
		c.prompt.Tokens = append(c.prompt.Tokens, chunk.Prompt.Tokens...)
	}
	if chunk.Finish != "" {
		c.Finish = chunk.Finish
	}
}

// appendToolCall appends the arguments of delta to the tool call with the same index, or adds the
// call.
func (c *choice) appendToolCall(delta engines.ToolCall) {
	for i := range c.ToolCalls {
		if c.ToolCalls[i].Index == delta.Index {
			c.ToolCalls[i].Arguments += delta.Arguments
			return
		}
	}
	c.ToolCalls = append(c.ToolCalls, delta)
}

// firstToolCall returns those deltas that belong to the tool call with the index 0.
func firstToolCall(deltas []engines.ToolCall) (first []engines.ToolCall) {
	for _, delta := range deltas {
		if delta.Index == 0 {
			first = append(first, delta)
		}
	}
	return first
}
