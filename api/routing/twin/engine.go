package twin

import (
	"slices"
	"time"

	"anneal/api/routing/admission"
	"anneal/api/routing/balance"
)

// A request is a simulated request.
type request struct {
	arrival time.Duration
	account string
	prompt  balance.Prompt
	output  int64 // number of generated tokens

	gateway   *gateway
	sent      *balance.InFlight
	queued    *admission.Request
	choice    balance.Choice
	dispatch  time.Duration
	first     time.Duration // time of its first token
	end       time.Duration
	cached    int64 // tokens of the prompt that were in the replica's cache
	done      int64 // tokens of the prompt that are processed
	generated int64
}

// privateBlocks returns the number of cache blocks of a request that other requests cannot use.
func (r *request) privateBlocks() int64 {
	total := (r.prompt.Tokens + r.output + balance.BlockTokens - 1) / balance.BlockTokens
	return total - int64(len(r.prompt.Blocks))
}

// An engine simulates the engine of a replica.
type engine struct {
	profile Profile
	cache   *cache
	waiting []*request // not admitted to the cache yet
	prompts []*request // admitted, with tokens of the prompt to process
	running []*request // generating
	context int64      // sum of the context lengths of running
	stepEnd time.Duration
	busy    bool

	chunks []chunk // chunks of the step in progress
}

// A chunk is a part of a prompt that a step processes.
type chunk struct {
	request *request
	tokens  int64
}

func newEngine(p Profile) *engine { return &engine{profile: p, cache: newCache(p.CacheBlocks)} }

// pending returns the number of prompt tokens that are not processed.
func (e *engine) pending() int64 {
	sum := int64(0)
	for _, r := range e.prompts {
		sum += r.prompt.Tokens - r.done
	}
	for _, r := range e.waiting {
		sum += r.prompt.Tokens - balance.BlockTokens*e.cache.leading(r.prompt.Blocks)
	}
	return sum
}

// admit moves waiting requests to prompts, in the order of arrival, while the cache has space.
func (e *engine) admit() {
	for len(e.waiting) > 0 && len(e.prompts)+len(e.running) < e.profile.MaxRequests {
		r := e.waiting[0]
		leading := e.cache.leading(r.prompt.Blocks)
		if !e.cache.reserve(r.prompt.Blocks, r.privateBlocks()) {
			return
		}
		r.cached = min(leading*balance.BlockTokens, r.prompt.Tokens-1)
		r.done = r.cached
		e.waiting = e.waiting[1:]
		e.prompts = append(e.prompts, r)
	}
}

// begin starts a step at the time now. It returns false if there is nothing to process.
func (e *engine) begin(now time.Duration) bool {
	e.admit()
	p := e.profile
	e.chunks = e.chunks[:0]
	d, budget := p.Step, p.ChunkTokens
	for _, r := range e.prompts {
		if budget == 0 {
			break
		}
		n := min(budget, r.prompt.Tokens-r.done)
		d += p.promptTime(r.done, n)
		e.chunks = append(e.chunks, chunk{r, n})
		budget -= n
	}
	d += time.Duration(len(e.running))*p.Token + time.Duration(e.context*p.ContextToken/1000)
	e.busy = len(e.chunks) > 0 || len(e.running) > 0
	e.stepEnd = now + d
	return e.busy
}

// finish ends the step. It calls first for each request that got its first token, and ended for
// each request that got its last token.
func (e *engine) finish(now time.Duration, first, ended func(*request)) {
	complete := func(r *request) {
		r.end = now
		e.cache.release(r.prompt.Blocks, r.privateBlocks())
		ended(r)
	}
	kept := e.running[:0]
	for _, r := range e.running {
		if r.generated++; r.generated < r.output {
			kept = append(kept, r)
			e.context++
			continue
		}
		e.context -= r.prompt.Tokens + r.generated - 1
		complete(r)
	}
	clear(e.running[len(kept):])
	e.running = kept
	for _, c := range e.chunks {
		r := c.request
		if r.done += c.tokens; r.done < r.prompt.Tokens {
			continue
		}
		e.prompts = slices.DeleteFunc(e.prompts, func(q *request) bool { return q == r })
		r.first, r.generated = now, 1
		first(r)
		if r.output <= 1 {
			complete(r)
			continue
		}
		e.running = append(e.running, r)
		e.context += r.prompt.Tokens + 1
	}
}
