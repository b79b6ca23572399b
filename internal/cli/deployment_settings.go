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
	settings := newDeploymentFlags(1)
	c := &cobra.Command{Use: "create [ID] --model MODEL", Short: "Deploy a model", Args: arguments(0, 1),
		Example: "  anneal deployment create polite --model polite --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if model == "" {
				return required("model")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{"baseModel": client.name("models", model), "minReplicaCount": 1}
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
			return printDeployment(c, client, item, watch)
		}}
	c.Flags().StringVar(&model, "model", "", "model to serve")
	bindReference(c, "model", "baseModel", "models")
	settings.add(c)
	c.Flags().BoolVar(&skipShape, "skip-shape-validation", false, "accept a version of the shape that is not marked "+
		"as validated (see anneal shape validate)")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until the deployment is READY")
	return c
}

func deploymentUpdate() *cobra.Command {
	var watch bool
	settings := newDeploymentFlags(0)
	c := &cobra.Command{Use: "update ID", Short: "Change settings of a deployment", Args: arguments(1, 1),
		Example: "  anneal deployment update polite --max-replicas 4 --watch",
		Long:    "Changes the settings whose flags are given; the others are kept.",
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
				return usage.Errorf("give at least one setting to change (see %s --help)", c.CommandPath())
			}
			var item map[string]any
			query := url.Values{"updateMask": {strings.Join(maskOf(body), ",")}}
			if err := client.call(c.Context(), http.MethodPatch, "/v1/"+client.name("deployments", args[0]), query, body,
				&item); err != nil {
				return err
			}
			return printDeployment(c, client, item, watch)
		}}
	settings.add(c)
	// An update keeps the settings whose flags are not given, so the help must not show defaults.
	c.Flags().VisitAll(func(f *pflag.Flag) { f.Usage, _, _ = strings.Cut(f.Usage, " (default") })
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until the deployment is READY again")
	return c
}

// maskOf returns the paths of the fields of a body, for the update mask of the request: of an
// autoscaling policy, only the fields that the body has.
func maskOf(body map[string]any) (paths []string) {
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

// printDeployment prints a deployment. If watch is true, it first waits until the deployment is
// READY.
func printDeployment(cmd *cobra.Command, c *client, item map[string]any, watch bool) (err error) {
	if watch {
		if item, err = watchDeployment(cmd, c, cell(item, "name")); err != nil {
			return err
		}
	}
	if err := printItem(cmd, item, deployments.details...); err != nil {
		return err
	}
	if cell(item, "state") == "READY" && cell(item, "replicaStats.readyReplicaCount") != "0" {
		suggest(cmd, "chat --model %s", cell(item, "#baseModel"))
	} else {
		suggest(cmd, "deployment watch %s", cell(item, "#name"))
	}
	return nil
}

// deploymentFlags are the flags for the settings of a deployment.
type deploymentFlags struct {
	fields  []field
	scaling scalingFlags
	expire  time.Duration
}

// newDeploymentFlags returns the flags. minReplicas is the default of --min-replicas.
func newDeploymentFlags(minReplicas int) *deploymentFlags {
	return &deploymentFlags{fields: []field{
		{flag: "shape", path: "deploymentShape", value: "", collection: shapes.name,
			usage: "shape whose settings the deployment takes, or a version of a shape (SHAPE/versions/VERSION); " +
				"anneal shape match lists the versions that match a model"},
		{flag: "precision", path: "precision", value: "", usage: "precision of the weights, such as FP8"},
		{flag: "display-name", path: "displayName", value: "", usage: "display name"},
		{flag: "min-replicas", path: "minReplicaCount", value: minReplicas,
			usage: "minimum number of replicas; with 0 the deployment can scale to zero"},
		{flag: "max-replicas", path: "maxReplicaCount", value: 0,
			usage: "maximum number of replicas (default: --min-replicas, and at least 1)"},
		{flag: "accelerator-type", path: "acceleratorType", value: "", usage: "type of device, such as VENDOR_A_H100_80GB"},
		{flag: "accelerator-count", path: "acceleratorCount", value: 0,
			usage: "devices per replica (default: as many as the model needs)"},
		{flag: "accelerator-share", path: "acceleratorShare", value: 0,
			usage: "share of one device for each replica, in thousandths, on nodes with --share-accelerators " +
				"(default: " +
				"whole devices)"},
		{flag: "placement-strategy", path: "placementStrategy", value: "",
			usage: "PACK places replicas together, SPREAD over regions, zones and nodes (default: packed onto accelerators " +
				"in use, and spread where this costs no accelerators)"},
		{flag: "skip-size-validation", path: "disableDeploymentSizeValidation", value: false,
			usage: "accept devices that seem too small for the model"},
		{flag: "addons", path: "enableAddons", value: false, usage: "accept LoRA adapters: see anneal addon"},
		{flag: "hot-load", path: "enableHotLoad", value: false,
			usage: "accept the weights of trainer jobs while serving requests " +
				"(see --rollout-deployment of anneal rlor create)"},
	}}
}

func (d *deploymentFlags) add(c *cobra.Command) {
	addFields(c, d.fields)
	bindReference(c, "shape", "deploymentShape", shapes.name)
	bindFlag(c, "shape", "deploymentShape",
		"list the versions that match a model with `anneal shape match --model MODEL`; "+
			"--skip-shape-validation accepts one that is not validated")
	d.scaling.add(c)
	usage.SetSection(c.Flags(), "Devices", "accelerator-type", "accelerator-count", "precision",
		"placement-strategy", "skip-size-validation")
	usage.SetSection(c.Flags(), "Scaling", "min-replicas", "max-replicas", "scale-up-window", "scale-down-window",
		"scale-to-zero-window", "load-target")
	c.Flags().DurationVar(&d.expire, "expire", 0, "delete the deployment after this time")
	bindFlag(c, "expire", "expireTime")
}

// fill sets the fields of a request body from the flags that are given.
func (d *deploymentFlags) fill(c *cobra.Command, client *client, body map[string]any) error {
	if err := fillBody(c, client, d.fields, body); err != nil {
		return err
	}
	if err := d.scaling.fill(c, body); err != nil {
		return err
	}
	return setExpiry(c, d.expire, body)
}

// scalingFlags are the flags for the autoscaling policy of a deployment.
type scalingFlags struct {
	up, down, zero time.Duration
	targets        map[string]string
}

func (s *scalingFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.DurationVar(&s.up, "scale-up-window", 0,
		"time for which the load must require more replicas before replicas are added (default 30s)")
	f.DurationVar(&s.down, "scale-down-window", 0,
		"time for which the load must require fewer replicas before replicas are removed (default 10m)")
	f.DurationVar(&s.zero, "scale-to-zero-window", 0,
		"time without requests after which the deployment scales to zero, with --min-replicas 0 (default 1h)")
	f.StringToStringVar(&s.targets, "load-target", nil, "target load per replica as `NAME=NUMBER`, repeatable: "+
		strings.Join(domain.LoadTargets, ", ")+" (default default=0.8)")
	for flag, field := range map[string]string{"scale-up-window": "scaleUpWindow", "scale-down-window": "scaleDownWindow",
		"scale-to-zero-window": "scaleToZeroWindow", "load-target": "loadTargets"} {
		bindFlag(c, flag, "autoscalingPolicy."+field)
	}
	f.Lookup("load-target").DefValue = "" // hides the empty map in the help
}

// fill sets the fields of the autoscaling policy in a body from the flags that are given.
func (s *scalingFlags) fill(c *cobra.Command, body map[string]any) error {
	policy, targets := map[string]any{}, map[string]float64{}
	for flag, window := range map[string]time.Duration{"scale-up-window": s.up, "scale-down-window": s.down,
		"scale-to-zero-window": s.zero} {
		if c.Flags().Changed(flag) {
			policy[fieldName(flag)] = window.String()
		}
	}
	for name, text := range s.targets {
		number, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
			return usage.Errorf("--load-target %s=%q must be a number", name, text)
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
