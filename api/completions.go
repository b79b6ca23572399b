package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
)

func (s *Server) routeInference(r chi.Router) {
	r.Post("/inference/v1/completions", s.answer(true, s.infer(complete)))
	r.Get("/inference/v1/models", s.answer(true, s.infer(inferenceModels)))
}

// infer lets those through whose role may ask models.
func (s *Server) infer(h handler) handler {
	return func(c *call) (any, error) {
		if err := c.caller.may(toInfer); err != nil {
			return nil, err
		}
		c.account = c.caller.account
		return h(c)
	}
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
	Index        int     `json:"index"`
	Text         string  `json:"text"`
	Logprobs     any     `json:"logprobs"` // always null: they are not offered yet
	FinishReason *string `json:"finish_reason"`
}

// Usage counts tokens; each prompt once, however many continuations it has.
type Usage struct {
	PromptTokens     int          `json:"prompt_tokens"`
	CompletionTokens int          `json:"completion_tokens"`
	TotalTokens      int          `json:"total_tokens"`
	Details          usageDetails `json:"prompt_tokens_details"`
}

type usageDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// complete answers POST /inference/v1/completions.
func complete(c *call) (any, error) {
	value, err := readBody(c.w, c.r, c.Limits.Body, false)
	if err != nil {
		return nil, err
	}
	q, err := readCompletion(value, c.Strict)
	if err != nil {
		return nil, err
	}
	if err := c.mayWork(c.caller.account); err != nil {
		return nil, err
	}
	deployment, err := c.address(q.model)
	if err != nil {
		return nil, err
	}
	if err := c.mayWork(deployment.Name.Account()); err != nil { // the operator asks in other accounts
		return nil, err
	}
	leave, ok := c.busy.enter("generations of "+c.caller.account, c.Limits.Generations)
	if !ok {
		return nil, &domain.Fault{Code: domain.ResourceExhausted, Reason: "TOO_MANY_REQUESTS",
			Message: fmt.Sprintf("accounts/%s has %d completions under way: wait for one to end", c.caller.account, c.Limits.Generations)}
	}
	defer leave()
	for _, name := range q.unknown {
		c.w.Header().Add("anneal-warning", "unknown parameter "+quoted(name)+" was ignored")
	}
	if q.strictFit {
		if err := c.mustFit(deployment, q); err != nil {
			return nil, err
		}
	}
	return newCompletion(c, q, deployment.Name).run()
}

// mustFit refuses a request whose prompt and max_tokens together exceed the
// window. A generation of nothing counts a prompt's tokens.
func (c *call) mustFit(deployment *projections.Row[domain.Deployment], q *completionRequest) error {
	window := c.window(deployment.State)
	for _, p := range q.prompts {
		length := len(p.tokens)
		if p.tokens == nil {
			counting := engines.CompletionRequest{Prompt: p.text}
			usage, err := c.generate(c.ctx, deployment.Name, q.user, counting, func(engines.Chunk) error { return nil })
			if err != nil {
				return p.asWritten(err)
			}
			length = usage.PromptTokens
		}
		if window > 0 && length+q.settings.MaxTokens > window {
			var v domain.Violations
			v.Add("max_tokens", "the prompt's %d tokens and max_tokens %d together exceed the window of %d: lower max_tokens, or let context_length_exceeded_behavior be truncate", length, q.settings.MaxTokens, window)
			return v.Err()
		}
	}
	return nil
}

// window is how many tokens the deployment's model looks at; 0 is not known.
func (c *call) window(d domain.Deployment) int {
	row, ok := c.snapshot().Models.Get(domain.Name(d.BaseModel))
	if ok && row.State.Kind == domain.PEFTAddon {
		if base, found := c.snapshot().Models.Get(domain.Name(row.State.BaseModel)); found {
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

// A completion is one request being answered. Its choices are generated at the
// same time; mu orders what they write.
type completion struct {
	*call
	q          *completionRequest
	deployment domain.Name
	answer     Completion // without choices
	start      time.Time

	mu      sync.Mutex
	choices []Choice
	usage   Usage
	left    int // choices that are not finished
	first   time.Time
	begun   bool // the stream's header is sent
}

func newCompletion(c *call, q *completionRequest, deployment domain.Name) *completion {
	total := len(q.prompts) * q.n
	one := &completion{call: c, q: q, deployment: deployment, start: time.Now(), choices: make([]Choice, total), left: total,
		answer: Completion{ID: "cmpl-" + uuid.NewString(), Object: "text_completion", Created: c.now.Unix(), Model: q.model}}
	for i := range one.choices {
		one.choices[i].Index = i
	}
	return one
}

// atOnce bounds how many choices of one request are generated at the same
// time, so that one request does not fill a replica's queue.
const atOnce = 16

// run generates every choice. The first that fails ends all of them.
func (g *completion) run() (any, error) {
	ctx, cancel := context.WithCancelCause(g.ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range g.choices {
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
		return nil, g.fail(err)
	}
	g.served.note(g.deployment, g.Now())
	g.meters.tokens.WithLabelValues("prompt").Add(float64(g.usage.PromptTokens))
	g.meters.tokens.WithLabelValues("completion").Add(float64(g.usage.CompletionTokens))
	if g.q.stream {
		return nil, g.done()
	}
	g.answer.Choices, g.answer.Usage = g.choices, &g.usage
	metrics := g.metrics()
	for name, value := range metrics {
		g.w.Header().Set("anneal-"+name, fmt.Sprint(value))
	}
	if g.q.perf {
		g.answer.PerfMetrics = metrics
	}
	return g.answer, nil
}

// choice generates the continuation with an index: sample i of prompt p is
// p × n + i. Samples of one seed get seeds of their own, counted from it.
func (g *completion) choice(ctx context.Context, index int) error {
	p, sample := g.q.prompts[index/g.q.n], index%g.q.n
	req := g.q.settings
	req.Prompt, req.PromptTokens = p.text, p.tokens
	if g.q.seed != nil {
		seed := *g.q.seed + uint64(sample)
		req.Seed = &seed
	}
	echoed := !g.q.echo
	finish := engines.FinishLength
	emit := func(chunk engines.Chunk) error {
		if chunk.Finish != "" {
			finish = chunk.Finish // told together with the usage, which comes last
		}
		if !echoed {
			chunk.Text, echoed = p.text+chunk.Text, true
		}
		return g.piece(index, chunk.Text)
	}
	usage, err := g.generate(ctx, g.deployment, g.q.user, req, emit)
	if err == nil && !echoed {
		err = g.piece(index, p.text)
	}
	if err != nil {
		return p.asWritten(err)
	}
	return g.finish(index, sample == 0, finish, usage)
}

// piece takes in the next text of a choice.
func (g *completion) piece(index int, text string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first.IsZero() {
		g.first = time.Now()
		g.served.note(g.deployment, g.now) // not only at the end: a long answer under way is use as well
		g.meters.firstText.Observe(g.first.Sub(g.start).Seconds())
	}
	if !g.q.stream {
		g.choices[index].Text += text
		return nil
	}
	if text == "" {
		return nil
	}
	return g.send(Choice{Index: index, Text: text}, nil)
}

// finish closes a choice. The last to finish carries the usage of all.
func (g *completion) finish(index int, firstSample bool, reason string, usage engines.Usage) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if firstSample {
		g.usage.PromptTokens += usage.PromptTokens
		g.usage.Details.CachedTokens += usage.CachedTokens
	}
	g.usage.CompletionTokens += usage.CompletionTokens
	g.usage.TotalTokens = g.usage.PromptTokens + g.usage.CompletionTokens
	g.choices[index].FinishReason = &reason
	if g.left--; !g.q.stream {
		return nil
	}
	if g.left > 0 {
		return g.send(Choice{Index: index, FinishReason: &reason}, nil)
	}
	return g.send(Choice{Index: index, FinishReason: &reason}, &g.usage)
}

// send writes one piece of a stream.
func (g *completion) send(choice Choice, usage *Usage) error {
	g.begin()
	part := g.answer
	part.Choices, part.Usage = []Choice{choice}, usage
	if usage != nil && g.q.perf {
		part.PerfMetrics = g.metrics()
	}
	return g.event(part)
}

func (g *completion) event(value any) error {
	hasten(g.w)
	data, err := json.Marshal(value)
	if err == nil {
		_, err = fmt.Fprintf(g.w, "data: %s\n\n", data)
	}
	if err == nil {
		err = http.NewResponseController(g.w).Flush()
	}
	return err
}

func (g *completion) begin() {
	if g.begun {
		return
	}
	g.begun = true
	g.w.Header().Set("Content-Type", "text/event-stream")
	g.w.Header().Set("Cache-Control", "no-store")
	g.w.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold the stream back
	g.w.WriteHeader(http.StatusOK)
}

func (g *completion) done() error {
	g.begin()
	_, err := fmt.Fprint(g.w, "data: [DONE]\n\n")
	if err == nil {
		err = http.NewResponseController(g.w).Flush()
	}
	return ignoreGone(err)
}

// fail ends a stream that has begun with the error as its last event, and
// without [DONE]; before that it is an answer like any other.
func (g *completion) fail(err error) error {
	if !g.begun {
		return err
	}
	g.note(g.r, err)
	if g.ctx.Err() == nil {
		_, body := inferenceBody(faultOf(err), g.id)
		_ = g.event(body) // whoever it was for may be gone
	}
	return nil
}

// ignoreGone is nil: an answer that its client did not wait for is nobody's.
func ignoreGone(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// metrics are the performance metrics of the request, times in seconds.
func (g *completion) metrics() map[string]any {
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 6, 64) }
	first := g.first
	if first.IsZero() {
		first = time.Now()
	}
	return map[string]any{
		"prompt-tokens":              g.usage.PromptTokens,
		"cached-prompt-tokens":       g.usage.Details.CachedTokens,
		"server-time-to-first-token": json.Number(seconds(first.Sub(g.start))),
		"server-processing-time":     json.Number(seconds(time.Since(g.start))),
		"deployment":                 string(g.deployment),
	}
}
