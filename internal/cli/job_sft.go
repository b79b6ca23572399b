package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

func sftCreate() *cobra.Command {
	var flags sftFlags
	var file string
	var watch bool
	c := &cobra.Command{Use: "create [ID]", Short: "Train a model on answers to imitate", Args: arguments(0, 1),
		Example: "  anneal sft create polite --dataset greetings --epochs 8 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body, err := jsonFile(c, file)
			if err != nil {
				return err
			}
			if err := flags.fill(c, client, body); err != nil {
				return err
			}
			query := url.Values{}
			if len(args) == 1 {
				query.Set("supervisedFineTuningJobId", args[0])
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path("supervisedFineTuningJobs"), query, body, &item); err != nil {
				return err
			}
			if watch {
				if item, err = client.watchJob(c, cell(item, "name")); err != nil {
					return err
				}
			}
			return printItem(c, item, supervisedJobs.details...)
		}}
	flags.add(c)
	fileFlag(c, &file, "job")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show progress until the job ends")
	return c
}

func sftWatch() *cobra.Command {
	return &cobra.Command{Use: "watch ID", Short: "Show a job's progress until it ends", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		item, err := client.watchJob(c, client.name("supervisedFineTuningJobs", args[0]))
		if err != nil {
			return err
		}
		return printItem(c, item, supervisedJobs.details...)
	}}
}
