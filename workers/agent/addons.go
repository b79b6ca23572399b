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
	addonTries = 3                // to load one, before it counts as failed
	addonPause = time.Second      // before the second try; doubled before the next
	addonLimit = domain.MaxAddons // at once on a replica, and as many again that are leaving
)

// addons are the adapters of one replica, and the weights that are loaded hot,
// loaded or on their way. They come and go while the replica answers. What the engine is asked about one ID it is
// asked in the order of the beats that wanted it, and nobody holds mu meanwhile:
// a beat never waits for an engine.
type addons struct {
	replica *replica
	opened  chan struct{} // closed when the replica's model is there
	turn    chan struct{} // one is loaded at a time

	mu    sync.Mutex
	all   map[string]*addon        // by ID
	lines map[string]chan struct{} // by ID: closed when the last in line is done
}

type addon struct {
	protocol.Addon
	place
	cancel context.CancelFunc // ends its loading
	calls  sync.WaitGroup     // of the engine that have not returned
}

// A place in the line of those who have something to ask of the engine about
// one ID.
type place struct {
	before <-chan struct{} // closed when the one before is done; nil when there is none
	done   chan struct{}
}

func (s *addons) open(r *replica) {
	s.replica, s.opened, s.turn = r, make(chan struct{}), make(chan struct{}, 1)
	s.all, s.lines = map[string]*addon{}, map[string]chan struct{}{}
}

// queue is the next place in the line of an ID; mu is held.
func (s *addons) queue(id string) place {
	p := place{s.lines[id], make(chan struct{})}
	s.lines[id] = p.done
	return p
}

// reached returns when the place is the first in its line.
func (p place) reached() {
	if p.before != nil {
		<-p.before
	}
}

// leave gives a place up, once it is the first in its line.
func (s *addons) leave(id string, p place) {
	p.reached()
	s.mu.Lock()
	defer s.mu.Unlock()
	close(p.done)
	if s.lines[id] == p.done {
		delete(s.lines, id)
	}
}

// state is the addons in a beat.
func (s *addons) state() []protocol.Addon {
	s.mu.Lock()
	defer s.mu.Unlock()
	var listed []protocol.Addon
	for _, id := range slices.Sorted(maps.Keys(s.all)) {
		listed = append(listed, s.all[id].Addon)
	}
	return listed
}

// equip begins to load what is ordered, and unloads what the beat listed and
// the order does not keep.
func (s *addons) equip(listed []protocol.Addon, order protocol.ReplicaAddons) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[string]bool{}
	for _, id := range order.Keep {
		keep[id] = true
	}
	for _, one := range listed {
		if a := s.all[one.ID]; a != nil && !keep[one.ID] {
			a.cancel()
			delete(s.all, one.ID)
			s.replica.agent.beatSoon()
			if a.State == protocol.AddonLoaded {
				go s.dismiss(one.ID, s.queue(one.ID)) // not counted among the agent's work: see load
			}
		}
	}
	for _, one := range order.Load {
		if s.all[one.ID] != nil || one.ID == "" || len(s.all) >= 2*addonLimit {
			continue
		}
		ctx, cancel := context.WithCancel(s.replica.begin)
		a := &addon{Addon: protocol.Addon{ID: one.ID, State: protocol.AddonLoading}, place: s.queue(one.ID), cancel: cancel}
		s.all[one.ID] = a
		s.replica.agent.work.Go(func() { s.bring(ctx, a, one) })
	}
}

// dismiss unloads an addon in its turn.
func (s *addons) dismiss(id string, p place) {
	p.reached()
	s.unload(id)
	s.leave(id, p)
}

// errHangs is the reason of one that the engine does not come back with. It is
// not asked for it again.
var errHangs = errors.New("the engine had not loaded the addon")

// bring has an addon loaded, or says why it is not.
func (s *addons) bring(ctx context.Context, a *addon, order protocol.AddonAssignment) {
	err := s.try(ctx, a, order)
	for pause, tries := addonPause, 1; err != nil && !final(err) && !errors.Is(err, errHangs) && tries < addonTries && ctx.Err() == nil; pause, tries = 2*pause, tries+1 {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		err = s.try(ctx, a, order)
	}
	go func() {
		a.calls.Wait()
		s.leave(a.ID, a.place)
	}()
	if err == nil || ctx.Err() != nil { // it is not wanted any more, or the replica is not
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.State == protocol.AddonLoading {
		a.State, a.Reason = protocol.AddonFailed, short(strings.ReplaceAll(err.Error(), s.replica.agent.options.Dir+"/", ""))
		s.replica.log.Error("addon fails", "addon", a.ID, "error", err)
		s.replica.agent.beatSoon()
	}
}

// try fetches an addon's files and has the model load them.
func (s *addons) try(ctx context.Context, a *addon, order protocol.AddonAssignment) error {
	dir, release, err := s.replica.agent.cache.acquire(ctx, order.Files)
	if err != nil {
		return err
	}
	loader, done, err := s.admit(ctx, a.place)
	if err != nil {
		release()
		return err
	}
	defer done()
	read := loader.LoadAddon
	if order.Full {
		whole, can := loader.(engines.WeightsLoader)
		if !can {
			release()
			return domain.Errorf(domain.FailedPrecondition, "the engine of the node takes adapters while it answers, and not all parameters anew: train an adapter (loraRank above 0), or deploy the model that comes of the training")
		}
		read = whole.LoadWeights
	}
	return s.load(ctx, a, read, dir, release)
}

// admit waits for the model, for what it was asked before about the same addon,
// and for the turn to load one, until done is called.
func (s *addons) admit(ctx context.Context, p place) (loader engines.AddonLoader, done func(), err error) {
	select {
	case <-s.opened:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if loader, err = s.loader(); err != nil {
		return nil, nil, err
	}
	if p.before != nil {
		patient, cancel := s.bounded(ctx)
		defer cancel()
		select {
		case <-p.before:
		case <-patient.Done():
			return nil, nil, context.Cause(patient)
		}
	}
	select {
	case s.turn <- struct{}{}:
		return loader, func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// bounded is ctx for as long as the engine may take.
func (s *addons) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	within := s.replica.agent.options.LoadWithin
	return context.WithTimeoutCause(ctx, within, fmt.Errorf("%w within %s", errHangs, within))
}

// load has the model load what lies in dir, which is released when the engine
// reads it no more. It returns when the time is over, or the addon is not wanted
// any more; what the engine loads after all is then unloaded.
func (s *addons) load(ctx context.Context, a *addon, read func(ctx context.Context, id, dir string) error, dir string, release func()) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	loaded := make(chan error, 1)
	a.calls.Add(1)
	go func() { // not counted among the agent's work: that would wait for an engine that hangs
		defer a.calls.Done()
		_, err := loadGuarded(func() (struct{}, error) { return struct{}{}, read(ctx, a.ID, dir) })
		release()
		if err == nil && !s.arrive(a) {
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

// arrive records that an addon is loaded; false when it is not wanted any more,
// or was given up.
func (s *addons) arrive(a *addon) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[a.ID] != a || a.State != protocol.AddonLoading {
		return false
	}
	a.State = protocol.AddonLoaded
	s.replica.log.Info("addon is loaded", "addon", a.ID)
	s.replica.agent.beatSoon()
	return true
}

// loader is the replica's model, which must be there.
func (s *addons) loader() (engines.AddonLoader, error) {
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	loader, can := s.replica.model.(engines.AddonLoader)
	if !can {
		return nil, domain.Errorf(domain.FailedPrecondition, "the engine of the node cannot load addons: deploy the addon as a model of its own")
	}
	return loader, nil
}

// unload takes an addon out of the model, which must be there.
func (s *addons) unload(id string) {
	loader, err := s.loader()
	if err == nil {
		_, err = loadGuarded(func() (struct{}, error) { return struct{}{}, loader.UnloadAddon(id) })
	}
	s.replica.log.Info("addon is unloaded", "addon", id, "error", err)
}

// short bounds the reason of a failure.
func short(text string) string {
	const most = 500
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
