package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func eventsCommand() *cobra.Command {
	var follow bool
	var filter, resource string
	var after uint64
	c := &cobra.Command{Use: "events", Short: "Show what happened, and with --follow what happens", Args: arguments(0, 0),
		Example: "  anneal events --follow\n  anneal events --resource deployments/polite",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := client.path("events")
			if resource != "" {
				if strings.Count(strings.Trim(resource, "/"), "/")%2 == 0 {
					return usageError{fmt.Errorf("--resource: %q names no resource: write COLLECTION/ID, such as deployments/%s", resource, id(resource))}
				}
				if !strings.HasPrefix(resource, "accounts/") {
					resource = "accounts/" + client.Account + "/" + resource
				}
				path = "/v1/" + resource + "/events"
			}
			query := url.Values{}
			if filter != "" {
				query.Set("filter", filter)
			}
			if follow {
				return client.followEvents(c, path, query, after)
			}
			if after > 0 {
				bound := "position > " + strconv.FormatUint(after, 10)
				query.Set("filter", strings.TrimPrefix(filter+" AND "+bound, " AND "))
			}
			items, err := client.list(c.Context(), path, "events", query)
			if err != nil {
				return err
			}
			return printItems(c, items, column{"POSITION", "position"}, column{"TIME", "time"}, column{"TYPE", "type"}, column{"STATE", "state"}, column{"RESOURCE", "subject"}, column{"ACTOR", "actor"})
		}}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as events happen; reconnects by itself")
	c.Flags().BoolVarP(&follow, "watch", "w", false, "the same as --follow")
	c.Flags().StringVar(&filter, "filter", "", `which ones, such as 'type = "deployment.*"' (AIP-160)`)
	c.Flags().StringVar(&resource, "resource", "", "of one resource only, such as deployments/ID")
	c.Flags().Uint64Var(&after, "after", 0, "begin after this position")
	return c
}

// followEvents prints every event after a position as it happens, for ever.
func (c *client) followEvents(cmd *cobra.Command, path string, query url.Values, after uint64) error {
	out := cmd.OutOrStdout()
	inJSON, err := asJSON(cmd)
	if err != nil {
		return err
	}
	for {
		err := c.tail(cmd.Context(), path, query, after, func(event map[string]any, raw []byte) error {
			if position, err := strconv.ParseUint(cell(event, "position"), 10, 64); err == nil {
				after = position
			}
			if inJSON {
				_, err := fmt.Fprintf(out, "%s\n", raw)
				return err
			}
			_, err := fmt.Fprintf(out, "%-8s %s  %-42s %-16s %s\n", cell(event, "position"), cell(event, "time"), cell(event, "type"), cell(event, "state"), cell(event, "subject"))
			return err
		})
		var refused *apiError
		if errors.As(err, &refused) && refused.HTTP < 500 {
			return err
		}
		if cmd.Context().Err() != nil {
			return nil
		}
		if err := pause(cmd.Context(), time.Second); err != nil {
			return nil
		}
	}
}

// tail reads one connection's worth of live events after a position.
func (c *client) tail(ctx context.Context, path string, query url.Values, after uint64, each func(event map[string]any, raw []byte) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.Address, "/")+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.APIKey)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", strconv.FormatUint(after, 10))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refusal(res)
	}
	return serverSent(res.Body, func(data []byte) error {
		decoder := json.NewDecoder(bytes.NewReader(data))
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
		return each(event, data)
	})
}

// stream posts a body and hands back the answer while it is still coming.
func (c *client) stream(ctx context.Context, path string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return c.request(ctx, http.MethodPost, path, nil, "application/json", bytes.NewReader(data))
}
