// Package twin simulates a gateway and its replicas on a virtual clock. The gateway is the code of
// packages balance and admission; a replica is a model of an engine with continuous batching.
package twin

import (
	"slices"
	"time"
)

// A Profile is the cost model of a replica. The engine runs steps. In each step it processes at
// most ChunkTokens tokens of prompts, in the order of arrival, and generates one token for each
// request whose prompt is processed.
type Profile struct {
	Name string
	Step time.Duration // time of a step without tokens
	// Time of a prompt token at the beginning of a prompt, and the position at which it takes twice
	// that time because of attention; 0 means that all tokens take the same time.
	PromptToken    time.Duration
	DoublePosition int64
	// Time of a generated token, and what each token of its context adds in picoseconds.
	Token         time.Duration
	ContextToken  int64
	ChunkTokens   int64
	MaxRequests   int   // maximum number of requests in one step
	CacheBlocks   int64 // size of the KV cache in blocks of balance.BlockTokens tokens
	PromptsPerSec int64 // prompt tokens per second without other work, for documentation
}

// Profiles are the known profiles. h100 is a model of 7 to 8 billion parameters on an H100, whose
// constants were fitted to published measurements; g8k is a replica that processes 8,000 prompt
// tokens per second.
var Profiles = []Profile{
	{Name: "g8k", Step: 7 * time.Millisecond, PromptToken: 125 * time.Microsecond, Token: 30 * time.Microsecond,
		ContextToken: 40_000, ChunkTokens: 2048, MaxRequests: 128, CacheBlocks: 6000, PromptsPerSec: 8000},
	{Name: "h100", Step: 7 * time.Millisecond, PromptToken: 40 * time.Microsecond, DoublePosition: 30_000,
		Token: 30 * time.Microsecond, ContextToken: 40_000, ChunkTokens: 2048, MaxRequests: 128, CacheBlocks: 840,
		PromptsPerSec: 23_000},
}

// ProfileNames returns the names of the known profiles.
func ProfileNames() (names []string) {
	for _, p := range Profiles {
		names = append(names, p.Name)
	}
	return names
}

// ProfileNamed returns a known profile; false if there is none with the name.
func ProfileNamed(name string) (Profile, bool) {
	i := slices.IndexFunc(Profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return Profiles[i], true
}

// promptTime returns the time in which a replica processes n tokens of a prompt from a position on.
func (p Profile) promptTime(position, n int64) time.Duration {
	d := time.Duration(n) * p.PromptToken
	if p.DoublePosition > 0 {
		d += d * time.Duration(position) / time.Duration(p.DoublePosition)
	}
	return d
}
