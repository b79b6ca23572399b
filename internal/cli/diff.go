package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/internal/usage"
)

func diffCommand() *cobra.Command {
	var allAccounts bool
	c := &cobra.Command{Use: "diff RESOURCE A B", Short: "Show what differs between two positions or times",
		Args: arguments(2, 3),
		Example: "  anneal diff deployments/codes 1250 1310\n  anneal diff accounts/default 2026-03-01T12:00:00Z " +
			"2026-03-02T12:00:00Z\n  anneal diff --all-accounts 1250 1310 --context data/operator.json",
		Long: `A and B are positions of the log, or times. For a resource, diff shows the fields that differ. For an
account, it shows which of its resources were created, deleted and changed, with the names of the fields
that differ. A resource that was deleted and created again is shown as changed. The fields are those of the
API. Values of secrets are not shown. Resources of kinds that the API key may not list are left out, and so
are the files and batches of the OpenAI API.`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if allAccounts != (len(args) == 2) {
				return usage.Errorf("give a resource or --all-accounts, and two positions or times; usage: %s", c.UseLine())
			}
			between := &comparison{client: client}
			for i, given := range args[len(args)-2:] {
				if between.at[i], err = client.positionAsOf(c.Context(), given); err != nil {
					return err
				}
			}
			if allAccounts {
				changes, err := between.world(c.Context())
				return printChanges(c, changes, err)
			}
			if account, isAccount := strings.CutPrefix(strings.Trim(args[0], "/"), "accounts/"); isAccount &&
				domain.ValidID(account) {
				changes, err := between.account(c.Context(), account)
				return printChanges(c, changes, err)
			}
			name, err := client.resourceName(args[0])
			if err != nil {
				return err
			}
			fields, err := between.resource(c.Context(), name)
			if err != nil {
				return err
			}
			return printItems(c, noDifference, fields,
				column{"FIELD", "field"}, column{"OLD", "oldText"}, column{"NEW", "newText"})
		}}
	c.Flags().BoolVar(&allAccounts, "all-accounts", false,
		"compare the resources of all accounts; requires the operator's context file")
	return c
}

var noDifference = noRows{"the states at the two positions are equal", ""}

func printChanges(c *cobra.Command, changes []map[string]any, err error) error {
	if err != nil {
		return err
	}
	return printItems(c, noDifference, changes,
		column{"CHANGE", "change"}, column{"RESOURCE", "resource"}, column{"FIELDS", "fields"})
}

// A comparison compares the states of resources at two positions of the log, through the API.
type comparison struct {
	*client
	at [2]string
}

// How a resource has changed between two positions.
const (
	changeCreated = "created"
	changeDeleted = "deleted"
	changeChanged = "changed"
)

// resource returns the fields of a resource whose values differ. A resource that does not exist has
// no fields; if it exists at neither position, resource returns an error.
func (d *comparison) resource(ctx context.Context, name domain.Name) ([]map[string]any, error) {
	var states [2]map[string]any
	for i := range d.at {
		var item map[string]any
		err := d.call(ctx, http.MethodGet, "/v1/"+string(name), url.Values{"asOf": {d.at[i]}}, nil, &item)
		var failed *apiError
		if errors.As(err, &failed) && failed.Status == http.StatusNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		states[i] = flat(item)
	}
	if states[0] == nil && states[1] == nil {
		return nil, fmt.Errorf("%s exists neither at position %s nor at position %s: list its events with "+
			"'anneal events --resource %s'", name, d.at[0], d.at[1], name)
	}
	differ := []map[string]any{}
	for _, field := range fieldsChanged(states[0], states[1]) {
		before, after := states[0][field], states[1][field]
		differ = append(differ, map[string]any{"field": field, "old": before, "new": after, "oldText": valueText(before),
			"newText": valueText(after)})
	}
	return differ, nil
}

// flat returns the values of a resource by the dotted paths of their fields.
func flat(item map[string]any) map[string]any {
	fields := map[string]any{wholeResource: "exists"}
	collectFields(fields, "", item)
	return fields
}

// world returns the changed resources of all accounts.
func (d *comparison) world(ctx context.Context) ([]map[string]any, error) {
	ids := map[string]bool{domain.System: true}
	for i := range d.at {
		items, err := d.list(ctx, "/v1/accounts", "accounts", url.Values{"asOf": {d.at[i]}, "readMask": {"name"}})
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			ids[id(item["name"].(string))] = true
		}
	}
	var all []map[string]any
	for _, account := range slices.Sorted(maps.Keys(ids)) {
		changes, err := d.account(ctx, account)
		if err != nil {
			return nil, err
		}
		all = append(all, changes...)
	}
	return all, nil
}

// account returns the account, if it has changed, and its changed resources.
func (d *comparison) account(ctx context.Context, account string) ([]map[string]any, error) {
	changes := []map[string]any{}
	if account != domain.System {
		fields, err := d.resource(ctx, domain.Name("accounts/"+account))
		if err != nil {
			return nil, err
		}
		if len(fields) > 0 {
			changes = append(changes, changeOf("accounts/"+account, fields))
		}
	}
	for _, kind := range domain.Kinds {
		collection := kind.CollectionID()
		switch {
		case collection == domain.Accounts.Collection, collection == domain.BatchFiles.Collection,
			collection == domain.Batches.Collection, collection == domain.UsageRollups.Collection,
			collection == domain.Nodes.Collection != (account == domain.System) && collection != domain.APIKeys.Collection:
			continue
		}
		more, err := d.collection(ctx, account, collection)
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	return changes, nil
}

// collection returns the changed resources in one collection of an account. It returns nil if the
// API key may not list the collection.
func (d *comparison) collection(ctx context.Context, account, collection string) ([]map[string]any, error) {
	var states [2]map[string]map[string]any
	names := map[string]bool{}
	for i := range d.at {
		states[i] = map[string]map[string]any{}
		query := url.Values{"asOf": {d.at[i]}}
		if collection == domain.Deployments.Collection {
			query.Set("showDeleted", "true")
		}
		items, err := d.list(ctx, "/v1/accounts/"+account+"/"+collection, collection, query)
		var failed *apiError
		if errors.As(err, &failed) && failed.Status == http.StatusForbidden && account == d.Account {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			name, _ := item["name"].(string)
			states[i][name], names[name] = flat(item), true
		}
	}
	var changes []map[string]any
	for _, name := range wire.SortedKeys(names) {
		var fields []map[string]any
		for _, field := range fieldsChanged(states[0][name], states[1][name]) {
			fields = append(fields, map[string]any{"field": field, "new": states[1][name][field]})
		}
		if len(fields) > 0 {
			changes = append(changes, changeOf(name, fields))
		}
	}
	return changes, nil
}

// changeOf returns a row of the output for a resource: whether it was created, deleted or changed,
// and the paths of the fields that differ.
func changeOf(name string, fields []map[string]any) map[string]any {
	change, differ := changeChanged, []any{}
	for _, field := range fields {
		path := field["field"].(string)
		switch {
		case path != wholeResource:
			differ = append(differ, path)
		case field["new"] == nil:
			change = changeDeleted
		default:
			change = changeCreated
		}
	}
	if change != changeChanged {
		differ = []any{}
	}
	return map[string]any{"change": change, "resource": name, "fields": differ}
}
