package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/spf13/cobra"
)

// maxMetricsLine is the longest line of a metrics file, in bytes.
const maxMetricsLine = 1 << 20

// readMetrics reads a job's metrics file, which has one object per step.
func readMetrics(ctx context.Context, client *client, name string) (rows []map[string]any, err error) {
	var endpoint struct {
		SignedURL string `json:"signedUrl"`
	}
	if err := client.call(ctx, http.MethodGet, "/v1/"+name+":getMetricsFileEndpoint", nil, nil, &endpoint); err != nil {
		return nil, err
	}
	res, err := client.openURL(ctx, endpoint.SignedURL)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	scanner := bufio.NewScanner(res.Body)
	scanner.Buffer(nil, maxMetricsLine)
	for scanner.Scan() {
		var row map[string]any
		if json.Unmarshal(scanner.Bytes(), &row) == nil {
			rows = append(rows, row)
		}
	}
	return rows, scanner.Err()
}

func (k jobKind) metricsCommand() *cobra.Command {
	return &cobra.Command{Use: "metrics ID", Short: "Show a job's loss and other metrics of each step", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			rows, err := readMetrics(c.Context(), client, client.name(k.name, args[0]))
			if err != nil {
				return err
			}
			return printItems(c, rows, slices.Concat([]column{{"STEP", "step"}, {"EPOCH", "epoch"}, {"LOSS", "train/loss"}}, k.metrics,
				[]column{{"RATE", "learning_rate"}, {"TOKENS", "tokens"}, {"TIME", "time"}})...)
		}}
}
