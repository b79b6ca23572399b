package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

// A form is the shape in which an inference request is answered.
type form interface {
	// whole is the answer to a request that is not streamed.
	whole(g *generation) any
	// piece is a part of a stream with what a choice was told now; nil when
	// that is nothing to tell.
	piece(g *generation, h *heard, c engines.Chunk) any
	// end is the part of a stream that closes a choice; usage is nil, but with
	// the last one to be closed.
	end(g *generation, h *heard, usage *Usage) any
	// closing comes after the last choice was closed; nil when nothing does.
	closing(g *generation) any
	// kind is what its usage is recorded as.
	kind() string
}

// A heard is all that one choice was told.
type heard struct {
	engines.Chunk // Text with the echo; Tokens and Raw without it
	index         int
	prompt        engines.RenderedPrompt
	begun         bool // a part of it was sent
	counted       bool // what it used is in the usage of all
}

// hear takes in the next piece.
func (h *heard) hear(c engines.Chunk) {
	h.Text, h.Reasoning, h.Raw = h.Text+c.Text, h.Reasoning+c.Reasoning, h.Raw+c.Raw
	h.Logprobs = append(h.Logprobs, c.Logprobs...)
	if !c.Echoed {
		h.Tokens = append(h.Tokens, c.Tokens...)
	}
	for _, call := range c.ToolCalls {
		h.call(call)
	}
	if c.Prompt != nil {
		h.prompt.Text, h.prompt.Tokens = h.prompt.Text+c.Prompt.Text, append(h.prompt.Tokens, c.Prompt.Tokens...)
	}
	if c.Finish != "" {
		h.Finish = c.Finish
	}
}

// call joins a piece of a tool call to what is known of it.
func (h *heard) call(piece engines.ToolCall) {
	for i := range h.ToolCalls {
		if h.ToolCalls[i].Index == piece.Index {
			h.ToolCalls[i].Arguments += piece.Arguments
			return
		}
	}
	h.ToolCalls = append(h.ToolCalls, piece)
}

// A generation is one request being answered. Its choices are generated at the
// same time; mu orders what they write.
type generation struct {
	*call
	out     request.Stream
	q       *inferenceRequest
	form    form
	to      target
	session string
	id      string
	start   time.Time

	mu    sync.Mutex
	all   []*heard
	usage Usage
	times engines.Timings // of the first choice to be finished
	guess guesses
	at    seat
	left  int // choices that are not finished
	first time.Time
}

// infer answers a request that was read and checked.
func (c *call) infer(q *inferenceRequest, shape form, idPrefix string) (any, error) {
	unread := c.Params()
	if err := unread.Err(); err != nil && (c.server.Strict || len(unread.Values) == 0) {
		return nil, err
	}
	if err := c.RequireActive(c.Principal.Account); err != nil {
		return nil, err
	}
	to, err := c.address(q.model)
	if err != nil {
		return nil, err
	}
	if err := to.mustAnswer(); err != nil {
		return nil, err
	}
	q.settings.Addon = to.addon
	if err := c.RequireActive(to.Name.Account()); err != nil { // the operator asks in other accounts
		return nil, err
	}
	leave, ok := c.server.busy.Enter("generations of "+c.Principal.Account, c.server.Limits.Generations)
	if !ok {
		return nil, tooManyCompletions(c.Principal.Account, c.server.Limits.Generations)
	}
	defer leave()
	c.warnOfUnknown(slices.Concat(q.unknown, wire.SortedKeys(unread.Values)))
	session := c.sessionOf(q, to.State)
	if q.strictFit {
		if err := c.mustFit(to, session, q); err != nil {
			return nil, err
		}
	}
	total := len(q.prompts) * q.n
	g := &generation{call: c, out: request.Stream{Call: c.Call}, q: q, form: shape, to: to, session: session, id: idPrefix + uuid.NewString(), start: time.Now(), left: total}
	for i := range total {
		g.all = append(g.all, &heard{index: i})
	}
	return g.run()
}

func tooManyCompletions(account string, limit int) error {
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_REQUESTS",
		Message: fmt.Sprintf("accounts/%s has %d completions under way: wait for one to end", account, limit)}
}

// maxWarnings bounds the headers that name unknown parameters: clients refuse
// an answer that has too many, 100 with some.
const maxWarnings = 32

// warnOfUnknown names the parameters that are not known and were ignored.
func (c *call) warnOfUnknown(names []string) {
	for _, name := range names[:min(len(names), maxWarnings)] {
		c.Warn("unknown parameter %s was ignored", wire.Quote(name))
	}
	if more := len(names) - maxWarnings; more > 0 {
		c.Warn("%d more unknown parameters were ignored", more)
	}
}

// sessionOf is what requests have in common that should meet on one replica,
// where what they have in common may be cached; "" for none. A cache is never
// shared between accounts, nor between isolation keys.
func (c *call) sessionOf(q *inferenceRequest, d domain.Deployment) string {
	q.settings.CacheScope = c.Principal.Account
	if q.isolation != "" {
		q.settings.CacheScope += "/" + q.isolation
	}
	switch {
	case d.EnableSessionAffinity && q.user != "":
		return "user " + q.user
	case q.isolation != "":
		return "isolation " + q.isolation
	}
	return ""
}

// mustFit refuses a request whose prompt and max_tokens together exceed the
// window. A generation of nothing counts a prompt's tokens.
func (c *call) mustFit(deployment target, session string, q *inferenceRequest) error {
	for _, p := range q.prompts {
		counting := engines.CompletionRequest{Prompt: p.text, PromptTokens: p.tokens, Chat: p.chat, Reasoning: q.settings.Reasoning, Addon: q.settings.Addon}
		usage, _, err := c.generate(c.Ctx, deployment, session, counting, func(engines.Chunk) error { return nil })
		if err != nil {
			return p.asWritten(err)
		}
		length, window := usage.PromptTokens, cmp.Or(usage.ContextLength, c.window(deployment.State))
		if window > 0 && length+q.settings.MaxTokens > window {
			var v domain.Violations
			v.Add("max_tokens", "the prompt's %d tokens and max_tokens %d together exceed the window of %d: lower max_tokens, or let context_length_exceeded_behavior be truncate", length, q.settings.MaxTokens, window)
			return v.Err()
		}
	}
	return nil
}

// window is how many tokens the deployment's model looks at, where its engine
// does not know; 0 is not known.
func (c *call) window(d domain.Deployment) int {
	row, ok := c.View().Models.Get(domain.Name(d.BaseModel))
	if ok && row.State.Kind == domain.PEFTAddon {
		if base, found := c.View().Models.Get(domain.Name(row.State.BaseModel)); found {
			row = base
		}
	}
	window := 0
	if ok {
		window = row.State.ContextLength
	}
	if d.MaxContextLength > 0 && (window == 0 || d.MaxContextLength < window) {
		window = d.MaxContextLength
	}
	return window
}

// atOnce bounds how many choices of one request are generated at the same
// time, so that one request does not fill a replica's queue.
const atOnce = 16

// run generates every choice. The first that fails ends all of them.
func (g *generation) run() (any, error) {
	ctx, cancel := context.WithCancelCause(g.Ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range g.all {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			if err := g.choice(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		if !g.first.IsZero() {
			g.metered(g.to.Name, g.q.model, g.used(false))
		}
		return nil, g.out.Fail(err)
	}
	g.server.served.note(g.to.Name, g.Now())
	g.metered(g.to.Name, g.q.model, g.used(true))
	g.server.meters.tokens.WithLabelValues("prompt").Add(float64(g.usage.PromptTokens))
	g.server.meters.tokens.WithLabelValues("completion").Add(float64(g.usage.CompletionTokens))
	if g.q.stream {
		return nil, g.close()
	}
	for name, value := range g.metrics() {
		g.Writer.Header().Set("anneal-"+name, fmt.Sprint(value))
	}
	return g.form.whole(g), nil
}

// choice generates the continuation with an index: sample i of prompt p is
// p × n + i. Samples of one seed get seeds of their own, counted from it.
func (g *generation) choice(ctx context.Context, index int) error {
	p, sample := g.q.prompts[index/g.q.n], index%g.q.n
	req := g.q.settings
	req.Prompt, req.PromptTokens, req.Chat = p.text, p.tokens, p.chat
	if g.q.seed != nil {
		seed := *g.q.seed + uint64(sample)
		req.Seed = &seed
	}
	h := g.all[index]
	usage, at, err := g.generate(ctx, g.to, g.session, req, func(c engines.Chunk) error { return g.hear(h, c) })
	if err != nil {
		return p.asWritten(err)
	}
	return g.finish(h, sample == 0, usage, at)
}

// hear takes in the next piece of a choice, and sends it on a stream. Finish is
// told together with the usage, which comes last.
func (g *generation) hear(h *heard, c engines.Chunk) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first.IsZero() {
		g.first = time.Now()
		g.server.served.note(g.to.Name, g.Time) // not only at the end: a long answer under way is use as well
		g.server.meters.firstText.Observe(g.first.Sub(g.start).Seconds())
	}
	if g.q.oneCall {
		c.ToolCalls = first(c.ToolCalls)
	}
	h.hear(c)
	if !g.q.stream {
		return nil
	}
	part := g.form.piece(g, h, c)
	if part == nil {
		return nil
	}
	h.begun = true
	return g.out.Event(part)
}

// first are the pieces of the first tool call.
func first(calls []engines.ToolCall) (one []engines.ToolCall) {
	for _, call := range calls {
		if call.Index == 0 {
			one = append(one, call)
		}
	}
	return one
}

// finish closes a choice. The last to finish carries the usage of all.
func (g *generation) finish(h *heard, firstSample bool, usage engines.Usage, at seat) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.Finish == "" {
		h.Finish = engines.FinishLength
	}
	if g.times == (engines.Timings{}) {
		g.times, g.at = usage.Timings, at
	}
	g.usage.add(usage, firstSample)
	h.counted = true
	g.guess.add(usage.Speculation)
	if g.left--; !g.q.stream {
		return nil
	}
	var all *Usage
	if g.left == 0 {
		all = &g.usage
	}
	return g.out.Event(g.form.end(g, h, all))
}

// close ends the stream.
func (g *generation) close() error {
	if last := g.form.closing(g); last != nil {
		if err := g.out.Event(last); err != nil {
			return request.IgnoreGone(err)
		}
	}
	return g.out.Done()
}
