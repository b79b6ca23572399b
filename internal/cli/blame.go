package cli

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/internal/usage"
)

func blameCommand() *cobra.Command {
	return &cobra.Command{Use: "blame RESOURCE [FIELD]", Short: "Show who changed or deleted a resource or a field",
		Args:    arguments(1, 2),
		Example: "  anneal blame deployments/codes\n  anneal blame deployments/codes maxReplicaCount",
		Long: `Without FIELD, shows the newest change of each field of a resource, or its deletion. With FIELD,
shows all changes of the field and of the fields below it, and the deletions of the resource. KEY is
the API key whose request caused the change, even if a task of the server made it later, and ADDRESS the
address of its client. Fields are those of
the events, whose names can differ from those of the API. Values of secrets are not shown.`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			name, err := client.resourceName(args[0])
			if err != nil {
				return err
			}
			events, err := client.resourceEvents(c.Context(), name)
			if err != nil {
				return err
			}
			if len(events) == 0 {
				return fmt.Errorf("%s has no events: list events with 'anneal events'", name)
			}
			changes, err := changesOf(name, events)
			if err != nil {
				return err
			}
			if len(args) == 2 {
				changes, err = changesOfField(changes, name, args[1])
			} else {
				changes = newestChanges(changes)
			}
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no changes", ""},
				changes, column{"POSITION", "position"}, column{"TIME", "time"}, column{"EVENT", "type"},
				column{"FIELD", "field"}, column{"OLD", "oldText"}, column{"NEW", "newText"}, column{"ACTOR", "actor"},
				column{"KEY", "key"}, column{"ADDRESS", "clientaddress"},
				column{"CONTROL PLANE", "controlplane"})
		}}
}

// resourceName returns the name of a resource that the user gives as COLLECTION/ID or as its full
// name.
func (c *client) resourceName(given string) (domain.Name, error) {
	given = strings.Trim(given, "/")
	name := domain.Name(given)
	if !strings.HasPrefix(given, "accounts/") {
		name = domain.Name("accounts/" + c.Account + "/" + given)
	}
	if collection := name.Collection(); strings.Contains(given, "/") && domain.KindOf(collection) == nil {
		return "", usage.Errorf("%q is not a resource: there is no collection %q%s", given, collection,
			domain.UnknownName(collection, "the collections are ", domain.Collections()))
	}
	if domain.KindOf(name.Collection()) == nil || domain.NameOf(name.Subject()) != name || !domain.ValidID(name.ID()) {
		return "", usage.Errorf("%q is not a resource: give COLLECTION/ID, such as deployments/%s", given, id(given))
	}
	return name, nil
}

// wholeResource stands for all fields, in a change that creates or deletes the resource.
const wholeResource = "(resource)"

// changesOf folds the events of a resource, and returns all changes of its fields, in the order of
// the events.
func changesOf(name domain.Name, events []map[string]any) (changes []map[string]any, err error) {
	kind := domain.KindOf(name.Collection())
	var state any
	fields := map[string]any{}
	roots := rootsOf(events)
	for _, event := range events {
		data, err := json.Marshal(event["data"])
		if err != nil {
			return nil, err
		}
		eventType := fmt.Sprint(event["type"])
		state, err = kind.FoldRecord(state, domain.Record{Type: eventType, Data: data})
		if err != nil {
			return nil, fmt.Errorf("position %v: %w", event["position"], err)
		}
		next, err := fieldsOf(state)
		if err != nil {
			return nil, err
		}
		for _, field := range fieldsChanged(fields, next) {
			root := roots[fmt.Sprint(event["id"])]
			change := map[string]any{"field": field, "key": root.key, "clientaddress": root.address}
			for _, attribute := range []string{"position", "time", "type", "actor", "correlation", "controlplane"} {
				change[attribute] = event[attribute]
			}
			change["old"], change["oldText"] = fields[field], valueText(fields[field])
			change["new"], change["newText"] = next[field], valueText(next[field])
			changes = append(changes, change)
		}
		fields = next
	}
	return changes, nil
}

// A root is the origin of the request that caused an event.
type root struct {
	key     string // name of the API key of the request; "" if it is unknown
	address string // IP address of the client; "" if it is not recorded
}

// rootsOf returns the origin of the request that caused each event, by the ID of the event. An
// event whose actor is not an API key has the origin of its cause or, without a cause, of an event
// with the same correlation.
func rootsOf(events []map[string]any) map[string]root {
	roots, byRequest := map[string]root{}, map[any]root{}
	for _, event := range events {
		var found root
		if actor := fmt.Sprint(event["actor"]); domain.IsCaller(domain.Name(actor)) {
			found = root{actor, text(event, "clientaddress")}
			byRequest[event["correlation"]] = found
		} else if cause, ok := event["cause"].(string); ok && roots[cause].key != "" {
			found = roots[cause]
		} else if request, ok := event["correlation"].(string); ok {
			found = byRequest[request]
		}
		roots[fmt.Sprint(event["id"])] = found
	}
	return roots
}

// fieldsOf returns the values of the fields of a state by their dotted paths. A list is one value.
// A state that exists also has the field wholeResource.
func fieldsOf(state any) (map[string]any, error) {
	fields := map[string]any{}
	existing, ok := pointerTo(state).(domain.State)
	if !ok || !existing.Exists() {
		return fields, nil
	}
	data, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, err
	}
	fields[wholeResource] = "exists"
	collectFields(fields, "", tree)
	return fields, nil
}

// pointerTo returns a pointer to a copy of state, because some states implement their methods on
// pointers.
func pointerTo(state any) any {
	p := reflect.New(reflect.TypeOf(state))
	p.Elem().Set(reflect.ValueOf(state))
	return p.Interface()
}

func collectFields(fields map[string]any, prefix string, tree map[string]any) {
	for name, value := range tree {
		switch v := value.(type) {
		case map[string]any:
			collectFields(fields, prefix+name+".", v)
		case nil:
		case []any:
			if len(v) > 0 {
				fields[prefix+name] = v
			}
		default:
			if v != "" && v != false && v != 0.0 && v != zeroTime {
				fields[prefix+name] = v
			}
		}
	}
}

// fieldsChanged returns the paths of the fields in which two states differ. If the second state
// does not exist, it returns only wholeResource.
func fieldsChanged(before, after map[string]any) (changed []string) {
	if len(after) == 0 && len(before) > 0 {
		return []string{wholeResource}
	}
	all := map[string]bool{}
	for _, fields := range []map[string]any{before, after} {
		for field := range fields {
			all[field] = true
		}
	}
	for _, field := range wire.SortedKeys(all) {
		if !reflect.DeepEqual(before[field], after[field]) {
			changed = append(changed, field)
		}
	}
	return changed
}

// valueText returns the value of a field as text for a table.
func valueText(value any) string {
	const longest = 60 // maximum number of characters of the returned text

	text, isText := value.(string)
	if !isText && value != nil {
		data, _ := json.Marshal(value) // cannot fail: the value was decoded from JSON
		text = string(data)
	}
	if runes := []rune(text); len(runes) > longest {
		return string(runes[:longest]) + "…"
	}
	return text
}

// newestChanges returns the newest change of each field that the resource still has. If the
// resource is deleted, it returns only the deletion.
func newestChanges(changes []map[string]any) []map[string]any {
	newest := map[string]bool{}
	var kept []map[string]any
	for _, change := range slices.Backward(changes) {
		field := change["field"].(string)
		if newest[field] {
			continue
		}
		if newest[field] = true; change["new"] != nil {
			kept = append(kept, change)
		}
		if field == wholeResource {
			if change["new"] == nil && len(kept) == 0 {
				kept = append(kept, change) // the resource is deleted
			}
			break // this change created the resource, or deleted an earlier resource of the same name
		}
	}
	slices.Reverse(kept)
	return kept
}

// changesOfField returns the changes of a field and of the fields below it, and the deletions of
// the resource. It returns an error if the resource never had the field.
func changesOfField(changes []map[string]any, name domain.Name, field string) ([]map[string]any, error) {
	found := false
	known := map[string]bool{}
	kept := slices.DeleteFunc(slices.Clone(changes), func(change map[string]any) bool {
		at := change["field"].(string)
		known[at] = true
		if at == field || strings.HasPrefix(at, field+".") {
			found = true
			return false
		}
		return at != wholeResource || change["new"] != nil
	})
	if !found {
		return nil, fmt.Errorf("resource %s never had the field %q%s", name, field,
			domain.UnknownName(field, "its fields are ", wire.SortedKeys(known)))
	}
	return kept, nil
}
