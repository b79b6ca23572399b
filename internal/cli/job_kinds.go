package cli

import (
	"github.com/spf13/cobra"
)

var jobDataset = jobReference{"dataset", "dataset", "datasets", "dataset to learn from", true}

func dpoCommand() *cobra.Command {
	return jobKind{collection: jobCollection("dpoJobs"), command: "dpo", idParam: "dpoJobId", short: "Jobs that learn from preferences (DPO, ORPO)",
		create:   "Train a model on which of two answers is better",
		examples: []string{"anneal dpo create louder --dataset loudly --watch", "anneal dpo create louder --dataset loudly --file job.json"},
		needs:    []jobReference{jobDataset},
		figures:  []column{{"ACCURACY", "train/accuracy"}, {"MARGIN", "train/margin"}, {"EVAL", "eval/loss"}}}.group()
}

func rftCommand() *cobra.Command {
	k := jobKind{collection: jobCollection("reinforcementFineTuningJobs"), command: "rft", idParam: "reinforcementFineTuningJobId",
		short:    "Jobs that learn from answers which an evaluator scores",
		create:   "Train a model on its own answers, which an evaluator scores",
		examples: []string{"anneal rft create exact --dataset questions --evaluator exact --watch"},
		needs: []jobReference{jobDataset, {"evaluator", "evaluator", "evaluators", "evaluator that scores the answers", true},
			{"evaluation-dataset", "evaluationDataset", "datasets", "dataset to measure on", false}},
		figures: []column{{"REWARD", "reward/mean"}, {"INVALID", "reward/invalid"}, {"EVAL", "eval/reward"}}}
	k.columns = append(k.columns, column{"EVALUATOR", "#evaluator"})
	k.details = append(k.details, column{"Evaluator", "evaluator"}, column{"Revision of it", "evaluatorRevision"})
	return k.group()
}

func rlorCommand() *cobra.Command {
	dataset := jobDataset
	dataset.required, dataset.purpose = false, "rows with scored answers; may be left out with --keep-alive"
	k := jobKind{collection: jobCollection("rlorTrainerJobs"), command: "rlor", idParam: "rlorTrainerJobId", short: "Trainer jobs that learn from scored answers, step by step",
		create:   "Train a model on answers that were scored elsewhere",
		examples: []string{"anneal rlor create tutor --dataset scored --watch", "anneal rlor create tutor --keep-alive --rollout-deployment tutored"},
		needs: []jobReference{dataset, {"evaluation-dataset", "evaluationDataset", "datasets", "dataset to measure on", false},
			{"rollout-deployment", "rolloutDeploymentName", "deployments", "deployment that gets the weights", false}},
		long:    "Rows have scored answers. Without rewardWeights in --file, every reward then weighs 1:\nan answer's score is the sum of its rewards.",
		figures: []column{{"REWARD", "reward/mean"}, {"EVAL", "eval/loss"}},
		flags:   []jobSwitch{{"keep-alive", "keepAlive", "wait for further steps instead of ending"}}}
	k.details = append(k.details, column{"Weights go to", "rolloutDeploymentName"}, column{"Step", "trainStep.number"}, column{"Step's dataset", "trainStep.dataset"}, column{"Step's model", "trainStep.outputModel"})
	k.children = []*cobra.Command{k.stepCommand()}
	return k.group()
}

// jobCollection is how jobs of a kind are shown.
func jobCollection(name string) collection {
	return collection{name, "job",
		[]column{{"ID", "#name"}, {"STATE", "state"}, {"DONE %", "jobProgress.percent"}, {"DATASET", "#dataset"}, {"BASE", "#trainingConfig.baseModel"},
			{"OUTPUT", "#trainingConfig.outputModel"}, {"CREATED", "createTime"}},
		[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"}, {"Progress", "jobProgress.percent"},
			{"Dataset", "dataset"}, {"Measured on", "evaluationDataset"}, {"Loss", "lossConfig.method"}, {"Base model", "trainingConfig.baseModel"},
			{"Warm start", "trainingConfig.warmStartFrom"}, {"Output model", "trainingConfig.outputModel"}, {"Epochs", "trainingConfig.epochs"},
			{"Learning rate", "trainingConfig.learningRate"}, {"LoRA rank", "trainingConfig.loraRank"}, {"Accelerator seconds", "acceleratorSeconds"},
			{"Created by", "createdBy"}, {"Created", "createTime"}, {"Completed", "completedTime"}}}
}

var supervisedJobs = collection{"supervisedFineTuningJobs", "job",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"DONE %", "jobProgress.percent"}, {"DATASET", "#dataset"}, {"BASE", "#baseModel"}, {"OUTPUT", "#outputModel"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"}, {"Progress", "jobProgress.percent"}, {"Dataset", "dataset"},
		{"Learns from", "inputDatasets.train"}, {"Measured on", "inputDatasets.evaluation"}, {"Base model", "baseModel"}, {"Warm start", "warmStartFrom"}, {"Output model", "outputModel"}, {"Epochs", "epochs"}, {"Learning rate", "learningRate"}, {"LoRA rank", "loraRank"},
		{"Accelerator seconds", "acceleratorSeconds"}, {"Created by", "createdBy"}, {"Created", "createTime"}, {"Completed", "completedTime"}}}

func sftCommand() *cobra.Command {
	return group("sft", "Supervised fine-tuning jobs", sftCreate(), sftWatch(), supervisedJobs.listCommand(), supervisedJobs.getCommand(), supervisedJobs.metricsCommand(column{"EVAL", "eval/loss"}),
		supervisedJobs.verbCommand("cancel", "Stop a job and keep its last checkpoint", "is being cancelled"),
		supervisedJobs.verbCommand("resume", "Let a stopped job go on", "goes on"), supervisedJobs.deleteCommand())
}
