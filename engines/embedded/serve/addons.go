package serve

import (
	"context"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
)

// maxAddons is the maximum number of adapters that a model can have loaded.
const maxAddons = 256

// An addon is a loaded LoRA adapter, which requests select. An unloaded addon stays in memory until
// the last request that uses it has ended.
type addon struct {
	id      string
	adapter *llama.PackedAdapter
	chat    *chatFormat // chat format of the adapter; nil stands for that of the base model
}

// the agent detects models that load adapters and weights by a type assertion
var _ engines.WeightsLoader = (*model)(nil)

// LoadAddon implements engines.AddonLoader. It does not block running requests.
func (m *model) LoadAddon(ctx context.Context, id, dir string) error {
	switch {
	case id == "":
		return domain.Errorf(domain.InvalidArgument, "addon ID: must not be empty")
	case m.merged:
		return domain.Errorf(domain.FailedPrecondition,
			"an adapter was merged into this model, so it cannot load others: load adapters into the base model")
	}
	adapter, err := llama.LoadAdapter(dir, m.hash, m.config)
	if err != nil {
		return err
	}
	packed, own := adapter.Pack(&m.config), m.chat.forDir(dir, m.tokenizer)
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return errClosed()
	case m.addons[id] != nil:
		return nil
	case len(m.addons) >= maxAddons:
		return domain.Errorf(domain.ResourceExhausted, "the model has %d addons loaded: unload one first", len(m.addons))
	}
	if m.addons == nil {
		m.addons = map[string]*addon{}
	}
	m.addons[id] = &addon{id, packed, &own}
	return nil
}

// UnloadAddon implements engines.AddonLoader.
func (m *model) UnloadAddon(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.addons, id)
	if w := m.variants[id]; w != nil {
		delete(m.variants, id)
		go w.closeIdle()
	}
	return nil
}

// addon returns the loaded adapter with the ID; nil if id is "", which selects the base model. It
// returns ErrAddonNotLoaded if no such adapter is loaded.
func (m *model) addon(id string) (*addon, error) {
	if id == "" {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.addons[id]; a != nil {
		return a, nil
	}
	return nil, engines.ErrAddonNotLoaded(id)
}

// name returns the key by which the items of a batch are sorted: the ID of the adapter; "" for the
// base model.
func (a *addon) name() string {
	if a == nil {
		return ""
	}
	return a.id
}

// sortByAddon makes the items of each adapter adjacent, so that a step applies the adapter to all
// of their rows at once.
func sortByAddon(batch []batchItem) {
	slices.SortStableFunc(batch,
		func(a, b batchItem) int { return strings.Compare(a.span.addon.name(), b.span.addon.name()) })
}

// An addonRun is a range of rows of a step, from lo to hi-1, that use the same adapter.
type addonRun struct {
	addon  *addon
	lo, hi int
}

// groupAddons sets d.addonRuns to the ranges of adjacent rows that use the same adapter.
func (d *decoder) groupAddons(spans []span) {
	d.addonRuns = d.addonRuns[:0]
	for i, s := range spans {
		lo, hi := d.starts[i], d.starts[i]+len(s.tokens)
		last := len(d.addonRuns) - 1
		switch {
		case s.addon == nil:
		case last >= 0 && d.addonRuns[last].addon == s.addon && d.addonRuns[last].hi == lo:
			d.addonRuns[last].hi = hi
		default:
			d.addonRuns = append(d.addonRuns, addonRun{s.addon, lo, hi})
		}
	}
}

// applyAddons adds the updates of the adapters to y, the base model's projections of x.
func (d *decoder) applyAddons(y, x kernel.Matrix, layer int, input llama.Input) {
	for _, s := range d.addonRuns {
		s.addon.adapter.Add(y.RowRange(s.lo, s.hi), x.RowRange(s.lo, s.hi), layer, input, &d.loraScratch, d.workers)
	}
}
