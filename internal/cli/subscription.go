package cli

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

var subscriptions = collection{"subscriptions", "subscription",
	[]column{{"ID", "#name"}, {"NAME", "displayName"}, {"STATE", "state"}, {"WEBHOOK", "webhook.url"},
		{"FILES", "files.externalUrl"}, {"CREATED", "createTime"}},
	[]column{{"Name", "name"}, {"Display name", "displayName"}, {"State", "state"}, {"Status", "status.message"},
		{"Webhook", "webhook.url"}, {"Files", "files.externalUrl"}, {"Event types", "eventTypes"},
		{"Resources", "resources"}, {"Public key", "publicKey"}, {"Signing secret", "signingSecret"},
		{"Position", "delivery.position"}, {"Pending events", "delivery.pendingEvents"},
		{"Pending since", "delivery.oldestTime"}, {"Retrying", "delivery.retrying"},
		{"Dead letters", "delivery.deadLetters"}, {"Delivered", "delivery.delivered"},
		{"Last delivery", "delivery.lastDeliveryTime"}, {"Last error", "delivery.lastError"},
		{"Last error at", "delivery.lastErrorTime"}}}

func subscriptionCommand() *cobra.Command {
	return group("subscription", "Deliver events to webhooks and to files in object stores", subscriptionCreate(),
		subscriptionGet(), subscriptions.listCommand(), subscriptionUpdate(), subscriptions.deleteCommand(),
		subscriptions.verbCommand("pause", "Stop the deliveries until they are resumed", "paused"),
		subscriptions.verbCommand("resume", "Continue the deliveries of a paused or disabled subscription", "resumed"),
		subscriptionRotate(), subscriptionRedeliver(), deadLetters())
}

func subscriptionCreate() *cobra.Command {
	var webhook, files, format, secret, displayName, start, file string
	var types, resources []string
	c := &cobra.Command{Use: "create [ID]", Short: "Create a subscription, whose signing secret is only shown once",
		Args: arguments(0, 1),
		Example: "  anneal subscription create catalog --webhook https://catalog.example.com/events --type 'dataset.*'\n" +
			"  anneal subscription create archive --files s3://archive/events/ --credentials-secret store --from begin",
		RunE: func(c *cobra.Command, args []string) error {
			if webhook == "" && files == "" && file == "" {
				return usage.Errorf("--webhook URL or --files URL is required: where the events are delivered")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			item, err := readJSONFile(c, file)
			if err != nil {
				return err
			}
			set := func(field string, value any, given bool) {
				if given {
					item[keyOf(item, field)] = value
				}
			}
			for i, r := range resources {
				if !strings.HasPrefix(r, "accounts/") {
					resources[i] = "accounts/" + client.Account + "/" + r
				}
			}
			set("displayName", displayName, displayName != "")
			set("eventTypes", types, len(types) > 0)
			set("resources", resources, len(resources) > 0)
			set("webhook", map[string]any{"url": webhook}, webhook != "")
			for name, value := range map[string]string{"format": format, "credentials-secret": secret} {
				if value != "" && files == "" {
					return usage.Errorf("--%s %s has an effect only with --files: add --files s3://BUCKET/DIRECTORY/",
						name, value)
				}
			}
			target := map[string]any{"externalUrl": files, "credentialsSecret": client.name("secrets", secret)}
			if format != "" {
				target["format"] = strings.ToUpper(format)
			}
			set("files", target, files != "")
			if err := setStart(start, set); err != nil {
				return err
			}
			body := map[string]any{"subscription": item}
			if len(args) == 1 {
				body["subscriptionId"] = args[0]
			}
			var out map[string]any
			if err := client.call(c.Context(), http.MethodPost, client.path(subscriptions.name), nil, body, &out); err != nil {
				return err
			}
			return printItem(c, out, columnsWithValue(out, subscriptions.details)...)
		}}
	c.Flags().StringVar(&webhook, "webhook", "", "`URL` to which each event is sent")
	c.Flags().StringVar(&files, "files", "", "s3://BUCKET/DIRECTORY/ in which files with events are written")
	c.Flags().StringVar(&format, "format", "", "format of the files: jsonl or parquet (default: jsonl)")
	c.Flags().StringVar(&secret, "credentials-secret", "", "`ID` of the secret with the credentials of the object store")
	c.Flags().StringArrayVar(&types, "type", nil, "`TYPE` of events to deliver, such as 'dataset.*'; repeat the flag for "+
		"more (default: all)")
	c.Flags().StringArrayVar(&resources, "resource", nil, "`RESOURCE` whose events to deliver, such as datasets/codes or "+
		"'datasets/*'; repeat the flag for more (default: all)")
	c.Flags().StringVar(&start, "from", "", "begin, a position, or a time such as 2026-03-02T09:00:00Z "+
		"(default: new events)")
	c.Flags().StringVar(&displayName, "display-name", "", "display name")
	fileFlag(c, &file, "subscription")
	for flag, field := range map[string]string{"webhook": "webhook.url", "files": "files.externalUrl",
		"credentials-secret": "files.credentialsSecret", "type": "eventTypes", "resource": "resources",
		"display-name": "displayName"} {
		bindFlag(c, flag, "subscription."+field)
	}
	return c
}

// setStart calls set with the field for the start of a subscription, and its value: begin, a
// position or a time.
func setStart(start string, set func(field string, value any, given bool)) error {
	if start == "begin" {
		start = "0"
	}
	_, notNumber := strconv.ParseUint(start, 10, 63)
	_, notTime := time.Parse(time.RFC3339, start)
	if start != "" && notNumber != nil && notTime != nil {
		return usage.Errorf("--from %q must be the word begin, a position, or a time such as 2026-03-02T09:00:00Z", start)
	}
	set("startPosition", start, notNumber == nil)
	set("startTime", start, notTime == nil)
	return nil
}

// columnsWithValue returns those of the columns for which an item has a value.
func columnsWithValue(item map[string]any, columns []column) (some []column) {
	for _, one := range columns {
		if cell(item, one.path) != cell(nil, one.path) {
			some = append(some, one)
		}
	}
	return some
}

func subscriptionGet() *cobra.Command {
	return &cobra.Command{Use: "get ID", Short: "Show a subscription and what its target has received",
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := "/v1/" + client.name(subscriptions.name, args[0])
			var item, delivery map[string]any
			if err := client.call(c.Context(), http.MethodGet, path, nil, nil, &item); err != nil {
				return err
			}
			if err := client.call(c.Context(), http.MethodGet, path+"/delivery", nil, nil, &delivery); err != nil {
				return err
			}
			item = maps.Clone(item)
			item["delivery"] = delivery
			return printItem(c, item, columnsWithValue(item, subscriptions.details)...)
		}}
}

func subscriptionUpdate() *cobra.Command {
	var displayName, webhook string
	c := &cobra.Command{Use: "update ID", Short: "Change the name or the webhook of a subscription",
		Args:    arguments(1, 1),
		Example: "  anneal subscription update catalog --webhook https://catalog-2.example.com/events",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{}
			if c.Flags().Changed("display-name") {
				body["displayName"] = displayName
			}
			if webhook != "" {
				body["webhook"] = map[string]any{"url": webhook}
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPatch, "/v1/"+client.name(subscriptions.name, args[0]), nil, body,
				&item); err != nil {
				return err
			}
			return printItem(c, item, columnsWithValue(item, subscriptions.details)...)
		}}
	c.Flags().StringVar(&displayName, "display-name", "", "display name")
	c.Flags().StringVar(&webhook, "webhook", "", "`URL` to which each event is sent")
	return c
}

func subscriptionRotate() *cobra.Command {
	var overlap time.Duration
	c := &cobra.Command{Use: "rotate-secret ID", Short: "Replace the signing secret, which is only shown once",
		Args:    arguments(1, 1),
		Example: "  anneal subscription rotate-secret catalog --overlap 1h",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := client.call(c.Context(), http.MethodPost, "/v1/"+client.name(subscriptions.name, args[0])+":rotateSecret",
				nil, map[string]any{"overlap": fmt.Sprintf("%.0fs", overlap.Seconds())}, &item); err != nil {
				return err
			}
			return printItem(c, item, columnsWithValue(item, subscriptions.details)...)
		}}
	c.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "time for which requests also have the signatures of the "+
		"old secret")
	return c
}

func subscriptionRedeliver() *cobra.Command {
	var from uint64
	var dead bool
	c := &cobra.Command{Use: "redeliver ID", Short: "Deliver events to a webhook again", Args: arguments(1, 1),
		Example: "  anneal subscription redeliver catalog --dead-letters\n  anneal subscription redeliver catalog --from 120",
		RunE: func(c *cobra.Command, args []string) error {
			if from == 0 && !dead {
				return usage.Errorf("give --from POSITION, or --dead-letters")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{"deadLetters": dead}
			if from > 0 {
				body["position"] = strconv.FormatUint(from, 10)
			}
			if err := client.call(c.Context(), http.MethodPost, "/v1/"+client.name(subscriptions.name, args[0])+":redeliver",
				nil, body, nil); err != nil {
				return err
			}
			return printDone(c, subscriptions.noun, args[0], "redelivers")
		}}
	c.Flags().Uint64Var(&from, "from", 0, "`POSITION` of the first event to deliver again")
	c.Flags().BoolVar(&dead, "dead-letters", false, "deliver the dead letters again")
	return c
}

func deadLetters() *cobra.Command {
	return &cobra.Command{Use: "dead-letters ID", Short: "List events that could not be delivered", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			items, err := client.list(c.Context(), "/v1/"+client.name(subscriptions.name, args[0])+"/deadLetters",
				"deadLetters", nil)
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no dead letters", ""},
				items, column{"POSITION", "position"}, column{"TYPE", "type"}, column{"RESOURCE", "resource"},
				column{"ATTEMPTS", "attempts"}, column{"LAST ATTEMPT", "lastAttemptTime"}, column{"ERROR", "error"})
		}}
}
