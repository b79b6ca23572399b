// Package serve makes models of the Llama architecture answer on CPU cores.
//
// One goroutine owns a model. Each of its steps takes a bounded number of
// tokens: one for every running request, and a piece of the prompts that are
// still to be read. What a request is answered never depends on the others.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Options bound what a model may use. A zero field takes its default.
type Options struct {
	Parallelism int   // cores kept busy; default one less than the machine has
	Slots       int   // requests answered at once; default 32
	Queue       int   // requests that may wait for a slot; default 256
	CacheBytes  int64 // keys and values of all requests together; default what a replica's memory leaves, 1 GiB where none was set aside
	ChunkTokens int   // of prompts in one step; default 32 to 256 by the model's size

	mostCache int64 // CacheBytes as it was given
	context   int   // most tokens of a text; 0 is the model's window
}

// New makes a completer that loads models from Hugging Face directories.
func New(options Options) engines.Completer {
	set := func(n *int, otherwise int) {
		if *n <= 0 {
			*n = otherwise
		}
	}
	set(&options.Parallelism, max(runtime.GOMAXPROCS(0)-1, 1))
	set(&options.Slots, 32)
	set(&options.Queue, 256)
	if options.mostCache = options.CacheBytes; options.CacheBytes <= 0 {
		options.CacheBytes = domain.MostCache
	}
	return completer{options}
}

type completer struct{ options Options }

// Load reads a model, merges its adapter and starts its goroutine, which ends
// with Close. Files that cannot be served are a FailedPrecondition fault.
func (c completer) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	tokens, err := tokenizer.Load(files.Dir)
	if err != nil {
		return nil, err
	}
	weights, err := llama.Open(files.Dir)
	if err != nil {
		return nil, err
	}
	defer weights.Close()
	if size := weights.Config.VocabSize; tokens.VocabSize() > size {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"tokenizer.json has %d tokens and config.json a vocabulary of %d: they belong to different models", tokens.VocabSize(), size)
	}
	adapter := &llama.Adapter{}
	if files.AdapterDir != "" {
		if adapter, err = llama.LoadAdapter(files.AdapterDir, "", weights.Config); err != nil {
			return nil, err
		}
		weights.Merge(adapter)
	}
	options, err := c.options.within(weights, files.MemoryBytes)
	if err != nil {
		return nil, err
	}
	options.context = files.ContextLength
	// A template that cannot be read keeps nobody from asking with prompts.
	own := voice{dir: files.Dir}
	own.template, own.noChat = templateOf(files, tokens)
	ends, err := endTokens(files.Dir, weights.Config, tokens)
	if err != nil {
		return nil, err
	}
	m, s, err := made(weights, weights.Config, tokens, ends, options)
	if err == nil {
		err = ctx.Err()
	}
	hash := weights.Hash()
	if err == nil {
		err = adapter.Belongs(hash)
	}
	if err != nil {
		return nil, err
	}
	m.voice, m.guess = own, files.Guessing
	m.hash, m.merged = hash, files.AdapterDir != ""
	go s.run()
	return m, nil
}

// leastCache is the memory for keys and values without which no model is begun.
const leastCache = 16 << 20

// within bounds the cache to what the weights leave of the memory that was set
// aside, where that is known. What was not set aside for them, or is not there,
// is a fault.
func (o Options) within(weights *llama.Reader, memory int64) (Options, error) {
	if memory == 0 {
		return o, weights.Fits(0)
	}
	bytes, _ := weights.Bytes()
	room := max(domain.CacheRoom(memory, bytes), leastCache)
	if bytes+room > memory {
		return o, domain.Errorf(domain.ResourceExhausted,
			"the weights of this model take %d MiB of memory, and %d MiB were set aside for the replica on its node, for its cache too: it is placed anew with what it needs, if that is known by now",
			bytes>>20, memory>>20)
	}
	if o.CacheBytes = room; o.mostCache > 0 {
		o.CacheBytes = min(room, o.mostCache)
	}
	return o, weights.Fits(o.CacheBytes)
}

// templateOf is the template that an adapter was trained by, else its base's.
func templateOf(files engines.ModelFiles, tokens *tokenizer.Tokenizer) (*chat.Template, error) {
	if files.AdapterDir != "" {
		if source, err := chat.Source(files.AdapterDir); source != "" || err != nil {
			return chat.With(source, files.Dir, tokens)
		}
	}
	return chat.Load(files.Dir, tokens)
}

// endTokens are those that end an answer: what generation_config.json says,
// else config.json, else tokenizer_config.json.
func endTokens(dir string, config llama.Config, tokens *tokenizer.Tokenizer) ([]int, error) {
	const name = "generation_config.json"
	var generation struct {
		EOS llama.TokenIDs `json:"eos_token_id"`
	}
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err == nil {
		defer f.Close()
		if err := json.NewDecoder(io.LimitReader(f, 1<<20)).Decode(&generation); err != nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s is no generation configuration: %v", name, err)
		}
	}
	switch {
	case len(generation.EOS) > 0:
		return generation.EOS, nil
	case len(config.EOS) > 0:
		return config.EOS, nil
	case tokens.EOS() >= 0:
		return []int{tokens.EOS()}, nil
	}
	return nil, nil
}

// A model is loaded and served by the goroutine in schedule.go.
type model struct {
	info      engines.ModelInfo
	tokenizer *tokenizer.Tokenizer
	voice     voice
	ends      []int
	vocab     int
	queue     int // most requests waiting
	guess     engines.SpeculationMode
	config    llama.Config
	hash      string // of the base's weights
	merged    bool   // an adapter is merged into them
	options   Options
	grammars  grammars

	mu      sync.Mutex
	waiting []*request
	addons  map[string]*addon // loaded, by ID
	twins   map[string]*twin  // loaded, by ID
	closed  bool
	wake    chan struct{} // there is a request, or Close
	done    chan struct{} // the goroutine has ended
}

// made is a model of weights, with the schedule that will serve it.
func made(weights llama.Source, c llama.Config, tokens *tokenizer.Tokenizer, ends []int, o Options) (*model, *schedule, error) {
	keys, values := blockSize(&c)
	blocks := int(max(o.CacheBytes/int64(4*(keys+values)), 1))
	window := min(c.MaxPositions, blocks*blockTokens)
	if o.context > 0 {
		window = min(window, o.context)
	}
	m := &model{
		info:   engines.ModelInfo{ContextLength: window, ParameterCount: c.Parameters(), Slots: o.Slots},
		config: c, tokenizer: tokens, ends: ends, vocab: c.VocabSize, queue: o.Queue, options: o,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if o.ChunkTokens <= 0 {
		// About 50 ms of one core, so that a long prompt holds up running
		// answers no longer than a person notices.
		o.ChunkTokens = int(min(max(1_250_000_000/c.Parameters(), 32), 256))
	}
	d, err := newDecoder(weights, c, window, o.Parallelism)
	if err != nil {
		return nil, nil, err
	}
	s := &schedule{
		model: m, decoder: d, slots: o.Slots, chunk: o.ChunkTokens,
		pool: pool{config: &d.config, most: blocks},
	}
	s.worth = s.pace.guesses
	return m, s, nil
}

// Info describes the model. Its context is shorter than the model's window
// when the cache's memory is too small for it, or less was asked for.
func (m *model) Info() engines.ModelInfo { return m.info }

// Close ends the model; requests that are under way are answered Unavailable.
func (m *model) Close() error {
	m.mu.Lock()
	m.closed = true
	twins := m.twins
	m.twins = nil
	m.mu.Unlock()
	m.signal()
	<-m.done
	for _, w := range twins {
		_ = w.Close() // it never fails
	}
	return nil
}

// signal wakes the goroutine.
func (m *model) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Complete answers one request. Faults: InvalidArgument for a request that
// breaks a rule, ResourceExhausted when the queue is full, Unavailable when the
// model is closed.
func (m *model) Complete(ctx context.Context, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
	if other, leave := m.twin(req.Addon); other != nil {
		defer leave()
		req.Addon = ""
		return other.Complete(ctx, req, emit)
	}
	r, err := m.newRequest(ctx, req)
	if err != nil {
		return engines.Usage{}, err
	}
	if r.reader != nil {
		emit = r.apart(emit)
	}
	if r.limit == 0 && !r.scored() {
		for _, piece := range append(r.prelude(), engines.Chunk{Finish: engines.FinishLength}) {
			if err := emit(piece); err != nil {
				return r.usage, err
			}
		}
		return r.usage, nil
	}
	return m.answer(ctx, r, emit)
}

// answer hands a request to the model's goroutine and its pieces to emit.
func (m *model) answer(ctx context.Context, r *request, emit func(engines.Chunk) error) (engines.Usage, error) {
	r.enqueued = time.Now()
	if err := m.enqueue(r); err != nil {
		return r.usage, err
	}
	for {
		select {
		case <-ctx.Done():
			return r.abandon(), ctx.Err()
		case <-r.ready:
		}
		pieces, usage, ended, err := r.take()
		for _, piece := range pieces {
			if err := emit(piece); err != nil {
				return r.abandon(), err
			}
		}
		if ended && r.reader != nil {
			usage.ReasoningTokens = r.reader.ReasoningTokens
		}
		if ended {
			return usage, err
		}
	}
}

func (m *model) enqueue(r *request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosed()
	}
	m.waiting = slices.DeleteFunc(m.waiting, (*request).gone)
	if len(m.waiting) >= m.queue {
		return domain.Errorf(domain.ResourceExhausted, "the model has %d requests waiting; try again later", len(m.waiting))
	}
	m.waiting = append(m.waiting, r)
	m.signal()
	return nil
}

func errClosed() error {
	return domain.Errorf(domain.Unavailable, "the model was unloaded; send the request to another replica")
}
