package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

var shapes = collection{"deploymentShapes", "shape",
	[]column{{"ID", "#name"}, {"MODEL", "#baseModel"}, {"TYPE", "acceleratorType"}, {"ACCELERATORS", "acceleratorCount"},
		{"PRECISION", "precision"}, {"PRESET", "presetType"}, {"UPDATED", "updateTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"Model", "baseModel"},
		{"Model type", "modelType"}, {"Parameters", "parameterCount"},
		{"Accelerator type", "acceleratorType"}, {"Accelerators", "acceleratorCount"}, {"Precision", "precision"},
		{"Preset", "presetType"}, {"Context length", "maxContextLength"},
		{"Addons", "enableAddons"}, {"Created", "createTime"}, {"Updated", "updateTime"}}}

// shapeVersions is the collection with the versions of all shapes.
const shapeVersions = "deploymentShapeVersions"

var (
	versionColumns = []column{{"NAME", "name"}, {"VALIDATED", "validated"}, {"PUBLIC", "public"},
		{"TYPE", "snapshot.acceleratorType"}, {"ACCELERATORS", "snapshot.acceleratorCount"},
		{"PRECISION", "snapshot.precision"}, {"CREATED", "createTime"}}
	versionDetails = []column{{"Name", "name"}, {"Validated", "validated"}, {"Latest validated", "latestValidated"},
		{"Public", "public"}, {"Accelerator type", "snapshot.acceleratorType"},
		{"Accelerators", "snapshot.acceleratorCount"}, {"Precision", "snapshot.precision"}, {"Created", "createTime"}}
)

func shapeCommand() *cobra.Command {
	return group("shape", "Manage deployment shapes: validated settings of deployments", shapeCreate(),
		shapes.listCommand(), shapes.getCommand(), shapeVersionList(), shapeValidate(), shapeMatch(), shapes.deleteCommand())
}

func shapeCreate() *cobra.Command {
	var file string
	fields := []field{
		{flag: "model", path: "baseModel", value: "", usage: "model that the shape is for", collection: "models",
			required: true},
		{flag: "accelerator-type", path: "acceleratorType", value: "",
			usage: "type of device, such as VENDOR_A_H100_80GB (default: the type with the most devices)"},
		{flag: "accelerator-count", path: "acceleratorCount", value: 0,
			usage: "devices per replica (default: as many as the model needs)"},
		{flag: "precision", path: "precision", value: "", usage: "precision of the weights, such as FP8"},
		{flag: "display-name", path: "displayName", value: "", usage: "display name"},
	}
	c := &cobra.Command{Use: "create ID", Short: "Create a shape with its first version", Args: arguments(1, 1),
		Example: "  anneal shape create fast --model polite --accelerator-type VENDOR_A_H100_80GB",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			shape, err := readJSONFile(c, file)
			if err != nil {
				return err
			}
			if err := fillBody(c, client, fields, shape); err != nil {
				return err
			}
			var item map[string]any
			body := map[string]any{"deploymentShapeId": args[0], "deploymentShape": shape}
			if err := client.call(c.Context(), http.MethodPost, client.path("deploymentShapes"), nil, body, &item); err != nil {
				return err
			}
			return printItem(c, item, shapes.details...)
		}}
	addFields(c, fields)
	fileFlag(c, &file, "shape")
	return c
}

func shapeVersionList() *cobra.Command {
	return asOfFlag(&cobra.Command{Use: "versions SHAPE", Short: "List the versions of a shape", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			items, err := client.list(c.Context(), "/v1/"+client.name(shapes.name, args[0])+"/versions", shapeVersions,
				asOf(c, nil))
			if err != nil {
				return err
			}
			return printItems(c, noRows{"the shape has no versions", ""},
				items, append([]column{{"ID", "#name"}}, versionColumns[1:]...)...)
		}})
}

func shapeValidate() *cobra.Command {
	var public bool
	c := &cobra.Command{Use: "validate SHAPE VERSION",
		Short:   "Mark a version of a shape as validated, so that deployments use it by default",
		Args:    arguments(2, 2),
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
			if err := client.call(c.Context(), http.MethodPatch,
				"/v1/"+client.name(shapes.name, args[0])+"/versions/"+url.PathEscape(id(args[1])), nil, body, &item); err != nil {
				return err
			}
			return printItem(c, item, versionDetails...)
		}}
	c.Flags().BoolVar(&public, "public", false, "make the version available to every account")
	return c
}

func shapeMatch() *cobra.Command {
	var model string
	var addons bool
	c := &cobra.Command{Use: "match --model MODEL", Short: "List the versions that match a model", Args: arguments(0, 0),
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
			items, err := client.pages(c.Context(), http.MethodPost, client.path(shapeVersions+":match"), shapeVersions, nil,
				body)
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no version matches the model", "deploy it without a shape"}, items, versionColumns...)
		}}
	c.Flags().StringVar(&model, "model", "", "model to serve")
	bindReference(c, "model", "createDeploymentRequest.deployment.baseModel", "models")
	c.Flags().BoolVar(&addons, "addons", false, "list only versions that accept LoRA adapters")
	return c
}
