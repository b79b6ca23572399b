package inference

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
	"anneal/projections"
)

// An encoder encodes the response of an operation. A method that returns nil has nothing to send.
type encoder interface {
	// full returns the body of a response that is not streamed.
	full(g *generation) any
	// chunk returns the stream event that carries a chunk of a choice.
	chunk(g *generation, c *choice, chunk engines.Chunk) any
	// finish returns the stream event that ends a choice. usage is the usage of the generation for
	// the choice that ends last, and nil for all other choices.
	finish(g *generation, c *choice, usage *Usage) any
	// trailer returns the stream event that follows the end of the last choice.
	trailer(g *generation) any
	// failure returns the event that ends a stream with an error; nil means an event whose data is an
	// InferenceError.
	failure(g *generation, fault request.InferenceErrorBody) any
	// endsWithDone reports whether a complete stream ends with [DONE].
	endsWithDone() bool
	// kind returns the kind of the usage record.
	kind() string
}

// A generation generates the choices of one request concurrently.
type generation struct {
	*call
	out     request.Stream
	q       *generationRequest
	encoder encoder
	target  routing.Target
	session string
	id      string
	start   time.Time

	mu          sync.Mutex // guards the fields below, and writes to out
	choices     []*choice
	usage       Usage
	timings     engines.Timings // timings of the choice that finished first
	placement   routing.Placement
	speculation speculation
	pending     int       // choices that have not finished
	firstChunk  time.Time // when the first chunk of any choice arrived
}

// generate generates the choices of the valid request q and returns the response. idPrefix begins
// the ID of the response.
func (c *call) generate(q *generationRequest, enc encoder, idPrefix string) (any, error) {
	target, leave, err := c.enter(q)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := c.requireVision(q, target); err != nil {
		return nil, err
	}
	discard, err := c.storeImages(q)
	defer discard()
	if err != nil {
		return nil, err
	}
	session := c.sessionOf(q, target.State)
	count := len(q.prompts) * q.n
	g := &generation{call: c, out: request.Stream{Call: c.Call}, q: q, encoder: enc, target: target, session: session,
		id: idPrefix + uuid.NewString(), start: time.Now(), pending: count}
	for i := range count {
		g.choices = append(g.choices, &choice{index: i})
	}
	if q.rejectOverflow {
		if err := g.checkContextLength(); err != nil {
			return nil, err
		}
	}
	return g.run()
}

// enter resolves the model of the valid request q and counts the request as one of its account's
// concurrent requests until leave is called. It warns of unknown parameters.
func (c *call) enter(q *generationRequest) (target routing.Target, leave func(), err error) {
	unread := c.Params()
	if err := unread.Err(); err != nil && (c.Strict || len(unread.Values) == 0) {
		return target, nil, err
	}
	if err := c.RequireActive(c.Principal.Account); err != nil {
		return target, nil, err
	}
	if target, err = routing.Resolve(c.Call, q.model); err != nil {
		return target, nil, err
	}
	if err := target.RequireText(); err != nil {
		return target, nil, err
	}
	q.settings.Addon = target.Addon
	// the operator may send requests to deployments of other accounts
	if err := c.RequireActive(target.Name.Account()); err != nil {
		return target, nil, err
	}
	leave, ok := c.Busy.Enter("generations of "+c.Principal.Account, c.Limits.Generations)
	if !ok {
		return target, nil, TooManyCompletions(c.Principal.Account, c.Limits.Generations)
	}
	request.WarnUnknown(c.Call, slices.Concat(q.unknown, wire.SortedKeys(unread.Values)))
	request.WarnInert(c.Call, inert.Warnings(inert.Of(q.operation), q.given,
		inert.Facts{Fields: q.given, NoDrafts: target.State.DisableSpeculativeDecoding,
			Engines: func() []string { return projections.EngineNamesOf(c.View(), &target.State) }}))
	q.given = nil // its memory is no longer reserved: see Connection.ReleaseBody
	return target, leave, nil
}

// TooManyCompletions returns the error of a request that exceeds an account's limit of concurrent
// completions.
func TooManyCompletions(account string, limit int) error {
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_REQUESTS",
		Message: fmt.Sprintf("accounts/%s has %d completions in progress, which is its limit: wait until one ends",
			account, limit)}
}

// sessionOf returns the session of a request, or "" when it has none, and sets the CacheScope of q.
// With enableSessionAffinity, the session is the request's user; otherwise, or without a user, it
// is the prompt_cache_isolation_key. Requests of one session go to the same replica, whose prefix cache
// they share. Different accounts, and different isolation keys of one account, have different cache
// scopes.
func (c *call) sessionOf(q *generationRequest, d domain.Deployment) string {
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

// checkContextLength returns an error when a prompt and max_tokens together exceed the context
// length. To count the tokens of a prompt, it sends a completion with max_tokens 0.
func (g *generation) checkContextLength() error {
	q := g.q
	for _, p := range q.prompts {
		counting := engines.CompletionRequest{Prompt: p.text, PromptTokens: p.tokens, Chat: p.chat,
			Images: q.settings.Images, Reasoning: q.settings.Reasoning, Addon: q.settings.Addon}
		discard := routing.Output{Emit: func(engines.Chunk) error { return nil }, Restart: func() {}}
		usage, _, err := g.complete(g.Ctx, p, counting, discard)
		if err != nil {
			return err
		}
		length, limit := usage.PromptTokens, cmp.Or(usage.ContextLength, g.contextLength(g.target.State))
		if limit > 0 && length+q.settings.MaxTokens > limit {
			var v domain.Violations
			v.Add("max_tokens", "the prompt's %d tokens and max_tokens %d together exceed the context length of %d: lower "+
				"max_tokens, or set context_length_exceeded_behavior to truncate", length, q.settings.MaxTokens, limit)
			return v.Err()
		}
	}
	return nil
}

// contextLength returns the context length of a deployment in tokens, for engines that do not
// report the context length; 0 when it is unknown.
func (c *call) contextLength(d domain.Deployment) int {
	row, ok := c.View().Models.Get(domain.Name(d.BaseModel))
	if ok && row.State.Kind == domain.PEFTAddon {
		if base, found := c.View().Models.Get(domain.Name(row.State.BaseModel)); found {
			row = base
		}
	}
	length := 0
	if ok {
		length = row.State.ContextLength
	}
	if d.MaxContextLength > 0 && (length == 0 || d.MaxContextLength < length) {
		length = d.MaxContextLength
	}
	return length
}

// maxConcurrentChoices bounds the concurrent choices of one request, so that one request does not
// fill a replica's queue.
const maxConcurrentChoices = 16

// forEach calls do for each number from 0 to n-1, at most maxConcurrentChoices at a time. The
// first error cancels the context of the other calls. It is returned when all calls have ended.
func forEach(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	slots := make(chan struct{}, maxConcurrentChoices)
	for i := range n {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer func() { <-slots }()
			if err := do(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// run generates all choices and returns the response. The first error cancels the choices that have
// not finished.
func (g *generation) run() (any, error) {
	if err := forEach(g.Ctx, len(g.choices), g.generateChoice); err != nil {
		if !g.firstChunk.IsZero() {
			g.Router.RecordUsage(g.Call, g.target.Name, g.q.model, g.usageRecord(false))
		}
		return nil, g.fail(err)
	}
	g.Router.LastServed.Record(g.target.Name, g.Now())
	g.Router.RecordUsage(g.Call, g.target.Name, g.q.model, g.usageRecord(true))
	g.tokens.WithLabelValues("prompt").Add(float64(g.usage.PromptTokens))
	g.tokens.WithLabelValues("completion").Add(float64(g.usage.CompletionTokens))
	if g.q.stream {
		return nil, g.closeStream()
	}
	for name, value := range g.metrics() {
		g.Writer.Header().Set("anneal-"+name, fmt.Sprint(value))
	}
	return g.encoder.full(g), nil
}

// generateChoice generates one choice. The choice of sample i of prompt p has the index p × n + i,
// and uses the seed of the request plus i.
func (g *generation) generateChoice(ctx context.Context, index int) error {
	p, sample := g.q.prompts[index/g.q.n], index%g.q.n
	req := g.q.settings
	req.Prompt, req.PromptTokens, req.Chat = p.text, p.tokens, p.chat
	if g.q.seed != nil {
		seed := *g.q.seed + uint64(sample)
		req.Seed = &seed
	}
	c := g.choices[index]
	out := routing.Output{Emit: func(chunk engines.Chunk) error { return g.emit(c, chunk) }}
	if !g.q.stream {
		out.Restart = func() { g.restart(c) }
	}
	usage, at, err := g.complete(ctx, p, req, out)
	if err != nil {
		return err
	}
	return g.finish(c, sample == 0, usage, at)
}

// complete generates one completion of the prompt p. When the engine reports that the model does
// not reason, complete sends the request again without the effort and the budget of reasoning, and
// adds a warning; with Strict, it returns the error unless the request disables reasoning.
func (g *generation) complete(ctx context.Context, p prompt, req engines.CompletionRequest,
	out routing.Output) (usage engines.Usage, at routing.Placement, err error) {
	usage, at, err = g.Router.Generate(ctx, g.Call, g.target, g.session, req, out)
	var fault *domain.Error
	disabled := req.Reasoning.Acts() && req.Reasoning.Effort == "none" && req.Reasoning.Budget == 0
	if errors.As(err, &fault) && fault.Reason == engines.NoReasoning && (disabled || !g.Strict) {
		g.warnNoReasoning(fault)
		req.Reasoning = &engines.Reasoning{History: req.Reasoning.History}
		usage, at, err = g.Router.Generate(ctx, g.Call, g.target, g.session, req, out)
	}
	return usage, at, g.q.translateError(p, err)
}

// warnNoReasoning adds the violation of the field reasoning as a warning header. No header was sent
// yet, because every choice of the request gets the same error before its first chunk.
func (g *generation) warnNoReasoning(fault *domain.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, v := range fault.Violations {
		if v.Field == "reasoning" {
			g.Warn("%s: %s", g.q.reasoningField, v.Description)
		}
	}
}

// emit appends a chunk to a choice, and sends the chunk when the response is a stream. The method
// finish sends the finish_reason, together with the usage.
func (g *generation) emit(c *choice, chunk engines.Chunk) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.firstChunk.IsZero() {
		g.firstChunk = time.Now()
		// a long completion counts as use of the deployment when it begins, and again when it ends
		g.Router.LastServed.Record(g.target.Name, g.Time)
		g.timeToFirstToken.Observe(g.firstChunk.Sub(g.start).Seconds())
	}
	if g.q.singleToolCall {
		chunk.ToolCalls = firstToolCall(chunk.ToolCalls)
	}
	c.append(chunk)
	if !g.q.stream {
		return nil
	}
	event := g.encoder.chunk(g, c, chunk)
	if event == nil {
		return nil
	}
	c.started = true
	return g.send(event)
}

// restart discards the chunks of a choice, because another replica generates the choice from its
// start.
func (g *generation) restart(c *choice) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*c = choice{index: c.index}
}

// finish ends a choice, and adds its usage to the usage of the generation. The tokens of a prompt
// count only for its firstSample. In a stream, the event of the choice that ends last carries the
// usage of all choices.
func (g *generation) finish(c *choice, firstSample bool, usage engines.Usage, at routing.Placement) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.Finish == "" {
		c.Finish = engines.FinishLength
	}
	if g.timings == (engines.Timings{}) {
		g.timings, g.placement = usage.Timings, at
	}
	g.usage.add(usage, firstSample)
	c.counted = true
	g.speculation.add(usage.Speculation)
	if g.pending--; !g.q.stream {
		return nil
	}
	var total *Usage
	if g.pending == 0 {
		total = &g.usage
	}
	return g.send(g.encoder.finish(g, c, total))
}

// send sends an event of the encoder, or several named events.
func (g *generation) send(event any) error {
	events, named := event.(responseEvents)
	if !named {
		return g.out.Event(event)
	}
	for _, one := range events {
		if err := g.out.Named(one.Type, one); err != nil {
			return err
		}
	}
	return nil
}

// fail ends the stream with an error event. When no event was sent yet, it sends none and returns
// err, which becomes the response.
func (g *generation) fail(err error) error {
	_, body := request.InferenceBody(request.ErrorOf(err), g.Call.ID)
	event := g.encoder.failure(g, body.Error)
	if events, ok := event.(responseEvents); ok && len(events) > 0 {
		last := events[len(events)-1]
		return g.out.FailWith(err, last.Type, last)
	}
	return g.out.Fail(err)
}

func (g *generation) closeStream() error {
	if event := g.encoder.trailer(g); event != nil {
		if err := g.send(event); err != nil {
			return request.IgnoreGone(err)
		}
	}
	if !g.encoder.endsWithDone() {
		return nil
	}
	return g.out.Done()
}

// usageRecord returns the usage of the generation. A choice that has not finished counts the tokens
// that were received.
func (g *generation) usageRecord(complete bool) metering.Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := metering.Record{Kind: g.encoder.kind(), Complete: complete, PromptTokens: g.usage.PromptTokens,
		CachedPromptTokens: g.usage.Details.CachedTokens, CompletionTokens: g.usage.CompletionTokens,
		User: g.q.user, Metadata: g.q.metadata}
	for _, c := range g.choices {
		if !c.counted {
			u.CompletionTokens += len(c.Tokens)
		}
	}
	return u
}
