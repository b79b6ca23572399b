package serve

import (
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Trained is the addon by which a model that Start began answers with the
// adapter that it was given.
const Trained = "trained"

// Start makes a model answer that is in memory, and an adapter beside it unless
// it is nil, as they are now: what becomes of them later does not change the
// answers. Dir is the model's directory, which says how its answers end.
func Start(w *llama.Weights, a *llama.Adapter, tokens *tokenizer.Tokenizer, dir string, options Options) (engines.Model, error) {
	ends, err := endTokens(dir, w.Config, tokens)
	if err != nil {
		return nil, err
	}
	m, s, err := made(w.Source(), w.Config, tokens, ends, New(options).(completer).options)
	if err != nil {
		return nil, err
	}
	if a != nil {
		m.addons = map[string]*addon{Trained: {id: Trained, adapter: a.Pack(&w.Config)}}
	}
	go s.run()
	return m, nil
}
