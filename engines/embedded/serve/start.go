package serve

import (
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Trained is the ID of the addon under which a model of Start serves its adapter.
const Trained = "trained"

// Start serves the model w in memory and, unless a is nil, the adapter a under the ID Trained.
// It copies w and a, so later changes do not affect the completions. dir is the model's
// directory, whose configuration defines the stop tokens.
func Start(
	w *llama.Weights, a *llama.Adapter, tokens *tokenizer.Tokenizer, dir string, options Options,
) (engines.Model, error) {
	stopTokens, err := stopTokenIDs(dir, w.Config, tokens)
	if err != nil {
		return nil, err
	}
	m, s, err := newModel(w.Source(), w.Config, tokens, stopTokens, New(options).(completer).options)
	if err != nil {
		return nil, err
	}
	if a != nil {
		m.addons = map[string]*addon{Trained: {id: Trained, adapter: a.Pack(&w.Config)}}
	}
	go s.run()
	return m, nil
}
