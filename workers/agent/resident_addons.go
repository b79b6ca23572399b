package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// residentAddons limits how many addons of a replica the engine has loaded. The files of all addons
// stay on the node's disk. A request for an addon that is not loaded loads it. At the limit, the
// addon whose last request ended first is unloaded before. Requests in progress are never
// interrupted.
type residentAddons struct {
	limit  int
	life   context.Context // context of the replica; a load continues even if the request that began it ends
	within time.Duration   // maximum time in which the engine must load one addon
	turn   chan struct{}   // lets one addon be loaded at a time: has one element meanwhile
	freed  chan struct{}   // receives an element when the last request for an addon has ended
	loader engines.AddonLoader
	warn   func(id string, err error) // logs that the engine could not unload an addon

	mu    sync.Mutex
	all   map[string]*residentAddon // addons of the replica, loaded or not, by addon ID
	clock uint64                    // number of requests that have ended, as a logical time
}

type residentAddon struct {
	id, dir  string
	release  func() // called when dir is no longer used
	resident bool   // whether the engine has loaded the addon
	leaving  bool   // the addon is unloaded when its requests have ended; new requests wait
	removed  bool   // the addon is being removed; only requests in progress still use it
	requests int    // number of requests in progress that use the addon
	used     uint64 // value of clock when the last request ended
}

func newResidentAddons(life context.Context, limit int, within time.Duration,
	warn func(id string, err error)) *residentAddons {
	return &residentAddons{limit: limit, life: life, within: within, turn: make(chan struct{}, 1),
		freed: make(chan struct{}, 1), warn: warn, all: map[string]*residentAddon{}}
}

// add loads an addon for the first time, so that an addon that the engine refuses fails before its
// first request. It calls release when dir is no longer used.
func (c *residentAddons) add(ctx context.Context, loader engines.AddonLoader, id, dir string, release func()) error {
	a := &residentAddon{id: id, dir: dir, release: release}
	c.mu.Lock()
	if c.loader == nil {
		c.loader = loader
	}
	c.all[id] = a
	c.mu.Unlock()
	added := false
	defer func() {
		if !added { // load failed or panicked
			c.remove(id)
		}
	}()
	err := c.load(ctx, a)
	if err == nil {
		added = true
		c.leave(a)
	}
	return err
}

// use loads an addon unless it is loaded, and keeps it loaded until done is called. It does nothing
// for an unknown ID, for which the engine itself refuses the request.
func (c *residentAddons) use(ctx context.Context, id string) (done func(), err error) {
	if c == nil {
		return func() {}, nil
	}
	c.mu.Lock()
	a := c.current(id)
	loaded := a != nil && a.resident && !a.leaving
	if loaded {
		a.requests++
	}
	c.mu.Unlock()
	if a == nil {
		return func() {}, nil
	}
	if !loaded {
		if err := c.load(ctx, a); err != nil {
			return nil, err
		}
	}
	return func() { c.leave(a) }, nil
}

// current returns the addon with an ID; nil when it was not added or is being removed. The caller
// holds mu.
func (c *residentAddons) current(id string) *residentAddon {
	if a := c.all[id]; a != nil && !a.removed {
		return a
	}
	return nil
}

func (c *residentAddons) leave(a *residentAddon) {
	c.mu.Lock()
	a.requests--
	c.clock++
	a.used = c.clock
	c.mu.Unlock()
	c.signalFreed()
}

func (c *residentAddons) signalFreed() {
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// load loads an addon and registers a request for it, so that it stays loaded. At the limit it
// waits until an addon can be unloaded.
func (c *residentAddons) load(ctx context.Context, a *residentAddon) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.mu.Lock()
	if a.resident && !a.removed { // another request has loaded it in the meantime
		a.requests++
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	if err := c.evict(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	current := c.current(a.id) == a
	c.mu.Unlock()
	if !current {
		return domain.Errorf(domain.NotFound, "the addon was removed while the request waited for it: load the addon again")
	}
	if err := c.loadIntoEngine(a); err != nil {
		return err
	}
	c.mu.Lock()
	a.resident = true
	a.requests++
	c.mu.Unlock()
	return nil
}

// loadIntoEngine loads an addon, even if the request for it ends in the meantime: after an aborted
// load it would be unknown whether the engine has the addon. For the same reason it unloads an
// addon whose load failed.
func (c *residentAddons) loadIntoEngine(a *residentAddon) error {
	ctx, cancel := context.WithTimeoutCause(c.life, c.within, fmt.Errorf("%w within %s", errTimeout, c.within))
	defer cancel()
	_, err := recoverPanic(func() (struct{}, error) { return struct{}{}, c.loader.LoadAddon(ctx, a.id, a.dir) })
	if err == nil {
		return nil
	}
	c.unload(a.id)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *residentAddons) unload(id string) {
	if _, err := recoverPanic(func() (struct{}, error) { return struct{}{}, c.loader.UnloadAddon(id) }); err != nil {
		c.warn(id, err)
	}
}

// evict unloads addons until another can be loaded. The caller holds turn. While evict waits for
// the requests of an addon to end, the addon accepts no others.
func (c *residentAddons) evict(ctx context.Context) error {
	for {
		c.mu.Lock()
		resident := 0
		var oldest *residentAddon
		for _, a := range c.all {
			if a.leaving = false; !a.resident {
				continue
			}
			if resident++; oldest == nil || a.before(oldest) {
				oldest = a
			}
		}
		if resident < c.limit || oldest == nil {
			c.mu.Unlock()
			return nil
		}
		idle := oldest.idle()
		oldest.leaving = !idle
		if idle {
			oldest.resident = false
		}
		c.mu.Unlock()
		if idle {
			c.unload(oldest.id)
			continue
		}
		select {
		case <-c.freed:
		case <-ctx.Done():
			c.mu.Lock()
			oldest.leaving = false
			c.mu.Unlock()
			return context.Cause(ctx)
		}
	}
}

// idle reports whether a can be unloaded immediately. A removed addon can be unloaded even during
// requests; the engine completes them.
func (a *residentAddon) idle() bool { return a.removed || a.requests == 0 }

// before reports whether a should be unloaded before b: first removed addons, then idle ones, then
// the one whose last request ended first.
func (a *residentAddon) before(b *residentAddon) bool {
	switch {
	case a.removed != b.removed:
		return a.removed
	case a.idle() != b.idle():
		return a.idle()
	}
	return a.used < b.used || a.used == b.used && a.id < b.id
}

// remove unloads an addon when no other is being loaded. Until then the addon counts toward the
// limit. It returns false for an unknown ID.
func (c *residentAddons) remove(id string) bool {
	c.mu.Lock()
	a := c.current(id)
	if a != nil {
		a.removed = true
	}
	c.mu.Unlock()
	if a == nil {
		return false
	}
	c.signalFreed() // wakes evict if it waits, so that it unloads the addon
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.mu.Lock()
	resident := a.resident
	a.resident = false
	if c.all[id] == a {
		delete(c.all, id)
	}
	c.mu.Unlock()
	if resident {
		c.unload(id)
	}
	a.release()
	return true
}

// close releases the files of all addons. The model must be unloaded.
func (c *residentAddons) close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, a := range c.all {
		delete(c.all, id)
		if !a.removed { // remove itself releases a removed addon
			a.release()
		}
	}
}
