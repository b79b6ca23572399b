// Package serve runs inference for models of the Llama architecture on CPU cores.
//
// One goroutine for each model executes steps with continuous batching and chunked prefill: a step
// computes the next token of each request in decode, and a limited number of prompt tokens. A
// completion does not depend on other requests.
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

// Options limit the resources of a model. A field that is 0 has its default.
type Options struct {
	Parallelism int // number of cores; default: all but one
	Slots       int // maximum number of concurrent requests; default 32
	Queue       int // maximum number of waiting requests; default 256
	// CacheBytes is the maximum size of the KV caches. The default is domain.KVCacheCapacity of the
	// replica's memory, or 1 GiB if no memory was allocated to the replica.
	CacheBytes  int64
	ChunkTokens int // maximum number of prompt tokens in a step; default 32 to 256, more for smaller models

	// ContextLength is the maximum number of tokens of a sequence; 0 stands for the model's context
	// length.
	ContextLength int

	maxCache    int64 // configured CacheBytes, before the method within has lowered it
	longPrompts bool  // compute more prompt tokens per step (engines.ModelFiles.LongPrompts)
}

// New returns a completer that loads models from Hugging Face directories.
func New(options Options) engines.Completer {
	set := func(n *int, otherwise int) {
		if *n <= 0 {
			*n = otherwise
		}
	}
	set(&options.Parallelism, max(runtime.GOMAXPROCS(0)-1, 1))
	set(&options.Slots, 32)
	set(&options.Queue, 256)
	if options.maxCache = options.CacheBytes; options.CacheBytes <= 0 {
		options.CacheBytes = domain.MaxKVCache
	}
	return completer{options}
}

type completer struct{ options Options }

// Load loads a model, merges its adapter, and starts its scheduler, which runs until Close. It
// returns FailedPrecondition if the files cannot be served, and ResourceExhausted if too little
// memory is free or allocated.
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
			"tokenizer.json has %d tokens and config.json a vocabulary of %d: they belong to different models",
			tokens.VocabSize(), size)
	}
	adapter := &llama.Adapter{}
	if files.AdapterDir != "" {
		if adapter, err = llama.LoadAdapter(files.AdapterDir, "", weights.Config); err != nil {
			return nil, err
		}
		weights.Merge(adapter)
	}
	options, err := c.options.within(weights, max(files.MemoryBytes-files.DraftMemoryBytes, 0))
	if err != nil {
		return nil, err
	}
	var drafts *draftModel
	if files.DraftDir != "" {
		drafts, err = c.loadDraftModel(files.DraftDir, files.DraftMemoryBytes, tokens, weights.Config.VocabSize)
		if err != nil {
			return nil, err
		}
	}
	options.ContextLength, options.longPrompts = files.ContextLength, files.LongPrompts
	// a model whose template cannot be parsed can still complete plain prompts
	own := chatFormat{dir: files.Dir}
	own.template, own.parseErr = templateOf(files, tokens)
	stopTokens, err := StopTokens(files.Dir, weights.Config, tokens)
	if err != nil {
		return nil, err
	}
	pooled, err := readPooling(files.Dir)
	if err != nil {
		return nil, err
	}
	m, s, err := newModel(weights, weights.Config, tokens, stopTokens, options)
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
	m.chat, m.speculation, m.drafts = own, files.Speculation, drafts
	m.hash, m.merged, m.pooling = hash, files.AdapterDir != "", pooled
	go s.run()
	return m, nil
}

// longPromptChunks is the factor by which Options.ChunkTokens is multiplied in the performance
// profile for long prompts.
const longPromptChunks = 4

// minCache is the minimum size of the KV caches in bytes. A model is not loaded if its weights
// leave less of the replica's memory.
const minCache = 16 << 20

// within sets the size of the KV caches to the memory that the weights leave, at most maxCache.
// memory is the memory of the replica in bytes; 0 if unknown, and then within does not change the
// size. It returns an error if the memory of the replica or of the machine does not suffice.
func (o Options) within(weights *llama.Reader, memory int64) (Options, error) {
	if memory == 0 {
		return o, weights.Fits(0)
	}
	bytes, _ := weights.Bytes()
	available := max(domain.KVCacheCapacity(memory, bytes), minCache)
	if bytes+available > memory {
		return o, domain.Errorf(domain.ResourceExhausted,
			"the model's weights take %d MiB of memory, but the replica was allocated %d MiB including its KV cache: "+
				"the server places the replica again once it knows how much memory the model needs",
			bytes>>20, memory>>20)
	}
	if o.CacheBytes = available; o.maxCache > 0 {
		o.CacheBytes = min(available, o.maxCache)
	}
	return o, weights.Fits(o.CacheBytes)
}

// templateOf returns the chat template with which the adapter was trained or, if it has none, the
// base model's.
func templateOf(files engines.ModelFiles, tokens *tokenizer.Tokenizer) (*chat.Template, error) {
	if files.AdapterDir != "" {
		if source, err := chat.Source(files.AdapterDir); source != "" || err != nil {
			return chat.With(source, files.Dir, tokens)
		}
	}
	return chat.Load(files.Dir, tokens)
}

// StopTokens returns the tokens that end a completion, from generation_config.json, else from
// config.json, else from tokenizer_config.json unless tokens is nil.
func StopTokens(dir string, config llama.Config, tokens *tokenizer.Tokenizer) ([]int, error) {
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
			return nil, domain.Errorf(domain.FailedPrecondition, "parse %s: %v", name, err)
		}
	}
	switch {
	case len(generation.EOS) > 0:
		return generation.EOS, nil
	case len(config.EOS) > 0:
		return config.EOS, nil
	case tokens != nil && tokens.EOS() >= 0:
		return []int{tokens.EOS()}, nil
	}
	return nil, nil
}

// A model is a loaded model, whose requests a scheduler executes.
type model struct {
	info        engines.ModelInfo
	tokenizer   *tokenizer.Tokenizer
	chat        chatFormat
	stopTokens  []int
	vocab       int
	queue       int // maximum number of waiting requests
	speculation engines.SpeculationMode
	drafts      *draftModel // nil without a draft model; only the scheduler's goroutine may use it
	config      llama.Config
	hash        string // hash of the base model's weights
	merged      bool   // an adapter is merged into the weights
	options     Options
	pooling     pooling
	grammars    grammarCache
	samples     *Samples // source of requests besides waiting; nil for none

	mu       sync.Mutex
	waiting  []*request
	addons   map[string]*addon   // adapters by ID
	variants map[string]*variant // other weights of the whole model, loaded by LoadWeights, by ID
	closed   bool
	panicked error // the scheduler has panicked; nil unless closed
	// loadCalls are the calls of Load that wait for the scheduler; it sends one reply to each
	loadCalls []chan<- engines.ModelLoad

	wake chan struct{} // receives a value when a request is enqueued or the model is closed
	done chan struct{} // closed when the scheduler has ended
}

// newModel returns a model with given weights, and the scheduler for it.
func newModel(
	weights llama.Source, c llama.Config, tokens *tokenizer.Tokenizer, stopTokens []int, o Options,
) (*model, *scheduler, error) {
	m, blocks := modelOf(c, tokens, stopTokens, o)
	d, err := newDecoder(weights, c, m.info.ContextLength, o.Parallelism)
	if err != nil {
		return nil, nil, err
	}
	return m, newScheduler(m, d, o.chunk(&c), blocks), nil
}

// modelOf returns a model without weights, and the maximum number of blocks of its KV caches.
func modelOf(
	c llama.Config, tokens *tokenizer.Tokenizer, stopTokens []int, o Options,
) (m *model, blocks int) {
	keys, values := blockSize(&c)
	blocks = int(max(o.CacheBytes/int64(4*(keys+values)), 1))
	window := min(c.MaxPositions, blocks*blockTokens)
	if o.ContextLength > 0 {
		window = min(window, o.ContextLength)
	}
	return &model{
		info:   engines.ModelInfo{ContextLength: window, ParameterCount: c.Parameters(), Slots: o.Slots},
		config: c, tokenizer: tokens, stopTokens: stopTokens, vocab: c.VocabSize, queue: o.Queue, options: o,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}, blocks
}

// chunk returns the maximum number of prompt tokens in a step.
func (o *Options) chunk(c *llama.Config) int {
	n := o.ChunkTokens
	if n <= 0 {
		// The default takes about 50 ms of one core, so that a long prompt does not noticeably
		// delay running completions.
		n = int(min(max(1_250_000_000/c.Parameters(), 32), 256))
	}
	if o.longPrompts {
		n *= longPromptChunks
	}
	return n
}

// Info describes the model. The context length is that of the model, or less if the KV caches are
// too small for it or a shorter one was configured.
func (m *model) Info() engines.ModelInfo { return m.info }

// Close stops the model. Requests in progress fail with Unavailable.
func (m *model) Close() error {
	m.mu.Lock()
	m.closed = true
	variants := m.variants
	m.variants = nil
	m.mu.Unlock()
	m.signal()
	<-m.done
	for _, w := range variants {
		_ = w.Close() // Close of a model never returns an error
	}
	return nil
}

// signal wakes the scheduler.
func (m *model) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Complete executes a request. It returns InvalidArgument for an invalid request, ResourceExhausted
// if too many requests wait, and Unavailable if the model is closed or has not loaded the adapter.
func (m *model) Complete(
	ctx context.Context, req engines.CompletionRequest, emit func(engines.Chunk) error,
) (engines.Usage, error) {
	if other, leave := m.acquire(req.Addon); other != nil {
		defer leave()
		req.Addon = ""
		return other.Complete(ctx, req, emit)
	}
	r, err := m.newRequest(ctx, req)
	if err != nil {
		return engines.Usage{}, err
	}
	if r.reader != nil {
		emit = r.parsed(emit)
	}
	if r.limit == 0 && !r.scored() {
		for _, chunk := range append(r.prelude(), engines.Chunk{Finish: engines.FinishLength}) {
			if err := emit(chunk); err != nil {
				return r.usage, err
			}
		}
		return r.usage, nil
	}
	return m.process(ctx, r, emit)
}

// process enqueues a request, and passes its chunks to emit until it has ended.
func (m *model) process(ctx context.Context, r *request, emit func(engines.Chunk) error) (engines.Usage, error) {
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
		chunks, usage, ended, err := r.take()
		for _, chunk := range chunks {
			if err := emit(chunk); err != nil {
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
	m.waiting = slices.DeleteFunc(m.waiting, (*request).canceled)
	if len(m.waiting) >= m.queue {
		return domain.Errorf(domain.ResourceExhausted, "the model has %d queued requests: retry later", len(m.waiting))
	}
	m.waiting = append(m.waiting, r)
	m.signal()
	return nil
}

func errClosed() error {
	return domain.Errorf(domain.Unavailable, "the model was unloaded; send the request to another replica")
}
