package cli

import (
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/datadir"
	"anneal/internal/usage"
)

var nodes = collection{"nodes", "node",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"SCHEDULING", "scheduling"}, {"POOL", "pool"},
		{"CPU MILLI", "capacity.cpuMilli"},
		{"USED", "used.cpuMilli"}, {"MEMORY MIB", "capacity.memoryMib"},
		{"ACCELERATORS", "capacity.accelerators"}, {"LABELS", "labels"}, {"ENROLLED", "enrollTime"}, {"KEY", "shortKey"},
		{"LAST SEEN", "seenTime"}},
	[]column{{"Name", "name"}, {"State", "state"}, {"Status", "status.message"}, {"Scheduling", "scheduling"},
		{"Cordoned", "cordon.time"}, {"Reason", "cordon.reason"}, {"Drain deadline", "cordon.deadline"},
		{"Drained", "cordon.drained"}, {"Pool", "pool"},
		{"Failed devices", "failedDevices"}, {"Labels", "labels"}, {"Taints", "taints"}, {"Engines", "engines"},
		{"Capacity", "capacity"}, {"Used", "used"},
		{"Allocations", "allocations"}, {"Version", "version"}, {"Key", "publicKey"}, {"Enrolled", "enrollTime"},
		{"Revoked", "revokeTime"}, {"Last seen", "seenTime"}, {"Created", "createTime"}}}

// shownKey is the number of characters of a node's public key that the list shows.
const shownKey = 12

func nodeCommand() *cobra.Command {
	list := asOfFlag(&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			items, err := operator.list(c.Context(), operator.path("nodes"), "nodes", asOf(c, nil))
			if err != nil {
				return err
			}
			if inJSON, _ := wantsJSON(c); !inJSON {
				for _, item := range items {
					if key, _ := item["publicKey"].(string); key != "" {
						item["shortKey"] = key[:min(len(key), shownKey)]
					}
				}
			}
			return printItems(c, noRows{"no nodes",
				"create a join token with `anneal node token`, and run `anneal work` on a machine"},
				items, withStatus(nodes.columns, items)...)
		}})
	get := asOfFlag(&cobra.Command{Use: "get ID", Short: "Show a node", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodGet, operator.path("nodes", id(args[0])), asOf(c, nil), nil,
				&item); err != nil {
				return err
			}
			return printItem(c, item, nodes.details...)
		}})
	remove := &cobra.Command{Use: "delete ID", Short: "Delete a node that has no allocations", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			if err := operator.call(c.Context(), http.MethodDelete, operator.path("nodes", id(args[0])), nil, nil,
				nil); err != nil {
				return err
			}
			return printDone(c, "node", args[0], "deleted")
		}}
	c := group("node", "Manage worker nodes (run on the server's machine)", nodeToken(), list, get, nodeTop(),
		nodeCordon(), nodeUncordon(), nodeDrain(), nodeTaint(), nodeUntaint(), nodeRevoke(), remove)
	dataFlag(c.PersistentFlags())
	return c
}

func nodeRevoke() *cobra.Command {
	var reason string
	c := &cobra.Command{Use: "revoke ID", Short: "Revoke a node's key, and the join token with which it enrolled",
		Args:    arguments(1, 1),
		Example: "  anneal node revoke gpu-7 --reason 'the machine was sold'",
		Long: `Closes the node's connections and rejects the node's key from then on. The node's jobs resume on other
nodes from their last checkpoints, and its replicas are placed on other nodes. To enroll a node with
the same name again, create a new token.`,
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			if err := operator.call(c.Context(), http.MethodPost, operator.path("nodes", id(args[0]))+":revoke", nil,
				map[string]any{"reason": reason}, nil); err != nil {
				return err
			}
			return printDone(c, "node", args[0], "revoked")
		}}
	c.Flags().StringVar(&reason, "reason", "", "reason to record in the event log")
	return c
}

func nodeToken() *cobra.Command {
	var node, out string
	var expire time.Duration
	c := &cobra.Command{Use: "token", Short: "Create a join token, with which `anneal work` enrolls",
		Args:    arguments(0, 0),
		Example: "  anneal node token > node.token\n  anneal work --join nats://SERVER:4222 --token-file node.token",
		RunE: func(c *cobra.Command, _ []string) error {
			if node != "" && !domain.ValidID(node) {
				return usage.Errorf("--id %q %s", node, domain.IDRule)
			}
			if expire <= 0 || expire > datadir.MaxJoinTokenTTL {
				return usage.Errorf("--expire %s must be more than 0 and at most %s", expire, datadir.MaxJoinTokenTTL)
			}
			dir := operatorDir(c)
			if err := checkOperator(dir); err != nil {
				return err
			}
			expires := time.Now().Add(expire).Truncate(time.Second)
			inJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			if out != "" {
				err := storeSecret(c, out, func() ([]byte, error) {
					token, err := dir.JoinToken(node, expires)
					return []byte(token + "\n"), err
				})
				if err != nil || !inJSON {
					return err
				}
				return printFiles(c, []string{out})
			}
			token, err := dir.JoinToken(node, expires)
			if err != nil {
				return err
			}
			if inJSON {
				return printJSON(c.OutOrStdout(),
					map[string]any{"token": token, "nodeId": node, "expireTime": expires.UTC().Format(time.RFC3339)})
			}
			note(c, "%s", token)
			return nil
		}}
	c.Flags().StringVar(&node, "id", "",
		"ID of the only node that may use the token (default: any node whose name is not taken)")
	c.Flags().DurationVar(&expire, "expire", datadir.JoinTokenTTL, "time for which nodes can enroll with the token")
	c.Flags().StringVar(&out, "file", "",
		"write the token to this new file, readable only by its owner, instead of printing the token")
	return c
}
