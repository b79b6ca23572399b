package cli

import (
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

var quotaColumns = []column{{"ID", "#name"}, {"LIMIT", "maxValue"}, {"USED", "usage"}, {"UPDATED", "updateTime"}}

func quotaCommand() *cobra.Command {
	c := group("quota", "Manage quotas of accounts (run on the server's machine)", quotaList(), quotaSet())
	dataFlag(c.PersistentFlags())
	return c
}

func quotaList() *cobra.Command {
	return asOfFlag(&cobra.Command{Use: "list [ACCOUNT]", Aliases: []string{"ls"},
		Short: "Show quotas of an account (default: your own account, which needs no operator key)", Args: arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			caller, err := newClient(c)
			if len(args) == 1 && (err != nil || args[0] != caller.Account) {
				// Only the operator can read the quotas of an account that is not the caller's.
				caller, err = newOperator(c)
			}
			if err != nil {
				return err
			}
			path := caller.path("quotas")
			if len(args) == 1 {
				path = "/v1/accounts/" + args[0] + "/quotas"
			}
			items, err := caller.list(c.Context(), path, "quotas", asOf(c, nil))
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no quotas", ""}, items, quotaColumns...)
		}})
}

func quotaSet() *cobra.Command {
	c := &cobra.Command{Use: "set ACCOUNT ID LIMIT",
		Short: "Set a quota of an account; the limit \"none\" removes the quota",
		Args:  arguments(3, 3),
		Example: "  anneal quota set acme requests-per-minute 600\n  anneal quota set acme accelerators 8\n  anneal " +
			"quota set acme guaranteed-accelerators 4\n  anneal quota set acme storage-bytes 50000000000\n" +
			"  anneal quota set acme jobs none",
		Long: "The quotas are accelerators, deployments, guaranteed-accelerators, jobs, requests-per-minute and " +
			"storage-bytes (of the files of datasets, models, evaluators and batches). guaranteed-accelerators limits " +
			"nothing: it guarantees accelerators to the account, which returns what it uses above them when another " +
			"account needs its own.",
		RunE: func(c *cobra.Command, args []string) error {
			var limit any // maximum to set; nil becomes null in JSON, which removes the quota
			if args[2] != "none" {
				n, err := strconv.ParseInt(args[2], 10, 64)
				if err != nil || n < 0 {
					return usage.Errorf("limit %q must be a whole number from 0, or none", args[2])
				}
				limit = n
			}
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			var item map[string]any
			if err := operator.call(c.Context(), http.MethodPatch, "/v1/accounts/"+args[0]+"/quotas/"+args[1], nil,
				map[string]any{"maxValue": limit}, &item); err != nil {
				return err
			}
			return printItem(c, item, column{"Name", "name"}, column{"Limit", "maxValue"}, column{"Used", "usage"},
				column{"Updated", "updateTime"})
		}}
	bindArgument(c, "LIMIT", "maxValue", "")
	return c
}
