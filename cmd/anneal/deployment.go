package main

import (
	"fmt"
	"io"
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
	return group("deployment", "Models that answer", deploymentCreate(), list, deployments.getCommand(), deploymentScale(), remove,
		deployments.verbCommand("undelete", "Bring a deleted deployment back", "comes back"))
}

func deploymentCreate() *cobra.Command {
	var model, displayName, acceleratorType string
	var least, most, accelerators int
	var expire time.Duration
	var watch bool
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
			if acceleratorType != "" {
				body["acceleratorType"], body["acceleratorCount"] = acceleratorType, accelerators
			}
			if expire > 0 {
				body["expireTime"] = time.Now().Add(expire).UTC().Format(time.RFC3339)
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
	f.StringVar(&displayName, "display-name", "", "a name for people")
	f.IntVar(&least, "min-replicas", 1, "replicas kept at all times; 0 lets it sleep until it is asked")
	f.IntVar(&most, "max-replicas", 1, "most replicas")
	f.StringVar(&acceleratorType, "accelerator-type", "", "type of device, such as VENDOR_A_H100_80GB")
	f.IntVar(&accelerators, "accelerator-count", 1, "devices for each replica")
	f.DurationVar(&expire, "expire", 0, "delete it after this time")
	f.BoolVarP(&watch, "watch", "w", false, "wait until it is READY")
	return c
}

// watchDeployment tells how a deployment comes up until it is READY or FAILED.
func (c *client) watchDeployment(cmd *cobra.Command, name string) (map[string]any, error) {
	out := cmd.ErrOrStderr()
	last := ""
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

var models = collection{"models", "model",
	[]column{{"NAME", "name"}, {"STATE", "state"}, {"KIND", "kind"}, {"BASE", "#baseModel"}, {"PARAMETERS", "parameterCount"}, {"CONTEXT", "contextLength"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"Description", "description"}, {"State", "state"}, {"Kind", "kind"}, {"Base model", "baseModel"},
		{"Parameters", "parameterCount"}, {"Context length", "contextLength"}, {"LoRA rank", "peftDetails.r"}, {"Public", "public"}, {"From job", "sourceJob"}, {"Created", "createTime"}}}

func modelCommand() *cobra.Command {
	return group("model", "Base models and tuned ones", models.listCommand(), models.getCommand(), models.deleteCommand())
}

func completeCommand() *cobra.Command {
	var model string
	var maxTokens, topK int
	var temperature, topP float64
	var seed int64
	var stop []string
	var stream bool
	c := &cobra.Command{Use: "complete PROMPT", Short: "Ask a deployed model; - reads the prompt from standard input", Args: arguments(1, 1),
		Example: `  anneal complete --model polite "good morning"`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			inJSON, err := asJSON(c)
			if err != nil {
				return err
			}
			prompt := args[0]
			if prompt == "-" {
				text, err := io.ReadAll(io.LimitReader(c.InOrStdin(), 1<<20))
				if err != nil {
					return err
				}
				prompt = strings.TrimRight(string(text), "\r\n")
			}
			body := map[string]any{"model": client.modelAddress(model), "prompt": prompt, "max_tokens": maxTokens, "temperature": temperature, "top_p": topP, "stream": stream && !inJSON}
			if topK > 0 {
				body["top_k"] = topK
			}
			if c.Flags().Changed("seed") {
				body["seed"] = seed
			}
			if len(stop) > 0 {
				body["stop"] = stop
			}
			return client.complete(c, body)
		}}
	f := c.Flags()
	f.StringVarP(&model, "model", "m", baseModelName, "model, or deployment as accounts/A/deployments/D")
	f.IntVar(&maxTokens, "max-tokens", 128, "most tokens to generate")
	f.Float64Var(&temperature, "temperature", 0, "0 is always the likeliest token")
	f.Float64Var(&topP, "top-p", 1, "share of probability to choose from")
	f.IntVar(&topK, "top-k", 0, "number of tokens to choose from; 0 is all")
	f.Int64Var(&seed, "seed", 0, "same seed, same answer")
	f.StringArrayVar(&stop, "stop", nil, "text to stop at; up to 4")
	f.BoolVar(&stream, "stream", true, "print as it comes")
	return c
}

func (c *client) modelAddress(model string) string {
	if strings.ContainsAny(model, "/#") {
		return model
	}
	return c.name("models", model)
}

type completion struct {
	Choices []struct {
		Text string `json:"text"`
	} `json:"choices"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

func (c *client) complete(cmd *cobra.Command, body map[string]any) error {
	out := cmd.OutOrStdout()
	if body["stream"] == false {
		var answer map[string]any
		if err := c.call(cmd.Context(), http.MethodPost, "/inference/v1/completions", nil, body, &answer); err != nil {
			return err
		}
		if inJSON, _ := asJSON(cmd); inJSON {
			return printJSON(out, answer)
		}
		choices, _ := answer["choices"].([]any)
		for _, choice := range choices {
			fmt.Fprintln(out, cell(choice.(map[string]any), "text"))
		}
		return nil
	}
	res, err := c.stream(cmd.Context(), "/inference/v1/completions", body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	err = serverSent(res.Body, func(data []byte) error { return printChunk(out, data) })
	fmt.Fprintln(out)
	return err
}
