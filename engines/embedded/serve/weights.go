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

// A twin is other weights of a model, which answer under an ID of theirs with
// keys and values of their own. They end when nobody asks them any more.
type twin struct {
	*model
	users sync.WaitGroup // requests that they answer
}

// LoadWeights implements engines.WeightsLoader. Running answers do not wait for
// it, and until UnloadAddon both are in memory.
func (m *model) LoadWeights(ctx context.Context, id, dir string) error {
	if id == "" {
		return domain.Errorf(domain.InvalidArgument, "id: weights need one")
	}
	if err := m.takes(dir); err != nil {
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
	other, schedule, err := made(weights, weights.Config, m.tokenizer, m.ends, m.options)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	other.voice, other.guess, other.hash = m.voice.of(dir, m.tokenizer), m.guess, weights.Hash()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return errClosed()
	case m.twins[id] != nil:
		return nil
	}
	go schedule.run()
	if m.twins == nil {
		m.twins = map[string]*twin{}
	}
	m.twins[id] = &twin{model: other}
	return nil
}

// takes is nil when a directory's model has the shape and the tokens of this one.
func (m *model) takes(dir string) error {
	config, err := llama.ReadConfig(dir)
	if err != nil {
		return err
	}
	if a, b := shapeOf(config), shapeOf(m.config); a != b {
		return domain.Errorf(domain.FailedPrecondition, "the weights are of another model (%+v) than the one that answers (%+v): load them into a deployment of the model that they were trained from", a, b)
	}
	_, err = os.Stat(filepath.Join(dir, "tokenizer.json"))
	if err == nil {
		var tokens *tokenizer.Tokenizer
		if tokens, err = tokenizer.Load(dir); err == nil && !tokens.Same(m.tokenizer) {
			err = domain.Errorf(domain.FailedPrecondition, "the weights go with another tokenizer.json than that of the model that answers: load them into a deployment of the model that they were trained from")
		}
	}
	if errors.Is(err, fs.ErrNotExist) { // a checkpoint may have none
		return nil
	}
	return err
}

// A shape is what two models must have in common that take each other's place.
type shape struct{ Layers, Hidden, Intermediate, Heads, KVHeads, HeadDim, Vocabulary int }

func shapeOf(c llama.Config) shape {
	return shape{c.Layers, c.HiddenSize, c.IntermediateSize, c.Heads, c.KVHeads, c.HeadDim, c.VocabSize}
}

// end closes the weights once their answers have ended.
func (w *twin) end() {
	w.users.Wait()
	_ = w.Close() // it never fails
}

// twin is the weights that answer under an ID, nil when there are none; leave
// must be called when they have answered.
func (m *model) twin(id string) (answers *model, leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.twins[id]
	if w == nil || m.closed {
		return nil, nil
	}
	w.users.Add(1)
	return w.model, w.users.Done
}
