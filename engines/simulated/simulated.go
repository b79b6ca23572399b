// Package simulated is an engine that answers at once and always the same: it
// trains nothing and knows nothing, but keeps every promise of the engines
// package, so that all other parts can be tested without arithmetic.
package simulated

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"anneal/engines"
)

// Options set how an engine behaves. The zero value is instant and faultless.
type Options struct {
	Seed uint64
	// Steps is the length of every training; 0 takes it from the rows, the
	// epochs and the batch size of the order.
	Steps int
	// StepTime is how long a training step takes, TokenTime how long a
	// completion token does. nil is no time at all. They are waited for with
	// timers, so inside a synctest bubble they cost nothing.
	StepTime  func(step int) time.Duration
	TokenTime func(token int) time.Duration
	// Fault is asked before every action; what it returns is what goes wrong.
	// It may be called by several goroutines at once.
	Fault func(Action) error
	// ContextLength and Slots describe every model; 0 is 512 tokens, 8 slots.
	ContextLength int
	Slots         int
	// Queue is how many requests may wait for a slot; 0 is 64.
	Queue int
}

// An Action is a place where a fault can be injected.
type Action struct {
	Name string // TrainStep, WriteCheckpoint, LoadModel, LoadAddon, CompleteToken or ListenWord
	Step int    // training step, token or word, from 1; 0 for a load
}

// The names of actions.
const (
	TrainStep       = "train step"
	WriteCheckpoint = "write checkpoint"
	LoadModel       = "load model"
	LoadAddon       = "load addon"
	CompleteToken   = "complete token"
	ListenWord      = "listen word"
)

// New makes an engine that can train, complete and transcribe.
func New(options Options) engines.Engine {
	options.ContextLength = orDefault(options.ContextLength, 512)
	options.Slots = orDefault(options.Slots, 8)
	options.Queue = orDefault(options.Queue, 64)
	return engines.Engine{
		Name:         "simulated",
		Trainer:      trainer{options},
		Methods:      []string{engines.RLOR},
		Completer:    completer{options},
		Transcribers: map[string]engines.Transcriber{SpeechFormat: transcriber{options}},
		Why:          map[string]string{"score": "the simulated engine runs no evaluator code"},
	}
}

func (o Options) fault(name string, step int) error {
	if o.Fault == nil {
		return nil
	}
	return o.Fault(Action{name, step})
}

func (o Options) tokenTime(number int) time.Duration {
	if o.TokenTime == nil {
		return 0
	}
	return o.TokenTime(number)
}

// wait lets d pass, or returns ctx's error as soon as it is done.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return ctx.Err()
	}
}

// random is a source that depends on nothing but the seed and the words.
func random(seed uint64, words ...string) *rand.Rand {
	hash := fnv.New64a()
	for _, word := range words {
		hash.Write([]byte(word))
		hash.Write([]byte{0})
	}
	return rand.New(rand.NewPCG(seed, hash.Sum64()))
}

func orDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}
