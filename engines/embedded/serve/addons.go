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

// maxAddons bounds the adapters that one model holds.
const maxAddons = 256

// An addon is an adapter that some requests want. Requests keep it by
// themselves, so it lives on after it is unloaded until the last is answered.
type addon struct {
	id      string
	adapter *llama.PackedAdapter
	voice   *voice // nil is the model's
}

// LoadAddon implements engines.AddonLoader. Running answers do not wait for it.
func (m *model) LoadAddon(ctx context.Context, id, dir string) error {
	switch {
	case id == "":
		return domain.Errorf(domain.InvalidArgument, "id: an addon needs one")
	case m.merged:
		return domain.Errorf(domain.FailedPrecondition, "the model was loaded with an adapter merged into it: load addons on the base model alone")
	}
	adapter, err := llama.LoadAdapter(dir, m.hash, m.config)
	if err != nil {
		return err
	}
	packed, own := adapter.Pack(&m.config), m.voice.of(dir, m.tokenizer)
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
	if w := m.twins[id]; w != nil {
		delete(m.twins, id)
		go w.end()
	}
	return nil
}

// addon finds a loaded addon; nil is the model itself.
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

// name is what addons are sorted by; the model itself comes first.
func (a *addon) name() string {
	if a == nil {
		return ""
	}
	return a.id
}

// together brings the turns of each addon together, so that a step applies it
// once to all of their rows.
func together(turns []turn) {
	slices.SortStableFunc(turns, func(a, b turn) int { return strings.Compare(a.span.addon.name(), b.span.addon.name()) })
}

// A stretch is rows of a step, lo to hi, that belong to one addon.
type stretch struct {
	addon  *addon
	lo, hi int
}

// stretch finds the rows of the spans that belong to addons.
func (d *decoder) stretch(spans []span) {
	d.stretches = d.stretches[:0]
	for i, s := range spans {
		lo, hi := d.starts[i], d.starts[i]+len(s.tokens)
		last := len(d.stretches) - 1
		switch {
		case s.addon == nil:
		case last >= 0 && d.stretches[last].addon == s.addon && d.stretches[last].hi == lo:
			d.stretches[last].hi = hi
		default:
			d.stretches = append(d.stretches, stretch{s.addon, lo, hi})
		}
	}
}

// adapt adds the addons' shares to y, the base's projections of x: each to the
// rows of its own requests.
func (d *decoder) adapt(y, x kernel.Matrix, layer int, input llama.Input) {
	for _, s := range d.stretches {
		s.addon.adapter.Add(y.RowRange(s.lo, s.hi), x.RowRange(s.lo, s.hi), layer, input, &d.low, d.workers)
	}
}
