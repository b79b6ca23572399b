package agent

import (
	"context"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

// residentAddons limits how many addons of a replica are loaded in the engine. The files of all
// addons stay on the node's disk. A request for an addon that is not loaded loads it, and unloads
// the addon whose last request ended first; requests in progress are never interrupted.
type residentAddons struct {
	limit  int
	turn   chan struct{} // holds one element while an addon is being loaded
	freed  chan struct{} // receives a value when the last request for an addon has ended
	loader engines.AddonLoader
	warn   func(id string, err error) // reports that an addon was not unloaded

	mu    sync.Mutex
	all   map[string]*residentAddon // by ID
	clock uint64                    // number of requests that have ended
}

type residentAddon struct {
	id, dir  string
	release  func() // releases dir
	resident bool   // loaded in the engine
	leaving  bool   // unloaded when its requests have ended; new requests wait
	requests int    // requests in progress
	used     uint64 // value of clock when the last request ended
}

func newResidentAddons(limit int, warn func(id string, err error)) *residentAddons {
	return &residentAddons{limit: limit, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1), warn: warn,
		all: map[string]*residentAddon{}}
}

// add loads an addon for the first time, so that an engine that rejects the addon is noticed. It
// calls release when dir is not used any more.
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
		if !added { // also after a panic of the engine
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

// use loads an addon unless it is loaded, and keeps it loaded until done is called. It ignores the ID
// of an addon that was not added: the engine rejects the request.
func (c *residentAddons) use(ctx context.Context, id string) (done func(), err error) {
	if c == nil {
		return func() {}, nil
	}
	c.mu.Lock()
	a := c.all[id]
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

func (c *residentAddons) leave(a *residentAddon) {
	c.mu.Lock()
	a.requests--
	c.clock++
	a.used = c.clock
	c.mu.Unlock()
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// load loads an addon and counts a request for it, which keeps it loaded. It waits until fewer
// addons than the limit are loaded or one can be unloaded.
func (c *residentAddons) load(ctx context.Context, a *residentAddon) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.mu.Lock()
	if a.resident { // another request has loaded it meanwhile
		a.requests++
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	if err := c.evict(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	current := c.all[a.id] == a
	c.mu.Unlock()
	if !current {
		return domain.Errorf(domain.NotFound, "the addon was unloaded: load it again")
	}
	if err := c.loader.LoadAddon(ctx, a.id, a.dir); err != nil {
		return err
	}
	c.mu.Lock()
	a.resident = true
	a.requests++
	c.mu.Unlock()
	return nil
}

// evict unloads addons until another can be loaded. The caller holds the turn. An addon whose
// requests have not ended accepts no further request while it is waited for.
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
		idle := oldest.requests == 0
		oldest.leaving = !idle
		if idle {
			oldest.resident = false
		}
		c.mu.Unlock()
		if idle {
			if err := c.loader.UnloadAddon(oldest.id); err != nil {
				c.warn(oldest.id, err)
			}
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

// before reports whether a is unloaded rather than b: idle addons first, then the one whose last
// request ended first.
func (a *residentAddon) before(b *residentAddon) bool {
	if (a.requests == 0) != (b.requests == 0) {
		return a.requests == 0
	}
	return a.used < b.used || a.used == b.used && a.id < b.id
}

// remove unloads an addon, once no addon is being loaded. It returns false for an ID that was not
// added.
func (c *residentAddons) remove(id string) bool {
	c.mu.Lock()
	a := c.all[id]
	delete(c.all, id)
	c.mu.Unlock()
	if a == nil {
		return false
	}
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.mu.Lock()
	resident := a.resident
	a.resident = false
	c.mu.Unlock()
	if resident {
		if err := c.loader.UnloadAddon(id); err != nil {
			c.warn(id, err)
		}
	}
	a.release()
	return true
}

// close releases the files of all addons, after the model was unloaded.
func (c *residentAddons) close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, a := range c.all {
		delete(c.all, id)
		a.release()
	}
}
