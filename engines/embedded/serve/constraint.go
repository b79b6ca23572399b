package serve

import (
	"crypto/sha256"
	"encoding/json"
	"math"
	"slices"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/grammar"
)

// A constraint holds one answer to a grammar, and its reasoning to a budget.
type constraint struct {
	grammar    *grammar.Grammar
	vocabulary *grammar.Vocabulary
	state      *grammar.State // nil when nothing is left to be held to
	ends       []int          // tokens that end an answer
	free       bool           // the answer itself is held to nothing, only its reasoning is
	budget     int            // tokens of reasoning; 0 is no bound
	spent      int
	closing    bool // the reasoning must end now
	mask       grammar.Mask
	masked     []float32
}

// apply is the logits without the tokens that may not follow; they themselves
// stay.
func (c *constraint) apply(logits []float32) ([]float32, error) {
	c.mask = nil
	if c.state == nil || c.free && !c.closing {
		return logits, nil
	}
	mask, err := c.grammar.Allowed(c.state, c.vocabulary)
	if err != nil {
		return nil, err
	}
	if c.state.Accepts() {
		mask = slices.Clone(mask)
		for _, end := range c.ends {
			mask.Allow(end)
		}
	}
	c.mask, c.masked = mask, append(c.masked[:0], logits...)
	some := false
	for token := range c.masked {
		if !mask.Has(token) {
			c.masked[token] = float32(math.Inf(-1))
		}
		some = some || c.masked[token] >= -math.MaxFloat32
	}
	if !some {
		return nil, domain.Faultf(domain.FailedPrecondition, "the model has no token that may follow what it wrote in the format that was asked for: ask for another format")
	}
	return c.masked, nil
}

// note takes in a token that was drawn.
func (c *constraint) note(token int) error {
	if c.mask != nil && !c.mask.Has(token) {
		return errDamaged()
	}
	if c.state == nil || slices.Contains(c.ends, token) {
		return nil
	}
	thinking := c.grammar.Reasoning(c.state)
	next, err := c.grammar.Next(c.state, c.vocabulary.Bytes(token))
	if err != nil {
		return err
	}
	if c.state = next; next == nil || c.closing && c.free && next.Accepts() {
		c.state = nil // only of a free answer
		return nil
	}
	if thinking {
		c.spent++
	}
	if c.budget > 0 && c.spent >= c.budget && c.grammar.Reasoning(next) {
		c.closing = true
		c.state, err = c.grammar.Close(next)
	}
	return err
}

// complete tells that nothing may follow.
func (c *constraint) complete() bool {
	return c != nil && !c.free && c.state != nil && c.state.Complete()
}

// constraint is what a request's answer is held to, nil for nothing. The prompt
// was spelt so.
func (m *model) constraint(req *engines.CompletionRequest, spelt string) (*constraint, error) {
	var thinking *grammar.Thinking
	var calls *engines.Calls
	if req.Chat != nil {
		thinking, calls = m.template.Thinking(req.Reasoning, spelt), req.Chat.Calls
	}
	budget := 0
	if req.Reasoning != nil && thinking != nil {
		budget = req.Reasoning.Budget
	}
	if req.Format == nil && calls == nil && budget == 0 {
		return nil, nil
	}
	g, err := m.grammars.get(m, req, calls, thinking)
	if err != nil {
		return nil, err
	}
	c := &constraint{grammar: g, vocabulary: m.grammars.vocabulary, budget: budget, free: req.Format == nil && calls == nil}
	if !req.IgnoreEOS {
		c.ends = m.ends
	}
	c.state, err = g.Start()
	return c, err
}

// maxGrammars bounds what is kept compiled.
const maxGrammars = 16

// Grammars are those that requests were held to last, with what was learnt of
// their states.
type grammars struct {
	mu         sync.Mutex
	vocabulary *grammar.Vocabulary
	compiled   map[[sha256.Size]byte]*grammar.Grammar
	order      [][sha256.Size]byte // the one asked for last at the end
}

// get is the grammar of a request.
func (s *grammars) get(m *model, req *engines.CompletionRequest, calls *engines.Calls, thinking *grammar.Thinking) (*grammar.Grammar, error) {
	asked := struct {
		Format   *engines.Format
		Calls    *engines.Calls
		Tools    []json.RawMessage
		Thinking *grammar.Thinking
	}{req.Format, calls, nil, thinking}
	if calls != nil {
		asked.Tools = req.Chat.Tools
	}
	text, err := json.Marshal(asked)
	if err != nil {
		return nil, domain.Faultf(domain.InvalidArgument, "format: is not JSON: %v", err)
	}
	key := sha256.Sum256(text)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.compiled == nil {
		s.compiled = map[[sha256.Size]byte]*grammar.Grammar{}
		s.vocabulary = grammar.NewVocabulary(m.vocab, m.tokenizer.Text)
	}
	g := s.compiled[key]
	if g == nil {
		if g, err = compile(m, req, calls, thinking); err != nil {
			return nil, err
		}
		s.compiled[key] = g
	}
	s.order = append(slices.DeleteFunc(s.order, func(k [sha256.Size]byte) bool { return k == key }), key)
	if len(s.order) > maxGrammars {
		delete(s.compiled, s.order[0])
		s.order = s.order[1:]
	}
	return g, nil
}

// compile makes the grammar of a request.
func compile(m *model, req *engines.CompletionRequest, calls *engines.Calls, thinking *grammar.Thinking) (g *grammar.Grammar, err error) {
	switch {
	case calls != nil:
		g, err = m.calls(req.Chat)
	case req.Format != nil:
		g, err = format(req.Format)
	}
	if err == nil && thinking != nil {
		g = grammar.After(*thinking, g)
	}
	return g, err
}

func format(f *engines.Format) (*grammar.Grammar, error) {
	switch f.Type {
	case engines.FormatJSON:
		return grammar.JSON()
	case engines.FormatSchema:
		return grammar.Schema(f.Schema, "format")
	case engines.FormatGrammar:
		return grammar.Parse(f.Grammar, "format")
	}
	return nil, domain.Faultf(domain.InvalidArgument, "format: must be of type json_object, json_schema or grammar, is %q", f.Type)
}

// calls is the grammar of the calls that a conversation must be answered with.
func (m *model) calls(c *engines.Chat) (*grammar.Grammar, error) {
	functions := chat.Functions(c.Tools, c.Calls.Name)
	if len(functions) == 0 {
		return nil, domain.Faultf(domain.InvalidArgument, "toolChoice: names a function that is not among the tools: add it to them, or name another")
	}
	form, many, err := m.template.CallForm()
	if err != nil {
		return nil, err
	}
	return grammar.Calls(form, functions, many && !c.Calls.Single)
}
