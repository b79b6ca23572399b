package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// A jobKind is what the commands of the jobs beyond supervised ones share, and
// where they differ.
type jobKind struct {
	collection
	command  string // anneal COMMAND
	idParam  string // of the create
	short    string
	create   string         // what its create does
	long     string         // of the create's help
	examples []string       // of it
	needs    []jobReference // beside what all kinds take
	flags    []jobSwitch
	figures  []column         // of the metrics, beside the loss
	children []*cobra.Command // beside those of every kind
}

// A jobReference is a field that names a resource, and its flag.
type jobReference struct {
	flag, field, collection, purpose string
	required                         bool
}

// A jobSwitch is a field that is true or absent, and its flag.
type jobSwitch struct{ flag, field, purpose string }

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

func (k jobKind) group() *cobra.Command {
	c := group(k.command, k.short, k.createCommand(), k.watchCommand(), k.listCommand(), k.getCommand(), k.metricsCommand(k.figures...),
		k.verbCommand("cancel", "Stop a job and keep its last checkpoint", "is being cancelled"),
		k.verbCommand("resume", "Let a stopped job go on", "goes on"), k.deleteCommand())
	c.AddCommand(k.children...)
	return c
}

// trainingFlags are the flags that become fields of trainingConfig.
type trainingFlags struct {
	base, warm, output string
	epochs, rank       int
	rate               float64
}

func (t *trainingFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.base, "base-model", baseModelName, "model to begin with")
	f.StringVar(&t.warm, "warm-start-from", "", "adapter to continue from, instead of a base model")
	f.StringVar(&t.output, "output-model", "", "ID of the tuned model (default: the job's)")
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

func (k jobKind) createCommand() *cobra.Command {
	var file, displayName string
	var training trainingFlags
	var watch bool
	references, switches := make([]string, len(k.needs)), make([]bool, len(k.flags))
	c := &cobra.Command{Use: "create [ID]", Short: k.create, Long: k.long, Args: arguments(0, 1),
		Example: "  " + strings.Join(k.examples, "\n  "),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body, err := jsonFile(c, file)
			if err != nil {
				return err
			}
			for i, ref := range k.needs {
				field := spelt(body, ref.field)
				if references[i] != "" {
					body[field] = client.name(ref.collection, references[i])
				}
				if body[field] == nil && ref.required {
					return requiredHere(ref.flag, ref.field)
				}
			}
			for i, s := range k.flags {
				if c.Flags().Changed(s.flag) {
					body[spelt(body, s.field)] = switches[i]
				}
			}
			if displayName != "" {
				body[spelt(body, "displayName")] = displayName
			}
			if err := training.fill(c, client, body); err != nil {
				return err
			}
			query := url.Values{}
			if len(args) == 1 {
				query.Set(k.idParam, args[0])
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path(k.name), query, body, &item); err != nil {
				return err
			}
			return k.show(c, client, item, watch)
		}}
	f := c.Flags()
	for i, ref := range k.needs {
		f.StringVar(&references[i], ref.flag, "", ref.purpose)
	}
	for i, s := range k.flags {
		f.BoolVar(&switches[i], s.flag, false, s.purpose)
	}
	training.add(c)
	f.StringVar(&displayName, "display-name", "", "a name for people")
	fileFlag(c, &file, "job")
	f.BoolVarP(&watch, "watch", "w", false, "show progress until the job ends, or waits for a step")
	return c
}

// show prints a job, after it has ended where it is to be watched.
func (k jobKind) show(c *cobra.Command, client *client, item map[string]any, watch bool) (err error) {
	if watch {
		if item, err = client.watchJob(c, cell(item, "name")); err != nil {
			return err
		}
	}
	return printItem(c, item, k.details...)
}

func (k jobKind) watchCommand() *cobra.Command {
	return &cobra.Command{Use: "watch ID", Short: "Show a job's progress until it ends, or waits for a step", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		return k.show(c, client, map[string]any{"name": client.name(k.name, args[0])}, true)
	}}
}

// stepCommand gives a trainer job that waits for one its next step.
func (k jobKind) stepCommand() *cobra.Command {
	var dataset, output string
	var watch bool
	c := &cobra.Command{Use: "step ID --dataset DATASET --output-model MODEL", Short: "Give a job that waits its next step", Args: arguments(1, 1),
		Example: "  anneal rlor step tutor --dataset scored-2 --output-model tutor-2 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if dataset == "" || output == "" {
				return usageError{fmt.Errorf("--dataset and --output-model are required")}
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{"dataset": client.name("datasets", dataset), "outputModel": output}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, "/v1/"+client.name(k.name, args[0])+":executeTrainStep", nil, body, &item); err != nil {
				return err
			}
			return k.show(c, client, item, watch)
		}}
	f := c.Flags()
	f.StringVar(&dataset, "dataset", "", "rows with scored answers to learn from")
	f.StringVar(&output, "output-model", "", "ID of the model that comes of it")
	f.BoolVarP(&watch, "watch", "w", false, "show progress until the job waits again")
	return c
}

// commandOf is the command of the jobs to which a name belongs.
func commandOf(job string) string {
	switch id(strings.TrimSuffix(job, "/"+id(job))) { // the collection
	case "dpoJobs":
		return "dpo"
	case "reinforcementFineTuningJobs":
		return "rft"
	case "rlorTrainerJobs":
		return "rlor"
	}
	return "sft"
}
