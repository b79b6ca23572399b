package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"anneal/domain"
)

// trainingFlags are the flags that become fields of trainingConfig.
type trainingFlags struct {
	base, warm, output string
	epochs, rank       int
	rate               float64
}

func (t *trainingFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.base, "base-model", domain.DefaultBaseModel, "model to begin with")
	f.StringVar(&t.warm, "warm-start-from", "", "adapter to continue from, instead of a base model")
	f.StringVar(&t.output, "output-model", "", "ID of the tuned model (default: the job's)")
	bindReference(c, "base-model", "baseModel", "models")
	bindReference(c, "warm-start-from", "warmStartFrom", "models")
	f.IntVar(&t.epochs, "epochs", 1, "times through the dataset")
	f.IntVar(&t.rank, "lora-rank", 8, "rank of the adapter; 0 trains all parameters")
	f.Float64Var(&t.rate, "learning-rate", 0, "0 is the engine's default")
}

// fill adds what the command line says to a body.
func (t *trainingFlags) fill(c *cobra.Command, client *client, body map[string]any) error {
	config := map[string]any{}
	switch given := body[spelt(body, "trainingConfig")].(type) {
	case nil:
	case map[string]any:
		config = given
	default:
		return fmt.Errorf("trainingConfig must be an object of JSON, not %T", given)
	}
	t.set(c, client, config)
	body[spelt(body, "trainingConfig")] = config
	return nil
}

// set puts them into the object that holds them. The base model's default holds
// where neither the command line nor the object names what to begin with.
func (t *trainingFlags) set(c *cobra.Command, client *client, config map[string]any) {
	set(c, config, map[string]setting{"base-model": {"baseModel", client.name("models", t.base)}, "warm-start-from": {"warmStartFrom", client.name("models", t.warm)},
		"output-model": {"outputModel", t.output}, "epochs": {"epochs", t.epochs}, "lora-rank": {"loraRank", t.rank}, "learning-rate": {"learningRate", t.rate}})
	if config[spelt(config, "baseModel")] == nil && config[spelt(config, "warmStartFrom")] == nil {
		config["baseModel"] = client.name("models", t.base)
	}
}

// sftFlags are the flags that become fields of a supervised job, beside those
// of every training.
type sftFlags struct {
	trainingFlags
	dataset, evaluation, displayName string
	batch, samples, nodes            int
	earlyStop, carve                 bool
}

func (s *sftFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.dataset, "dataset", "", "dataset to learn from")
	f.StringVar(&s.evaluation, "evaluation-dataset", "", "dataset to measure on")
	f.BoolVar(&s.carve, "eval-auto-carveout", false, "hold rows back to measure on")
	bindReference(c, "dataset", "dataset", "datasets")
	bindReference(c, "evaluation-dataset", "evaluationDataset", "datasets")
	s.trainingFlags.add(c)
	f.IntVar(&s.batch, "batch-size", 0, "tokens in a gradient batch; 0 is the engine's default")
	f.IntVar(&s.samples, "batch-size-samples", 0, "samples in a gradient batch; 0 is the engine's default")
	f.BoolVar(&s.earlyStop, "early-stop", false, "stop when the validation loss no longer falls")
	f.IntVar(&s.nodes, "nodes", 1, "machines to train on")
	f.StringVar(&s.displayName, "display-name", "", "a name for people")
}

// fill adds what the command line says to a body.
func (s *sftFlags) fill(c *cobra.Command, client *client, body map[string]any) error {
	set(c, body, map[string]setting{"dataset": {"dataset", client.name("datasets", s.dataset)}, "evaluation-dataset": {"evaluationDataset", client.name("datasets", s.evaluation)},
		"eval-auto-carveout": {"evalAutoCarveout", s.carve}, "batch-size": {"batchSize", s.batch}, "batch-size-samples": {"batchSizeSamples", s.samples},
		"early-stop": {"earlyStop", s.earlyStop}, "nodes": {"nodes", s.nodes}, "display-name": {"displayName", s.displayName}})
	s.set(c, client, body)
	if body[spelt(body, "dataset")] == nil {
		return requiredHere("dataset", "dataset")
	}
	return nil
}
