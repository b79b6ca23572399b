package engines

// The functions below return the defaults of a LoRA adapter whose request sets only the rank. The
// default dropout is 0.

// DefaultLoraAlpha returns the numerator of an adapter's scale, alpha/rank: the
// scale is 2 at every rank, so that one learning rate suits all ranks.
func DefaultLoraAlpha(rank int) float64 { return 2 * float64(rank) }

// DefaultLoraModules returns the projections of each layer that get an adapter:
// all of them, by their names in checkpoints.
func DefaultLoraModules() []string {
	return []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
}
