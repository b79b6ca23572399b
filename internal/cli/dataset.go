package cli

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"anneal/domain"
)

var datasets = collection{"datasets", "dataset",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"FORMAT", "format"}, {"SHAPE", "rowShape"}, {"ROWS", "exampleCount"},
		{"TOKENS", "estimatedTokenCount"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"},
		{"Format", "format"}, {"Row shape", "rowShape"},
		{"Rows", "exampleCount"}, {"Tokens", "estimatedTokenCount"}, {"Turns", "averageTurnCount"},
		{"Filtered from", "transformed.sourceDatasetId"}, {"Filter", "transformed.filter"},
		{"Split from", "splitted.sourceDatasetId"}, {"Imported from", "externalUrl"},
		{"Export", "export.state"}, {"Exported to", "export.externalUrl"}, {"Export status", "export.status.message"},
		{"Source job", "sourceJobName"}, {"Created by", "createdBy"},
		{"Created", "createTime"}, {"Updated", "updateTime"}}}

func datasetCommand() *cobra.Command {
	return group("dataset", "Manage training and evaluation datasets", datasetCreate(), datasetDerive(), datasetUpload(),
		datasetImport(), datasetExport(),
		datasets.listCommand(), datasets.getCommand(),
		datasetPreview(), datasetDownload(), datasets.deleteCommand())
}

func datasetCreate() *cobra.Command {
	var file, displayName, format string
	c := &cobra.Command{Use: "create ID", Short: "Create a dataset, upload a file and wait for its validation",
		Args:    arguments(1, 1),
		Example: "  anneal dataset create greetings --file greetings.jsonl",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if file != "" {
				if err := isFile(file); err != nil {
					return err
				}
			}
			body := map[string]any{"datasetId": args[0],
				"dataset": map[string]any{"displayName": displayName, "format": format, "userUploaded": struct{}{}}}
			if format == "" {
				delete(body["dataset"].(map[string]any), "format")
			}
			var item map[string]any
			err = client.call(c.Context(), http.MethodPost, client.path("datasets"), nil, body, &item)
			if file != "" && canUploadInto(c.Context(), client, "datasets", args[0], err) {
				fmt.Fprintf(c.ErrOrStderr(), "dataset %s already exists without valid rows: uploading the file into "+
					"it\n", args[0])
				err = nil
			}
			if err != nil {
				return err
			}
			if file != "" {
				if item, err = upload(c.Context(), client, args[0], file); err != nil {
					return err
				}
			}
			return printDataset(c, item)
		}}
	c.Flags().StringVarP(&file, "file", "f", "", "JSONL file to upload")
	c.Flags().StringVar(&displayName, "display-name", "", "display name")
	c.Flags().StringVar(&format, "format", "", "CHAT, COMPLETION or RL (default: detected from the rows)")
	return c
}

func datasetUpload() *cobra.Command {
	return &cobra.Command{Use: "upload ID FILE", Short: "Upload a file into a dataset and wait for its validation",
		Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			item, err := upload(c.Context(), client, args[0], args[1])
			if err != nil {
				return err
			}
			return printDataset(c, item)
		}}
}

// printDataset prints a dataset, and suggests the command that creates a job for its kind of rows.
func printDataset(c *cobra.Command, item map[string]any) error {
	if err := printItem(c, item, datasets.details...); err != nil || item["state"] != "READY" {
		return err
	}
	switch name := cell(item, "#name"); item["rowShape"] {
	case domain.ShapeChat, domain.ShapeCompletion:
		suggest(c, "sft create %s --dataset %s --watch", name, name)
	case domain.ShapePreference:
		suggest(c, "dpo create %s --dataset %s --watch", name, name)
	case domain.ShapePrompt:
		suggest(c, "rft create %s --dataset %s --evaluator EVALUATOR --watch", name, name)
	case domain.ShapeSamples:
		suggest(c, "rlor create %s --dataset %s --watch", name, name)
	}
	return nil
}

func datasetPreview() *cobra.Command {
	return &cobra.Command{Use: "preview ID", Short: "Show a dataset's first rows", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var page struct {
				Examples []any `json:"examples"`
			}
			if err := client.call(c.Context(), http.MethodGet, "/v1/"+client.name("datasets", args[0])+":preview",
				url.Values{"pageSize": {"10"}}, nil, &page); err != nil {
				return err
			}
			return printJSON(c.OutOrStdout(), page.Examples)
		}}
}

func datasetDownload() *cobra.Command {
	var d download
	c := &cobra.Command{Use: "download ID", Short: "Download a dataset's files", Args: arguments(1, 1),
		Example: "  anneal dataset download greetings --dir ./greetings",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			d.dir = cmp.Or(d.dir, id(args[0]))
			files, err := d.run(c, client, "/v1/"+client.name("datasets", args[0])+":getDownloadEndpoint")
			if err != nil {
				return err
			}
			return printFiles(c, files)
		}}
	d.flags(c.Flags(), "dataset")
	return c
}
