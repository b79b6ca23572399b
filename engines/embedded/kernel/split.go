package kernel

import (
	"sync"
	"sync/atomic"
)

// split calls run for all parts from 0 to parts-1, on at most workers goroutines including the
// caller's, and waits for the calls. A goroutine that has finished a part takes the next one.
func split(parts, workers int, run func(part int)) {
	var next atomic.Int64
	take := func() {
		for i := int(next.Add(1)) - 1; i < parts; i = int(next.Add(1)) - 1 {
			run(i)
		}
	}
	var others sync.WaitGroup
	for range min(workers, parts) - 1 {
		others.Go(take)
	}
	take()
	others.Wait()
}
