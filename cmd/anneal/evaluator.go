package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

var evaluators = collection{"evaluators", "evaluator",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"REVISION", "revision"}, {"ACTIVE", "activeRevision"}, {"ENTRY POINT", "entryPoint"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"State", "state"}, {"Status", "status.message"}, {"Revision", "revision"},
		{"Active revision", "activeRevision"}, {"Entry point", "entryPoint"}, {"Requirements", "requirements"}, {"Commit", "commitHash"}, {"Dataset", "defaultDataset"},
		{"Created by", "createdBy"}, {"Created", "createTime"}, {"Updated", "updateTime"}}}

func evaluatorCommand() *cobra.Command {
	return group("evaluator", "Code that scores answers", evaluatorCreate(), evaluatorUpload(), evaluators.listCommand(), evaluators.getCommand(), evaluators.deleteCommand())
}

func evaluatorCreate() *cobra.Command {
	var dir, entryPoint, requirements, dataset, displayName, description string
	c := &cobra.Command{Use: "create ID", Short: "Create an evaluator from a folder of code", Args: arguments(1, 1),
		Example: "  anneal evaluator create right --dir ./right --entry-point main.py::evaluate",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if dir == "" {
				return usageError{fmt.Errorf("--dir is required")}
			}
			code, err := readCode(dir)
			if err != nil {
				return err
			}
			evaluator := map[string]any{"displayName": displayName, "description": description, "entryPoint": entryPoint, "requirements": requirements,
				"defaultDataset": client.name("datasets", dataset)}
			body := map[string]any{"evaluatorId": args[0], "evaluator": evaluator}
			if err := client.call(c.Context(), http.MethodPost, client.path("evaluators"), nil, body, nil); err != nil {
				return err
			}
			item, err := client.sendCode(c, args[0], code)
			if err != nil {
				return fmt.Errorf("%w\nevaluator %s is there and has no code yet: `anneal evaluator upload` sends it again", err, id(args[0]))
			}
			return printItem(c, item, evaluators.details...)
		}}
	f := c.Flags()
	f.StringVar(&dir, "dir", "", "folder with the code: the files in it, without hidden ones and folders")
	f.StringVar(&entryPoint, "entry-point", "", "what is called, such as main.py::evaluate")
	f.StringVar(&requirements, "requirements", "", "what the code needs installed")
	f.StringVar(&dataset, "dataset", "", "dataset that it is for")
	f.StringVar(&displayName, "display-name", "", "a name for people")
	f.StringVar(&description, "description", "", "what it scores")
	return c
}

func evaluatorUpload() *cobra.Command {
	return &cobra.Command{Use: "upload ID FOLDER", Short: "Upload the code of a new revision", Args: arguments(2, 2), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		code, err := readCode(args[1])
		if err != nil {
			return err
		}
		name := client.name("evaluators", args[0])
		query := url.Values{"prepareCodeUpload": {"true"}}
		if err := client.call(c.Context(), http.MethodPatch, "/v1/"+name, query, map[string]any{"name": name}, nil); err != nil {
			return err
		}
		item, err := client.sendCode(c, args[0], code)
		if err != nil {
			return err
		}
		return printItem(c, item, evaluators.details...)
	}}
}

// readCode lists the files of a folder of code: those at its top that are not
// hidden. Folders in it are refused, since they could not be sent.
func readCode(dir string) (modelFiles, error) {
	code := modelFiles{dir: dir, sizes: map[string]int64{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return code, err
	}
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(dir, entry.Name())) // what a link leads to
		switch {
		case err != nil:
			return code, err
		case entry.Name()[0] == '.' || entry.Name() == "__pycache__":
		case info.IsDir():
			return code, fmt.Errorf("%s holds the folder %s: code is sent as files of one folder", dir, entry.Name())
		case info.Mode().IsRegular() && info.Size() > 0:
			code.sizes[entry.Name()] = info.Size()
		}
	}
	if len(code.sizes) == 0 {
		return code, fmt.Errorf("%s has no files", dir)
	}
	return code, nil
}

// sendCode uploads the code of the revision that waits for it, and answers the
// evaluator.
func (c *client) sendCode(cmd *cobra.Command, id string, code modelFiles) (item map[string]any, err error) {
	name := c.name("evaluators", id)
	if err := c.putFiles(cmd, name, code); err != nil {
		return nil, err
	}
	err = c.call(cmd.Context(), http.MethodPost, "/v1/"+name+":validateUpload", nil, struct{}{}, &item)
	return item, err
}
