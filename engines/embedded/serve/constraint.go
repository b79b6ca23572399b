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

// A constraint limits one completion to the texts that a grammar accepts, and its reasoning to a
// number of tokens.
type constraint struct {
	grammar    *grammar.Grammar
	vocabulary *grammar.Vocabulary
	// state is the state of the grammar after the text so far; nil when the rest of the text is
	// unconstrained.
	state      *grammar.State
	stopTokens []int // tokens that end a completion
	free       bool  // only the reasoning is constrained, not the text after it
	offered    bool  // tool calls are optional, and only their arguments are constrained
	budget     int   // maximum number of reasoning tokens; 0 sets no limit
	spent      int
	closing    bool // the budget is used up, so the reasoning must end now
	mask       grammar.Mask
	masked     []float32
}

// apply returns a copy of the logits in which those of the tokens that the grammar forbids are
// -Inf. It returns logits itself if the next token is unconstrained.
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
		for _, end := range c.stopTokens {
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
		return nil, domain.Errorf(domain.FailedPrecondition,
			"format: no token of the model's vocabulary can continue the output in the requested format: "+
				"request another format")
	}
	return c.masked, nil
}

// accept moves the constraint to its state after a sampled token.
func (c *constraint) accept(token int) error {
	if c.mask != nil && !c.mask.Has(token) {
		return errDamaged()
	}
	if c.state == nil || slices.Contains(c.stopTokens, token) {
		return nil
	}
	thinking := c.grammar.Reasoning(c.state)
	next, err := c.grammar.Next(c.state, c.vocabulary.Bytes(token))
	if err != nil {
		return err
	}
	if c.state = next; next == nil || c.closing && c.free && next.Accepts() {
		c.state = nil // the rest of the text is unconstrained
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

// complete reports whether the grammar allows no further token.
func (c *constraint) complete() bool {
	return c != nil && !c.free && c.state != nil && c.state.Complete()
}

// newConstraint returns the constraint of a request; nil if it has none. rendered is the text that
// template has rendered from the conversation.
func (m *model) newConstraint(
	req *engines.CompletionRequest, template *chat.Template, rendered string,
) (*constraint, error) {
	var thinking *grammar.Thinking
	spec := grammarSpec{format: req.Format, template: template}
	if req.Chat != nil {
		thinking = template.Thinking(req.Reasoning, rendered)
		spec.calls, spec.tools = req.Chat.ToolChoice, req.Chat.Tools
		spec.offered = spec.calls == nil && spec.format == nil && chat.Strict(spec.tools) && template.DelimitsCalls()
	}
	if spec.thinking = thinking; spec.calls == nil && !spec.offered {
		spec.tools = nil
	}
	budget := 0
	if req.Reasoning != nil && thinking != nil {
		budget = req.Reasoning.Budget
	}
	free := spec.format == nil && spec.calls == nil && !spec.offered
	if free && budget == 0 {
		return nil, nil
	}
	g, err := m.grammars.get(m, spec)
	if err != nil {
		return nil, err
	}
	c := &constraint{grammar: g, vocabulary: m.grammars.vocabulary, budget: budget, free: free,
		offered: spec.offered}
	if !req.IgnoreEOS {
		c.stopTokens = m.stopTokens
	}
	c.state, err = g.Start()
	return c, err
}

// maxGrammarText is the maximum size of a grammar in a response, in bytes. A grammar of this size
// fits into one message.
const maxGrammarText = 32 << 10

// text returns the grammar in GBNF. It returns "" if the grammar is too large, or if it does not
// constrain the text after the reasoning.
func (c *constraint) text() string {
	if c == nil || c.free || c.offered {
		return ""
	}
	if text := c.grammar.GBNF(); len(text) <= maxGrammarText {
		return text
	}
	return ""
}

// A grammarSpec has all that determines the grammar of a completion.
type grammarSpec struct {
	format   *engines.ResponseFormat
	calls    *engines.ToolChoice // tool calls that the request requires
	offered  bool                // tool calls are optional, and a tool has strict set
	tools    []json.RawMessage   // tools that may be called
	thinking *grammar.Thinking
	template *chat.Template // chat template, which determines the syntax of tool calls
}

// A grammarKey identifies a grammarSpec in the cache.
type grammarKey struct {
	sum      [sha256.Size]byte
	template *chat.Template
}

func (s grammarSpec) key() (grammarKey, error) {
	text, err := json.Marshal(struct {
		Format   *engines.ResponseFormat
		Calls    *engines.ToolChoice
		Tools    []json.RawMessage
		Thinking *grammar.Thinking
	}{s.format, s.calls, s.tools, s.thinking})
	if err != nil {
		return grammarKey{}, domain.Errorf(domain.InvalidArgument, "format: is not JSON: %v", err)
	}
	key := grammarKey{sum: sha256.Sum256(text)}
	if s.tools != nil {
		key.template = s.template
	}
	return key, nil
}

// maxGrammars is the maximum number of grammars in a grammarCache.
const maxGrammars = 16

// A grammarCache is an LRU cache of compiled grammars, which contain the token masks of their
// states.
type grammarCache struct {
	mu         sync.Mutex
	vocabulary *grammar.Vocabulary
	compiled   map[grammarKey]*grammar.Grammar
	order      []grammarKey // keys, least recently used first
}

// get returns the compiled grammar for spec.
func (c *grammarCache) get(m *model, spec grammarSpec) (*grammar.Grammar, error) {
	key, err := spec.key()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.compiled == nil {
		c.compiled = map[grammarKey]*grammar.Grammar{}
		c.vocabulary = grammar.NewVocabulary(m.vocab, m.tokenizer.Text)
	}
	g := c.compiled[key]
	if g == nil {
		if g, err = spec.compile(); err != nil {
			return nil, err
		}
		c.compiled[key] = g
	}
	c.order = append(slices.DeleteFunc(c.order, func(k grammarKey) bool { return k == key }), key)
	if len(c.order) > maxGrammars {
		delete(c.compiled, c.order[0])
		c.order = c.order[1:]
	}
	return g, nil
}

func (s grammarSpec) compile() (g *grammar.Grammar, err error) {
	switch {
	case s.offered:
		return s.template.OfferedCalls(s.tools, s.thinking)
	case s.calls != nil:
		g, err = s.template.ForcedCalls(s.tools, s.calls)
	case s.format != nil:
		g, err = format(s.format)
	}
	if err == nil && s.thinking != nil {
		g = grammar.After(*s.thinking, g)
	}
	return g, err
}

func format(f *engines.ResponseFormat) (*grammar.Grammar, error) {
	switch f.Type {
	case engines.FormatJSON:
		return grammar.JSON()
	case engines.FormatSchema:
		return grammar.Schema(f.Schema, "format")
	case engines.FormatGrammar:
		return grammar.Parse(f.Grammar, "format")
	}
	return nil, domain.Errorf(domain.InvalidArgument, "format: must be of type json_object, json_schema or grammar, is %q",
		f.Type)
}
