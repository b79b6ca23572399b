package engines

// Defaults of a LoRA adapter whose request sets only the rank. The default dropout is 0.

// DefaultLoraAlpha returns the default of alpha. The scale of an adapter, alpha/rank, is then 2 at
// every rank, so that one learning rate suits all ranks.
func DefaultLoraAlpha(rank int) float64 { return 2 * float64(rank) }

// DefaultLoraModules returns the names of the projections that get an adapter by default: all of a
// layer.
func DefaultLoraModules() []string {
	return []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
}
