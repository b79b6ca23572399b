package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

var deployedModels = collection{"deployedModels", "addon",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"MODEL", "#model"}, {"DEPLOYMENT", "#deployment"},
		{"DEFAULT", "default"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"State", "state"},
		{"Status", "status.message"},
		{"Model", "model"}, {"Deployment", "deployment"}, {"Default", "default"}, {"Created", "createTime"}}}

func addonCommand() *cobra.Command {
	return group("addon", "Manage LoRA adapters on deployments of their base model", addonLoad(),
		deployedModels.listCommand(), deployedModels.getCommand(), addonUnload())
}

func addonLoad() *cobra.Command {
	var model, deployment, displayName string
	var byDefault, watch bool
	c := &cobra.Command{Use: "load [ID] --model MODEL --deployment DEPLOYMENT",
		Short: "Load an adapter into a deployment that was created with --addons", Args: arguments(0, 1),
		Example: "  anneal addon load polite --model polite --deployment shared --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if model == "" {
				return required("model")
			}
			if deployment == "" {
				return required("deployment")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{"model": client.name("models", model), "deployment": client.name("deployments", deployment),
				"displayName": displayName, "default": byDefault}
			query := url.Values{}
			if len(args) == 1 {
				query.Set("deployedModelId", args[0])
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path("deployedModels"), query, body, &item); err != nil {
				return err
			}
			if watch {
				name := cell(item, "name")
				if item, err = awaitAddon(c, client, name); err != nil {
					return onInterrupt(c, err,
						"The addon is still being loaded. Run `anneal addon get %s` to show its state, "+
							"or `anneal addon unload %s` to unload it.",
						id(name), id(name))
				}
			}
			if err := printItem(c, item, deployedModels.details...); err != nil {
				return err
			}
			if cell(item, "state") == "DEPLOYED" {
				suggest(c, "chat --model %s", cell(item, "#model"))
			} else {
				suggest(c, "addon get %s", cell(item, "#name"))
			}
			return nil
		}}
	f := c.Flags()
	f.StringVar(&model, "model", "", "adapter to load")
	f.StringVar(&deployment, "deployment", "", "deployment of the adapter's base model")
	bindReference(c, "model", "model", "models")
	bindReference(c, "deployment", "deployment", "deployments")
	bindFlag(c, "deployment", "deployment", listHint("deployments"),
		"make the deployment accept addons with `anneal deployment update DEPLOYMENT --addons`")
	f.StringVar(&displayName, "display-name", "", "display name")
	f.BoolVar(&byDefault, "default", false, "use the adapter for requests that name only the deployment")
	f.BoolVarP(&watch, "watch", "w", false, "wait until the adapter is loaded (DEPLOYED)")
	return c
}

// awaitAddon waits until an addon is DEPLOYED, and returns it. It returns an error if the addon is
// FAILED.
func awaitAddon(cmd *cobra.Command, c *client, name string) (map[string]any, error) {
	last := ""
	for {
		var item map[string]any
		if err := c.call(cmd.Context(), http.MethodGet, "/v1/"+name, nil, nil, &item); err != nil {
			return nil, err
		}
		state := cell(item, "state")
		if state != last {
			fmt.Fprintln(cmd.ErrOrStderr(), state)
		}
		last = state
		switch state {
		case "DEPLOYED":
			return item, nil
		case "FAILED", "UNDEPLOYING":
			return item, fmt.Errorf("addon %s is %s: %s", id(name), state, cell(item, "status.message"))
		}
		if err := sleep(cmd.Context(), 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func addonUnload() *cobra.Command {
	return &cobra.Command{Use: "unload ID",
		Short: "Unload an adapter from its deployment, when the adapter's running requests have ended",
		Args:  arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if err := client.call(c.Context(), http.MethodDelete, "/v1/"+client.name("deployedModels", args[0]), nil, nil,
				nil); err != nil {
				return err
			}
			return printDone(c, "addon", args[0], "is being unloaded")
		}}
}
