package cli

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

func whyCommand() *cobra.Command {
	return &cobra.Command{Use: "why RESOURCE [POSITION]", Short: "Show which request led to a resource's state",
		Args:    arguments(1, 2),
		Example: "  anneal why deployments/codes\n  anneal why deployments/codes 1310",
		Long: `Shows the newest event of a resource, or the last one up to POSITION, and the events that led
to it, back to the request of an API key. RELATION is how an event led to the next one: it is its cause
(ce-cause), an event of the same request (ce-correlation), or, if the next event is of a scheduler or of a
node, the previous change of the resource, to which schedulers and nodes react.`,
		RunE: func(c *cobra.Command, args []string) error {
			upTo := uint64(1<<63 - 1)
			if len(args) == 2 {
				var err error
				if upTo, err = strconv.ParseUint(args[1], 10, 63); err != nil || upTo == 0 {
					return usage.Errorf("position %q must be a whole number from 1", args[1])
				}
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			name, err := client.resourceName(args[0])
			if err != nil {
				return err
			}
			steps, err := client.why(c.Context(), name, upTo)
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no events", ""},
				steps, column{"POSITION", "position"}, column{"TIME", "time"}, column{"EVENT", "type"},
				column{"RESOURCE", "subject"}, column{"ACTOR", "actor"}, column{"RELATION", "relation"},
				column{"REQUEST", "correlation"})
		}}
}

// How an event of a chain led to the next one.
const (
	relationCause    = "cause"
	relationRequest  = "same request"
	relationPrevious = "previous change"
)

// why returns the chain of events that led to the last event of a resource up to a position, in the
// order of the events.
func (c *client) why(ctx context.Context, name domain.Name, upTo uint64) ([]map[string]any, error) {
	events, err := c.resourceEvents(ctx, name)
	if err != nil {
		return nil, err
	}
	events = slices.DeleteFunc(events, func(event map[string]any) bool { return positionIn(event) > upTo })
	if len(events) == 0 {
		return nil, fmt.Errorf("resource %s has no events up to that position: list events with 'anneal events'", name)
	}
	return chainOf(events, func(filter string) ([]map[string]any, error) {
		return c.matchingEvents(ctx, name.Account(), filter)
	})
}

// resourceEvents returns all events of a resource.
func (c *client) resourceEvents(ctx context.Context, name domain.Name) ([]map[string]any, error) {
	return c.matchingEvents(ctx, name.Account(), `subject = "`+string(name)+`"`)
}

// matchingEvents returns all events of an account that match a filter.
func (c *client) matchingEvents(ctx context.Context, account, filter string) ([]map[string]any, error) {
	return c.list(ctx, "/v1/accounts/"+account+"/events", "events", url.Values{"filter": {filter}})
}

// chainOf returns the chain of events that led to the last of events, which are those of one
// resource. find returns the events of the account that match a filter.
func chainOf(events []map[string]any, find func(filter string) ([]map[string]any, error)) ([]map[string]any, error) {
	event := events[len(events)-1]
	chain := []map[string]any{stepOf(event, "")}
	for !domain.IsCaller(domain.Name(text(event, "actor"))) {
		before, relation, err := reasonOf(event, find)
		if err != nil {
			return nil, err
		}
		if before == nil { // a scheduler or a node has reacted to the state of the resource
			i := slices.IndexFunc(events, func(e map[string]any) bool { return positionIn(e) >= positionIn(event) })
			if i <= 0 || text(event, "subject") != text(events[0], "subject") {
				break
			}
			before, relation = events[i-1], relationPrevious
		}
		event = before
		chain = append(chain, stepOf(event, relation))
	}
	slices.Reverse(chain)
	return chain, nil
}

// reasonOf returns the event that led to an event, and its relation: the cause or, without one, the
// first earlier event of the same request. It returns nil if there is none.
func reasonOf(event map[string]any, find func(filter string) ([]map[string]any, error)) (map[string]any, string,
	error) {
	if request := text(event, "correlation"); request != "" {
		same, err := find(`correlation = ` + strconv.Quote(request))
		if err != nil {
			return nil, "", err
		}
		for _, one := range same {
			if text(one, "id") == text(event, "cause") && positionIn(one) < positionIn(event) {
				return one, relationCause, nil
			}
		}
		if len(same) > 0 && positionIn(same[0]) < positionIn(event) {
			return same[0], relationRequest, nil
		}
	}
	if cause := text(event, "cause"); cause != "" {
		found, err := find(`id = ` + strconv.Quote(cause))
		if err != nil {
			return nil, "", err
		}
		if len(found) == 1 && positionIn(found[0]) < positionIn(event) {
			return found[0], relationCause, nil
		}
	}
	return nil, "", nil
}

func stepOf(event map[string]any, relation string) map[string]any {
	step := map[string]any{"relation": relation}
	for _, attribute := range []string{"position", "time", "type", "subject", "actor", "correlation", "cause", "id",
		"controlplane", "clientaddress"} {
		if value, ok := event[attribute]; ok {
			step[attribute] = value
		}
	}
	return step
}

// text returns an attribute of an event; "" if the event does not have it.
func text(event map[string]any, attribute string) string {
	value, _ := event[attribute].(string)
	return value
}

func positionIn(event map[string]any) uint64 {
	position, _ := strconv.ParseUint(fmt.Sprint(event["position"]), 10, 64)
	return position
}
