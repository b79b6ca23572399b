package torch

// ignored are the settings of jobs that the training script ignores, as TYPE.FIELD of package
// engines.
var ignored = []string{"Rollouts.ChunkSize", "Rollouts.MaxReplicas", "Rollouts.MaxConcurrent",
	"Rollouts.MaxStaleness"}

// Ignored returns the fields of engines.TrainSettings and engines.Rollouts that the trainer
// ignores, as TYPE.FIELD.
func Ignored() []string { return ignored }
