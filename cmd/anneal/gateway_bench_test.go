package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded"
)

// BenchmarkGateway asks the shipped model for 128 tokens, by turns over HTTP,
// which leads through the gateway and NATS to the agent, and the engine itself
// in this process: the time to the first text and, from there to the end, of a
// token. What the platform adds is the difference of the medians, and of the
// 99th percentiles. Bare is what no gateway goes below: the first text of an
// HTTP server that asks over NATS, and does nothing else.
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

	simple := bare(b)
	var direct, gateway, least paces
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
			read(b, res, heard)
		})
		least.listen(tokens, func(heard func()) {
			res, err := user.http.Post(simple, "application/json", strings.NewReader(prompt))
			require.NoError(b, err)
			read(b, res, heard)
		})
	}
	for who, p := range map[string]paces{"engine": direct, "gateway": gateway, "bare": least} {
		b.ReportMetric(micros(quantile(p.first, 0.5)), "µs-first-"+who)
	}
	for _, share := range []float64{0.5, 0.99} {
		added := quantile(gateway.first, share) - quantile(direct.first, share)
		b.ReportMetric(micros(added), fmt.Sprintf("µs-first-added-p%.0f", 100*share))
		b.ReportMetric(float64(added)/float64(quantile(least.first, share)), fmt.Sprintf("of-bare-p%.0f", 100*share))
	}
	b.ReportMetric(micros(quantile(gateway.next, 0.5)-quantile(direct.next, 0.5)), "µs-next-added")
}

func read(b *testing.B, res *http.Response, heard func()) {
	defer res.Body.Close()
	require.Equal(b, http.StatusOK, res.StatusCode)
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: {") {
			heard()
		}
	}
}

// bare serves events that come over NATS.
func bare(b *testing.B) (url string) {
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	require.NoError(b, err)
	s.Start()
	require.True(b, s.ReadyForConnections(patience))
	connect := func() *nats.Conn {
		c, err := nats.Connect("", nats.InProcessServer(s))
		require.NoError(b, err)
		b.Cleanup(c.Close)
		return c
	}
	asks, answers := connect(), connect()
	_, err = answers.Subscribe("ask", func(m *nats.Msg) { _ = m.Respond([]byte("data: {}\n\n")) })
	require.NoError(b, err)
	require.NoError(b, answers.Flush())
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := asks.RequestWithContext(r.Context(), "ask", body)
		if err == nil {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write(m.Data)
		}
	}))
	b.Cleanup(func() { web.Close(); s.Shutdown(); s.WaitForShutdown() })
	return web.URL
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

// quantile is the value below which a share of all lies.
func quantile(all []time.Duration, share float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(share*float64(len(all))))]
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
