package cli

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
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

func (k jobKind) group() *cobra.Command {
	c := group(k.command, k.short, k.createCommand(), k.watchCommand(), k.listCommand(), k.getCommand(), k.metricsCommand(k.figures...),
		k.verbCommand("cancel", "Stop a job and keep its last checkpoint", "is being cancelled"),
		k.verbCommand("resume", "Let a stopped job go on", "goes on"), k.deleteCommand())
	c.AddCommand(k.children...)
	return c
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
	for _, ref := range k.needs {
		bindReference(c, ref.flag, ref.field, ref.collection)
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
				return usage.Errorf("--dataset and --output-model are required")
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
