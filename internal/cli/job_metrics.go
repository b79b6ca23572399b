package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/spf13/cobra"
)

// metrics reads a job's metrics file, one object a step.
func (c *client) metrics(ctx context.Context, name string) ([]map[string]any, error) {
	var answer struct {
		SignedURL string `json:"signedUrl"`
	}
	if err := c.call(ctx, http.MethodGet, "/v1/"+name+":getMetricsFileEndpoint", nil, nil, &answer); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, answer.SignedURL, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.send(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, readError(res)
	}
	var rows []map[string]any
	scanner := bufio.NewScanner(res.Body)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var row map[string]any
		if json.Unmarshal(scanner.Bytes(), &row) == nil {
			rows = append(rows, row)
		}
	}
	return rows, scanner.Err()
}

// metricsCommand shows what training measured; figures are those beside the
// ones of every kind of job.
func (k collection) metricsCommand(figures ...column) *cobra.Command {
	return &cobra.Command{Use: "metrics ID", Short: "Show a job's loss and other figures, step by step", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		rows, err := client.metrics(c.Context(), client.name(k.name, args[0]))
		if err != nil {
			return err
		}
		return printItems(c, rows, slices.Concat([]column{{"STEP", "step"}, {"EPOCH", "epoch"}, {"LOSS", "train/loss"}}, figures,
			[]column{{"RATE", "learning_rate"}, {"TOKENS", "tokens"}, {"TIME", "time"}})...)
	}}
}
