package cli

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

var deployments = collection{"deployments", "deployment",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"MODEL", "#baseModel"}, {"READY", "replicaStats.readyReplicaCount"},
		{"WANTED", "desiredReplicaCount"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"},
		{"Model", "baseModel"}, {"Aliases", "aliases"}, {"Desired replicas", "desiredReplicaCount"},
		{"Ready replicas", "replicaStats.readyReplicaCount"},
		{"Replicas pending", "replicaStats.pendingSchedulingReplicaCount"},
		{"Queue", queuePath}, {"Waits since", "queue.since"}, {"Waits for", "queue.waitingFor"},
		{"No estimate", "queue.noEstimateReason"}, {"Minimum replicas", "minReplicaCount"},
		{"Maximum replicas", "maxReplicaCount"},
		{"Direct route", "directRouteHandle"}, {"Accelerators", "acceleratorCount"},
		{"Accelerator share", "acceleratorShare"}, {"Accelerator type", "acceleratorType"},
		{"Precision", "precision"},
		{"Weights from job", "hotLoad.served.job"}, {"Train step", "hotLoad.served.trainStep"},
		{"Weights model", "hotLoad.served.model"}, {"Weights loaded", "hotLoad.served.swapTime"},
		{"Loading weights from job", "hotLoad.loading.job"}, {"Rejected weights from job", "hotLoad.refused.job"},
		{"Hot load", "hotLoad." + statusMessage},
		{"Expires at", "expireTime"}, {"Deleted", "deleteTime"}, {"Purge at", "purgeTime"}, {"Created", "createTime"}}}

func deploymentCommand() *cobra.Command {
	list := deployments.listCommand()
	list.Flags().Bool("show-deleted", false, "include deleted deployments that can be restored")
	remove := deployments.deleteCommand()
	remove.Flags().Bool("hard", false, "delete the deployment permanently, so that it cannot be restored")
	remove.Flags().Bool("ignore-checks", false, "delete the deployment even if it served a request within the last hour")
	return group("deployment", "Manage deployments of models", deploymentCreate(), deploymentWatch(), list,
		deployments.getCommand(), deploymentUpdate(), deploymentScale(), deploymentAlias(), remove,
		deploymentUndelete(), releaseCommand())
}

func deploymentUndelete() *cobra.Command {
	return deployments.watchedVerb("undelete", "Restore a deleted deployment", "is being restored",
		"wait until the deployment is READY", func(c *cobra.Command, client *client, name string) error {
			return printDeployment(c, client, map[string]any{"name": name}, true)
		})
}

func deploymentScale() *cobra.Command {
	c := &cobra.Command{Use: "scale ID REPLICAS", Short: "Set the number of replicas", Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			count, err := strconv.Atoi(args[1])
			if err != nil {
				return usage.Errorf("REPLICAS %q must be a whole number", args[1])
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := "/v1/" + client.name("deployments", args[0]) + ":scale"
			if err := client.call(c.Context(), http.MethodPatch, path, nil, map[string]any{"replicaCount": count},
				nil); err != nil {
				return err
			}
			return printDone(c, "deployment", args[0], "scaled to "+args[1])
		}}
	bindArgument(c, "REPLICAS", "replicaCount",
		"change the allowed range with `anneal deployment update ID --min-replicas N --max-replicas N`")
	return c
}

func deploymentAlias() *cobra.Command {
	c := &cobra.Command{Use: "alias ID [NAME...]",
		Short:   "Replace the aliases by which every account can use a deployment (operator only)",
		Args:    arguments(1, domain.MaxAliases+1),
		Example: "  anneal deployment alias whisper speech-v3 speech-v3-turbo",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var item map[string]any
			name, query := client.name("deployments", args[0]), url.Values{"updateMask": {"aliases"}}
			if err := operator.call(c.Context(), http.MethodPatch, "/v1/"+name, query, map[string]any{"aliases": args[1:]},
				&item); err != nil {
				return err
			}
			return printItem(c, item, deployments.details...)
		}}
	dataFlag(c.Flags())
	return c
}
