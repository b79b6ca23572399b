package cli

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

var accountColumns = []column{{"Name", "name"}, {"Display name", "displayName"}, {"Email", "email"},
	{"Type", "accountType"}, {"State", "state"},
	{"Suspended", "suspendState"}, {"Queue weight", "queueWeight"},
	{"Node selector", selectorPath}, {"Tolerated taints", tolerationsPath},
	{"Accelerators of jobs", "jobAccelerators"}, {"Created", "createTime"}}

func accountCommand() *cobra.Command {
	c := group("account", "Manage accounts (run on the server's machine)", accountCreate(), accountSuspend(),
		accountRestore(), accountNodes(), accountWeight(),
		accountList(), accountGet())
	dataFlag(c.PersistentFlags())
	return c
}

func accountCreate() *cobra.Command {
	var file string
	fields := []field{
		{flag: "display-name", path: "displayName", value: "", usage: "display name"},
		{flag: "email", path: "email", value: "", usage: "primary email address"},
	}
	c := &cobra.Command{Use: "create ID", Short: "Create an account and its first admin key, which is only shown once",
		Args:    arguments(1, 1),
		Example: "  anneal account create acme --display-name Acme --email ops@example.com",
		RunE: func(c *cobra.Command, args []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			account, err := readJSONFile(c, file)
			if err != nil {
				return err
			}
			if err := fillBody(c, operator, fields, account); err != nil {
				return err
			}
			body := map[string]any{"accountId": args[0], "account": account}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodPost, "/v1/accounts", nil, body, &item); err != nil {
				return err
			}
			inJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			if inJSON {
				return printJSON(c.OutOrStdout(),
					map[string]any{"account": args[0], "apiKey": item["key"], "address": operator.Address})
			}
			note(c, "account %s created\nkey: %s", args[0], cell(item, "key"))
			return nil
		}}
	addFields(c, fields)
	fileFlag(c, &file, "account")
	return c
}

func accountSuspend() *cobra.Command {
	var why string
	reasons := strings.Join(domain.SuspendStates, ", ")
	c := &cobra.Command{Use: "suspend ID --reason REASON", Short: "Pause an account's jobs and reject its requests",
		Args:    arguments(1, 1),
		Example: "  anneal account suspend acme --reason CREDIT_DEPLETED",
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(domain.SuspendStates, why) {
				return usage.Errorf("--reason is required and must be one of %s%s; the suspended account sees the reason", reasons,
					domain.DidYouMean(why, domain.SuspendStates))
			}
			return accountVerb(c, args[0], "suspend", map[string]any{"suspendState": why}, "suspended")
		}}
	c.Flags().StringVar(&why, "reason", "", "reason that the account sees: "+reasons)
	bindFlag(c, "reason", "suspendState")
	return c
}

func accountRestore() *cobra.Command {
	return &cobra.Command{Use: "restore ID", Short: "End the suspension of an account", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return accountVerb(c, args[0], "restore", map[string]any{}, "restored")
		}}
}

func accountWeight() *cobra.Command {
	return &cobra.Command{Use: "weight ID WEIGHT", Args: arguments(2, 2),
		Short:   "Set an account's share of the cluster for its jobs, relative to other accounts",
		Example: "  anneal account weight acme 2",
		RunE: func(c *cobra.Command, args []string) error {
			weight, err := strconv.Atoi(args[1])
			if err != nil || weight < 1 || weight > domain.MaxQueueWeight {
				return usage.Errorf("weight %q must be a whole number from 1 to %d", args[1], domain.MaxQueueWeight)
			}
			return accountVerb(c, args[0], "setQueueWeight", map[string]any{"queueWeight": weight}, "has weight "+args[1])
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
	return printDone(c, "account", id, past)
}

func accountList() *cobra.Command {
	return asOfFlag(&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List all accounts", Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			items, err := operator.list(c.Context(), "/v1/accounts", "accounts", asOf(c, nil))
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no accounts", "create one with `anneal account create ID`"},
				items, column{"ID", "#name"}, column{"STATE", "state"}, column{"SUSPENDED", "suspendState"},
				column{"DISPLAY NAME", "displayName"}, column{"CREATED", "createTime"})
		}})
}

func accountGet() *cobra.Command {
	return asOfFlag(&cobra.Command{Use: "get [ID]",
		Short: "Show an account (default: your own account, which needs no operator key)",
		Args:  arguments(0, 1), RunE: func(c *cobra.Command, args []string) error {
			caller, err := newClient(c)
			if len(args) == 1 && (err != nil || args[0] != caller.Account) {
				caller, err = newOperator(c) // only the operator can read an account that is not the caller's
			}
			if err != nil {
				return err
			}
			path := caller.path()
			if len(args) == 1 {
				path = "/v1/accounts/" + args[0]
			}
			var item map[string]any
			if err := caller.call(c.Context(), http.MethodGet, path, asOf(c, nil), nil, &item); err != nil {
				return err
			}
			return printItem(c, item, accountColumns...)
		}})
}
