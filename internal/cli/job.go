package cli

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

// A jobKind describes the commands for one kind of training jobs.
type jobKind struct {
	collection
	command  string // name of the command, such as sft
	short    string // short help of the command
	create   string // short help of the subcommand create
	long     string // long help of the subcommand create
	examples []string
	fields   []field  // fields that create sets, in addition to trainingFields
	training string   // beginning of the paths of trainingFields, such as trainingConfig.
	metrics  []column // columns of the subcommand metrics, in addition to the columns for all kinds of jobs
	stepwise bool     // a job can wait for further steps, and has the subcommand step
}

// group returns the command for the kind, with its subcommands.
func (k jobKind) group() *cobra.Command {
	c := group(k.command, k.short, k.createCommand(), k.watchCommand(), k.listCommand(), k.getCommand(),
		k.metricsCommand(), k.logsCommand(), k.checkpointsCommand(), k.promoteCommand(),
		k.cancelCommand(), k.resumeCommand(), k.priorityCommand(), k.deleteCommand())
	if k.stepwise {
		c.AddCommand(k.stepCommand())
	}
	return c
}

func (k jobKind) cancelCommand() *cobra.Command {
	return k.watchedVerb("cancel", "Stop a job and keep its last checkpoint", "is being cancelled",
		"wait until the job is cancelled", func(c *cobra.Command, client *client, name string) error {
			item, err := (&jobWatch{watch: watch{client: client, cmd: c, name: name}, message: "-"}).run()
			if err = onInterrupt(c, err, "The job is still being cancelled. Run `anneal %s watch %s` to wait for its end.",
				k.command, id(name)); err != nil && jobState(item) != "CANCELLED" {
				return err
			}
			return printItem(c, item, k.details...)
		})
}

func (k jobKind) resumeCommand() *cobra.Command {
	return k.watchedVerb("resume", "Resume a stopped job from its last checkpoint", "is being resumed",
		"show progress until the job "+k.ends(), func(c *cobra.Command, client *client, name string) error {
			return k.show(c, client, map[string]any{"name": name}, true)
		})
}

// priorityCommand returns the subcommand that sets the priority of a job.
func (k jobKind) priorityCommand() *cobra.Command {
	levels := map[string]domain.JobPriority{"low": domain.PriorityLow, "normal": domain.PriorityNormal,
		"high": domain.PriorityHigh}
	return &cobra.Command{Use: "priority ID LEVEL", Args: arguments(2, 2),
		Short:   "Set the priority of a job among the jobs of its account: low, normal or high",
		Example: "  anneal " + k.command + " priority my-job high",
		RunE: func(c *cobra.Command, args []string) error {
			priority, known := levels[args[1]]
			if !known {
				return usage.Errorf("priority %q must be low, normal or high%s", args[1],
					domain.DidYouMean(args[1], []string{"low", "normal", "high"}))
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := "/v1/" + client.name(k.name, args[0]) + ":setPriority"
			if err := client.call(c.Context(), http.MethodPost, path, nil, map[string]any{"priority": priority},
				nil); err != nil {
				return err
			}
			return printDone(c, k.noun, args[0], "has priority "+args[1])
		}}
}

// trainingFields returns the fields that configure training, which all kinds have. prefix is the
// beginning of their paths in the request.
func trainingFields(prefix string) []field {
	return []field{
		{flag: "base-model", path: prefix + "baseModel", value: domain.DefaultBaseModel, usage: "model to start from",
			collection: "models"},
		{flag: "warm-start-from", path: prefix + "warmStartFrom", value: "",
			usage: "adapter to continue from, instead of a base model", collection: "models"},
		{flag: "output-model", path: prefix + "outputModel", value: "", usage: "ID of the tuned model (default: the job ID)"},
		{flag: "epochs", path: prefix + "epochs", value: 1, usage: "number of passes through the dataset"},
		{flag: "lora-rank", path: prefix + "loraRank", value: 8, usage: "rank of the LoRA adapter; 0 trains all parameters"},
		{flag: "learning-rate", path: prefix + "learningRate", value: 0.0, usage: "learning rate; 0 is the engine's default"},
	}
}

func (k jobKind) createCommand() *cobra.Command {
	var file string
	var watch bool
	fields := slices.Concat(k.fields, trainingFields(k.training),
		[]field{{flag: "display-name", path: "displayName", value: "", usage: "display name"}})
	c := &cobra.Command{Use: "create [ID]", Short: k.create, Long: k.long, Args: arguments(0, 1),
		Example: "  " + strings.Join(k.examples, "\n  "),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body, err := readJSONFile(c, file)
			if err != nil {
				return err
			}
			if err := fillBody(c, client, fields, body); err != nil {
				return err
			}
			if fieldAt(body, k.training+"baseModel") == nil && fieldAt(body, k.training+"warmStartFrom") == nil {
				if err := setField(body, k.training+"baseModel", domain.DefaultBaseModel); err != nil {
					return err
				}
			}
			query := url.Values{}
			if len(args) == 1 {
				query.Set(strings.TrimSuffix(k.name, "s")+"Id", args[0])
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path(k.name), query, body, &item); err != nil {
				return err
			}
			if !watch {
				warnUnready(c, client, item)
			}
			return k.show(c, client, item, watch)
		}}
	addFields(c, fields)
	fileFlag(c, &file, "job")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show progress until the job "+k.ends())
	return c
}

// ends returns the end of a sentence in the help: when --watch stops showing a job.
func (k jobKind) ends() string {
	if k.stepwise {
		return "ends or waits for a step"
	}
	return "ends"
}

// show prints a job. If watch is true, it first shows the progress until the job ends or waits for
// a step.
func (k jobKind) show(c *cobra.Command, client *client, item map[string]any, watch bool) (err error) {
	if watch {
		if item, err = watchJob(c, client, cell(item, "name")); err != nil {
			return err
		}
	}
	if err := printItem(c, item, k.details...); err != nil {
		return err
	}
	switch jobState(item) {
	case "COMPLETED", "EARLY_STOPPED":
		if model, _ := fieldAt(item, k.training+"outputModel").(string); model != "" {
			suggest(c, "deployment create %s --model %s --watch", id(model), id(model))
		}
	case "IDLE":
		suggest(c, "%s step %s --dataset DATASET --output-model MODEL --watch", k.command, cell(item, "#name"))
	default:
		suggest(c, "%s watch %s", k.command, cell(item, "#name"))
	}
	return nil
}

// warnUnready prints a warning if a dataset of a new job is not READY: the job fails if its rows do
// not arrive in time.
func warnUnready(c *cobra.Command, client *client, job map[string]any) {
	for _, field := range []string{"dataset", "evaluationDataset"} {
		name, _ := job[field].(string)
		if name == "" {
			continue
		}
		var dataset map[string]any
		err := client.call(c.Context(), http.MethodGet, "/v1/"+name, nil, nil, &dataset)
		if state := cell(dataset, "state"); err == nil && state != "READY" {
			warn(c, "dataset %s is %s and has no valid rows yet, without which the job will fail: `anneal dataset "+
				"get %s` shows why", id(name), state, id(name))
		}
	}
}

func (k jobKind) watchCommand() *cobra.Command {
	return &cobra.Command{Use: "watch ID", Short: "Show a job's progress until it " + k.ends(), Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			return k.show(c, client, map[string]any{"name": client.name(k.name, args[0])}, true)
		}}
}

func (k jobKind) stepCommand() *cobra.Command {
	var dataset, output string
	var watch bool
	c := &cobra.Command{Use: "step ID --dataset DATASET --output-model MODEL",
		Short: "Start the next training step of a job that waits for one (IDLE)", Args: arguments(1, 1),
		Example: "  anneal rlor step tutor --dataset scored-2 --output-model tutor-2 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if dataset == "" || output == "" {
				return usage.Errorf("--dataset and --output-model are required")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{"dataset": client.name("datasets", dataset), "outputModel": output}
			var item map[string]any
			path := "/v1/" + client.name(k.name, args[0]) + ":executeTrainStep"
			if err := client.call(c.Context(), http.MethodPost, path, nil, body, &item); err != nil {
				return err
			}
			return k.show(c, client, item, watch)
		}}
	f := c.Flags()
	f.StringVar(&dataset, "dataset", "", "training dataset, of rows with scored responses")
	bindReference(c, "dataset", "dataset", "datasets")
	f.StringVar(&output, "output-model", "", "ID of the model that the step creates")
	f.BoolVarP(&watch, "watch", "w", false, "show progress until the job waits for the next step")
	return c
}
