package agent

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/wire"
)

const (
	addonTries = 3                // to load one, before it counts as failed
	addonPause = time.Second      // before the second try; doubled before the next
	addonLimit = domain.MaxAddons // at once on a replica, and as many again that are leaving
)

// addons are the adapters of one replica, loaded or on their way. They come
// and go while the replica answers.
type addons struct {
	replica *replica
	opened  chan struct{} // closed when the replica's model is there
	turn    chan struct{} // one is loaded at a time

	mu  sync.Mutex
	all map[string]*addon // by ID
}

type addon struct {
	wire.Addon
	cancel context.CancelFunc // ends its loading
}

func (s *addons) open(r *replica) {
	s.replica, s.opened, s.turn, s.all = r, make(chan struct{}), make(chan struct{}, 1), map[string]*addon{}
}

// state is the addons in a beat.
func (s *addons) state() []wire.Addon {
	s.mu.Lock()
	defer s.mu.Unlock()
	var listed []wire.Addon
	for _, id := range slices.Sorted(maps.Keys(s.all)) {
		listed = append(listed, s.all[id].Addon)
	}
	return listed
}

// equip begins to load what is ordered, and unloads what the beat listed and
// the order does not keep.
func (s *addons) equip(listed []wire.Addon, order wire.Equipment) {
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
			if a.State == wire.AddonLoaded {
				s.unload(one.ID)
			}
		}
	}
	for _, one := range order.Load {
		if s.all[one.ID] != nil || one.ID == "" || len(s.all) >= 2*addonLimit {
			continue
		}
		ctx, cancel := context.WithCancel(s.replica.begin)
		a := &addon{wire.Addon{ID: one.ID, State: wire.AddonLoading}, cancel}
		s.all[one.ID] = a
		s.replica.agent.work.Go(func() { s.bring(ctx, a, one.Folder) })
	}
}

// bring loads an addon and says what came of it.
func (s *addons) bring(ctx context.Context, a *addon, folder wire.Folder) {
	err := s.try(ctx, a.ID, folder)
	for pause, tries := addonPause, 1; err != nil && !final(err) && tries < addonTries && ctx.Err() == nil; pause, tries = 2*pause, tries+1 {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		err = s.try(ctx, a.ID, folder)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil: // it is not wanted any more, or the replica is not
		if err == nil {
			s.unload(a.ID)
		}
		return
	case err == nil:
		a.State = wire.AddonLoaded
		s.replica.log.Info("addon is loaded", "addon", a.ID)
	default:
		a.State, a.Reason = wire.AddonFailed, short(strings.ReplaceAll(err.Error(), s.replica.agent.options.Dir+"/", ""))
		s.replica.log.Error("addon fails", "addon", a.ID, "error", err)
	}
	s.replica.agent.beatSoon()
}

// try fetches an addon's files and has the model load them.
func (s *addons) try(ctx context.Context, id string, folder wire.Folder) error {
	dir, release, err := s.replica.agent.cache.acquire(ctx, folder)
	if err != nil {
		return err
	}
	defer release()
	select {
	case <-s.opened:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	loader, err := s.loader()
	if err != nil {
		return err
	}
	within := s.replica.agent.options.LoadWithin
	ctx, cancel := context.WithTimeoutCause(ctx, within, domain.Faultf(domain.DeadlineExceeded, "the engine had not loaded the addon within %s", within))
	defer cancel()
	loaded := make(chan error, 1)
	go func() { // not counted among the agent's work: that would wait for an engine that hangs
		_, err := loadGuarded(func() (struct{}, error) { return struct{}{}, loader.LoadAddon(ctx, id, dir) })
		loaded <- err
	}()
	select {
	case err := <-loaded:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// loader is the replica's model, which must be there.
func (s *addons) loader() (engines.AddonLoader, error) {
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	loader, can := s.replica.model.(engines.AddonLoader)
	if !can {
		return nil, domain.Faultf(domain.FailedPrecondition, "the engine of the node cannot load addons: deploy the addon as a model of its own")
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
