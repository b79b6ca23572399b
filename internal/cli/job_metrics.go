package cli

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// maxMetricsLine is the maximum length of a line in a metrics file, in bytes.
const maxMetricsLine = 1 << 20

// readMetrics downloads the metrics file of a job, and returns one JSON object for each step.
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

// metricsFlags are the flags that select the metrics and their format.
type metricsFlags struct {
	last      int
	csv, plot bool
}

func (k jobKind) metricsCommand() *cobra.Command {
	var flags metricsFlags
	c := &cobra.Command{Use: "metrics ID", Short: "Show a job's loss and other metrics of each step",
		Args: arguments(1, 1),
		Example: fmt.Sprintf("  anneal %s metrics tuned --last 20\n  anneal %s metrics tuned --plot\n"+
			"  anneal %s metrics tuned --csv > metrics.csv", k.command, k.command, k.command),
		RunE: func(c *cobra.Command, args []string) error {
			if err := flags.check(c); err != nil {
				return err
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			rows, err := readMetrics(c.Context(), client, client.name(k.name, args[0]))
			if err != nil {
				return err
			}
			if flags.last > 0 {
				rows = rows[max(0, len(rows)-flags.last):]
			}
			switch {
			case flags.csv:
				return printCSV(c.OutOrStdout(), rows)
			case flags.plot:
				return plotMetrics(c.OutOrStdout(), rows, slices.Concat([]column{{"LOSS", "train/loss"}}, k.metrics))
			}
			return printItems(c, noRows{"the job has no metrics yet", "`anneal " + k.command + " get ID` shows its state"},
				rows, slices.Concat([]column{{"STEP", "step"}, {"EPOCH", "epoch"}, {"LOSS", "train/loss"}},
					k.metrics,
					[]column{{"RATE", "learning_rate"}, {"TOKENS", "tokens"}, {"TIME", "time"}})...)
		}}
	c.Flags().IntVar(&flags.last, "last", 0, "show only this number of the last steps (default: all)")
	c.Flags().BoolVar(&flags.csv, "csv", false, "print all metrics as comma-separated values")
	c.Flags().BoolVar(&flags.plot, "plot", false, "draw the metrics over the steps")
	return c
}

func (f metricsFlags) check(c *cobra.Command) error {
	inJSON, err := wantsJSON(c)
	switch {
	case err != nil:
		return err
	case f.csv && f.plot, inJSON && f.csv, inJSON && f.plot:
		return usage.Errorf("--csv, --plot and -o json exclude each other: give one of them")
	}
	return nil
}

// firstMetrics are the metrics in the first columns of the CSV.
var firstMetrics = []string{"step", "epoch", "time", "learning_rate", "tokens"}

// printCSV prints all metrics of the steps as CSV. The value of a metric that a step does not have
// is empty.
func printCSV(out io.Writer, rows []map[string]any) error {
	names := map[string]bool{}
	for _, row := range rows {
		for name := range row {
			names[name] = !slices.Contains(firstMetrics, name)
		}
	}
	maps.DeleteFunc(names, func(_ string, further bool) bool { return !further })
	columns := slices.Concat(firstMetrics, slices.Sorted(maps.Keys(names)))
	w := csv.NewWriter(out)
	_ = w.Write(columns) // ignore the error, which w.Error returns below
	for _, row := range rows {
		values := make([]string, len(columns))
		for i, name := range columns {
			switch v := row[name].(type) {
			case nil:
			case float64:
				values[i] = strconv.FormatFloat(v, 'g', -1, 64)
			default:
				values[i] = fmt.Sprint(v)
			}
		}
		_ = w.Write(values)
	}
	w.Flush()
	return w.Error()
}
