package main_test

import (
	"bufio"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded"
)

// BenchmarkGateway asks the shipped model for 128 tokens, by turns over HTTP,
// which leads through the gateway and NATS to the agent, and the engine itself
// in this process: the time to the first text and, from there to the end, of a
// token. What the platform adds is the difference of the medians.
func BenchmarkGateway(b *testing.B) {
	const prompt, tokens = "What is the capital of France? Write it in capital letters, and then reverse it.", 128
	s := serve(b, b.TempDir())
	user := s.user()
	user.must(http.MethodPost, "/deployments?deploymentId=bench", object{"baseModel": baseModel, "minReplicaCount": 1})
	user.until("/deployments/bench", "state", "READY")
	user.http = &http.Client{Timeout: patience} // which reads as it comes, and checks nothing
	dir := b.TempDir()
	require.NoError(b, embedded.WriteBase(dir))
	model, err := embedded.New(embedded.Options{}).Completer.Load(b.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(b, err)
	b.Cleanup(func() { _ = model.Close() }) // nothing is lost with it

	var direct, gateway paces
	for b.Loop() {
		direct.listen(tokens, func(heard func()) {
			req := engines.CompletionRequest{Prompt: prompt, MaxTokens: tokens, IgnoreEOS: true}
			_, err := model.Complete(b.Context(), req, func(engines.Chunk) error { heard(); return nil })
			require.NoError(b, err)
		})
		gateway.listen(tokens, func(heard func()) {
			res, err := user.send(http.MethodPost, "//inference/v1/completions", object{"model": "accounts/default/deployments/bench",
				"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true})
			require.NoError(b, err)
			defer res.Body.Close()
			require.Equal(b, http.StatusOK, res.StatusCode)
			for lines := bufio.NewScanner(res.Body); lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "data: {") {
					heard()
				}
			}
		})
	}
	direct.report(b, "engine")
	gateway.report(b, "gateway")
	b.ReportMetric(micros(median(gateway.first)-median(direct.first)), "µs-first-added")
	b.ReportMetric(micros(median(gateway.next)-median(direct.next)), "µs-next-added")
}

// paces are how fast answers came: the first text, and each token after it.
type paces struct{ first, next []time.Duration }

// listen times one answer of so many tokens; ask tells of each piece.
func (p *paces) listen(tokens int, ask func(heard func())) {
	began := time.Now()
	var first, last time.Time
	ask(func() {
		last = time.Now()
		if first.IsZero() {
			first = last
		}
	})
	p.first, p.next = append(p.first, first.Sub(began)), append(p.next, last.Sub(first)/time.Duration(tokens-1))
}

func (p *paces) report(b *testing.B, who string) {
	b.ReportMetric(micros(median(p.first)), "µs-first-"+who)
	b.ReportMetric(micros(median(p.next)), "µs-next-"+who)
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
