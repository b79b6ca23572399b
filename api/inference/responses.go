package inference

import (
	"fmt"
	"strings"

	"anneal/api/request"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// createResponse handles POST /inference/v1/responses.
func createResponse(c *call) (any, error) {
	q, err := c.readRequest(readResponse)
	if err != nil {
		return nil, err
	}
	return c.generate(q, &responseEncoder{}, "resp_")
}

// Values of Response.Status and ResponseItem.Status.
const (
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
	statusFailed     = "failed"
)

// Values of ResponseItem.Type.
const (
	itemReasoning = "reasoning"
	itemMessage   = "message"
	itemCall      = "function_call"
)

// A responseEncoder encodes the only choice of a generation as a response. It divides the chunks
// into items: reasoning, a message, and one function call for each tool call. A chunk of another
// kind than the last item's ends that item and begins a new one. Each change adds an event, which a
// stream sends.
type responseEncoder struct {
	items   []ResponseItem
	calls   []int // for each item, the index of its tool call; -1 for a message or reasoning
	open    bool  // the last item has not ended
	started bool  // the events with which a stream begins were added
	events  []*ResponseEvent
	seq     int // sequence number of the next event
}

// responseEvents are the events of a stream that one chunk causes.
type responseEvents []*ResponseEvent

func (e *responseEncoder) full(g *generation) any {
	c := g.choices[0]
	e.add(g, engines.Chunk{Reasoning: c.Reasoning, Text: c.Text, Logprobs: c.Logprobs, ToolCalls: c.ToolCalls})
	e.end(c)
	return e.response(g, c, &g.usage)
}

func (e *responseEncoder) chunk(g *generation, _ *choice, chunk engines.Chunk) any {
	e.begin(g)
	e.add(g, chunk)
	return e.take()
}

func (e *responseEncoder) finish(g *generation, c *choice, usage *Usage) any {
	e.begin(g)
	e.end(c)
	final := e.response(g, c, usage)
	e.event("response."+final.Status, func(x *ResponseEvent) { x.Response = final })
	return e.take()
}

func (e *responseEncoder) trailer(*generation) any { return nil }

func (e *responseEncoder) failure(g *generation, fault request.InferenceErrorBody) any {
	failed := e.response(g, nil, nil)
	failed.Status, failed.Error = statusFailed, &ResponseError{Code: fault.Code, Message: fault.Message}
	e.event("response.failed", func(x *ResponseEvent) { x.Response = failed })
	return e.take()
}

func (*responseEncoder) endsWithDone() bool { return false }

func (*responseEncoder) kind() string { return metering.Response }

// take returns the events that were added since the last call of take.
func (e *responseEncoder) take() any {
	events := responseEvents(e.events)
	e.events = nil
	if len(events) == 0 {
		return nil
	}
	return events
}

// event adds an event of the type kind. fill sets its other fields.
func (e *responseEncoder) event(kind string, fill func(*ResponseEvent)) {
	x := &ResponseEvent{Type: kind, Sequence: e.seq}
	fill(x)
	e.seq++
	e.events = append(e.events, x)
}

// itemEvent adds an event of the type kind about the last item. If withPart is true, the event also
// has the index of the item's part. fill sets its other fields.
func (e *responseEncoder) itemEvent(kind string, withPart bool, fill func(*ResponseEvent)) {
	index, part := len(e.items)-1, 0
	e.event(kind, func(x *ResponseEvent) {
		x.OutputIndex = &index
		if kind != "response.output_item.added" && kind != "response.output_item.done" {
			x.ItemID = e.items[index].ID
		}
		if withPart {
			x.ContentIndex = &part
		}
		fill(x)
	})
}

// begin adds the events with which a stream begins, unless they were added before.
func (e *responseEncoder) begin(g *generation) {
	if e.started {
		return
	}
	e.started = true
	for _, kind := range []string{"response.created", "response.in_progress"} {
		e.event(kind, func(x *ResponseEvent) { x.Response = e.response(g, nil, nil) })
	}
}

// add adds the contents of a chunk to the items.
func (e *responseEncoder) add(g *generation, chunk engines.Chunk) {
	if chunk.Reasoning != "" {
		e.addText(g, itemReasoning, chunk.Reasoning, nil)
	}
	if chunk.Text != "" {
		var logprobs []TokenLogprob
		if content := contentLogprobs(chunk.Logprobs); content != nil {
			logprobs = content.Content
		}
		e.addText(g, itemMessage, chunk.Text, logprobs)
	}
	for _, call := range chunk.ToolCalls {
		e.addCall(g, call)
	}
}

// addText appends text to the last item if that has the type kind; otherwise it begins a new item.
func (e *responseEncoder) addText(g *generation, kind, text string, logprobs []TokenLogprob) {
	if !e.open || e.last().Type != kind {
		e.openText(g, kind)
	}
	part := &e.last().Content[0]
	part.Text += text
	part.Logprobs = append(part.Logprobs, logprobs...)
	e.itemEvent(textEvent(kind)+".delta", true, func(x *ResponseEvent) {
		if x.Delta = &text; kind == itemMessage {
			x.Logprobs = append([]TokenLogprob{}, logprobs...)
		}
	})
}

// textEvent returns the prefix of the types of the events about the text of an item of the type
// kind. The caller appends the rest of the type, such as .delta: response.output_text.delta is an
// event with new text of a message.
func textEvent(kind string) string {
	if kind == itemReasoning {
		return "response.reasoning_text"
	}
	return "response.output_text"
}

func (e *responseEncoder) last() *ResponseItem { return &e.items[len(e.items)-1] }

// openText begins an item of the type kind, with one text part.
func (e *responseEncoder) openText(g *generation, kind string) {
	item, part := ResponseItem{Type: kind, Content: []ResponsePart{}}, ResponsePart{Type: "reasoning_text"}
	if kind == itemReasoning {
		item.ID, item.Summary = g.itemID("rs_", len(e.items)), []ResponsePart{}
	} else {
		item.ID, item.Role = g.itemID("msg_", len(e.items)), "assistant"
		part = ResponsePart{Type: "output_text", Annotations: []any{}, Logprobs: []TokenLogprob{}}
	}
	e.openItem(item, -1)
	e.last().Content = []ResponsePart{part}
	e.itemEvent("response.content_part.added", true, func(x *ResponseEvent) { x.Part = &part })
}

// openItem ends the last item and begins a new one. call is the index of the item's tool call; -1
// for a message or reasoning.
func (e *responseEncoder) openItem(item ResponseItem, call int) {
	e.closeItem(statusCompleted)
	item.Status = statusInProgress
	e.items, e.calls, e.open = append(e.items, item), append(e.calls, call), true
	e.itemEvent("response.output_item.added", false, func(x *ResponseEvent) { x.Item = &item })
}

// addCall appends the arguments in call to the item of that tool call, or begins a new item.
func (e *responseEncoder) addCall(g *generation, call engines.ToolCall) {
	if !e.open || e.calls[len(e.calls)-1] != call.Index {
		none := ""
		e.openItem(ResponseItem{ID: g.itemID("fc_", len(e.items)), Type: itemCall, Name: call.Name, Arguments: &none,
			CallID: callID(g, g.choices[0], call)}, call.Index)
	}
	if call.Arguments == "" {
		return
	}
	whole := *e.last().Arguments + call.Arguments
	e.last().Arguments = &whole
	e.itemEvent("response.function_call_arguments.delta", false, func(x *ResponseEvent) { x.Delta = &call.Arguments })
}

// closeItem ends the last item with a status, unless it has ended already.
func (e *responseEncoder) closeItem(status string) {
	if !e.open {
		return
	}
	e.open = false
	item := e.last()
	item.Status = status
	if item.Type == itemCall {
		e.itemEvent("response.function_call_arguments.done", false,
			func(x *ResponseEvent) { x.Name, x.Arguments = item.Name, item.Arguments })
	} else {
		part := item.Content[0]
		e.itemEvent(textEvent(item.Type)+".done", true,
			func(x *ResponseEvent) { x.Text, x.Logprobs = &part.Text, part.Logprobs })
		e.itemEvent("response.content_part.done", true, func(x *ResponseEvent) { x.Part = &part })
	}
	done := *item
	e.itemEvent("response.output_item.done", false, func(x *ResponseEvent) { x.Item = &done })
}

// end ends the last item when the choice has ended.
func (e *responseEncoder) end(c *choice) {
	status := statusCompleted
	if c.Finish == engines.FinishLength {
		status = statusIncomplete
	}
	e.closeItem(status)
}

// response returns the response in its present state: in progress if c is nil, otherwise ended.
func (e *responseEncoder) response(g *generation, c *choice, usage *Usage) *Response {
	s, q := g.q.response, g.q
	r := &Response{ID: g.id, Object: "response", CreatedAt: g.Time.Unix(), Status: statusInProgress, Model: q.model,
		Output: append([]ResponseItem{}, e.items...), Instructions: s.instructions, MaxOutputTokens: s.maxTokens,
		ParallelToolCalls: !q.singleToolCall, PromptCacheKey: s.cacheKey, Reasoning: ResponseReasoning{Effort: s.effort},
		SafetyIdentifier: s.safety, ServiceTier: "default", Temperature: q.settings.Temperature,
		Text:       ResponseTextSetting{Format: s.format, Verbosity: "medium"},
		ToolChoice: s.toolChoice, Tools: s.tools, TopLogprobs: q.settings.TopLogprobs, TopP: q.settings.TopP,
		Truncation: "disabled", User: s.user, Metadata: s.metadata}
	if c != nil {
		now := g.Now().Unix()
		if r.Status, r.CompletedAt = statusCompleted, &now; c.Finish == engines.FinishLength {
			r.Status, r.CompletedAt = statusIncomplete, nil
			r.IncompleteDetails = &IncompleteDetails{Reason: "max_output_tokens"}
		}
	}
	if usage != nil {
		r.Usage = &ResponseUsage{InputTokens: usage.PromptTokens, OutputTokens: usage.CompletionTokens,
			InputDetails: ResponseInputDetails{usage.Details.CachedTokens}, TotalTokens: usage.TotalTokens}
		if usage.CompletionDetails != nil {
			r.Usage.OutputDetails.ReasoningTokens = usage.CompletionDetails.ReasoningTokens
		}
	}
	return r
}

// itemID returns the ID of the item with the index, derived from the ID of the response.
func (g *generation) itemID(prefix string, index int) string {
	return fmt.Sprintf("%s%s_%d", prefix, strings.TrimPrefix(g.id, "resp_"), index)
}
