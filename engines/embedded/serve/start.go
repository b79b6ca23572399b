package serve

import (
	"maps"

	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Trained is the ID under which the models of Start have loaded their adapter.
const Trained = "trained"

// Start serves n replicas of the model w in memory, and of the adapter a under the ID Trained,
// unless a is nil. It copies w and a, so later changes do not affect completions. dir is the
// directory of the model, whose configuration has the stop tokens.
//
// The replicas share one copy of the weights. Each has its own KV cache, executes steps
// concurrently with the others, and gives the same completions. The replicas divide the cores and
// the memory for KV caches in options, but each has at least one core, and space for one sequence
// of the context length if that fits into the memory in options.
func Start(
	n int, w *llama.Weights, a *llama.Adapter, tokens *tokenizer.Tokenizer, dir string, options Options,
) ([]engines.Model, error) {
	stopTokens, err := StopTokens(dir, w.Config, tokens)
	if err != nil {
		return nil, err
	}
	options = New(options).(completer).options
	cores, context := options.Parallelism, w.Config.MaxPositions
	if options.ContextLength > 0 {
		context = min(context, options.ContextLength)
	}
	keys, values := blockSize(&w.Config)
	sequence := int64(4*(keys+values)) * int64(blocksFor(context))
	options.CacheBytes = min(options.CacheBytes, max(options.CacheBytes/int64(n), sequence))
	first, s, err := newModel(w.Source(), w.Config, tokens, stopTokens, options)
	if err != nil {
		return nil, err
	}
	if a != nil {
		first.addons = map[string]*addon{Trained: {id: Trained, adapter: a.Pack(&w.Config)}}
	}
	all := make([]engines.Model, n)
	for i := range all {
		m := &model{
			info: first.info, config: first.config, tokenizer: tokens, stopTokens: stopTokens, vocab: first.vocab,
			queue: first.queue, options: first.options, addons: maps.Clone(first.addons),
			wake: make(chan struct{}, 1), done: make(chan struct{}),
		}
		own := max(1, (cores+n-1-i)/n) // cores that do not divide evenly go to the first replicas
		all[i] = m
		go newScheduler(m, s.decoder.sharing(own), s.chunk, s.pool.maxBlocks).run()
	}
	return all, nil
}
