package main

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
)

// baseModelName is the model that comes with the platform.
const baseModelName = domain.DefaultBaseModel

var deployments = collection{"deployments", "deployment",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"MODEL", "#baseModel"}, {"READY", "replicaStats.readyReplicaCount"}, {"WANTED", "desiredReplicaCount"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"}, {"Model", "baseModel"}, {"Replicas wanted", "desiredReplicaCount"},
		{"Replicas ready", "replicaStats.readyReplicaCount"}, {"Replicas without a place", "replicaStats.pendingSchedulingReplicaCount"}, {"Least", "minReplicaCount"}, {"Most", "maxReplicaCount"},
		{"Accelerators", "acceleratorCount"}, {"Type", "acceleratorType"}, {"Expires", "expireTime"}, {"Deleted", "deleteTime"}, {"Purged", "purgeTime"}, {"Created", "createTime"}}}

func deploymentCommand() *cobra.Command {
	list := deployments.listCommand()
	list.Flags().Bool("show-deleted", false, "also those that can be undeleted")
	remove := deployments.deleteCommand()
	remove.Flags().Bool("hard", false, "at once and for good")
	remove.Flags().Bool("ignore-checks", false, "even if it answered a request within the last hour")
	return group("deployment", "Models that answer", deploymentCreate(), deploymentWatch(), list, deployments.getCommand(), deploymentScale(), remove,
		deployments.verbCommand("undelete", "Bring a deleted deployment back", "comes back"))
}

func deploymentCreate() *cobra.Command {
	var model, displayName, acceleratorType, shape, precision string
	var least, most, accelerators int
	var expire time.Duration
	var addons, watch bool
	var scaling scalingFlags
	c := &cobra.Command{Use: "create [ID]", Short: "Serve a model", Args: arguments(0, 1),
		Example: "  anneal deployment create polite --model polite --watch",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if model == "" {
				return usageError{fmt.Errorf("--model is required")}
			}
			body := map[string]any{"baseModel": client.name("models", model), "displayName": displayName, "minReplicaCount": least}
			if c.Flags().Changed("max-replicas") {
				body["maxReplicaCount"] = most
			}
			for field, value := range map[string]string{"acceleratorType": acceleratorType, "precision": precision, "deploymentShape": client.name(shapes.name, shape)} {
				if value != "" {
					body[field] = value
				}
			}
			if accelerators > 0 {
				body["acceleratorCount"] = accelerators
			}
			if err := scaling.fill(body); err != nil {
				return err
			}
			if addons {
				body["enableAddons"] = true
			}
			if err := setExpiry(c, expire, body); err != nil {
				return err
			}
			query := url.Values{}
			if len(args) == 1 {
				query.Set("deploymentId", args[0])
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path("deployments"), query, body, &item); err != nil {
				return err
			}
			if watch {
				if item, err = client.watchDeployment(c, cell(item, "name")); err != nil {
					return err
				}
			}
			return printItem(c, item, deployments.details...)
		}}
	f := c.Flags()
	f.StringVar(&model, "model", "", "model to serve")
	f.StringVar(&shape, "shape", "", "shape whose settings it takes, or VERSION of one as SHAPE/versions/VERSION: see anneal shape match")
	f.StringVar(&precision, "precision", "", "precision of the weights, such as FP8")
	f.StringVar(&displayName, "display-name", "", "a name for people")
	f.IntVar(&least, "min-replicas", 1, "replicas kept at all times; 0 lets it sleep until it is asked")
	f.IntVar(&most, "max-replicas", 1, "most replicas")
	f.StringVar(&acceleratorType, "accelerator-type", "", "type of device, such as VENDOR_A_H100_80GB")
	f.IntVar(&accelerators, "accelerator-count", 0, "devices for each replica (default: what the model needs)")
	scaling.add(c)
	f.BoolVar(&addons, "addons", false, "let adapters be loaded into it: see anneal addon")
	f.DurationVar(&expire, "expire", 0, "delete it after this time")
	f.BoolVarP(&watch, "watch", "w", false, "wait until it is READY")
	return c
}

// scalingFlags say when load adds and removes replicas.
type scalingFlags struct {
	up, down, zero time.Duration
	targets        map[string]string
}

func (s *scalingFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.DurationVar(&s.up, "scale-up-window", 0, "how long load must ask for more replicas (default 30s)")
	f.DurationVar(&s.down, "scale-down-window", 0, "how long it must ask for fewer (default 10m)")
	f.DurationVar(&s.zero, "scale-to-zero-window", 0, "how long nothing must be asked before it sleeps, with --min-replicas 0 (default 1h)")
	f.StringToStringVar(&s.targets, "load-target", nil, "NAME=NUMBER of one replica's load, repeatable: "+strings.Join(domain.LoadTargets, ", ")+" (default default=0.8)")
}

// fill adds the policy to a deployment's body, if there is one.
func (s *scalingFlags) fill(body map[string]any) error {
	policy, targets := map[string]any{}, map[string]float64{}
	for field, window := range map[string]time.Duration{"scaleUpWindow": s.up, "scaleDownWindow": s.down, "scaleToZeroWindow": s.zero} {
		if window != 0 {
			policy[field] = window.String()
		}
	}
	for name, text := range s.targets {
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
			return usageError{fmt.Errorf("--load-target %s must be a number, not %q", name, text)}
		}
		targets[name] = number
	}
	if len(targets) > 0 {
		policy["loadTargets"] = targets
	}
	if len(policy) > 0 {
		body["autoscalingPolicy"] = policy
	}
	return nil
}

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
	for {
		var item map[string]any
		if err := c.call(cmd.Context(), http.MethodGet, "/v1/"+name, nil, nil, &item); err != nil {
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
		if words := cell(item, "status.message"); words != held {
			if held = words; words != "-" {
				fmt.Fprintln(out, words)
			}
		}
		if err := pause(cmd.Context(), 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func deploymentScale() *cobra.Command {
	return &cobra.Command{Use: "scale ID REPLICAS", Short: "Set how many replicas are wanted", Args: arguments(2, 2), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		count, err := strconv.Atoi(args[1])
		if err != nil {
			return usageError{fmt.Errorf("REPLICAS must be a number, not %q", args[1])}
		}
		path := "/v1/" + client.name("deployments", args[0]) + ":scale"
		if err := client.call(c.Context(), http.MethodPatch, path, nil, map[string]any{"replicaCount": count}, nil); err != nil {
			return err
		}
		return done(c, "deployment", args[0], "scaled to "+args[1])
	}}
}
