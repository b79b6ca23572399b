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

// BenchmarkGateway requests 128 tokens from the shipped model, alternately over HTTP (through the
// gateway and NATS to the agent) and from the engine in this process. It measures the time to
// first token and the time per output token. The overhead of the platform is the difference of the
// medians and of the 99th percentiles. For comparison, a bare HTTP server does nothing but send a
// request over NATS.
func BenchmarkGateway(b *testing.B) {
	const prompt, tokens = "What is the capital of France? Write it in capital letters, and then reverse it.", 128
	s := serve(b, b.TempDir())
	user := s.user()
	user.deploy("bench", object{"baseModel": baseModel})
	user.http = &http.Client{Timeout: patience} // reads chunks as they arrive, and does not check them
	dir := b.TempDir()
	require.NoError(b, embedded.WriteBase(dir))
	model, err := embedded.New(embedded.Options{}).Completer.Load(b.Context(), engines.ModelFiles{Dir: dir})
	require.NoError(b, err)
	b.Cleanup(func() { _ = model.Close() }) // errors of Close lose nothing

	simple := forwardOnly(b)
	var direct, gateway, baseline paces
	for b.Loop() {
		direct.measure(tokens, func(received func()) {
			req := engines.CompletionRequest{Prompt: prompt, MaxTokens: tokens, IgnoreEOS: true}
			_, err := model.Complete(b.Context(), req, func(engines.Chunk) error { received(); return nil })
			require.NoError(b, err)
		})
		gateway.measure(tokens, func(received func()) {
			res, err := user.send(http.MethodPost, "//inference/v1/completions",
				object{"model": "accounts/default/deployments/bench",
					"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true})
			require.NoError(b, err)
			read(b, res, received)
		})
		baseline.measure(tokens, func(received func()) {
			res, err := user.http.Post(simple, "application/json", strings.NewReader(prompt))
			require.NoError(b, err)
			read(b, res, received)
		})
	}
	for who, p := range map[string]paces{"engine": direct, "gateway": gateway, "bare": baseline} {
		b.ReportMetric(micros(quantile(p.first, 0.5)), "µs-first-"+who)
	}
	for _, share := range []float64{0.5, 0.99} {
		added := quantile(gateway.first, share) - quantile(direct.first, share)
		b.ReportMetric(micros(added), fmt.Sprintf("µs-first-added-p%.0f", 100*share))
		b.ReportMetric(float64(added)/float64(quantile(baseline.first, share)), fmt.Sprintf("of-bare-p%.0f", 100*share))
	}
	b.ReportMetric(micros(quantile(gateway.next, 0.5)-quantile(direct.next, 0.5)), "µs-next-added")
}

func read(b *testing.B, res *http.Response, received func()) {
	defer res.Body.Close()
	require.Equal(b, http.StatusOK, res.StatusCode)
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: {") {
			received()
		}
	}
}

// forwardOnly starts an HTTP server that only forwards each request over NATS and returns the reply as an
// event. It returns the URL of the server.
func forwardOnly(b *testing.B) (url string) {
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
	requests, responder := connect(), connect()
	_, err = responder.Subscribe("request", func(m *nats.Msg) { _ = m.Respond([]byte("data: {}\n\n")) })
	require.NoError(b, err)
	require.NoError(b, responder.Flush())
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := requests.RequestWithContext(r.Context(), "request", body)
		if err == nil {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write(m.Data)
		}
	}))
	b.Cleanup(func() { web.Close(); s.Shutdown(); s.WaitForShutdown() })
	return web.URL
}

// paces are the times to first token, and the times per output token.
type paces struct{ first, next []time.Duration }

// measure times one response of a number of tokens; request calls received for each chunk.
func (p *paces) measure(tokens int, request func(received func())) {
	began := time.Now()
	var first, last time.Time
	request(func() {
		last = time.Now()
		if first.IsZero() {
			first = last
		}
	})
	p.first, p.next = append(p.first, first.Sub(began)), append(p.next, last.Sub(first)/time.Duration(tokens-1))
}

// quantile returns the value below which a share of all values is, such as 0.99.
func quantile(all []time.Duration, share float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(share*float64(len(all))))]
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
