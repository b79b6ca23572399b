package server

import (
	"runtime/debug"
	"sync"
)

// loadingPercent is the GC percentage while a snapshot is loaded: see rarerCollections.
const loadingPercent = 400

// rarer has the number of calls of rarerCollections whose restore was not called yet, and the GC
// percentage that was set before the first of these calls.
var rarer struct {
	mu      sync.Mutex
	count   int
	percent int
}

// rarerCollections makes the garbage collector run less often until restore is called for the first
// time. While a snapshot is loaded, nearly all memory that is allocated stays in use, so that
// collections free little.
func rarerCollections() (restore func()) {
	r := &rarer
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count++; r.count == 1 {
		r.percent = debug.SetGCPercent(loadingPercent)
	}
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.count--; r.count == 0 {
			debug.SetGCPercent(r.percent)
		}
	})
}
