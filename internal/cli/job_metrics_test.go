package cli

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"anneal/internal/usage"
)

// metricsServer serves a metrics file of n steps.
func metricsServer(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ":getMetricsFileEndpoint") {
			fmt.Fprintf(w, `{"signedUrl":"http://%s/file"}`, r.Host)
			return
		}
		for step := 1; step <= n; step++ {
			fmt.Fprintf(w, `{"step":%d,"epoch":1,"time":"2026-11-23T07:00:00Z","learning_rate":0.001,"tokens":%d,`+
				`"train/loss":%g,"train/norm":0.5}`+"\n", step, 10*step, 4/float64(step))
		}
	}
}

// TestMetricsOfTheLastSteps checks --last, --csv and --plot.
func TestMetricsOfTheLastSteps(t *testing.T) {
	out, _, err := runOutput(t, metricsServer(50), "sft", "metrics", "j", "--last", "2")
	require.NoError(t, err)
	require.Regexp(t, `(?s)^STEP +EPOCH +LOSS[^\n]*\n49 [^\n]*\n50 [^\n]*\n$`, out)

	out, _, err = runOutput(t, metricsServer(3), "sft", "metrics", "j", "--csv", "--last", "2")
	require.NoError(t, err)
	require.Equal(t, "step,epoch,time,learning_rate,tokens,train/loss,train/norm\n"+
		"2,1,2026-11-23T07:00:00Z,0.001,20,2,0.5\n3,1,2026-11-23T07:00:00Z,0.001,30,1.3333333333333333,0.5\n", out)

	out, _, err = runOutput(t, metricsServer(50), "sft", "metrics", "j", "--plot")
	require.NoError(t, err)
	require.Regexp(t, `(?s)^LOSS \(train/loss\)\n +4 │.*\n +0\.08 │.*\n +└─+\n +step +1 +50\n$`, out)
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), defaultWidth)
	}
	out, _, err = runOutput(t, metricsServer(0), "dpo", "metrics", "j", "--plot")
	require.NoError(t, err)
	require.Equal(t, "no step has a metric yet\n", out)

	for _, line := range []string{"--last 0", "--last -1", "--csv --plot", "--csv -o json", "--plot -o json"} {
		_, _, err := runOutput(t, metricsServer(1), append([]string{"sft", "metrics", "j"}, strings.Fields(line)...)...)
		var wrong usage.Error
		require.ErrorAs(t, err, &wrong, line)
	}
}

// TestPlots checks curves whose dots are known.
func TestPlots(t *testing.T) {
	rising := plot([]float64{1, 2}, []float64{0, 1}, 4, 1)
	require.Equal(t, "         1 │⣀⠤⠒⠉\n           └────\n      step  1  2\n", rising)
	flat := plot([]float64{1, 2}, []float64{5, 5}, 2, 1)
	require.Equal(t, 2, strings.Count(flat, "⠒")+strings.Count(flat, "⠤"), flat)
	single := plot([]float64{7}, []float64{-1}, 4, 2)
	require.Contains(t, single, "step")
	require.NotPanics(t, func() { plot([]float64{3, 1, 2}, []float64{1e300, -1e300, 0}, 40, 10) })
}

// TestCheckpointsAreListed checks that the list of checkpoints has columns for the metrics of the
// kind of job.
func TestCheckpointsAreListed(t *testing.T) {
	server := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"checkpoints":[{"name":"accounts/a/dpoJobs/j/checkpoints/1-20","step":20,"attempt":1,`+
			`"metrics":{"train/loss":0.5,"train/accuracy":0.75}}]}`)
	}
	out, _, err := runOutput(t, server, "dpo", "checkpoints", "j")
	require.NoError(t, err)
	require.Regexp(t, `^ID +STEP +ATTEMPT +LOSS +ACCURACY +MARGIN +EVAL +CREATED\n1-20 +20 +1 +0\.5 +0\.75 +- +- +-\n$`,
		out)
}
