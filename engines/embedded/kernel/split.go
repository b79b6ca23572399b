package kernel

import (
	"fmt"
	"regexp"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// A Panic is the value with which Each panics after a call on another goroutine has panicked.
type Panic struct {
	Value any
	Stack []byte // stack of the other goroutine
}

// Error returns the value and the position of the panic.
func (p *Panic) Error() string {
	site := panicSite.FindSubmatch(p.Stack)
	if site == nil {
		return fmt.Sprint(p.Value)
	}
	return fmt.Sprintf("%v at %s", p.Value, site[1])
}

// panicSite matches the file and line of the first function after those of the runtime in the stack
// of a panic.
var panicSite = regexp.MustCompile(
	`(?s)\npanic\(.*?\n\t[^\n]*\n(?:runtime\.[^\n]*\n\t[^\n]*\n)*[^\n]*\n\t[^\n]*?([^/\n]+:\d+)`)

// Each calls do(worker, i) for every i from 0 to n-1, on at most workers goroutines including the
// caller's, and waits for the calls. It starts them in ascending order: a goroutine that has
// finished a call makes the next one. If a call panics, Each makes no further calls, and panics on
// the caller's goroutine, where the caller can recover; a panic on another one would end the
// process.
func Each(n, workers int, do func(worker, i int)) {
	if workers = min(workers, n); workers <= 1 {
		for i := range n {
			do(0, i)
		}
		return
	}
	var next atomic.Int64
	var failed atomic.Pointer[Panic]
	run := func(worker int) {
		for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
			do(worker, i)
		}
	}
	var others sync.WaitGroup
	for worker := 1; worker < workers; worker++ {
		others.Go(func() {
			defer func() {
				if value := recover(); value != nil {
					failed.CompareAndSwap(nil, &Panic{Value: value, Stack: debug.Stack()})
				}
			}()
			run(worker)
		})
	}
	func() {
		defer others.Wait() // also if this goroutine panics: the others use the same memory
		run(0)
	}()
	if p := failed.Load(); p != nil {
		panic(p)
	}
}
