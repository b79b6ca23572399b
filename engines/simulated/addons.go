package simulated

import (
	"context"
	"sync"

	"anneal/engines"
)

// addons are the states of the adapters and weights that a model has loaded, by ID.
type addons struct {
	mu     sync.Mutex
	states map[string]string
	full   map[string]bool // IDs of complete weights, not adapters
}

// state returns the state that determines a completion: the base model's, followed by that of the
// adapter. It equals the state of a model that was loaded with the adapter.
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
	if a.full[id] {
		return state, nil
	}
	return base + state, nil
}

// the agent detects models that load adapters and weights by a type assertion
var _ engines.WeightsLoader = (*model)(nil)

// LoadAddon implements engines.AddonLoader.
func (m *model) LoadAddon(ctx context.Context, id, dir string) error {
	return m.load(ctx, id, dir, false)
}

// LoadWeights implements engines.WeightsLoader.
func (m *model) LoadWeights(ctx context.Context, id, dir string) error {
	return m.load(ctx, id, dir, true)
}

func (m *model) load(ctx context.Context, id, dir string, full bool) error {
	if err := m.options.fault(LoadAddon, 0); err != nil {
		return err
	}
	state, err := stateOf(dir)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.addons.mu.Lock()
	defer m.addons.mu.Unlock()
	if m.addons.states == nil {
		m.addons.states, m.addons.full = map[string]string{}, map[string]bool{}
	}
	m.addons.states[id], m.addons.full[id] = state, full
	return nil
}

// UnloadAddon implements engines.AddonLoader.
func (m *model) UnloadAddon(id string) error {
	m.addons.mu.Lock()
	defer m.addons.mu.Unlock()
	delete(m.addons.states, id)
	delete(m.addons.full, id)
	return nil
}
