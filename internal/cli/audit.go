package cli

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// maxShownRecords is the default of the flag --limit of `anneal audit`.
const maxShownRecords = 100

func auditCommand() *cobra.Command {
	var allAccounts bool
	var filter string
	var since time.Duration
	var limit int
	c := &cobra.Command{Use: "audit", Short: "Show refused and failed requests, logins and reads of secrets",
		Args:    arguments(0, 0),
		Example: "  anneal audit\n  anneal audit --since 24h --filter 'kind = LOGIN_REFUSED'",
		Long: `Shows the newest audit records first. They are not part of the event log, and are kept for 90
days. COUNT is the number of requests that a record stands for: requests of one client that come too fast
share records. In a record without ACCOUNT the caller was not authenticated, and KEY is only what the caller
claimed; the operator sees these records with --all-accounts.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if limit < 1 {
				return usage.Errorf("--limit %d must be at least 1", limit)
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			path := client.path("auditRecords")
			if allAccounts {
				path = "/v1/auditRecords"
			}
			if since > 0 {
				bound := `time >= "` + time.Now().Add(-since).UTC().Format(time.RFC3339) + `"`
				if strings.TrimSpace(filter) != "" {
					bound = "(" + filter + ") AND " + bound
				}
				filter = bound
			}
			items, err := client.auditRecords(c, path, filter, limit)
			if err != nil {
				return err
			}
			return printItems(c, noRows{"no audit records", ""},
				items, column{"TIME", "time"}, column{"KIND", "kind"}, column{"ACCOUNT", "account"},
				column{"KEY", "apiKey"}, column{"ADDRESS", "clientAddress"}, column{"STATUS", "status"},
				column{"REASON", "reason"}, column{"OPERATION", "operation"}, column{"SECRET", "secret"},
				column{"READER", "reader"}, column{"COUNT", "repeated"}, column{"CONTROL PLANE", "controlPlane"})
		}}
	c.Flags().BoolVar(&allAccounts, "all-accounts", false,
		"show the records of all accounts and of unauthenticated callers; requires the operator's context file")
	c.Flags().StringVar(&filter, "filter", "", `AIP-160 filter, such as 'kind = LOGIN_REFUSED AND status = 401'`)
	c.Flags().DurationVar(&since, "since", 0, "show only records of this last period, such as 24h (default: all)")
	c.Flags().IntVar(&limit, "limit", maxShownRecords, "maximum number of records")
	return c
}

// auditRecords returns the newest records of the list at path that match the filter, at most limit.
func (c *client) auditRecords(cmd *cobra.Command, path, filter string, limit int) ([]map[string]any, error) {
	items, query := []map[string]any{}, url.Values{}
	if filter != "" {
		query.Set("filter", filter)
	}
	query.Set("pageSize", strconv.Itoa(min(limit, 200)))
	for {
		var page struct {
			AuditRecords  []map[string]any
			NextPageToken string
		}
		if err := c.call(cmd.Context(), http.MethodGet, path, query, nil, &page); err != nil {
			return nil, err
		}
		items = append(items, page.AuditRecords...)
		if page.NextPageToken == "" || len(items) >= limit {
			return items[:min(len(items), limit)], nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}
