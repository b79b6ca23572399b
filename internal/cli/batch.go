package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/domain/rows"
	"anneal/internal/usage"
)

const batchesPath = "/v1/batches"

var (
	batchColumns = []column{{"ID", "id"}, {"STATUS", "status"}, {"MODEL", "model"}, {"REQUESTS", "request_counts.total"},
		{"COMPLETED", "request_counts.completed"}, {"FAILED", "request_counts.failed"}, {"CREATED", "createTime"}}
	batchDetails = []column{{"ID", "id"}, {"Status", "status"}, {"Model", "model"}, {"Endpoint", "endpoint"},
		{"Requests", "request_counts.total"}, {"Completed", "request_counts.completed"},
		{"Failed", "request_counts.failed"}, {"Input file", "input_file_id"}, {"Output file", "output_file_id"},
		{"Error file", "error_file_id"}, {"Created", "createTime"}, {"Expires", "expireTime"}, {"Errors", "reasons"}}
)

func batchCommand() *cobra.Command {
	return group("batch", "Send the inference requests of a file at low priority",
		batchCreate(), batchGet(), batchList(),
		batchResults(), batchCancel())
}

// batchTable adds to a batch the values that only the tables show, and returns it.
func batchTable(c *cobra.Command, item map[string]any) map[string]any {
	if inJSON, err := wantsJSON(c); err != nil || inJSON {
		return item
	}
	for name, from := range map[string]string{"createTime": "created_at", "expireTime": "expires_at"} {
		if seconds, ok := item[from].(float64); ok {
			item[name] = time.Unix(int64(seconds), 0).UTC().Format(time.RFC3339)
		}
	}
	errs, _ := item["errors"].(map[string]any)
	all, _ := errs["data"].([]any)
	var errors []rows.LineError
	var reasons []string
	for _, one := range all {
		reason, _ := one.(map[string]any)
		text := cell(reason, "message")
		if param := cell(reason, "param"); param != "-" {
			text = param + ": " + text
		}
		line, _ := reason["line"].(float64)
		errors = append(errors, rows.LineError{Line: int(line), Reason: text})
	}
	for _, g := range rows.Groups(errors) {
		switch len(g.Lines) {
		case 0:
			reasons = append(reasons, g.Reason)
		case 1:
			reasons = append(reasons, fmt.Sprintf("line %d: %s", g.Lines[0], g.Reason))
		default:
			reasons = append(reasons, rows.Ranges(g.Lines)+": "+g.Reason)
		}
	}
	if len(reasons) > 0 {
		item["reasons"] = strings.Join(reasons, "\n")
	}
	return item
}

func batchCreate() *cobra.Command {
	var endpoint string
	var watch bool
	c := &cobra.Command{Use: "create FILE", Short: "Upload a file of requests, and create a batch from it",
		Args:    arguments(1, 1),
		Example: "  anneal batch create requests.jsonl --endpoint /v1/completions --watch",
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(domain.BatchEndpoints, endpoint) {
				return usage.Errorf("--endpoint: %q %s", endpoint, domain.OneOfRule(endpoint, domain.BatchEndpoints))
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			file, err := uploadRequests(c.Context(), client, args[0])
			if err != nil {
				return err
			}
			var item map[string]any
			body := map[string]any{"input_file_id": file, "endpoint": endpoint, "completion_window": domain.BatchWindow}
			if err := client.call(c.Context(), http.MethodPost, batchesPath, nil, body, &item); err != nil {
				return err
			}
			if watch {
				if item, err = awaitBatch(c, client, item); err != nil {
					return err
				}
			}
			if err := printItem(c, batchTable(c, item), batchDetails...); err != nil || !watch {
				return err
			}
			return batchOutcome(item)
		}}
	c.Flags().StringVar(&endpoint, "endpoint", domain.BatchEndpoints[0], "path to which the requests are sent")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until the batch has ended")
	return c
}

// awaitBatch prints the progress of a batch on standard error until the batch has ended, and
// returns it.
func awaitBatch(c *cobra.Command, client *client, item map[string]any) (map[string]any, error) {
	ctx := c.Context()
	shown, out := "", c.ErrOrStderr()
	for !endedBatch(item) {
		counts, _ := item["request_counts"].(map[string]any)
		if line := fmt.Sprintf("%s  %s of %s requests completed, %s failed", cell(item, "status"), cell(counts, "completed"),
			cell(counts, "total"), cell(counts, "failed")); line != shown {
			fmt.Fprintln(out, line)
			shown = line
		}
		if err := sleep(ctx, time.Second); err != nil {
			return nil, onInterrupt(c, err, "The batch continues. Run `anneal batch get %s` to show its progress, or "+
				"`anneal batch cancel %s` to stop it.", cell(item, "id"), cell(item, "id"))
		}
		path, latest := batchesPath+"/"+cell(item, "id"), map[string]any(nil)
		if err := client.call(ctx, http.MethodGet, path, nil, nil, &latest); err != nil {
			return nil, err
		}
		item = latest
	}
	return item, nil
}

// batchOutcome returns an error unless the batch, which has ended, is completed.
func batchOutcome(item map[string]any) error {
	if status := cell(item, "status"); status != domain.BatchCompletedState {
		return fmt.Errorf("batch %s is %s", cell(item, "id"), status)
	}
	return nil
}

// withoutFile returns the error for a batch without the wanted file: of the failed requests if
// errorFile is true, otherwise of the results.
func withoutFile(item map[string]any, errorFile bool) error {
	batch := cell(item, "id")
	switch {
	case !endedBatch(item):
		return fmt.Errorf("batch %s is %s and has no results until it has ended: `anneal batch get %s` shows its "+
			"progress",
			batch, cell(item, "status"), batch)
	case errorFile && cell(item, "error_file_id") == "-" && cell(item, "output_file_id") != "-":
		return fmt.Errorf("batch %s has no errors, because no request failed: leave out --errors", batch)
	case !errorFile && cell(item, "error_file_id") != "-":
		return fmt.Errorf("batch %s has no results, because every request failed: print the errors with --errors", batch)
	}
	return fmt.Errorf("batch %s is %s and sent no request: `anneal batch get %s` shows why", batch, cell(item, "status"),
		batch)
}

func endedBatch(item map[string]any) bool {
	return slices.Contains([]string{domain.BatchCompletedState, domain.BatchFailedState, domain.BatchExpiredState,
		domain.BatchCancelledState}, cell(item, "status"))
}

// uploadRequests uploads the JSONL file at path, and returns the ID of the uploaded file.
func uploadRequests(ctx context.Context, client *client, path string) (string, error) {
	if err := isFile(path); err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	body, err := newForm(map[string]string{"purpose": domain.PurposeBatch}, path, f)
	if err != nil {
		return "", err
	}
	res, err := client.request(ctx, http.MethodPost, "/v1/files", nil, body.contentType, body)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var file struct{ ID string }
	err = json.NewDecoder(res.Body).Decode(&file)
	return file.ID, err
}

func batchGet() *cobra.Command {
	return asOfFlag(batchVerb("get", "Show a batch", http.MethodGet, ""))
}

func batchCancel() *cobra.Command {
	c := batchVerb("cancel", "Cancel a batch, and keep the results of its completed requests",
		http.MethodPost, "/cancel")
	c.Flags().BoolP("watch", "w", false, "wait until the batch has ended")
	return c
}

// batchVerb returns a command that sends a request for one batch, to its path with suffix, and
// prints the batch.
func batchVerb(verb, short, method, suffix string) *cobra.Command {
	return &cobra.Command{Use: verb + " BATCH", Short: short, Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var item map[string]any
			path := batchesPath + "/" + url.PathEscape(id(args[0])) + suffix
			if err := client.call(c.Context(), method, path, asOf(c, nil), nil, &item); err != nil {
				return err
			}
			if watch, err := c.Flags().GetBool("watch"); err == nil && watch {
				if item, err = awaitBatch(c, client, item); err != nil {
					return err
				}
			}
			return printItem(c, batchTable(c, item), batchDetails...)
		}}
}

func batchList() *cobra.Command {
	return asOfFlag(&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List batches, newest first",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			items, query := []map[string]any{}, asOf(c, url.Values{"limit": {"100"}})
			for {
				var page struct {
					Data    []map[string]any
					LastID  string `json:"last_id"`
					HasMore bool   `json:"has_more"`
				}
				if err := client.call(c.Context(), http.MethodGet, batchesPath, query, nil, &page); err != nil {
					return err
				}
				for _, item := range page.Data {
					items = append(items, batchTable(c, item))
				}
				if !page.HasMore {
					return printItems(c, noRows{"no batches", "create one with `anneal batch create FILE`"}, items, batchColumns...)
				}
				query.Set("after", page.LastID)
			}
		}})
}

func batchResults() *cobra.Command {
	var errorFile bool
	c := &cobra.Command{Use: "results BATCH", Short: "Print the results of a batch, one JSON object in each line",
		Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var item map[string]any
			path := batchesPath + "/" + url.PathEscape(id(args[0]))
			if err := client.call(c.Context(), http.MethodGet, path, nil, nil, &item); err != nil {
				return err
			}
			field := "output_file_id"
			if errorFile {
				field = "error_file_id"
			}
			file := cell(item, field)
			if file == "-" {
				return withoutFile(item, errorFile)
			}
			res, err := client.request(c.Context(), http.MethodGet, "/v1/files/"+file+"/content", nil, "", nil)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			_, err = io.Copy(c.OutOrStdout(), res.Body)
			return err
		}}
	c.Flags().BoolVar(&errorFile, "errors", false, "print the errors of the failed requests instead of the results")
	return c
}

// completeBatches returns the IDs of batches for shell completion, with their states as
// descriptions.
func completeBatches(c *cobra.Command) (words []string, _ cobra.ShellCompDirective) {
	path := func(*client) string { return batchesPath }
	for _, item := range completionItems(c, completionClient, path, "data") {
		words = append(words, cell(item, "id")+"\t"+cell(item, "status"))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
