package serve

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"anneal/domain"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// A variant is a second set of weights of a model, which requests select by an ID. It has its own
// KV cache, and is closed when its last request has ended.
type variant struct {
	*model
	users sync.WaitGroup // requests in progress that use these weights
}

// LoadWeights implements engines.WeightsLoader. It does not block running requests. The old and the
// new weights are both in memory until UnloadAddon.
func (m *model) LoadWeights(ctx context.Context, id, dir string) error {
	if id == "" {
		return domain.Errorf(domain.InvalidArgument, "addon ID: must not be empty")
	}
	if err := m.compatible(dir); err != nil {
		return err
	}
	weights, err := llama.Open(dir)
	if err != nil {
		return err
	}
	defer weights.Close()
	if err := weights.Fits(0); err != nil {
		return err
	}
	other, schedule, err := newModel(weights, weights.Config, m.tokenizer, m.stopTokens, m.options)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	other.chat, other.speculation, other.hash = m.chat.forDir(dir, m.tokenizer), m.speculation, weights.Hash()
	other.pooling = m.pooling
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return errClosed()
	case m.variants[id] != nil:
		return nil
	}
	go schedule.run()
	if m.variants == nil {
		m.variants = map[string]*variant{}
	}
	m.variants[id] = &variant{model: other}
	return nil
}

// compatible returns an error if the model in dir has other dimensions or another tokenizer than m.
func (m *model) compatible(dir string) error {
	config, err := llama.ReadConfig(dir)
	if err != nil {
		return err
	}
	if a, b := dimensionsOf(config), dimensionsOf(m.config); a != b {
		return domain.Errorf(domain.FailedPrecondition,
			"the weights have the dimensions %+v, but the deployed model has %+v: "+
				"load them into a deployment of the model that they were trained from", a, b)
	}
	_, err = os.Stat(filepath.Join(dir, "tokenizer.json"))
	if err == nil {
		var tokens *tokenizer.Tokenizer
		if tokens, err = tokenizer.Load(dir); err == nil && !tokens.Same(m.tokenizer) {
			err = domain.Errorf(domain.FailedPrecondition,
				"the tokenizer.json of the weights differs from that of the deployed model: "+
					"load them into a deployment of the model that they were trained from")
		}
	}
	if errors.Is(err, fs.ErrNotExist) { // a checkpoint may lack the tokenizer
		return nil
	}
	return err
}

// dimensions are the sizes of a model. Only weights with equal dimensions can replace one another.
type dimensions struct{ Layers, Hidden, Intermediate, Heads, KVHeads, HeadDim, Vocabulary int }

func dimensionsOf(c llama.Config) dimensions {
	return dimensions{c.Layers, c.HiddenSize, c.IntermediateSize, c.Heads, c.KVHeads, c.HeadDim, c.VocabSize}
}

// closeIdle waits for the last request of the variant, and closes the variant.
func (w *variant) closeIdle() {
	w.users.Wait()
	_ = w.Close() // Close of a model never returns an error
}

// acquire returns the variant with an ID, and a function that the caller must call after its
// request. Both are nil if no such variant is loaded.
func (m *model) acquire(id string) (v *model, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.variants[id]
	if w == nil || m.closed {
		return nil, nil
	}
	w.users.Add(1)
	return w.model, w.users.Done
}
