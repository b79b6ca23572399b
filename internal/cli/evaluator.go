package cli

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"anneal/domain"
)

var evaluators = collection{"evaluators", "evaluator",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"REVISION", "revision"}, {"ACTIVE", "activeRevision"},
		{"ENTRY POINT", "entryPoint"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"State", "state"},
		{"Status", "status.message"}, {"Revision", "revision"},
		{"Active revision", "activeRevision"}, {"Entry point", "entryPoint"}, {"Requirements", "requirements"},
		{"Commit", "commitHash"}, {"Dataset", "defaultDataset"},
		{"Created by", "createdBy"}, {"Created", "createTime"}, {"Updated", "updateTime"}}}

func evaluatorCommand() *cobra.Command {
	return group("evaluator", "Manage evaluators: code that scores responses", evaluatorCreate(), evaluatorUpload(),
		evaluatorPreview(), evaluatorLogs(), evaluators.listCommand(), evaluators.getCommand(), evaluators.deleteCommand())
}

// printEvaluator prints an evaluator and suggests how to try it. It prints a warning if the
// evaluator is ACTIVE although the server's trial call of its code failed.
func printEvaluator(c *cobra.Command, item map[string]any) error {
	if err := printItem(c, item, evaluators.details...); err != nil {
		return err
	}
	name := cell(item, "#name")
	switch message := cell(item, statusMessage); {
	case item["state"] != domain.EvaluatorActive:
		suggest(c, "evaluator logs %s", name)
	case message != "-":
		warn(c, "evaluator %s is ACTIVE, but the trial call of its code failed: try it on your own rows with `anneal "+
			"evaluator preview %s --file ROWS.jsonl`", name, name)
	default:
		suggest(c, "evaluator preview %s --file ROWS.jsonl", name)
	}
	return nil
}

func evaluatorCreate() *cobra.Command {
	var noWait bool
	var secretIDs []string
	var dir, entryPoint, requirements, dataset, displayName, description string
	c := &cobra.Command{Use: "create ID --dir DIR", Short: "Create an evaluator from a directory of code",
		Args:    arguments(1, 1),
		Example: "  anneal evaluator create exact --dir examples/exact-match --entry-point main.py::evaluate",
		RunE: func(c *cobra.Command, args []string) error {
			if dir == "" {
				return required("dir")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			code, done, err := readCode(dir)
			defer done()
			if err != nil {
				return err
			}
			evaluator := map[string]any{"displayName": displayName, "description": description, "entryPoint": entryPoint,
				"requirements":   requirements,
				"defaultDataset": client.name("datasets", dataset)}
			if len(secretIDs) > 0 {
				var names []string
				for _, one := range secretIDs {
					names = append(names, client.name("secrets", one))
				}
				evaluator["secrets"] = names
			}
			body := map[string]any{"evaluatorId": args[0], "evaluator": evaluator}
			if err := client.call(c.Context(), http.MethodPost, client.path("evaluators"), nil, body, nil); err != nil {
				return err
			}
			item, err := uploadCode(c, client, args[0], code, !noWait)
			if err != nil {
				return withHint(err, fmt.Sprintf("evaluator %s exists: upload its corrected code with `anneal evaluator upload "+
					"%s %s`", id(args[0]), id(args[0]), dir))
			}
			return printEvaluator(c, item)
		}}
	f := c.Flags()
	f.StringVar(&dir, "dir", "", "directory with the code; hidden files are ignored")
	f.StringVar(&entryPoint, "entry-point", "", "function that scores, such as main.py::evaluate")
	f.StringVar(&requirements, "requirements", "", "packages that the code requires")
	f.StringArrayVar(&secretIDs, "secret", nil,
		"ID of a `SECRET` whose value the code gets in the environment variable of the secret's key name; "+
			"repeatable")
	bindReference(c, "secret", "secrets", "secrets")
	f.StringVar(&dataset, "dataset", "", "default dataset")
	bindReference(c, "dataset", "defaultDataset", "datasets")
	f.StringVar(&displayName, "display-name", "", "display name")
	f.StringVar(&description, "description", "", "description")
	f.BoolVar(&noWait, "no-wait", false, "do not wait until the evaluator is built")
	return c
}
