package cli

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

var models = collection{"models", "model",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"KIND", "kind"}, {"BASE", "#baseModel"},
		{"PARAMETERS", "parameterCount"}, {"PRECISION", "precision"}, {"CONTEXT", "contextLength"},
		{"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"State", "state"},
		{"Status", "status.message"}, {"Kind", "kind"}, {"Base model", "baseModel"},
		{"Type", "modelType"}, {"Parameters", "parameterCount"}, {"Precision", "precision"},
		{"Context length", "contextLength"}, {"Speech format", "speech.format"}, {"LoRA rank", "loraRank"},
		{"Bytes", "sizeBytes"},
		{"Public", "public"}, {"From job", "sourceJob"}, {"Created", "createTime"}}}

func modelCommand() *cobra.Command {
	return group("model", "Manage base models and tuned models", modelCreate(), modelUpload(), models.listCommand(),
		modelNames(), models.getCommand(), modelDownload(), modelExport(), modelPrepare(), models.deleteCommand())
}

// modelNames returns the command that lists the names of models for requests, including the
// operator's aliases.
func modelNames() *cobra.Command {
	return &cobra.Command{Use: "names", Short: "List the names by which models can be used, and which are deployed",
		Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var list struct{ Data []map[string]any }
			if err := client.call(c.Context(), http.MethodGet, "/inference/v1/models", nil, nil, &list); err != nil {
				return err
			}
			return printItems(c, noRows{"no models", "create one with `anneal model create`"},
				list.Data, column{"NAME", "id"}, column{"DEPLOYED", "deployed"}, column{"KIND", "kind"},
				column{"CONTEXT", "context_length"}, column{"DEPLOYMENT", "deployment"})
		}}
}

func modelDownload() *cobra.Command {
	var d download
	var precision string
	var withBase bool
	c := &cobra.Command{Use: "download ID", Short: "Download a model's files", Args: arguments(1, 1),
		Long: "Download a model's files. An adapter comes with the tokenizer of its base model, and adapter_config.json " +
			"names the base model: PEFT's AutoPeftModelForCausalLM opens the directory if the base model is in the working " +
			"directory under its ID, where `anneal model download` puts it, or was downloaded with --with-base.",
		Example: "  anneal model download polite --dir ./polite\n  anneal model download polite --with-base",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if precision != "" {
				d.query = url.Values{"precision": {precision}}
			}
			name := client.name("models", args[0])
			d.dir = cmp.Or(d.dir, id(args[0]))
			if withBase {
				if model, err := getModel(c.Context(), client, name); err != nil || model.Kind != domain.PEFTAddon {
					return cmp.Or(err, usage.Errorf("--with-base is only for adapters, and model %s is not an adapter",
						args[0]))
				}
			}
			files, err := d.run(c, client, "/v1/"+name+":getDownloadEndpoint")
			if err != nil {
				return err
			}
			more, err := d.completeAdapter(c, client, name, withBase)
			if err != nil {
				return err
			}
			return printFiles(c, append(files, more...))
		}}
	d.flags(c.Flags(), "model")
	c.Flags().StringVar(&precision, "precision", "", "precision of the copy, such as BF16 (default: the original)")
	c.Flags().BoolVar(&withBase, "with-base", false,
		"download the base model of an adapter too, into the subdirectory "+baseDirectory)
	return c
}

func modelPrepare() *cobra.Command {
	var precision string
	var watch bool
	c := &cobra.Command{Use: "prepare ID --precision PRECISION", Short: "Prepare a copy in another precision",
		Args: arguments(1, 1), Example: "  anneal model prepare polite --precision BF16 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if precision == "" {
				return required("precision")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			name := client.name("models", args[0])
			if err := client.call(c.Context(), http.MethodPost, "/v1/"+name+":prepare", nil,
				map[string]any{"precision": precision}, nil); err != nil {
				return err
			}
			if watch {
				if err := awaitCopy(c.Context(), client, name, precision); err != nil {
					return onInterrupt(c, err,
						"The copy is still being written. To wait for it again, run `anneal model prepare %s --precision %s --watch`.",
						id(name),
						precision)
				}
				return printDone(c, "model", args[0], "is available in "+precision)
			}
			return printDone(c, "model", args[0], "is being prepared in "+precision)
		}}
	c.Flags().StringVar(&precision, "precision", "", "BF16, FP16 or FP8")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until the copy is prepared")
	return c
}

// awaitCopy waits until the copy of a model in a precision is READY. It returns an error if the
// copy is FAILED.
func awaitCopy(ctx context.Context, c *client, name, precision string) error {
	for {
		var model struct {
			Precision string `json:"precision"`
			Copies    []struct {
				Precision string `json:"precision"`
				State     string `json:"state"`
				Status    struct {
					Message string `json:"message"`
				} `json:"status"`
			} `json:"copies"`
		}
		if err := c.call(ctx, http.MethodGet, "/v1/"+name, nil, nil, &model); err != nil {
			return err
		}
		if model.Precision == precision {
			return nil
		}
		for _, copied := range model.Copies {
			switch {
			case copied.Precision != precision:
			case copied.State == "READY":
				return nil
			case copied.State == "FAILED":
				return errors.New(copied.Status.Message)
			}
		}
		if err := sleep(ctx, watchPoll); err != nil {
			return err
		}
	}
}
