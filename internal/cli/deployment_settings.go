package cli

import (
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/domain"
	"anneal/internal/usage"
)

func deploymentCreate() *cobra.Command {
	var model string
	var watch, skipShape bool
	var settings deploymentFlags
	c := &cobra.Command{Use: "create [ID] --model MODEL", Short: "Serve a model", Args: arguments(0, 1),
		Example: "  anneal deployment create polite --model polite --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if model == "" {
				return required("model")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{"baseModel": client.name("models", model), "minReplicaCount": settings.least}
			if err := settings.fill(c, client, body); err != nil {
				return err
			}
			query := url.Values{}
			if len(args) == 1 {
				query.Set("deploymentId", args[0])
			}
			if skipShape {
				query.Set("skipShapeValidation", "true")
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path("deployments"), query, body, &item); err != nil {
				return err
			}
			return client.showDeployment(c, item, watch)
		}}
	c.Flags().StringVar(&model, "model", "", "model to serve")
	bindReference(c, "model", "baseModel", "models")
	settings.add(c, 1)
	c.Flags().BoolVar(&skipShape, "skip-shape-validation", false, "take a version of the shape that is not validated, too")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until it is READY")
	return c
}

func deploymentUpdate() *cobra.Command {
	var watch bool
	var settings deploymentFlags
	c := &cobra.Command{Use: "update ID", Short: "Change a deployment's settings; those that are not named stay", Args: arguments(1, 1),
		Example: "  anneal deployment update polite --max-replicas 4 --watch",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{}
			if err := settings.fill(c, client, body); err != nil {
				return err
			}
			if len(body) == 0 {
				return usage.Errorf("name at least one setting to change (see %s --help)", c.CommandPath())
			}
			var item map[string]any
			query := url.Values{"updateMask": {strings.Join(settingPaths(body), ",")}}
			if err := client.call(c.Context(), http.MethodPatch, "/v1/"+client.name("deployments", args[0]), query, body, &item); err != nil {
				return err
			}
			return client.showDeployment(c, item, watch)
		}}
	settings.add(c, 0)
	c.Flags().VisitAll(func(f *pflag.Flag) { f.Usage, _, _ = strings.Cut(f.Usage, " (default") }) // what is not named stays
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until it is READY again")
	return c
}

// settingPaths are what a body sets: of an autoscaling policy only what is in it.
func settingPaths(body map[string]any) (paths []string) {
	for _, field := range slices.Sorted(maps.Keys(body)) {
		policy, ok := body[field].(map[string]any)
		if !ok {
			paths = append(paths, field)
			continue
		}
		for _, part := range slices.Sorted(maps.Keys(policy)) {
			paths = append(paths, field+"."+part)
		}
	}
	return paths
}

// showDeployment prints a deployment, after it is READY where that is waited for.
func (c *client) showDeployment(cmd *cobra.Command, item map[string]any, watch bool) (err error) {
	if watch {
		if item, err = c.watchDeployment(cmd, cell(item, "name")); err != nil {
			return err
		}
	}
	return printItem(cmd, item, deployments.details...)
}

// deploymentFlags are the flags of what can be set and changed.
type deploymentFlags struct {
	displayName, acceleratorType, shape, precision string
	least, most, accelerators                      int
	expire                                         time.Duration
	addons, hotLoad, skipSize                      bool
	scaling                                        scalingFlags
}

// add gives a command the flags; least is how many replicas are kept where
// nothing is said.
func (d *deploymentFlags) add(c *cobra.Command, least int) {
	f := c.Flags()
	f.StringVar(&d.shape, "shape", "", "shape whose settings it takes, or VERSION of one as SHAPE/versions/VERSION: see anneal shape match")
	bindFlag(c, "shape", "deploymentShape", "list the versions that match a model with `anneal shape match --model MODEL`; "+
		"--skip-shape-validation accepts one that is not validated")
	f.StringVar(&d.precision, "precision", "", "precision of the weights, such as FP8")
	f.StringVar(&d.displayName, "display-name", "", "a name for people")
	f.IntVar(&d.least, "min-replicas", least, "replicas kept at all times; 0 lets it sleep until it is asked")
	f.IntVar(&d.most, "max-replicas", 0, "most replicas (default: --min-replicas, and at least 1)")
	f.StringVar(&d.acceleratorType, "accelerator-type", "", "type of device, such as VENDOR_A_H100_80GB")
	f.IntVar(&d.accelerators, "accelerator-count", 0, "devices for each replica (default: what the model needs)")
	f.BoolVar(&d.skipSize, "skip-size-validation", false, "take the devices that are named even if the model seems too large for them")
	d.scaling.add(c)
	f.BoolVar(&d.addons, "addons", false, "let adapters be loaded into it: see anneal addon")
	f.BoolVar(&d.hotLoad, "hot-load", false, "let it take the weights of trainer jobs while it answers: see --rollout-deployment of anneal rlor create")
	f.DurationVar(&d.expire, "expire", 0, "delete it after this time")
	bindFlag(c, "expire", "expireTime")
}

// fill adds what the command line names to a body.
func (d *deploymentFlags) fill(c *cobra.Command, client *client, body map[string]any) error {
	set(c, body, map[string]setting{"shape": {"deploymentShape", client.name(shapes.name, d.shape)}, "precision": {"precision", d.precision}, "display-name": {"displayName", d.displayName},
		"min-replicas": {"minReplicaCount", d.least}, "max-replicas": {"maxReplicaCount", d.most}, "accelerator-type": {"acceleratorType", d.acceleratorType},
		"accelerator-count": {"acceleratorCount", d.accelerators}, "skip-size-validation": {"disableDeploymentSizeValidation", d.skipSize}, "addons": {"enableAddons", d.addons}, "hot-load": {"enableHotLoad", d.hotLoad}})
	if err := d.scaling.fill(body); err != nil {
		return err
	}
	return setExpiry(c, d.expire, body)
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
	f.StringToStringVar(&s.targets, "load-target", nil, "`NAME=NUMBER` of one replica's load, repeatable: "+strings.Join(domain.LoadTargets, ", ")+" (default default=0.8)")
	for flag, field := range map[string]string{"scale-up-window": "scaleUpWindow", "scale-down-window": "scaleDownWindow",
		"scale-to-zero-window": "scaleToZeroWindow", "load-target": "loadTargets"} {
		bindFlag(c, flag, "autoscalingPolicy."+field)
	}
	f.Lookup("load-target").DefValue = "" // an empty map is no default to show
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
			return usage.Errorf("--load-target %s must be a number, not %q", name, text)
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
