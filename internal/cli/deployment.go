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
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"MODEL", "#baseModel"}, {"READY", "replicaStats.readyReplicaCount"}, {"WANTED", "desiredReplicaCount"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"}, {"Model", "baseModel"}, {"Aliases", "aliases"}, {"Replicas wanted", "desiredReplicaCount"},
		{"Replicas ready", "replicaStats.readyReplicaCount"}, {"Replicas without a place", "replicaStats.pendingSchedulingReplicaCount"}, {"Replicas at least", "minReplicaCount"}, {"Replicas at most", "maxReplicaCount"},
		{"Direct route", "directRouteHandle"}, {"Accelerators", "acceleratorCount"}, {"Accelerator type", "acceleratorType"}, {"Precision", "precision"},
		{"Weights of", "hotLoad.served.job"}, {"Train step", "hotLoad.served.trainStep"}, {"Model of it", "hotLoad.served.model"}, {"Weights since", "hotLoad.served.swapTime"},
		{"Weights being loaded of", "hotLoad.loading.job"}, {"Weights refused of", "hotLoad.refused.job"}, {"Hot load", "hotLoad." + statusText},
		{"Expires", "expireTime"}, {"Deleted", "deleteTime"}, {"Purged", "purgeTime"}, {"Created", "createTime"}}}

func deploymentCommand() *cobra.Command {
	list := deployments.listCommand()
	list.Flags().Bool("show-deleted", false, "also those that can be undeleted")
	remove := deployments.deleteCommand()
	remove.Flags().Bool("hard", false, "at once and for good")
	remove.Flags().Bool("ignore-checks", false, "even if it answered a request within the last hour")
	return group("deployment", "Models that answer", deploymentCreate(), deploymentWatch(), list, deployments.getCommand(), deploymentUpdate(), deploymentScale(), deploymentAlias(), remove,
		deployments.verbCommand("undelete", "Bring a deleted deployment back", "comes back"))
}

func deploymentScale() *cobra.Command {
	c := &cobra.Command{Use: "scale ID REPLICAS", Short: "Set how many replicas are wanted", Args: arguments(2, 2), RunE: func(c *cobra.Command, args []string) error {
		count, err := strconv.Atoi(args[1])
		if err != nil {
			return usage.Errorf("REPLICAS must be a number, not %q", args[1])
		}
		client, err := newClient(c)
		if err != nil {
			return err
		}
		path := "/v1/" + client.name("deployments", args[0]) + ":scale"
		if err := client.call(c.Context(), http.MethodPatch, path, nil, map[string]any{"replicaCount": count}, nil); err != nil {
			return err
		}
		return done(c, "deployment", args[0], "scaled to "+args[1])
	}}
	bindArgument(c, "REPLICAS", "replicaCount", "change the limits with `anneal deployment update --min-replicas N --max-replicas N`")
	return c
}

func deploymentAlias() *cobra.Command {
	c := &cobra.Command{Use: "alias ID [NAME...]", Short: "Bind names that every account may ask for, in place of those before; for the operator", Args: arguments(1, domain.MaxAliases+1),
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
			if err := operator.call(c.Context(), http.MethodPatch, "/v1/"+name, query, map[string]any{"aliases": args[1:]}, &item); err != nil {
				return err
			}
			return printItem(c, item, deployments.details...)
		}}
	c.Flags().String("data", "", "the server's folder (default: that of the context file)")
	return c
}
