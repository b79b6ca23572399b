package agent

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	maxAddonLoads = 4                // maximum number of addons of a replica that are loaded at the same time
	addonHalfLife = 10 * time.Minute // a request counts half as much for an addon's frequency after this time
)

// residentAddons limits how many addons of a replica the engine has loaded. The files of all addons
// stay on the node's disk. A request for an addon that is not loaded waits in a queue until it is
// loaded, while requests for other addons are served. At the limit, the addon with the lowest
// decayed frequency of requests is unloaded before. An addon with requests in progress is not
// unloaded.
type residentAddons struct {
	limit  int
	life   context.Context // context of the replica; a load continues even if the requests that wait for it end
	within time.Duration   // maximum time in which the engine must load one addon
	loader engines.AddonLoader
	warn   func(id string, err error) // logs that the engine could not unload an addon
	start  time.Time                  // origin of residentAddon.frequency

	mu       sync.Mutex
	all      map[string]*residentAddon // addons of the replica, loaded or not, by addon ID
	occupied int                       // number of addons that are loaded, or are being loaded or unloaded
	loads    int                       // number of loads in progress
	queue    []*addonLoad              // loads that have not begun, the oldest first
	// leaving is unloaded for the oldest load when its requests have ended; new requests wait
	leaving  *residentAddon
	uses     uint64        // number of uses so far, as a logical time
	loadTime time.Duration // average time of a load; 0 before the first
}

type residentAddon struct {
	id, dir   string
	release   func()        // called when dir is no longer used
	resident  bool          // the engine has loaded the addon
	unloading chan struct{} // closed when the engine has unloaded the addon; nil unless it is being unloaded
	removed   bool          // the addon is being removed; only requests in progress still use it
	requests  int           // number of requests in progress that use the addon
	used      uint64        // value of uses at the last request
	// frequency is the binary logarithm of the number of requests. Each counts 2^(t/addonHalfLife),
	// where t is its time since residentAddons.start, so later requests count more, and comparisons
	// are those of decayed numbers.
	frequency float64
	load      *addonLoad // load in the queue or in progress; nil if there is none
}

// An addonLoad is a load of an addon, for which requests wait.
type addonLoad struct {
	addon   *residentAddon
	waiting int           // number of requests that wait
	begun   bool          // the load is not in the queue any more
	done    chan struct{} // closed when the load has ended
	err     error         // result; set before done is closed
}

func newResidentAddons(life context.Context, limit int, within time.Duration,
	warn func(id string, err error)) *residentAddons {
	return &residentAddons{limit: limit, life: life, within: within, warn: warn, start: time.Now(),
		all: map[string]*residentAddon{}}
}

// add loads an addon for the first time, so that an addon that the engine refuses fails before its
// first request. It calls release when dir is no longer used.
func (c *residentAddons) add(ctx context.Context, loader engines.AddonLoader, id, dir string, release func()) error {
	a := &residentAddon{id: id, dir: dir, release: release, frequency: math.Inf(-1)}
	c.mu.Lock()
	if c.loader == nil {
		c.loader = loader
	}
	c.all[id] = a
	load := c.enqueue(a)
	c.mu.Unlock()
	err := c.wait(ctx, load)
	if err != nil {
		c.remove(id)
		return err
	}
	c.leave(a)
	return nil
}

// register adds an addon that other replicas have loaded before, so that the engine does not have to
// load it now. It returns false if there is space to load it; the caller then calls add.
func (c *residentAddons) register(loader engines.AddonLoader, id, dir string, release func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.occupied < c.limit {
		return false
	}
	if c.loader == nil {
		c.loader = loader
	}
	c.all[id] = &residentAddon{id: id, dir: dir, release: release, frequency: math.Inf(-1)}
	return true
}

// use loads an addon unless it is loaded, and keeps it loaded until done is called. It does nothing
// for an unknown ID, for which the engine itself refuses the request.
func (c *residentAddons) use(ctx context.Context, id string) (done func(), err error) {
	if c == nil {
		return func() {}, nil
	}
	c.mu.Lock()
	a := c.current(id)
	if a == nil {
		c.mu.Unlock()
		return func() {}, nil
	}
	c.count(a)
	if a.resident && a != c.leaving {
		a.requests++
		c.mu.Unlock()
		return func() { c.leave(a) }, nil
	}
	load := c.enqueue(a)
	c.mu.Unlock()
	if err := c.wait(ctx, load); err != nil {
		return nil, err
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

// count adds a request to the frequency of an addon. The caller holds mu.
func (c *residentAddons) count(a *residentAddon) {
	c.uses++
	a.used = c.uses
	now := float64(time.Since(c.start)) / float64(addonHalfLife)
	low, high := min(a.frequency, now), max(a.frequency, now)
	a.frequency = high + math.Log2(1+math.Exp2(low-high))
}

func (c *residentAddons) leave(a *residentAddon) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.requests--
	c.dispatch()
}

// enqueue adds a request to the load of an addon. It adds the load to the queue if there is none. The
// caller holds mu, and then calls wait.
func (c *residentAddons) enqueue(a *residentAddon) *addonLoad {
	if a.load == nil {
		a.load = &addonLoad{addon: a, done: make(chan struct{})}
		c.queue = append(c.queue, a.load)
	}
	load := a.load
	load.waiting++
	c.dispatch()
	return load
}

// wait waits for a load. On success, the addon stays loaded until the caller calls leave.
func (c *residentAddons) wait(ctx context.Context, load *addonLoad) error {
	select {
	case <-load.done:
		return load.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-load.done: // the request was registered in the meantime
		return load.err
	default:
	}
	if load.waiting--; load.waiting == 0 && !load.begun {
		c.end(load, context.Cause(ctx))
	}
	c.dispatch()
	return context.Cause(ctx)
}

// end ends a load, and registers the requests that wait for it. The caller holds mu.
func (c *residentAddons) end(load *addonLoad, err error) {
	a := load.addon
	if !load.begun {
		c.queue = slices.DeleteFunc(c.queue, func(other *addonLoad) bool { return other == load })
	}
	if err == nil {
		a.requests += load.waiting
	}
	a.load, load.err = nil, err
	close(load.done)
}

// dispatch begins the loads of the queue for which there is space, in order. If all loaded addons have
// requests in progress, the least frequent one accepts no others until it is unloaded. The caller
// holds mu.
func (c *residentAddons) dispatch() {
	for c.leaving = nil; len(c.queue) > 0; {
		load := c.queue[0]
		a := load.addon
		if a.resident { // it was leaving when its request came
			c.end(load, nil)
			continue
		}
		if c.loads >= maxAddonLoads || a.unloading != nil {
			return
		}
		var victim *residentAddon
		if c.occupied >= c.limit {
			if victim = c.rarest(); victim == nil {
				return
			}
			if victim.requests > 0 {
				c.leaving = victim
				return
			}
			c.beginUnload(victim)
		} else {
			c.occupied++
		}
		c.queue = c.queue[1:]
		load.begun = true
		c.loads++
		go c.run(load, victim)
	}
}

// rarest returns the loaded addon that should be unloaded first: an idle one if there is any,
// of these the one with the lowest frequency, and of equal frequencies the one that was used first;
// nil if no addon is loaded. The caller holds mu.
func (c *residentAddons) rarest() (found *residentAddon) {
	for _, a := range c.all {
		if a.resident && !a.removed && (found == nil || a.before(found)) {
			found = a
		}
	}
	return found
}

func (a *residentAddon) before(b *residentAddon) bool {
	switch aIdle, bIdle := a.requests == 0, b.requests == 0; {
	case aIdle != bIdle:
		return aIdle
	case a.frequency != b.frequency:
		return a.frequency < b.frequency
	case a.used != b.used:
		return a.used < b.used
	}
	return a.id < b.id
}

// beginUnload records that an addon is being unloaded. Until finishUnload it counts toward the limit.
// The caller holds mu.
func (c *residentAddons) beginUnload(a *residentAddon) {
	a.resident, a.unloading = false, make(chan struct{})
}

// finishUnload unloads an addon after beginUnload.
func (c *residentAddons) finishUnload(a *residentAddon) {
	c.unload(a.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(a.unloading)
	a.unloading = nil
}

// run unloads the addon victim, unless it is nil, and loads an addon in its place.
func (c *residentAddons) run(load *addonLoad, victim *residentAddon) {
	if victim != nil {
		c.finishUnload(victim)
	}
	began := time.Now()
	err := c.loadIntoEngine(load.addon)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads--
	if took := time.Since(began); err != nil {
		c.occupied--
	} else if load.addon.resident = true; c.loadTime == 0 {
		c.loadTime = took
	} else {
		c.loadTime += (took - c.loadTime) / 4
	}
	c.end(load, err)
	c.dispatch()
}

// loadIntoEngine loads an addon, even if the requests for it end in the meantime: after an aborted
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

// remove unloads an addon, also while requests use it; the engine completes them. Requests that wait
// for the addon fail. Until the addon is unloaded it counts toward the limit. remove returns false
// for an unknown ID.
func (c *residentAddons) remove(id string) bool {
	c.mu.Lock()
	a := c.current(id)
	if a == nil {
		c.mu.Unlock()
		return false
	}
	a.removed = true
	load, unloading := a.load, a.unloading
	if load != nil && !load.begun {
		c.end(load, domain.Errorf(domain.NotFound,
			"the addon was removed while the request waited for it: load the addon again"))
		load = nil
	}
	c.dispatch() // another addon may have waited for this one to leave
	c.mu.Unlock()
	if load != nil {
		<-load.done
	}
	if unloading != nil {
		<-unloading
	}
	c.mu.Lock()
	resident := a.resident
	if resident {
		c.beginUnload(a)
	}
	c.mu.Unlock()
	if resident {
		c.finishUnload(a)
	}
	c.mu.Lock()
	if resident {
		c.occupied--
	}
	if c.all[id] == a {
		delete(c.all, id)
	}
	c.dispatch()
	c.mu.Unlock()
	a.release()
	return true
}

// averageLoad returns the average time of a load; 0 before the first.
func (c *residentAddons) averageLoad() time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loadTime
}

// residency returns whether the engine has loaded each addon (protocol.Addon.Residency).
func (c *residentAddons) residency() map[string]string {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	states := make(map[string]string, len(c.all))
	for id, a := range c.all {
		switch {
		case a.resident:
			states[id] = protocol.AddonResident
		case a.load != nil:
			states[id] = protocol.AddonQueued
		default:
			states[id] = protocol.AddonEvicted
		}
	}
	return states
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
