package cli

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

var models = collection{"models", "model",
	[]column{{"NAME", "name"}, {"STATE", "state"}, {"KIND", "kind"}, {"BASE", "#baseModel"}, {"PARAMETERS", "parameterCount"}, {"PRECISION", "precision"}, {"CONTEXT", "contextLength"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"State", "state"}, {"Status", "status.message"}, {"Kind", "kind"}, {"Base model", "baseModel"},
		{"Type", "modelType"}, {"Parameters", "parameterCount"}, {"Precision", "precision"}, {"Context length", "contextLength"}, {"Listens with", "speech.format"}, {"LoRA rank", "loraRank"}, {"Bytes", "sizeBytes"},
		{"Public", "public"}, {"From job", "sourceJob"}, {"Created", "createTime"}}}

func modelCommand() *cobra.Command {
	return group("model", "Base models and tuned ones", modelCreate(), modelUpload(), models.listCommand(), modelNames(), models.getCommand(), modelDownload(), modelExport(), modelPrepare(), models.deleteCommand())
}

// modelNames lists what models can be asked by, which the operator's names are
// part of.
func modelNames() *cobra.Command {
	return &cobra.Command{Use: "names", Short: "List the names that models can be asked by, and which of them answer", Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		var list struct{ Data []map[string]any }
		if err := client.call(c.Context(), http.MethodGet, "/inference/v1/models", nil, nil, &list); err != nil {
			return err
		}
		return printItems(c, list.Data, column{"NAME", "id"}, column{"ANSWERS", "deployed"}, column{"KIND", "kind"}, column{"CONTEXT", "context_length"}, column{"DEPLOYMENT", "deployment"})
	}}
}

func modelDownload() *cobra.Command {
	var dir, precision string
	c := &cobra.Command{Use: "download ID", Short: "Download a model's files", Args: arguments(1, 1), Example: "  anneal model download polite --dir ./polite",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			query := url.Values{}
			if precision != "" {
				query.Set("precision", precision)
			}
			files, err := client.download(c, "/v1/"+client.name("models", args[0])+":getDownloadEndpoint", query, cmp.Or(dir, id(args[0])))
			if err != nil {
				return err
			}
			return printFiles(c, files)
		}}
	c.Flags().StringVar(&dir, "dir", "", "folder to write to (default: the model's ID)")
	c.Flags().StringVar(&precision, "precision", "", "the copy in this precision, such as BF16 (default: the model as it was made)")
	return c
}

func modelPrepare() *cobra.Command {
	var precision string
	var watch bool
	c := &cobra.Command{Use: "prepare ID --precision PRECISION", Short: "Write a copy in another precision", Args: arguments(1, 1), Example: "  anneal model prepare polite --precision BF16 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if precision == "" {
				return required("precision")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			name := client.name("models", args[0])
			if err := client.call(c.Context(), http.MethodPost, "/v1/"+name+":prepare", nil, map[string]any{"precision": precision}, nil); err != nil {
				return err
			}
			if watch {
				if err := client.awaitCopy(c.Context(), name, precision); err != nil {
					return leaving(c, err, "The copy is still being written; `anneal model prepare %s --precision %s --watch` waits for it again.", id(name), precision)
				}
				return done(c, "model", args[0], "is there in "+precision)
			}
			return done(c, "model", args[0], "is being written in "+precision)
		}}
	c.Flags().StringVar(&precision, "precision", "", "BF16, FP16 or FP8")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until it is written")
	return c
}

// awaitCopy waits until a model's copy is written, or has failed.
func (c *client) awaitCopy(ctx context.Context, name, precision string) error {
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
		for _, made := range model.Copies {
			switch {
			case made.Precision != precision:
			case made.State == "READY":
				return nil
			case made.State == "FAILED":
				return errors.New(made.Status.Message)
			}
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}
