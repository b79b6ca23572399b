// Package simulated is a deterministic engine for tests, which implements package engines without
// training or running a model.
package simulated

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// Options configure the engine. With the zero value, every action takes no time and succeeds.
type Options struct {
	Seed uint64
	// Steps is the number of steps of every training run; 0 computes it from the rows, the epochs
	// and the batch size.
	Steps int
	// StepTime returns the duration of a training step, and TokenTime that of a token of a
	// completion; nil stands for 0. Both use timers, which synctest can advance.
	StepTime  func(step int) time.Duration
	TokenTime func(token int) time.Duration
	// Fault is called before each action; if it returns an error, the action fails with it. It must
	// be safe for concurrent use.
	Fault func(Action) error
	// ContextLength and Slots describe every model; 0 stands for 512 tokens and for 8 slots.
	ContextLength int
	Slots         int
	// Queue is the maximum number of requests that wait for a slot; 0 stands for 64.
	Queue int
}

// An Action is a point at which Options.Fault can inject a fault.
type Action struct {
	Name string // TrainStep, WriteCheckpoint, LoadModel, LoadAddon, CompleteToken or TranscribeWord
	Step int    // number of the training step, token or word, from 1; 0 for a load
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
		Gang:         domain.GangAbility,
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

// wait waits for d, or returns the error of ctx when ctx is done.
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

// random returns a random number generator that depends only on the seed and the words.
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
