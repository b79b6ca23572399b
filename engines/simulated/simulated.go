// Package simulated is a deterministic engine for tests. It satisfies the
// contracts of package engines without training or running a model.
package simulated

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"anneal/engines"
)

// Options configure the engine. With the zero value every action takes no time
// and succeeds.
type Options struct {
	Seed uint64
	// Steps is the number of steps of every training run; 0 computes it from the rows,
	// the epochs and the batch size.
	Steps int
	// StepTime is the duration of a training step, TokenTime that of a completion token; nil is
	// 0. Both use timers, so that synctest can advance them.
	StepTime  func(step int) time.Duration
	TokenTime func(token int) time.Duration
	// Fault is called before each action. If Fault returns an error, the action fails with this error.
	// Fault must be safe for concurrent use.
	Fault func(Action) error
	// ContextLength and Slots describe every model; 0 is 512 tokens, and 8 slots.
	ContextLength int
	Slots         int
	// Queue is the number of requests that may wait for a slot; 0 is 64.
	Queue int
}

// An Action is a point at which a fault can be injected.
type Action struct {
	Name string // TrainStep, WriteCheckpoint, LoadModel, LoadAddon, CompleteToken or TranscribeWord
	Step int    // training step, token or word, from 1; 0 for a load
}

// Values of Action.Name.
const (
	TrainStep       = "train step"
	WriteCheckpoint = "write checkpoint"
	LoadModel       = "load model"
	LoadAddon       = "load addon"
	CompleteToken   = "complete token"
	TranscribeWord  = "transcribe word"
)

// New returns an engine that trains, completes and transcribes.
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
		Missing:      map[string]string{"score": "the simulated engine runs no evaluator code"},
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

// wait sleeps for d, or returns ctx's error when ctx is done.
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

// random returns a source of random numbers that is determined by the seed and the words.
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
