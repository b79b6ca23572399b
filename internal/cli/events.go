package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

func eventsCommand() *cobra.Command {
	var follow, allAccounts bool
	var filter, resource, from string
	c := &cobra.Command{Use: "events", Short: "Show the events of an account; with --follow, as they happen",
		Args: arguments(0, 0),
		Example: "  anneal events --follow\n  anneal events --follow --from begin\n  anneal events --resource " +
			"deployments/polite",
		RunE: func(c *cobra.Command, _ []string) error {
			first, err := firstPosition(from)
			if err != nil {
				return err
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			if allAccounts && resource != "" {
				return usage.Errorf("--all-accounts and --resource exclude each other: a resource belongs to one " +
					"account")
			}
			path, err := client.eventsPath(resource)
			if err != nil {
				return err
			}
			if allAccounts {
				path = "/v1/events"
			}
			query := url.Values{}
			if filter != "" {
				query.Set("filter", filter)
			}
			if follow {
				f := &follower{client: client, cmd: c, path: path, query: query}
				if first > 0 {
					f.after = strconv.FormatUint(first-1, 10)
				}
				return f.run()
			}
			if first > 1 {
				bound := "position >= " + strconv.FormatUint(first, 10)
				query.Set("filter", strings.TrimPrefix(filter+" AND "+bound, " AND "))
			}
			items, err := client.list(c.Context(), path, "events", query)
			if err != nil {
				return noCollection(resource, err)
			}
			return printItems(c, noRows{"no events", ""},
				items, column{"POSITION", "position"}, column{"TIME", "time"}, column{"TYPE", "type"},
				column{"STATE", "state"}, column{"RESOURCE", "subject"}, column{"ACTOR", "actor"},
				column{"CONTROL PLANE", "controlplane"})
		}}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow events from now on, with automatic reconnects")
	c.Flags().BoolVarP(&follow, "watch", "w", false, "alias of --follow")
	c.Flags().StringVar(&filter, "filter", "", `AIP-160 filter, such as 'type = "deployment.*"'`)
	c.Flags().StringVar(&resource, "resource", "", "show events of one resource, such as deployments/ID")
	c.Flags().BoolVar(&allAccounts, "all-accounts", false,
		"show the events of all accounts; requires the operator's context file")
	c.AddCommand(credentialsCommand())
	c.Flags().StringVar(&from, "from", "",
		"position of the first event, or begin (default: begin; with --follow: the next event)")
	return c
}

// noCollection returns an error about --resource if err is the server's error for an unknown URL
// path, because the value of --resource then names an unknown collection. It returns any other
// error unchanged.
func noCollection(resource string, err error) error {
	var response *apiError
	if resource == "" || !errors.As(err, &response) || response.Reason != "NO_SUCH_PATH" {
		return err
	}
	return withHint(fmt.Errorf("--resource: the server has no collection %q%s", collectionOf(resource),
		domain.DidYouMean(collectionOf(resource), domain.Collections())),
		"the column RESOURCE of `anneal events` shows the resources that have events")
}

// firstPosition returns the position that the value of --from selects; 0 if it is "".
func firstPosition(value string) (uint64, error) {
	switch value {
	case "":
		return 0, nil
	case "begin":
		return 1, nil
	}
	position, err := strconv.ParseUint(value, 10, 63)
	if err != nil || position == 0 {
		return 0, usage.Errorf("--from %q must be the word begin, or a position of the log (a whole number from 1)", value)
	}
	return position, nil
}

// eventsPath returns the URL path of the events of a resource, or of the whole account if resource
// is "".
func (c *client) eventsPath(resource string) (string, error) {
	switch {
	case resource == "":
		return c.path("events"), nil
	case strings.Count(strings.Trim(resource, "/"), "/")%2 == 0:
		return "", usage.Errorf("--resource: %q is not a resource: give COLLECTION/ID, such as deployments/%s", resource,
			id(resource))
	case strings.HasPrefix(resource, "accounts/"):
		return "/v1/" + resource + "/events", nil
	}
	return c.path(resource, "events"), nil
}

// A follower prints events as they happen. On standard error it prints the position from which it
// follows, and the last one when it stops.
type follower struct {
	*client
	cmd     *cobra.Command
	path    string
	query   url.Values
	after   string // position of the last printed event; "" begins with the next event
	begun   bool
	failing bool // the last request failed, so that a further failure is not printed again
}

func (f *follower) run() error {
	inJSON, err := wantsJSON(f.cmd)
	if err != nil {
		return err
	}
	ctx := f.cmd.Context()
	for {
		err := f.tail(ctx, func(event map[string]any, raw []byte) error {
			return printEvent(f.cmd.OutOrStdout(), inJSON, event, raw)
		})
		var refused *apiError
		switch {
		case ctx.Err() != nil:
			f.leave()
			return nil
		case errors.As(err, &refused) && refused.Status < 500:
			return err
		case err != nil && !f.failing:
			f.failing = true
			fmt.Fprintf(f.cmd.ErrOrStderr(), "request to %s failed, retrying: %v\n", f.Address, withoutURL(err))
		}
		if sleep(ctx, time.Second) != nil {
			f.leave()
			return nil
		}
	}
}

// reached records that all events up to a position are printed.
func (f *follower) reached(position string) {
	if f.failing {
		fmt.Fprintf(f.cmd.ErrOrStderr(), "connected to %s again\n", f.Address)
	}
	f.after, f.failing = position, false
	if n, err := strconv.ParseUint(position, 10, 63); err == nil && !f.begun {
		f.begun = true
		fmt.Fprintf(f.cmd.ErrOrStderr(), "following from position %d; --from begin also shows earlier events\n", n+1)
	}
}

func (f *follower) leave() {
	if n, err := strconv.ParseUint(f.after, 10, 63); err == nil && f.begun {
		fmt.Fprintf(f.cmd.ErrOrStderr(), "the last event has position %d; --from %d continues after it\n", n, n+1)
	}
}

func printEvent(out io.Writer, inJSON bool, event map[string]any, raw []byte) error {
	if inJSON {
		_, err := fmt.Fprintf(out, "%s\n", raw)
		return err
	}
	_, err := fmt.Fprintf(out, "%-8s %s  %-42s %-32s %s\n", cell(event, "position"), cell(event, "time"),
		cell(event, "type"), cell(event, "state"), cell(event, "subject"))
	return err
}

// tail reads events until the connection ends, and calls visit with every event.
func (f *follower) tail(ctx context.Context, visit func(event map[string]any, raw []byte) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimRight(f.Address, "/")+f.path+"?"+f.query.Encode(), nil)
	if err != nil {
		return err
	}
	credential, err := f.credential(ctx)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+credential)
	req.Header.Set("Accept", "text/event-stream")
	if f.after != "" {
		req.Header.Set("Last-Event-ID", f.after)
	}
	res, err := cmp.Or(f.http, http.DefaultClient).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return readError(res)
	}
	last := ""
	return readSSE(res.Body, func(field string, value []byte) error {
		switch field {
		case "id":
			last = string(value)
		case "data":
			decoder := json.NewDecoder(bytes.NewReader(value))
			decoder.UseNumber()
			var event map[string]any
			if err := decoder.Decode(&event); err != nil {
				return err
			}
			for key, value := range event {
				if n, ok := value.(json.Number); ok {
					event[key] = n.String()
				}
			}
			return visit(event, value)
		case "": // the empty field marks the end of an event
			f.reached(last)
		}
		return nil
	})
}
