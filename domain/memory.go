package domain

import (
	"math"
	"strings"
)

// What a replica without accelerators takes of its node's memory: its model's
// weights and a fifth more, as ModelSize.Memory says, its cache, and something
// for itself. An engine takes ReplicaOverhead off for that, and CacheRoom says
// what is left for the cache.
const (
	ReplicaOverhead = 64 << 20
	LeastReplica    = 128 << 20
	// MostCache is the most that is set aside for keys and values, unless one
	// context that a deployment asks for takes more.
	MostCache = 1 << 30
	// cachedContexts is how many contexts a cache holds, while they are small.
	cachedContexts = 8
)

// A Hosted model is a model as it is loaded in a machine's memory.
type Hosted struct {
	ModelSize
	Weights int64 // bytes, 0 where nothing is known
}

// Hosted is the model as it is served from a machine's memory in a precision:
// with its weights as they are stored, in its own precision where there is no
// copy in that one.
func (m Model) Hosted(precision string) Hosted {
	h := Hosted{ModelSize: m.Size()}
	for name, size := range m.Prepared(precision).Sizes {
		if strings.HasSuffix(name, ".safetensors") {
			h.Weights += size
		}
	}
	known := int64(m.ParameterCount)
	switch {
	case h.Weights == 0:
		h.Weights = int64(float64(known) * bytesPerParameter(m.Precision))
	case known > 0:
		h.Weights = min(h.Weights, 4*known) // a folder may hold them twice
	}
	return h
}

// Merged is the model with an addon merged into it, which takes 32 bits for each
// of its weights.
func (h Hosted) Merged() Hosted {
	h.Weights = max(h.Weights, 4*int64(h.ParameterCount))
	return h
}

// memory is what one replica takes of its machine, in bytes, when it is asked
// for a context of so many tokens; 0 is the model's.
func (h Hosted) memory(context int) float64 {
	size, wanted := h.ModelSize, context
	if context == 0 {
		context = size.ContextLength
	}
	// On processors keys and values are kept in four bytes, twice what
	// cachePerToken counts.
	one := 2 * size.cachePerToken("") * float64(context)
	cache := min(cachedContexts*one, MostCache)
	if wanted > 0 {
		cache = max(cache, one)
	}
	return max(ReplicaOverhead+weightsRoom*float64(h.Weights)+cache, LeastReplica)
}

// CacheRoom is how much of a replica's memory is for keys and values, when its
// model's weights take so much of it; less than nothing when it is too little.
func CacheRoom(memory, weights int64) int64 {
	return memory - ReplicaOverhead - int64(math.Ceil(weightsRoom*float64(weights)))
}
