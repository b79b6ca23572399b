package cli

import (
	"github.com/spf13/cobra"
)

// Fields that several kinds of jobs have.
var (
	datasetField = field{flag: "dataset", path: "dataset", value: "", usage: "training dataset",
		collection: "datasets", required: true}
	evaluationDatasetField = field{flag: "evaluation-dataset", path: "evaluationDataset", value: "",
		usage: "evaluation dataset", collection: "datasets"}
)

func sftCommand() *cobra.Command {
	return jobKind{collection: jobCollection("supervisedFineTuningJobs", ""), command: "sft",
		short:    "Manage supervised fine-tuning jobs",
		create:   "Train a model on example responses",
		examples: []string{"anneal sft create polite --dataset greetings --epochs 8 --watch"},
		fields: []field{datasetField, evaluationDatasetField,
			{flag: "eval-auto-carveout", path: "evalAutoCarveout", value: false,
				usage: "hold out rows of the dataset for evaluation"},
			{flag: "batch-size", path: "batchSize", value: 0, usage: "tokens per batch; 0 is the engine's default"},
			{flag: "batch-size-samples", path: "batchSizeSamples", value: 0,
				usage: "samples per batch; 0 is the engine's default"},
			{flag: "early-stop", path: "earlyStop", value: false, usage: "stop when the validation loss no longer decreases"},
			{flag: "replay-weight", path: "replayWeight", value: 0.0,
				usage: "how much to keep of what the model knows: 0 is off, 2 suits most datasets"},
			{flag: "nodes", path: "nodes", value: 1, usage: "nodes to train on"}},
		metrics: []column{{"EVAL", "eval/loss"}}}.group()
}

func dpoCommand() *cobra.Command {
	return jobKind{collection: jobCollection("dpoJobs", "trainingConfig."), command: "dpo",
		short:  "Manage preference optimization jobs (DPO, ORPO)",
		create: "Train a model on pairs of preferred and rejected responses",
		examples: []string{"anneal dpo create louder --dataset loudly --watch",
			"anneal dpo create louder --dataset loudly --file job.json"},
		training: "trainingConfig.",
		fields:   []field{datasetField},
		metrics:  []column{{"ACCURACY", "train/accuracy"}, {"MARGIN", "train/margin"}, {"EVAL", "eval/loss"}}}.group()
}

func rftCommand() *cobra.Command {
	k := jobKind{collection: jobCollection("reinforcementFineTuningJobs", "trainingConfig."), command: "rft",
		short:    "Manage reinforcement fine-tuning jobs, whose rewards an evaluator computes",
		create:   "Train a model on its own responses, which an evaluator scores",
		examples: []string{"anneal rft create exact --dataset questions --evaluator exact --watch"},
		training: "trainingConfig.",
		fields: []field{datasetField,
			{flag: "evaluator", path: "evaluator", value: "", usage: "evaluator that scores the responses",
				collection: "evaluators", required: true},
			evaluationDatasetField,
			{flag: "max-staleness", path: "maxStaleness", value: 0,
				usage: "number of chunks by which the weights that generate responses may be older than those in training"}},
		metrics: []column{{"REWARD", "reward/mean"}, {"INVALID", "reward/invalid"}, {"EVAL", "eval/reward"}}}
	k.columns = append(k.columns, column{"EVALUATOR", "#evaluator"})
	c := k.group()
	c.AddCommand(k.rolloutsCommand())
	return c
}

func rlorCommand() *cobra.Command {
	dataset := datasetField
	dataset.required, dataset.usage = false, "training dataset, whose rows have scored responses; optional with "+
		"--keep-alive and --service-mode"
	return jobKind{collection: jobCollection("rlorTrainerJobs", "trainingConfig."), command: "rlor",
		short:  "Manage reinforcement trainer jobs, which train step by step on scored responses",
		create: "Train a model on responses that were scored elsewhere",
		examples: []string{"anneal rlor create tutor --dataset scored --watch",
			"anneal rlor create tutor --keep-alive --rollout-deployment tutored",
			"anneal rlor create loop --service-mode --base-model anneal-base"},
		long: "Rows contain scored responses. Without rewardWeights in --file, every reward has the weight 1:\nthe " +
			"score of a response is the sum of its rewards.",
		training: "trainingConfig.",
		fields: []field{dataset, evaluationDatasetField,
			{flag: "rollout-deployment", path: "rolloutDeploymentName", value: "",
				usage: "deployment that loads the new weights after each step", collection: "deployments"},
			{flag: "keep-alive", path: "keepAlive", value: false,
				usage: "after the first step, wait for further steps instead of completing"},
			{flag: "service-mode", path: "serviceMode", value: false,
				usage: "serve the training API, so that a loop of your own trains"}},
		metrics:  []column{{"REWARD", "reward/mean"}, {"EVAL", "eval/loss"}},
		stepwise: true}.group()
}

// jobCollection returns the collection of a kind of jobs, with the columns of its commands.
// training is the beginning of the paths of trainingFields.
func jobCollection(name, training string) collection {
	return collection{name, "job",
		[]column{{"ID", "#name"}, {"STATE", "state"}, {"DONE %", "jobProgress.percent"}, {"DATASET", "#dataset"},
			{"BASE", "#" + training + "baseModel"}, {"OUTPUT", "#" + training + "outputModel"}, {"CREATED", "createTime"}},
		[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", statusMessage},
			{"Queue", queuePath}, {"Waits since", "queue.since"}, {"No estimate", "queue.noEstimateReason"},
			{"Progress", "jobProgress.percent"}, {"Dataset", "dataset"}, {"Training split", "inputDatasets.train"},
			{"Evaluation split", "inputDatasets.evaluation"}, {"Evaluation dataset", "evaluationDataset"},
			{"Loss", "lossConfig.method"},
			{"Base model", training + "baseModel"}, {"Warm start", training + "warmStartFrom"},
			{"Output model", training + "outputModel"},
			{"Epochs", training + "epochs"}, {"Learning rate", training + "learningRate"}, {"LoRA rank", training + "loraRank"},
			{"Evaluator", "evaluator"}, {"Evaluator revision", "evaluatorRevision"}, {"Max staleness", "maxStaleness"},
			{"Rollout deployment", "rolloutDeploymentName"},
			{"Training service", "directRouteHandle"},
			{"Step", "trainStep.number"}, {"Step dataset", "trainStep.dataset"}, {"Step model", "trainStep.outputModel"},
			{"Tracker", "trackerConfig.url"},
			{"Accelerator seconds", "acceleratorSeconds"}, {"Created by", "createdBy"}, {"Created", "createTime"},
			{"Completed", "completedTime"}}}
}
