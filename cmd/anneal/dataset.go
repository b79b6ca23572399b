package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

var datasets = collection{"datasets", "dataset",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"FORMAT", "format"}, {"SHAPE", "rowShape"}, {"ROWS", "exampleCount"}, {"TOKENS", "estimatedTokenCount"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"}, {"Format", "format"}, {"Shape of rows", "rowShape"},
		{"Rows", "exampleCount"}, {"Tokens", "estimatedTokenCount"}, {"Turns", "averageTurnCount"},
		{"Filtered from", "transformed.sourceDatasetId"}, {"Filter", "transformed.filter"}, {"Split from", "splitted.sourceDatasetId"}, {"Made for", "sourceJobName"}, {"Created by", "createdBy"}, {"Created", "createTime"}, {"Updated", "updateTime"}}}

func datasetCommand() *cobra.Command {
	return group("dataset", "Training and evaluation data", datasetCreate(), datasetDerive(), datasetUpload(), datasets.listCommand(), datasets.getCommand(),
		datasetPreview(), datasetDownload(), datasets.deleteCommand())
}

func datasetCreate() *cobra.Command {
	var file, displayName, format string
	c := &cobra.Command{Use: "create ID", Short: "Create a dataset, upload a file into it and wait until it is checked", Args: arguments(1, 1),
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
			body := map[string]any{"datasetId": args[0], "dataset": map[string]any{"displayName": displayName, "format": format, "userUploaded": struct{}{}}}
			if format == "" {
				delete(body["dataset"].(map[string]any), "format")
			}
			var item map[string]any
			err = client.call(c.Context(), http.MethodPost, client.path("datasets"), nil, body, &item)
			if file != "" && client.unfinished(c.Context(), "datasets", args[0], err) {
				fmt.Fprintf(c.ErrOrStderr(), "dataset %s is there and has no valid rows yet: uploading into it\n", args[0])
				err = nil
			}
			if err != nil {
				return err
			}
			if file != "" {
				if item, err = client.upload(c.Context(), args[0], file); err != nil {
					return err
				}
			}
			return printItem(c, item, datasets.details...)
		}}
	c.Flags().StringVarP(&file, "file", "f", "", "JSONL file to upload")
	c.Flags().StringVar(&displayName, "display-name", "", "a name for people")
	c.Flags().StringVar(&format, "format", "", "CHAT, COMPLETION or RL (default: as the rows say)")
	return c
}

func isFile(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	return err
}

// unfinished tells whether something could not be created because an earlier
// attempt left it without a valid upload.
func (c *client) unfinished(ctx context.Context, collection, id string, err error) bool {
	var refused *apiError
	if !errors.As(err, &refused) || refused.HTTP != http.StatusConflict {
		return false
	}
	var item map[string]any
	err = c.call(ctx, http.MethodGet, "/v1/"+c.name(collection, id), nil, nil, &item)
	return err == nil && item["state"] == "UPLOADING"
}

func datasetUpload() *cobra.Command {
	return &cobra.Command{Use: "upload ID FILE", Short: "Upload a file into a dataset and wait until it is checked", Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			item, err := client.upload(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return printItem(c, item, datasets.details...)
		}}
}

// upload sends a file and waits for the verdict on its rows.
func (c *client) upload(ctx context.Context, dataset, path string) (map[string]any, error) {
	if err := isFile(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := newForm(nil, path, f)
	if err != nil {
		return nil, err
	}
	res, err := c.request(ctx, http.MethodPost, "/v1/"+c.name("datasets", dataset)+":upload", nil, body.contentType, body)
	if err != nil {
		return nil, err
	}
	res.Body.Close()
	return c.awaitUpload(ctx, c.name("datasets", dataset))
}

// awaitUpload waits for the verdict on what was uploaded into a resource.
func (c *client) awaitUpload(ctx context.Context, name string) (map[string]any, error) {
	for {
		var item map[string]any
		if err := c.call(ctx, http.MethodGet, "/v1/"+name, nil, nil, &item); err != nil {
			return nil, err
		}
		switch {
		case item["state"] == "READY":
			return item, nil
		case cell(item, "status.code") != "OK" && cell(item, "status.code") != "-":
			return item, fmt.Errorf("%s is not READY: %s", name, cell(item, "status.message"))
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// pause waits between two looks at the server.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func datasetPreview() *cobra.Command {
	return &cobra.Command{Use: "preview ID", Short: "Show a dataset's first rows", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		var page struct {
			Examples []any `json:"examples"`
		}
		if err := client.call(c.Context(), http.MethodGet, "/v1/"+client.name("datasets", args[0])+":preview", url.Values{"pageSize": {"10"}}, nil, &page); err != nil {
			return err
		}
		return printJSON(c.OutOrStdout(), page.Examples)
	}}
}

func datasetDownload() *cobra.Command {
	var dir string
	c := &cobra.Command{Use: "download ID", Short: "Download a dataset's files", Args: arguments(1, 1), Example: "  anneal dataset download greetings --dir ./greetings",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			files, err := client.download(c, "/v1/"+client.name("datasets", args[0])+":getDownloadEndpoint", nil, cmp.Or(dir, id(args[0])))
			if err != nil {
				return err
			}
			return printFiles(c, files)
		}}
	c.Flags().StringVar(&dir, "dir", "", "folder to write to (default: the dataset's ID)")
	return c
}

// printFiles tells which files were written.
func printFiles(c *cobra.Command, files []string) error {
	if inJSON, err := asJSON(c); err != nil || inJSON {
		return errors.Join(err, printJSON(c.OutOrStdout(), map[string]any{"files": files}))
	}
	for _, file := range files {
		note(c, "%s", file)
	}
	return nil
}

// download reads all files to which an endpoint gives URLs into a folder, and
// answers where each lies.
func (c *client) download(cmd *cobra.Command, endpoint string, query url.Values, folder string) ([]string, error) {
	var answer struct {
		URLs map[string]string `json:"filenameToSignedUrls"`
	}
	if err := c.call(cmd.Context(), http.MethodGet, endpoint, query, nil, &answer); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	files := []string{}
	for _, name := range slices.Sorted(maps.Keys(answer.URLs)) {
		target := filepath.Join(folder, filepath.FromSlash(name))
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, fmt.Errorf("the server names a file %q: it would lie outside of %s", name, folder)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return nil, err
		}
		if err := c.fetch(cmd.Context(), answer.URLs[name], target); err != nil {
			return nil, err
		}
		files = append(files, target)
	}
	return files, nil
}

// fetch writes a file, whole or not at all.
func (c *client) fetch(ctx context.Context, link, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return err
	}
	res, err := c.send(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refusal(res)
	}
	part := target + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, res.Body)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Rename(part, target)
}
