package domain

import (
	"math"
	"strings"
)

// The memory of a replica without accelerators, in bytes, is the sum of the model's weights times
// weightsOverhead, the KV cache, and ReplicaOverhead for the engine. It is at least
// MinReplicaMemory.
const (
	ReplicaOverhead  = 64 << 20
	MinReplicaMemory = 128 << 20
	// MaxKVCache limits the memory reserved for keys and values, unless one context of the
	// requested length needs more. With the profile for long prompts the limit is twice as large.
	MaxKVCache = 1 << 30
	// cachedContexts is how many contexts the KV cache holds, unless they exceed MaxKVCache.
	cachedContexts = 8
)

// A Hosted describes a model that a replica loads: its properties that determine how much memory
// the replica needs.
type Hosted struct {
	ModelSize
	Weights int64   // bytes of the weights files; 0 if unknown
	Draft   *Hosted // draft model that is loaded beside the model; nil without one
}

// Hosted returns the model as a replica loads it to serve it in a precision. Its Weights are the
// size of the copy in that precision or, when there is no such copy, of the model's own files.
func (m Model) Hosted(precision string) Hosted {
	h := Hosted{ModelSize: m.Size()}
	for name, size := range m.FilesIn(precision).Sizes {
		if strings.HasSuffix(name, ".safetensors") {
			h.Weights += size
		}
	}
	known := int64(m.ParameterCount)
	switch {
	case h.Weights == 0:
		h.Weights = int64(float64(known) * bytesPerParameter(m.Precision))
	case known > 0:
		h.Weights = min(h.Weights, 4*known) // some repositories store the weights in two formats
	}
	return h
}

// Merged returns the model as it is after an addon is merged into its weights, which then have 32
// bits each.
func (h Hosted) Merged() Hosted {
	h.Weights = max(h.Weights, 4*int64(h.ParameterCount))
	return h
}

// memory returns the memory of one replica without accelerators, in bytes. context is the maximum
// length of a context in tokens; 0 stands for the model's context length. With longPrompts, the KV
// cache is twice as large.
func (h Hosted) memory(context int, longPrompts bool) float64 {
	size, wanted := h.ModelSize, context
	if context == 0 {
		context = size.ContextLength
	}
	// CPU engines store keys and values with 4 bytes per number, but cachePerToken counts 2 bytes.
	one := 2 * size.cachePerToken("") * float64(context)
	cache := min(cachedContexts*one, MaxKVCache)
	if wanted > 0 {
		cache = max(cache, one)
	}
	if longPrompts {
		cache *= 2
	}
	return max(ReplicaOverhead+weightsOverhead*float64(h.Weights)+cache, MinReplicaMemory)
}

// KVCacheCapacity returns how many bytes of a replica's memory are left for the KV cache beside
// weights of this size; a negative number when the memory is too small for the weights.
func KVCacheCapacity(memory, weights int64) int64 {
	return memory - ReplicaOverhead - int64(math.Ceil(weightsOverhead*float64(weights)))
}
