package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
)

// topPoll is the time between two readings of `anneal top`.
const topPoll = 2 * time.Second

// topSections are the tables of `anneal top`: for each, its title, the label whose values are its
// rows, and its columns.
var topSections = []struct {
	title, label string
	columns      []topColumn
}{
	{"NODE", "node", []topColumn{{"DEVICES", "devices", "anneal_node_accelerators", nil},
		{"ALLOCATED", "allocated", "anneal_node_accelerators", map[string]string{"state": "allocated"}},
		{"FAILED", "failed", "anneal_node_accelerators", map[string]string{"state": "failed"}}}},
	{"DEPLOYMENT", "deployment", []topColumn{
		{"DESIRED", "desired", "anneal_deployment_replicas", map[string]string{"state": "desired"}},
		{"READY", "ready", "anneal_deployment_replicas", map[string]string{"state": "ready"}},
		{"REQUESTS/S", "requestsPerSecond", "anneal_deployment_requests_per_second", nil},
		{"IN FLIGHT", "requestsInFlight", "anneal_deployment_requests_in_flight", nil},
		{"TOKENS/S", "completionTokensPerSecond", "anneal_deployment_tokens_per_second",
			map[string]string{"kind": "completion"}}}},
	{"ACCOUNT", "account", []topColumn{
		{"RUNNING JOBS", "runningJobs", "anneal_account_jobs", map[string]string{"state": "RUNNING"}},
		{"UNFINISHED JOBS", "unfinishedJobs", "anneal_account_jobs", nil}}},
}

// A topColumn is a column of a table of `anneal top`: the sum of the values of a metric with the
// labels.
type topColumn struct {
	title, key, metric string // title in the table, key in JSON
	labels             map[string]string
}

func topCommand() *cobra.Command {
	return &cobra.Command{Use: "top", Short: "Show the load of the installation, every two seconds", Args: arguments(0, 0),
		Long: `Shows requests, tokens, jobs, nodes, deployments and accounts, as the server's metrics have them. In a terminal
it reads them every two seconds until you interrupt it; otherwise, and with -o json, it prints them once.
'anneal node top' shows which work runs on which device.`,
		RunE: func(c *cobra.Command, _ []string) error {
			operator, err := newOperator(c)
			if err != nil {
				return err
			}
			inJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			for before := (*reading)(nil); ; {
				now, err := operator.readMetrics(c.Context())
				if err != nil {
					return err
				}
				switch {
				case inJSON:
					return printJSON(out, now.summary(before))
				case !onTerminal(out):
					return now.print(out, before)
				}
				clearScreen(out)
				if err := now.print(out, before); err != nil {
					return err
				}
				before = now
				if sleep(c.Context(), topPoll) != nil {
					return nil // the user ends the command by an interrupt
				}
			}
		}}
}

// A reading has the metrics of a server at one time.
type reading struct {
	time     time.Time
	families map[string]*dto.MetricFamily
}

func (c *client) readMetrics(ctx context.Context) (*reading, error) {
	res, err := c.request(ctx, http.MethodGet, "/metrics/detailed", nil, "", nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return nil, fmt.Errorf("the metrics of the server cannot be read: %w", err)
	}
	return &reading{time.Now(), families}, nil
}

// sum returns the sum of the values of a metric over its series with the labels. For a histogram it
// is the sum of the observed values, and count is their number.
func (r *reading) sum(name string, labels map[string]string) (sum, count float64) {
	for _, series := range r.families[name].GetMetric() {
		if !hasLabels(series, labels) {
			continue
		}
		sum += series.GetGauge().GetValue() + series.GetCounter().GetValue() + series.GetHistogram().GetSampleSum()
		count += float64(series.GetHistogram().GetSampleCount())
	}
	return sum, count
}

func hasLabels(series *dto.Metric, labels map[string]string) bool {
	for name, value := range labels {
		if !slices.ContainsFunc(series.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == name && l.GetValue() == value
		}) {
			return false
		}
	}
	return true
}

// summary returns the values that `anneal top` shows, by name. Rates are per second since the
// reading earlier, and 0 if it is nil.
func (r *reading) summary(earlier *reading) map[string]any {
	value := func(name string, labels ...string) float64 {
		sum, _ := r.sum(name, pairs(labels))
		return sum
	}
	rate := func(name string, labels ...string) float64 {
		if earlier == nil {
			return 0
		}
		was, _ := earlier.sum(name, pairs(labels))
		return max(value(name, labels...)-was, 0) / r.time.Sub(earlier.time).Seconds()
	}
	wait := 0.0 // of the kind of jobs whose oldest job has waited longest
	for _, series := range r.families["anneal_job_wait_seconds"].GetMetric() {
		wait = max(wait, series.GetGauge().GetValue())
	}
	all := map[string]any{"position": value("anneal_world_position"), "lagEvents": value("anneal_world_lag_events"),
		"natsConnected": value("anneal_nats_connected") == 1, "diskFreeBytes": value("anneal_disk_free_bytes"),
		"requestsPerSecond":         rate("anneal_http_requests_total"),
		"completionTokensPerSecond": rate("anneal_completion_tokens_total", "kind", "completion"),
		"unfinishedJobs":            value("anneal_jobs"), "runningJobs": value("anneal_jobs", "state", "RUNNING"),
		"longestJobWaitSeconds": wait, "readyNodes": value("anneal_nodes", "state", "READY"),
		"lostNodes": value("anneal_nodes", "state", "LOST"), "accelerators": value("anneal_accelerators"),
		"allocatedAccelerators": value("anneal_accelerators", "state", "allocated"),
		"readyReplicas":         value("anneal_replicas", "state", "ready"),
		"desiredReplicas":       value("anneal_replicas", "state", "desired")}
	for _, section := range topSections {
		rows := []map[string]any{}
		for _, row := range r.rowsOf(section.label, section.columns) {
			item := map[string]any{section.label: row.name}
			for i, column := range section.columns {
				item[column.key] = row.values[i]
			}
			rows = append(rows, item)
		}
		all[section.label+"s"] = rows
	}
	return all
}

func pairs(labels []string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	return all
}

// A topRow is a row of a table of `anneal top`.
type topRow struct {
	name   string
	values []float64
}

// rowsOf returns the rows of a table: one for each value of the label in the metrics of the
// columns, sorted by name. Rows of deployments and of nodes begin with the account, if the metric
// has one.
func (r *reading) rowsOf(label string, columns []topColumn) (rows []topRow) {
	found := map[string]map[string]string{} // labels of a row by its name
	for _, column := range columns {
		for _, series := range r.families[column.metric].GetMetric() {
			of := map[string]string{}
			for _, pair := range series.GetLabel() {
				if pair.GetName() == label || pair.GetName() == "account" {
					of[pair.GetName()] = pair.GetValue()
				}
			}
			if name := of[label]; name != "" {
				if account := of["account"]; account != "" && label != "account" {
					name = account + "/" + name
				}
				found[name] = of
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		row := topRow{name: name}
		for _, column := range columns {
			labels := maps.Clone(found[name])
			maps.Copy(labels, column.labels)
			sum, _ := r.sum(column.metric, labels)
			row.values = append(row.values, sum)
		}
		rows = append(rows, row)
	}
	return rows
}

// print prints the summary and the tables.
func (r *reading) print(out io.Writer, earlier *reading) error {
	all := r.summary(earlier)
	number := func(name string) string { return numberText(all[name].(float64)) }
	connected := "connected"
	if all["natsConnected"] == false {
		connected = "NOT CONNECTED"
	}
	fmt.Fprintf(out, "%s  position %s (%s events behind)  NATS %s  %.1f GB free\n", r.time.Format(time.TimeOnly),
		number("position"), number("lagEvents"), connected, all["diskFreeBytes"].(float64)/1e9)
	if earlier != nil {
		fmt.Fprintf(out, "requests/s %s  completion tokens/s %s\n", number("requestsPerSecond"),
			number("completionTokensPerSecond"))
	}
	fmt.Fprintf(out, "jobs: %s running, %s unfinished, longest wait %s\n", number("runningJobs"), number("unfinishedJobs"),
		time.Duration(all["longestJobWaitSeconds"].(float64)*float64(time.Second)).Round(time.Second))
	fmt.Fprintf(out, "nodes: %s ready, %s lost  accelerators: %s of %s allocated  replicas: %s of %s ready\n",
		number("readyNodes"), number("lostNodes"), number("allocatedAccelerators"), number("accelerators"),
		number("readyReplicas"), number("desiredReplicas"))
	for _, section := range topSections {
		titles := []string{section.title}
		for _, column := range section.columns {
			titles = append(titles, column.title)
		}
		table := [][]string{titles}
		for _, row := range r.rowsOf(section.label, section.columns) {
			cells := []string{row.name}
			for _, value := range row.values {
				cells = append(cells, numberText(value))
			}
			table = append(table, cells)
		}
		if len(table) == 1 {
			continue
		}
		fmt.Fprintln(out)
		if err := printTable(out, table); err != nil {
			return err
		}
	}
	return nil
}

// numberText returns a number with at most one decimal.
func numberText(value float64) string {
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64)
}
