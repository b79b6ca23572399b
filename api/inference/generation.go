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

// An encoder encodes the response of one operation, such as chat completions. A method that returns
// an event returns nil if there is nothing to send.
type encoder interface {
	// full returns the body of a response that is not a stream.
	full(g *generation) any
	// chunk returns the event that sends a chunk of a choice.
	chunk(g *generation, c *choice, chunk engines.Chunk) any
	// finish returns the event that ends a choice. For the choice that ends last, usage is the
	// usage of all choices; for the others it is nil.
	finish(g *generation, c *choice, usage *Usage) any
	// trailer returns the event that follows the events of all choices.
	trailer(g *generation) any
	// failure returns the event that ends a stream with an error. If it returns nil, the stream
	// ends with an event whose data is an InferenceError.
	failure(g *generation, fault request.InferenceErrorBody) any
	// endsWithDone reports whether a complete stream ends with an event whose data is [DONE].
	endsWithDone() bool
	// kind returns the kind of the request in its usage record, such as chat.
	kind() string
}

// A generation generates the choices of one request, several of them concurrently.
type generation struct {
	*call
	out     request.Stream
	q       *generationRequest
	encoder encoder
	target  routing.Target
	session string
	id      string
	start   time.Time

	mu          sync.Mutex // guards the fields below, and the order of events in out
	choices     []*choice
	usage       Usage
	timings     engines.Timings // timings of the choice that ended first
	placement   routing.Placement
	servedBy    domain.Name // deployment of the newest attempt, if the target has a release
	speculation speculation
	pending     int       // number of choices that have not ended
	firstChunk  time.Time // time at which the first chunk of any choice arrived
}

// generate generates the choices of a valid request, and returns the response. idPrefix is the
// beginning of the response's ID, such as "chatcmpl-".
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

// enter finds the deployment that serves a valid request, and counts the request against the
// caller's limit of concurrent completions. The caller must call leave when the request ends. enter
// also adds the warnings about unknown fields and fields without effect.
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
	// the deployment belongs to another account if the operator or an alias names it
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
	q.given = nil // the Connection no longer reserves memory for the body: see Connection.ReleaseBody
	return target, leave, nil
}

// TooManyCompletions returns the error of a request that would exceed its account's limit of
// concurrent completions.
func TooManyCompletions(account string, limit int) error {
	return &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_REQUESTS",
		Message: fmt.Sprintf("accounts/%s has %d completions in progress, which is the limit: wait until one ends",
			account, limit)}
}

// sessionOf returns the session of a request; "" if it has none. Requests of one session go to the
// same replica, whose prefix cache they share. The session is the request's user, if the deployment
// has enableSessionAffinity, otherwise its prompt_cache_isolation_key.
//
// sessionOf also sets the CacheScope of q. Cached prompts are not shared between accounts, or
// between different isolation keys of one account.
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

// checkContextLength returns an error if a prompt and max_tokens together exceed the context
// length. To count the tokens of a prompt, it sends a completion with max_tokens 0 to a replica.
// During a release, that is a replica of the stable deployment: a request that it can answer is
// valid.
func (g *generation) checkContextLength() error {
	q := g.q
	for _, p := range q.prompts {
		counting := engines.CompletionRequest{Prompt: p.text, PromptTokens: p.tokens, Chat: p.chat,
			Images: q.settings.Images, Reasoning: q.settings.Reasoning, Addon: q.settings.Addon}
		discard := routing.Output{Emit: func(engines.Chunk) error { return nil }, Restart: func() {}, Unsplit: true}
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

// contextLength returns the context length of a deployment, in tokens, for engines that do not
// report it; 0 if it is unknown.
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

// maxConcurrentChoices is how many choices of one request are generated concurrently, at most, so
// that one request does not fill the queue of a replica.
const maxConcurrentChoices = 16

// forEach calls do with each number from 0 to n-1, at most maxConcurrentChoices at a time, and
// waits until all calls have ended. The first error cancels the context of the other calls, and is
// returned.
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
// not ended.
func (g *generation) run() (any, error) {
	if err := forEach(g.Ctx, len(g.choices), g.generateChoice); err != nil {
		if !g.firstChunk.IsZero() {
			g.recordUsage(false)
		}
		return nil, g.fail(err)
	}
	g.Router.LastServed.Record(g.target, g.deployment(), g.Now())
	g.recordUsage(true)
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

// generateChoice generates one choice. Sample i of prompt p is the choice with the index p × n + i,
// and uses the request's seed plus i.
func (g *generation) generateChoice(ctx context.Context, index int) error {
	p, sample := g.q.prompts[index/g.q.n], index%g.q.n
	req := g.q.settings
	req.Prompt, req.PromptTokens, req.Chat = p.text, p.tokens, p.chat
	if g.q.seed != nil {
		seed := *g.q.seed + uint64(sample)
		req.Seed = &seed
	}
	c := g.choices[index]
	out := routing.Output{Emit: func(chunk engines.Chunk) error { return g.emit(c, chunk) },
		Routed: func(at routing.Placement) { g.routed(c, at) }, Secondary: index > 0}
	if !g.q.stream {
		out.Restart = func() { g.restart(c) }
	}
	usage, at, err := g.complete(ctx, p, req, out)
	if err != nil {
		return err
	}
	return g.finish(c, sample == 0, usage, at)
}

// complete generates one completion of the prompt p. If the engine reports that the model does not
// support reasoning, complete sends the request again without reasoning effort and budget, and adds
// a warning. With the option Strict, it returns the engine's error instead, unless the request
// disables reasoning.
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

// warnNoReasoning adds a warning header with the engine's message about the field reasoning. The
// headers were not sent yet, because each choice of the request gets this error before its first
// chunk.
func (g *generation) warnNoReasoning(fault *domain.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, v := range fault.Violations {
		if v.Field == "reasoning" {
			g.Warn("%s: %s", g.q.reasoningField, v.Description)
		}
	}
}

// emit appends a chunk to a choice and, if the response is a stream, sends it to the client. The
// method finish sends the finish_reason and the usage.
func (g *generation) emit(c *choice, chunk engines.Chunk) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.firstChunk.IsZero() {
		g.firstChunk = time.Now()
		// a completion keeps its deployment from being scaled to zero, both when it begins and when
		// it ends
		g.Router.LastServed.Record(g.target, g.deployment(), g.Time)
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

// routed sets the header anneal-route of an attempt to generate a choice. It has no effect once the
// headers are sent.
func (g *generation) routed(c *choice, at routing.Placement) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.servedBy, c.servedBy = at.Deployment, at.Deployment
	g.Writer.Header().Set("anneal-route", at.Route)
}

// deployment returns the deployment that served the generation: that of the target or, during a
// release, that of the newest attempt.
func (g *generation) deployment() domain.Name { return cmp.Or(g.servedBy, g.target.Name) }

// restart discards what was generated of a choice, because another replica generates the choice
// again from its start.
func (g *generation) restart(c *choice) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*c = choice{index: c.index, servedBy: c.servedBy}
}

// finish ends a choice, and adds its usage to that of the generation. The tokens of a prompt are
// counted only for its first choice (firstSample). In a stream, the event of the choice that ends
// last has the usage of all choices.
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
	c.usage.add(usage, firstSample)
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

// send sends an event, or several named events, that an encoder returned.
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

// fail ends the stream with an event about the error err. If no event was sent yet, it sends
// nothing and returns err, which becomes the error response.
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

// recordUsage records the usage of the generation, one record for each deployment that generated a
// choice: during a release, choices that fail on the candidate are generated by the stable
// deployment.
func (g *generation) recordUsage(complete bool) {
	for i, record := range g.usageRecords(complete) {
		if i > 0 && complete {
			record.ID = fmt.Sprintf("%s-%d", g.Call.ID, i)
		}
		g.Router.RecordUsage(g.Call, record.Deployment, g.q.model, record)
	}
}

// usageRecords returns the usage of the generation by deployment. Their sum is the usage in the
// response: the tokens of a prompt count for the deployment of its first choice. For a choice that
// has not ended, usageRecords counts the tokens that were received.
func (g *generation) usageRecords(complete bool) (records []metering.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	byDeployment := map[domain.Name]int{} // index in records
	for i, c := range g.choices {
		if i > 0 && !c.counted && len(c.Tokens) == 0 {
			continue
		}
		name := cmp.Or(c.servedBy, g.target.Name)
		if _, ok := byDeployment[name]; !ok {
			byDeployment[name] = len(records)
			records = append(records, metering.Record{Deployment: name, Kind: g.encoder.kind(), Complete: complete,
				User: g.q.user, Metadata: g.q.metadata})
		}
		u := &records[byDeployment[name]]
		u.PromptTokens += c.usage.PromptTokens
		u.CachedPromptTokens += c.usage.Details.CachedTokens
		u.CompletionTokens += c.usage.CompletionTokens
		if !c.counted {
			u.CompletionTokens += len(c.Tokens)
		}
	}
	return records
}
