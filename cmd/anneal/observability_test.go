package main_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"anneal/internal/cli"
	"anneal/internal/testutil"
)

const observability = "../../observability"

var (
	metricName = regexp.MustCompile(`\b(anneal|go|process)_[a-z_]+`)
	selector   = regexp.MustCompile(`([a-z_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z]+)\s*(?:=~|!=|=|!~)`)
	grouping   = regexp.MustCompile(`by \(([^)]*)\)`)
	metricLine = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([a-z, ]*) \\|")
)

// exportedMetrics returns the labels of each metric in the reference, which a test compares with the
// sources, and of each metric of Go and of the process that a server exports.
func exportedMetrics(t *testing.T) map[string][]string {
	labels := map[string][]string{}
	reference := string(testutil.ReadFile(t, "../../docs/reference/metrics.md"))
	for _, m := range metricLine.FindAllStringSubmatch(reference, -1) {
		of := []string{"instance", "job"}
		for label := range strings.SplitSeq(m[3], ", ") {
			of = append(of, label)
		}
		if m[2] == "histogram" {
			of = append(of, "le")
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				labels[m[1]+suffix] = of
			}
		}
		labels[m[1]] = of
	}
	s := serve(t, t.TempDir(), "--speech", "none")
	for line := range strings.Lines(string(httpGet(t, s.context.Address+"/metrics"))) {
		if name := metricName.FindString(line); name != "" && labels[name] == nil && !strings.HasPrefix(line, "#") {
			require.NotRegexp(t, "^anneal_", name, "the reference lacks it")
			labels[name] = []string{"instance", "job"}
		}
	}
	return labels
}

// checkExpression requires that the metrics and labels of a PromQL expression are exported.
func checkExpression(t *testing.T, exported map[string][]string, expression string) {
	names := metricName.FindAllString(expression, -1)
	require.NotEmpty(t, names, expression)
	known := map[string]bool{}
	for _, name := range names {
		require.Contains(t, exported, name, expression)
		for _, label := range exported[name] {
			known[label] = true
		}
	}
	for _, found := range selector.FindAllStringSubmatch(expression, -1) {
		for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
			require.Contains(t, exported[found[1]], m[1], expression)
		}
	}
	for _, group := range grouping.FindAllStringSubmatch(expression, -1) {
		for label := range strings.SplitSeq(group[1], ",") {
			require.True(t, known[strings.TrimSpace(label)], "label %s of %s", label, expression)
		}
	}
}

// TestAlertRules checks that the alert rules use exported metrics and existing commands, that each says
// what to do, and that each is tested.
func TestAlertRules(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(testutil.ReadFile(t, filepath.Join(observability, "alerts.yml")), &file))
	tests := string(testutil.ReadFile(t, filepath.Join(observability, "alerts_test.yml")))
	exported := exportedMetrics(t)
	command := regexp.MustCompile("`anneal ([a-z ]+)`")
	for _, rule := range file.Groups[0].Rules {
		t.Run(rule.Alert, func(t *testing.T) {
			checkExpression(t, exported, rule.Expr)
			require.Contains(t, []string{"critical", "warning"}, rule.Labels["severity"])
			require.NotEmpty(t, rule.Annotations["summary"])
			require.NotEmpty(t, rule.Annotations["runbook"])
			require.Equal(t, 2, strings.Count(tests, rule.Alert), "alerts_test.yml tests that it fires, and that it does not")
			for _, m := range command.FindAllStringSubmatch(rule.Annotations["runbook"], -1) {
				found, rest, err := cli.NewRoot("dev").Find(strings.Fields(m[1]))
				require.NoError(t, err)
				require.Empty(t, rest, "%s is not a command", m[0])
				require.True(t, found.Runnable(), m[0])
			}
		})
	}
}

// TestRulesOfPrometheus checks the rules, their tests and the example of a configuration with promtool.
func TestRulesOfPrometheus(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: it is in the Debian package prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"},
		{"check", "config", "--syntax-only", "prometheus.yml"}} {
		run := exec.CommandContext(t.Context(), promtool, args...)
		run.Dir = observability
		output, err := run.CombinedOutput()
		require.NoError(t, err, "%s", output)
	}
}

// A dashboard is what the test reads of a dashboard of Grafana.
type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Datasource               struct{ Type, UID string }
	Targets                  []struct{ RefID, Expr, LegendFormat string }
}

// TestDashboards checks that the dashboards for Grafana use exported metrics, that every panel has a
// unit and a description, and that no two panels overlap.
func TestDashboards(t *testing.T) {
	exported := exportedMetrics(t)
	for _, path := range testutil.Glob(t, filepath.Join(observability, "*.json")) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var d dashboard
			require.NoError(t, json.Unmarshal(testutil.ReadFile(t, path), &d))
			require.NotEmpty(t, d.Title)
			require.NotEmpty(t, d.UID)
			require.GreaterOrEqual(t, d.SchemaVersion, 36)
			require.Equal(t, "prometheus", d.Templating.List[0].Query)
			ids, cells := map[int]bool{}, map[[2]int]string{}
			for _, p := range d.Panels {
				require.False(t, ids[p.ID], "two panels with ID %d", p.ID)
				ids[p.ID] = true
				require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
				for x := range p.GridPos.W {
					for y := range p.GridPos.H {
						cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
						require.Empty(t, cells[cell], "%s overlaps", p.Title)
						cells[cell] = p.Title
					}
				}
				if p.Type != "row" {
					p.check(t, exported)
				}
			}
		})
	}
}

func (p panel) check(t *testing.T, exported map[string][]string) {
	require.NotEmpty(t, p.Description, p.Title)
	require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
	require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
	require.NotEmpty(t, p.Targets, p.Title)
	for _, target := range p.Targets {
		require.NotEmpty(t, target.LegendFormat, p.Title)
		checkExpression(t, exported, target.Expr)
	}
}
