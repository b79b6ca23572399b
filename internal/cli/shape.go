package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

var shapes = collection{"deploymentShapes", "shape",
	[]column{{"ID", "#name"}, {"MODEL", "#baseModel"}, {"TYPE", "acceleratorType"}, {"ACCELERATORS", "acceleratorCount"}, {"PRECISION", "precision"}, {"PRESET", "presetType"}, {"UPDATED", "updateTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"Model", "baseModel"}, {"Model type", "modelType"}, {"Parameters", "parameterCount"},
		{"Accelerator type", "acceleratorType"}, {"Accelerators", "acceleratorCount"}, {"Precision", "precision"}, {"Preset", "presetType"}, {"Context length", "maxContextLength"},
		{"Addons", "enableAddons"}, {"Created", "createTime"}, {"Updated", "updateTime"}}}

// shapeVersions have long names where several shapes may be meant.
const shapeVersions = "deploymentShapeVersions"

var (
	versionColumns = []column{{"NAME", "name"}, {"VALIDATED", "validated"}, {"PUBLIC", "public"}, {"TYPE", "snapshot.acceleratorType"}, {"ACCELERATORS", "snapshot.acceleratorCount"},
		{"PRECISION", "snapshot.precision"}, {"CREATED", "createTime"}}
	versionDetails = []column{{"Name", "name"}, {"Validated", "validated"}, {"Latest validated", "latestValidated"}, {"Public", "public"}, {"Accelerator type", "snapshot.acceleratorType"},
		{"Accelerators", "snapshot.acceleratorCount"}, {"Precision", "snapshot.precision"}, {"Created", "createTime"}}
)

func shapeCommand() *cobra.Command {
	return group("shape", "Settings of deployments that are known to work", shapeCreate(), shapes.listCommand(), shapes.getCommand(), shapeVersionList(), shapeValidate(), shapeMatch(), shapes.deleteCommand())
}

func shapeCreate() *cobra.Command {
	var model, acceleratorType, precision, displayName, file string
	var accelerators int
	c := &cobra.Command{Use: "create ID", Short: "Create a shape, with its first version", Args: arguments(1, 1),
		Example: "  anneal shape create fast --model polite --accelerator-type VENDOR_A_H100_80GB",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			shape, err := jsonFile(c, file)
			if err != nil {
				return err
			}
			set(c, shape, map[string]setting{"model": {"baseModel", client.name("models", model)}, "accelerator-type": {"acceleratorType", acceleratorType},
				"accelerator-count": {"acceleratorCount", accelerators}, "precision": {"precision", precision}, "display-name": {"displayName", displayName}})
			for _, needed := range [][2]string{{"model", "baseModel"}, {"accelerator-type", "acceleratorType"}} {
				if flag, field := needed[0], needed[1]; shape[spelt(shape, field)] == nil {
					return requiredHere(flag, field)
				}
			}
			var item map[string]any
			body := map[string]any{"deploymentShapeId": args[0], "deploymentShape": shape}
			if err := client.call(c.Context(), http.MethodPost, client.path("deploymentShapes"), nil, body, &item); err != nil {
				return err
			}
			return printItem(c, item, shapes.details...)
		}}
	f := c.Flags()
	f.StringVar(&model, "model", "", "model that it is for")
	bindReference(c, "model", "baseModel", "models")
	f.StringVar(&acceleratorType, "accelerator-type", "", "type of device, such as VENDOR_A_H100_80GB; ACCELERATOR_TYPE_UNSPECIFIED is CPUs alone")
	f.IntVar(&accelerators, "accelerator-count", 0, "devices for each replica; 0 is what the model needs")
	f.StringVar(&precision, "precision", "", "precision of the weights, such as FP8")
	f.StringVar(&displayName, "display-name", "", "a name for people")
	fileFlag(c, &file, "shape")
	return c
}

func shapeVersionList() *cobra.Command {
	return &cobra.Command{Use: "versions SHAPE", Short: "List the versions of a shape", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		items, err := client.list(c.Context(), "/v1/"+client.name(shapes.name, args[0])+"/versions", shapeVersions, nil)
		if err != nil {
			return err
		}
		return printItems(c, items, append([]column{{"ID", "#name"}}, versionColumns[1:]...)...)
	}}
}

func shapeValidate() *cobra.Command {
	var public bool
	c := &cobra.Command{Use: "validate SHAPE VERSION", Short: "Say that a version works, so that deployments can be made with it", Args: arguments(2, 2),
		Example: "  anneal shape validate fast v1",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{"validated": true}
			if c.Flags().Changed("public") {
				body["public"] = public
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPatch, "/v1/"+client.name(shapes.name, args[0])+"/versions/"+url.PathEscape(id(args[1])), nil, body, &item); err != nil {
				return err
			}
			return printItem(c, item, versionDetails...)
		}}
	c.Flags().BoolVar(&public, "public", false, "let every account use it")
	return c
}

func shapeMatch() *cobra.Command {
	var model string
	var addons bool
	c := &cobra.Command{Use: "match --model MODEL", Short: "List the versions that a deployment of a model could be made with", Args: arguments(0, 0),
		Example: "  anneal shape match --model polite",
		RunE: func(c *cobra.Command, _ []string) error {
			if model == "" {
				return required("model")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			deployment := map[string]any{"baseModel": client.name("models", model), "enableAddons": addons}
			body := map[string]any{"createDeploymentRequest": map[string]any{"deployment": deployment}}
			items, err := client.pages(c.Context(), http.MethodPost, client.path(shapeVersions+":match"), shapeVersions, nil, body)
			if err != nil {
				return err
			}
			return printItems(c, items, versionColumns...)
		}}
	c.Flags().StringVar(&model, "model", "", "model to serve")
	c.Flags().BoolVar(&addons, "addons", false, "with adapters loaded into it")
	return c
}
