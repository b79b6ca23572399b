package engines

// What an engine puts on a model for LoRA when it is told only the rank. There
// is no dropout.

// DefaultLoraAlpha is the numerator of the scale alpha/rank of an adapter: the
// scale is 2 at every rank, so one learning rate suits all.
func DefaultLoraAlpha(rank int) float64 { return 2 * float64(rank) }

// DefaultLoraModules are the projections of each layer that get an adapter:
// all, by their names in checkpoints.
func DefaultLoraModules() []string {
	return []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
}
