package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func deploymentWatch() *cobra.Command {
	return &cobra.Command{Use: "watch ID", Short: "Show the progress of a deployment until it is READY",
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			return printDeployment(c, client, map[string]any{"name": client.name("deployments", args[0])}, true)
		}}
}

// watchDeployment prints the progress of a deployment until it is READY, and returns the
// deployment. It returns an error if the deployment is FAILED. If the user interrupts the command,
// it prints that the deployment continues on the server.
func watchDeployment(cmd *cobra.Command, c *client, name string) (map[string]any, error) {
	item, err := followDeployment(cmd, c, name)
	return item, onInterrupt(cmd, err,
		"The deployment continues. Run `anneal deployment watch %s` to show its progress again, "+
			"or `anneal deployment delete %s` to delete it.", id(name), id(name))
}

// followDeployment prints the progress of a deployment, and what delays it, until the deployment is
// READY, and returns the deployment.
func followDeployment(cmd *cobra.Command, c *client, name string) (map[string]any, error) {
	out := cmd.ErrOrStderr()
	last, message := "", "-" // last printed progress line and status message
	watch := watch{client: c, cmd: cmd, name: name}
	for {
		item, err := watch.read()
		if err != nil {
			return nil, err
		}
		line := fmt.Sprintf("%-9s %s of %s replicas ready, %s downloading, %s initializing, %s waiting for a node",
			cell(item, "state"),
			cell(item, "replicaStats.readyReplicaCount"), cell(item, "desiredReplicaCount"),
			cell(item, "replicaStats.downloadingModelReplicaCount"),
			cell(item, "replicaStats.initializingReplicaCount"), cell(item, "replicaStats.pendingSchedulingReplicaCount"))
		if line != last {
			fmt.Fprintln(out, line)
		}
		last = line
		switch state := cell(item, "state"); state {
		case "READY":
			return item, nil
		case "FAILED", "DELETING", "DELETED":
			return item, fmt.Errorf("deployment %s is %s: %s", id(name), state, cell(item, statusMessage))
		}
		if text := cell(item, statusMessage); text != message {
			if message = text; message != "-" {
				fmt.Fprintln(out, message)
			}
		}
		if err := sleep(cmd.Context(), watchPoll); err != nil {
			return nil, err
		}
	}
}
