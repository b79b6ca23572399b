package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func deploymentWatch() *cobra.Command {
	return &cobra.Command{Use: "watch ID", Short: "Show how a deployment comes up until it is READY", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		item, err := client.watchDeployment(c, client.name("deployments", args[0]))
		if err != nil {
			return err
		}
		return printItem(c, item, deployments.details...)
	}}
}

// watchDeployment tells how a deployment comes up until it is READY or FAILED.
// Who leaves is told that it goes on.
func (c *client) watchDeployment(cmd *cobra.Command, name string) (map[string]any, error) {
	item, err := c.tellDeployment(cmd, name)
	return item, leaving(cmd, err, "The deployment goes on; `anneal deployment watch %s` shows it again, `anneal deployment delete %s` removes it.", id(name), id(name))
}

// tellDeployment tells how a deployment comes up, and what holds it up.
func (c *client) tellDeployment(cmd *cobra.Command, name string) (map[string]any, error) {
	out := cmd.ErrOrStderr()
	last, held := "", "-" // the line and the reason that were printed last
	watch := watched{client: c, cmd: cmd, name: name}
	for {
		item, err := watch.read()
		if err != nil {
			return nil, err
		}
		line := fmt.Sprintf("%-9s %s of %s replicas ready, %s downloading, %s initializing, %s waiting for a place", cell(item, "state"),
			cell(item, "replicaStats.readyReplicaCount"), cell(item, "desiredReplicaCount"), cell(item, "replicaStats.downloadingModelReplicaCount"),
			cell(item, "replicaStats.initializingReplicaCount"), cell(item, "replicaStats.pendingSchedulingReplicaCount"))
		if line != last {
			fmt.Fprintln(out, line)
		}
		last = line
		switch cell(item, "state") {
		case "READY":
			return item, nil
		case "FAILED", "DELETING", "DELETED":
			return item, fmt.Errorf("deployment %s is %s: %s", id(name), cell(item, "state"), cell(item, "status.message"))
		}
		if words := cell(item, statusText); words != held {
			if held = words; words != "-" {
				fmt.Fprintln(out, words)
			}
		}
		if err := sleep(cmd.Context(), 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
