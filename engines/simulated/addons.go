package simulated

import (
	"context"
	"sync"

	"anneal/engines"
)

// addons are the states of the adapters that a model has loaded, by ID.
type addons struct {
	mu     sync.Mutex
	states map[string]string
	whole  map[string]bool // those that are all parameters, and no adapters
}

// state is what answers a request: the base's state, and the addon's. It is
// that of the same model loaded with the adapter alone.
func (a *addons) state(base, id string) (string, error) {
	if id == "" {
		return base, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	state, loaded := a.states[id]
	if !loaded {
		return "", engines.ErrAddonNotLoaded(id)
	}
	if a.whole[id] {
		return state, nil
	}
	return base + state, nil
}

// LoadAddon implements engines.AddonLoader.
func (m *model) LoadAddon(ctx context.Context, id, dir string) error {
	return m.load(ctx, id, dir, false)
}

// LoadWeights implements engines.WeightsLoader.
func (m *model) LoadWeights(ctx context.Context, id, dir string) error {
	return m.load(ctx, id, dir, true)
}

func (m *model) load(ctx context.Context, id, dir string, whole bool) error {
	if err := m.options.fault(LoadAddon, 0); err != nil {
		return err
	}
	state, err := stateOf(dir)
	if err != nil {
		return err
	}
	m.addons.mu.Lock()
	defer m.addons.mu.Unlock()
	if m.addons.states == nil {
		m.addons.states, m.addons.whole = map[string]string{}, map[string]bool{}
	}
	m.addons.states[id], m.addons.whole[id] = state, whole
	return ctx.Err()
}

// UnloadAddon implements engines.AddonLoader.
func (m *model) UnloadAddon(id string) error {
	m.addons.mu.Lock()
	defer m.addons.mu.Unlock()
	delete(m.addons.states, id)
	delete(m.addons.whole, id)
	return nil
}
