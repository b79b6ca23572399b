package cli

import (
	"net/http"

	"github.com/spf13/cobra"
)

func (k jobKind) checkpointsCommand() *cobra.Command {
	return &cobra.Command{Use: "checkpoints ID", Short: "List a job's checkpoints", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := "/v1/" + client.name(k.name, args[0]) + "/checkpoints"
			items, err := client.list(c.Context(), path, "checkpoints", nil)
			if err != nil {
				return err
			}
			columns := []column{{"ID", "#name"}, {"STEP", "step"}, {"ATTEMPT", "attempt"}, {"LOSS", "metrics.train/loss"}}
			for _, metric := range k.metrics {
				columns = append(columns, column{metric.title, "metrics." + metric.path})
			}
			return printItems(c, noRows{"the job has no checkpoints yet", "`anneal " + k.command + " get ID` shows its state"},
				items, append(columns, column{"CREATED", "createTime"})...)
		}}
}

func (k jobKind) promoteCommand() *cobra.Command {
	return &cobra.Command{Use: "promote ID CHECKPOINT MODEL", Short: "Promote a checkpoint of a job to a model",
		Args:    arguments(3, 3),
		Example: "  anneal " + k.command + " promote tuned 1-200 tuned-200",
		Long: "The model is kept when the job or the checkpoint is deleted. `anneal " + k.command +
			" checkpoints ID` lists the checkpoints.",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := "/v1/" + client.name(k.name, args[0]) + "/checkpoints/" + id(args[1]) + ":promote"
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, path, nil, map[string]any{"modelId": args[2]},
				&item); err != nil {
				return err
			}
			if err := printItem(c, item, models.details...); err != nil {
				return err
			}
			if cell(item, "kind") == "HF_PEFT_ADDON" {
				suggest(c, "addon load %s --model %s --deployment DEPLOYMENT --watch", args[2], args[2])
			} else {
				suggest(c, "deployment create %s --model %s --watch", args[2], args[2])
			}
			return nil
		}}
}
