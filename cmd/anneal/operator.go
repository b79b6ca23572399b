package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
)

var accountColumns = []column{{"Name", "name"}, {"Display name", "displayName"}, {"Email", "email"}, {"Type", "accountType"}, {"State", "state"},
	{"Suspended", "suspendState"}, {"Created", "createTime"}}

func accountCommand() *cobra.Command {
	c := group("account", "Accounts, for the operator on the server's machine", accountCreate(), accountSuspend(), accountRestore(), accountList(), accountGet())
	c.PersistentFlags().String("data", "", "the server's folder (default: that of the context file)")
	return c
}

func accountCreate() *cobra.Command {
	var displayName, email string
	c := &cobra.Command{Use: "create ID", Short: "Make an account and its first admin key, shown this once", Args: arguments(1, 1),
		Example: "  anneal account create acme --display-name Acme --email ops@example.com",
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			body := map[string]any{"accountId": args[0], "account": map[string]any{"displayName": displayName, "email": email}}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodPost, "/v1/accounts", nil, body, &item); err != nil {
				return err
			}
			inJSON, err := asJSON(c)
			if err != nil {
				return err
			}
			if inJSON {
				return printJSON(c.OutOrStdout(), map[string]any{"account": args[0], "apiKey": item["key"], "address": operator.Address})
			}
			note(c, "account %s created\nkey: %s", args[0], cell(item, "key"))
			return nil
		}}
	c.Flags().StringVar(&displayName, "display-name", "", "a name for people")
	c.Flags().StringVar(&email, "email", "", "the primary e-mail")
	return c
}

func accountSuspend() *cobra.Command {
	var why string
	reasons := strings.Join(domain.SuspendStates, ", ")
	c := &cobra.Command{Use: "suspend ID --reason REASON", Short: "Pause an account's jobs and refuse its requests", Args: arguments(1, 1),
		Example: "  anneal account suspend acme --reason CREDIT_DEPLETED",
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(domain.SuspendStates, why) {
				return usageError{fmt.Errorf("--reason is required, since the account is told it, and must be one of %s", reasons)}
			}
			return accountVerb(c, args[0], "suspend", map[string]any{"suspendState": why}, "suspended")
		}}
	c.Flags().StringVar(&why, "reason", "", "why, as the account is told: "+reasons)
	return c
}

func accountRestore() *cobra.Command {
	return &cobra.Command{Use: "restore ID", Short: "Lift a suspension", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		return accountVerb(c, args[0], "restore", map[string]any{}, "restored")
	}}
}

func accountVerb(c *cobra.Command, id, verb string, body map[string]any, past string) error {
	operator, err := newOperator(c)
	if err != nil {
		return err
	}
	if err := operator.call(c.Context(), http.MethodPost, "/v1/accounts/"+id+":"+verb, nil, body, nil); err != nil {
		return err
	}
	return done(c, "account", id, past)
}

func accountList() *cobra.Command {
	return &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List all accounts", Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		operator, err := newOperator(c)
		if err != nil {
			return err
		}
		items, err := operator.list(c.Context(), "/v1/accounts", "accounts", nil)
		if err != nil {
			return err
		}
		return printItems(c, items, column{"ID", "#name"}, column{"STATE", "state"}, column{"SUSPENDED", "suspendState"}, column{"DISPLAY NAME", "displayName"}, column{"CREATED", "createTime"})
	}}
}

func accountGet() *cobra.Command {
	return &cobra.Command{Use: "get [ID]", Short: "Show one account; without an ID one's own, which needs no operator", Args: arguments(0, 1), RunE: func(c *cobra.Command, args []string) error {
		asks, err := newClient(c)
		if len(args) == 1 && (err != nil || args[0] != asks.Account) {
			asks, err = newOperator(c) // another's account
		}
		if err != nil {
			return err
		}
		path := asks.path()
		if len(args) == 1 {
			path = "/v1/accounts/" + args[0]
		}
		var item map[string]any
		if err := asks.call(c.Context(), http.MethodGet, path, nil, nil, &item); err != nil {
			return err
		}
		return printItem(c, item, accountColumns...)
	}}
}

var nodes = collection{"nodes", "node",
	[]column{{"ID", "#name"}, {"STATE", "state"}, {"POOL", "pool"}, {"CPU MILLI", "capacity.cpuMilli"}, {"USED", "used.cpuMilli"}, {"MEMORY MIB", "capacity.memoryMib"},
		{"ACCELERATORS", "capacity.accelerators"}, {"ENROLLED", "enrollTime"}, {"KEY", "shortKey"}, {"LAST SEEN", "seenTime"}},
	[]column{{"Name", "name"}, {"State", "state"}, {"Status", "status.message"}, {"Pool", "pool"}, {"Engines", "engines"}, {"Capacity", "capacity"}, {"Used", "used"},
		{"Allocations", "allocations"}, {"Version", "version"}, {"Key", "publicKey"}, {"Enrolled", "enrollTime"}, {"Revoked", "revokeTime"}, {"Last seen", "seenTime"}, {"Created", "createTime"}}}

// shownKey is how much of a public key a list shows.
const shownKey = 12

func nodeCommand() *cobra.Command {
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Args: arguments(0, 0), RunE: func(c *cobra.Command, _ []string) error {
		operator, err := newOperator(c)
		if err != nil {
			return err
		}
		items, err := operator.list(c.Context(), operator.path("nodes"), "nodes", nil)
		if err != nil {
			return err
		}
		if inJSON, _ := asJSON(c); !inJSON {
			for _, item := range items {
				if key, _ := item["publicKey"].(string); key != "" {
					item["shortKey"] = key[:min(len(key), shownKey)]
				}
			}
		}
		return printItems(c, items, nodes.columns...)
	}}
	get := &cobra.Command{Use: "get ID", Short: "Show one node", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		operator, err := newOperator(c)
		if err != nil {
			return err
		}
		var item map[string]any
		if err := operator.call(c.Context(), http.MethodGet, operator.path("nodes", id(args[0])), nil, nil, &item); err != nil {
			return err
		}
		return printItem(c, item, nodes.details...)
	}}
	remove := &cobra.Command{Use: "delete ID", Short: "Forget a node that holds nothing", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		operator, err := newOperator(c)
		if err != nil {
			return err
		}
		if err := operator.call(c.Context(), http.MethodDelete, operator.path("nodes", id(args[0])), nil, nil, nil); err != nil {
			return err
		}
		return done(c, "node", args[0], "deleted")
	}}
	c := group("node", "Machines that work, for the operator on the server's machine", nodeToken(), list, get, nodeRevoke(), remove)
	c.PersistentFlags().String("data", "", "the server's folder (default: that of the context file)")
	return c
}

func nodeRevoke() *cobra.Command {
	var reason string
	c := &cobra.Command{Use: "revoke ID", Short: "Revoke a node's key and the token it enrolled with", Args: arguments(1, 1),
		Example: "  anneal node revoke gpu-7 --reason 'the machine was sold'",
		Long: `The node's connections are closed and its key is refused from then on; its jobs go on elsewhere from
their last checkpoints, and its replicas are placed elsewhere. Its name can be enrolled again with a
new token only.`,
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			if err := operator.call(c.Context(), http.MethodPost, operator.path("nodes", id(args[0]))+":revoke", nil, map[string]any{"reason": reason}, nil); err != nil {
				return err
			}
			return done(c, "node", args[0], "revoked")
		}}
	c.Flags().StringVar(&reason, "reason", "", "reason to record in the event log")
	return c
}

func nodeToken() *cobra.Command {
	var node, out string
	var expire time.Duration
	c := &cobra.Command{Use: "token", Short: "Print a token with which `anneal work` enrols", Args: arguments(0, 0),
		Example: "  anneal node token > node.token\n  anneal work --join nats://SERVER:4222 --token-file node.token",
		RunE: func(c *cobra.Command, _ []string) error {
			if node != "" && !domain.ValidID(node) {
				return usageError{fmt.Errorf("--id %q %s", node, domain.IDRule)}
			}
			if expire <= 0 || expire > maxJoinTokenTime {
				return usageError{fmt.Errorf("--expire %s must be more than 0 and at most %s", expire, maxJoinTokenTime)}
			}
			dir := operatorFolder(c)
			if _, err := os.Stat(dir.path("operator.json")); err != nil {
				return fmt.Errorf("this is the operator's command: run it on the server's machine with --data DIR (no %s here)", dir.path("operator.json"))
			}
			expires := time.Now().Add(expire).Truncate(time.Second)
			token, err := dir.joinToken(node, expires)
			if err != nil {
				return err
			}
			inJSON, err := asJSON(c)
			if err != nil {
				return err
			}
			if out != "" {
				if err := writePrivate(out, []byte(token+"\n")); err != nil || !inJSON {
					return err
				}
				return printFiles(c, []string{out})
			}
			if inJSON {
				return printJSON(c.OutOrStdout(), map[string]any{"token": token, "nodeId": node, "expireTime": expires.UTC().Format(time.RFC3339)})
			}
			note(c, "%s", token)
			return nil
		}}
	c.Flags().StringVar(&node, "id", "", "the only node that may use it (default: any whose name nobody has)")
	c.Flags().DurationVar(&expire, "expire", joinTokenTime, "how long nodes may enrol with it")
	c.Flags().StringVar(&out, "file", "", "write it to this file, readable by its owner only, instead of printing it")
	return c
}
