package llama

import "slices"

// Frozen returns a copy of the net that later training steps do not change. The copy shares the
// parameters that are not trained: with an adapter, those of the base model.
func (n *Net) Frozen(workers int) *Net {
	if n.Adapter == nil {
		return NewNet(n.Weights.Clone(), nil, workers)
	}
	frozen := *n
	frozen.Adapter = n.Adapter.clone(n.Weights.Config)
	frozen.trained = NewTrainedAdapter(&n.Weights.Config, frozen.Adapter)
	return &frozen
}

func (a *Adapter) clone(c Config) *Adapter {
	same := &Adapter{Rank: a.Rank, Alpha: a.Alpha, BaseHash: a.BaseHash}
	same.layOut(c, a.Modules(), slices.Clone(a.flat))
	return same
}
