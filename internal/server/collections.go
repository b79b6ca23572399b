package server

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// postponed counts the calls of postponeCollections that have not ended, and holds the settings before
// the first of them.
var postponed struct {
	mu      sync.Mutex
	count   int
	percent int
	limit   int64
}

// postponeCollections makes the garbage collector run only when the process needs that many more bytes
// of memory. While a snapshot is loaded, nearly all memory that is allocated stays in use, so that each
// collection is in vain. The function that it returns restores the settings; it may be called more than
// once.
func postponeCollections(bytes int64) (restore func()) {
	p := &postponed
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count++; p.count == 1 {
		p.percent, p.limit = debug.SetGCPercent(-1), debug.SetMemoryLimit(-1)
		debug.SetMemoryLimit(min(p.limit, memoryInUse()+bytes))
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.count--; p.count == 0 {
			debug.SetGCPercent(p.percent)
			debug.SetMemoryLimit(p.limit)
		}
	})
}

// memoryInUse returns the bytes that the memory limit of the runtime counts.
func memoryInUse() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
