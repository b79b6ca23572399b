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
		return nil, domain.Errorf(domain.FailedPrecondition, "the model has no token that may follow what it wrote in the format that was asked for: ask for another format")
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

// constraint is what a request's answer is held to, nil for nothing. Its
// conversation was spelt so, by the template.
func (m *model) constraint(req *engines.CompletionRequest, template *chat.Template, spelt string) (*constraint, error) {
	var thinking *grammar.Thinking
	form := held{format: req.Format, template: template}
	if req.Chat != nil {
		thinking = template.Thinking(req.Reasoning, spelt)
		form.calls, form.tools = req.Chat.Calls, req.Chat.Tools
		form.offered = form.calls == nil && form.format == nil && chat.Strict(form.tools) && template.MarksCalls()
	}
	if form.thinking = thinking; form.calls == nil && !form.offered {
		form.tools = nil
	}
	budget := 0
	if req.Reasoning != nil && thinking != nil {
		budget = req.Reasoning.Budget
	}
	free := form.format == nil && form.calls == nil && !form.offered
	if free && budget == 0 {
		return nil, nil
	}
	g, err := m.grammars.get(m, form)
	if err != nil {
		return nil, err
	}
	c := &constraint{grammar: g, vocabulary: m.grammars.vocabulary, budget: budget, free: free}
	if !req.IgnoreEOS {
		c.ends = m.ends
	}
	c.state, err = g.Start()
	return c, err
}

// A held is all that the grammar of an answer depends on.
type held struct {
	format   *engines.Format
	calls    *engines.Calls    // that must be made
	offered  bool              // calls of tools may be made, and some are strict
	tools    []json.RawMessage // of either
	thinking *grammar.Thinking
	template *chat.Template // that writes calls
}

// A heldKey tells what is held apart.
type heldKey struct {
	sum      [sha256.Size]byte
	template *chat.Template
}

func (h held) key() (heldKey, error) {
	text, err := json.Marshal(struct {
		Format   *engines.Format
		Calls    *engines.Calls
		Tools    []json.RawMessage
		Thinking *grammar.Thinking
	}{h.format, h.calls, h.tools, h.thinking})
	if err != nil {
		return heldKey{}, domain.Errorf(domain.InvalidArgument, "format: is not JSON: %v", err)
	}
	key := heldKey{sum: sha256.Sum256(text)}
	if h.tools != nil {
		key.template = h.template
	}
	return key, nil
}

// maxGrammars bounds what is kept compiled.
const maxGrammars = 16

// Grammars are those that requests were held to last, with what was learnt of
// their states.
type grammars struct {
	mu         sync.Mutex
	vocabulary *grammar.Vocabulary
	compiled   map[heldKey]*grammar.Grammar
	order      []heldKey // the one asked for last at the end
}

// get is the grammar of a form.
func (s *grammars) get(m *model, form held) (*grammar.Grammar, error) {
	key, err := form.key()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.compiled == nil {
		s.compiled = map[heldKey]*grammar.Grammar{}
		s.vocabulary = grammar.NewVocabulary(m.vocab, m.tokenizer.Text)
	}
	g := s.compiled[key]
	if g == nil {
		if g, err = form.compile(); err != nil {
			return nil, err
		}
		s.compiled[key] = g
	}
	s.order = append(slices.DeleteFunc(s.order, func(k heldKey) bool { return k == key }), key)
	if len(s.order) > maxGrammars {
		delete(s.compiled, s.order[0])
		s.order = s.order[1:]
	}
	return g, nil
}

// compile makes the grammar.
func (h held) compile() (g *grammar.Grammar, err error) {
	switch {
	case h.offered:
		return h.template.OfferedCalls(h.tools, h.thinking)
	case h.calls != nil:
		g, err = h.template.ForcedCalls(h.tools, h.calls)
	case h.format != nil:
		g, err = format(h.format)
	}
	if err == nil && h.thinking != nil {
		g = grammar.After(*h.thinking, g)
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
	return nil, domain.Errorf(domain.InvalidArgument, "format: must be of type json_object, json_schema or grammar, is %q", f.Type)
}
