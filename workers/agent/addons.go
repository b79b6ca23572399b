package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	maxAddonTries = 3           // number of failed attempts to load an addon after which it is reported as failed
	addonPause    = time.Second // pause before the second attempt to load an addon; doubled before each further one
	maxReason     = 500         // maximum length of an addon's failure reason in a heartbeat, in bytes
	// maximum number of addons of a replica; up to twice as many while addons that are no longer
	// assigned are being unloaded
	maxAddons = domain.MaxAddons
)

// addons manages the addons of one replica: its LoRA adapters and hot-loaded weights. They are
// loaded and unloaded while the replica serves requests. Engine calls for the same addon are made
// in the order of the heartbeats that caused them. mu is not held during an engine call, so that no
// heartbeat waits for the engine.
type addons struct {
	replica *replica
	opened  chan struct{} // closed when the model of the replica is loaded
	turn    chan struct{} // lets one addon be loaded at a time: has one element meanwhile

	resident *residentAddons // limits how many addons the engine has loaded; nil when there is no limit

	mu    sync.Mutex
	all   map[string]*addon        // assigned addons of the replica, by addon ID
	tails map[string]chan struct{} // by addon ID: closed when the last queued engine call for the addon is done
}

type addon struct {
	protocol.Addon
	ticket
	cancel context.CancelFunc // cancels the download or load of the addon that is in progress
	calls  sync.WaitGroup     // engine calls for the addon that are in progress
}

// A ticket is the position of one engine call in the queue of calls for an addon.
type ticket struct {
	before <-chan struct{} // closed when the call before this one is done; nil when there is none
	done   chan struct{}
}

func (s *addons) open(r *replica) {
	s.replica, s.opened, s.turn = r, make(chan struct{}), make(chan struct{}, 1)
	s.all, s.tails = map[string]*addon{}, map[string]chan struct{}{}
	if limit := r.assignment.AddonSlots; limit > 0 {
		s.resident = newResidentAddons(r.ctx, limit, r.agent.options.LoadWithin, s.warnLoaded)
	}
}

// enqueue adds an engine call to the queue of an addon and returns the call's ticket. The caller
// holds mu.
func (s *addons) enqueue(id string) ticket {
	t := ticket{s.tails[id], make(chan struct{})}
	s.tails[id] = t.done
	return t
}

// wait returns when all calls before this one are done.
func (t ticket) wait() {
	if t.before != nil {
		<-t.before
	}
}

// dequeue removes a call from the queue of an addon, after the call has ended or was not made. It
// waits for the calls before this one, and then lets the next call begin.
func (s *addons) dequeue(id string, t ticket) {
	t.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	close(t.done)
	if s.tails[id] == t.done {
		delete(s.tails, id)
	}
}

// state returns the state of every addon for the next heartbeat.
func (s *addons) state() []protocol.Addon {
	residency := s.resident.residency()
	s.mu.Lock()
	defer s.mu.Unlock()
	var listed []protocol.Addon
	for _, id := range slices.Sorted(maps.Keys(s.all)) {
		one := s.all[id].Addon
		if state, known := residency[id]; known && one.State == protocol.AddonLoaded {
			one.Residency = state
		}
		listed = append(listed, one)
	}
	return listed
}

// apply starts to load the addons in assigned that are not loaded. It unloads the addons that the
// last heartbeat listed and that the coordinator no longer assigns.
func (s *addons) apply(listed []protocol.Addon, assigned protocol.ReplicaAddons) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[string]bool{}
	for _, id := range assigned.Keep {
		keep[id] = true
	}
	for _, item := range listed {
		if a := s.all[item.ID]; a != nil && !keep[item.ID] {
			a.cancel()
			delete(s.all, item.ID)
			s.replica.agent.requestHeartbeat()
			if a.State == protocol.AddonLoaded {
				// not counted in the agent's WaitGroup, because the engine may hang; see load
				go s.unloadInTurn(item.ID, s.enqueue(item.ID))
			}
		}
	}
	for _, item := range assigned.Load {
		if s.all[item.ID] != nil || item.ID == "" || len(s.all) >= 2*maxAddons {
			continue
		}
		ctx, cancel := context.WithCancel(s.replica.accepting)
		a := &addon{Addon: protocol.Addon{ID: item.ID, State: protocol.AddonLoading}, ticket: s.enqueue(item.ID),
			cancel: cancel}
		s.all[item.ID] = a
		s.replica.agent.work.Go(func() { s.start(ctx, a, item) })
	}
}

// unloadInTurn unloads an addon when the engine calls before it are done.
func (s *addons) unloadInTurn(id string, t ticket) {
	t.wait()
	s.unload(id)
	s.dequeue(id, t)
}

// errTimeout is the error of an addon that the engine did not load within Options.LoadWithin.
// Loading the addon is not retried.
var errTimeout = errors.New("the engine of the node did not load the addon")

// start loads an addon, with up to maxAddonTries attempts. When all fail, it records the reason.
func (s *addons) start(ctx context.Context, a *addon, assignment protocol.AddonAssignment) {
	err := s.try(ctx, a, assignment)
	pause := addonPause
	for tries := 1; err != nil && tries < maxAddonTries && ctx.Err() == nil; tries++ {
		if isPermanent(err) || errors.Is(err, errTimeout) {
			break
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		pause *= 2
		err = s.try(ctx, a, assignment)
	}
	go func() {
		a.calls.Wait()
		s.dequeue(a.ID, a.ticket)
	}()
	if err == nil || ctx.Err() != nil { // ctx is canceled when the addon or its replica is no longer assigned
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.State == protocol.AddonLoading {
		a.State, a.Reason = protocol.AddonFailed, truncate(strings.ReplaceAll(err.Error(),
			s.replica.agent.options.Dir+"/", ""), maxReason)
		s.replica.log.Error("addon failed", "addon", a.ID, "error", err)
		s.replica.agent.requestHeartbeat()
	}
}

// try makes one attempt to download an addon's files and load them into the model.
func (s *addons) try(ctx context.Context, a *addon, assignment protocol.AddonAssignment) error {
	dir, release, err := s.replica.agent.cache.acquire(ctx, assignment.Files)
	if err != nil {
		return err
	}
	loader, done, err := s.acquire(ctx, a.ticket)
	if err != nil {
		release()
		return err
	}
	defer done()
	load := loader.LoadAddon
	if assignment.Full {
		full, ok := loader.(engines.WeightsLoader)
		if !ok {
			release()
			return domain.Errorf(domain.FailedPrecondition, "the engine of the node can hot-load adapters, but not "+
				"full weights: train an adapter (loraRank above 0), or deploy the trained model")
		}
		load = full.LoadWeights
	} else if s.resident != nil {
		keep := release // the files stay on disk as long as the addon is assigned
		release = func() {}
		load = func(ctx context.Context, id, dir string) error {
			if assignment.Proven && s.resident.register(loader, id, dir, keep) {
				return nil
			}
			return s.resident.add(ctx, loader, id, dir, keep)
		}
	}
	return s.load(ctx, a, load, dir, release)
}

// acquire waits until the model of the replica is loaded, the calls before ticket t are done, and
// no other addon is being loaded. The caller calls done after the load.
func (s *addons) acquire(ctx context.Context, t ticket) (loader engines.AddonLoader, done func(), err error) {
	select {
	case <-s.opened:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if loader, err = s.loader(); err != nil {
		return nil, nil, err
	}
	if t.before != nil {
		bounded, cancel := s.withTimeout(ctx)
		defer cancel()
		select {
		case <-t.before:
		case <-bounded.Done():
			return nil, nil, context.Cause(bounded)
		}
	}
	select {
	case s.turn <- struct{}{}:
		return loader, func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// withTimeout returns ctx with the timeout Options.LoadWithin, in which the engine must load an
// addon.
func (s *addons) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	within := s.replica.agent.options.LoadWithin
	return context.WithTimeoutCause(ctx, within, fmt.Errorf("%w within %s", errTimeout, within))
}

// load loads the files in dir into the model. It calls release when the engine no longer needs the
// files. load does not wait for the engine after a timeout, or when the addon is no longer
// assigned. If the engine finishes the load later, the addon is unloaded.
func (s *addons) load(ctx context.Context, a *addon, loadFiles func(ctx context.Context, id, dir string) error,
	dir string, release func()) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	loaded := make(chan error, 1)
	a.calls.Add(1)
	go func() { // not counted in the agent's WaitGroup, which would wait for an engine that hangs
		defer a.calls.Done()
		_, err := recoverPanic(func() (struct{}, error) { return struct{}{}, loadFiles(ctx, a.ID, dir) })
		release()
		if err == nil && !s.markLoaded(a) {
			s.unload(a.ID)
		}
		loaded <- err
	}()
	select {
	case err := <-loaded:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// markLoaded records that an addon is loaded. It returns false when the addon is no longer assigned
// or has failed; the caller then unloads it.
func (s *addons) markLoaded(a *addon) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[a.ID] != a || a.State != protocol.AddonLoading {
		return false
	}
	a.State = protocol.AddonLoaded
	s.replica.log.Info("addon loaded", "addon", a.ID)
	s.replica.agent.requestHeartbeat()
	return true
}

// loader returns the model of the replica as an AddonLoader, or an error when the engine cannot
// load addons. The model must be loaded.
func (s *addons) loader() (engines.AddonLoader, error) {
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	loader, ok := s.replica.model.(engines.AddonLoader)
	if !ok {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"the engine of the node cannot load addons: deploy the addon as a separate model")
	}
	return loader, nil
}

// unload unloads an addon from the model. The model must be loaded.
func (s *addons) unload(id string) {
	if s.resident != nil && s.resident.remove(id) {
		s.replica.log.Info("addon unloaded", "addon", id)
		return
	}
	loader, err := s.loader()
	if err == nil {
		_, err = recoverPanic(func() (struct{}, error) { return struct{}{}, loader.UnloadAddon(id) })
	}
	if err != nil {
		s.warnLoaded(id, err)
		return
	}
	s.replica.log.Info("addon unloaded", "addon", id)
}

func (s *addons) warnLoaded(id string, err error) {
	s.replica.log.Warn("the engine did not unload an addon: it uses memory until the replica is "+
		"stopped", "addon", id, "error", err)
}

// truncate shortens text to maxBytes bytes and "…" if it is longer.
func truncate(text string, maxBytes int) string {
	if len(text) > maxBytes {
		return strings.ToValidUTF8(text[:maxBytes], "") + "…"
	}
	return text
}
