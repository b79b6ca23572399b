package api

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

// A streamTrial measures streams of tokens that an engine generates at a fixed pace.
type streamTrial struct {
	streams, tokens int
	every           time.Duration // time between two tokens of a stream
	turns           int
	open            int // number of open streams whose memory is measured
}

// TestCostOfStreams compares streams through the gateway with those through a bare reverse proxy, by
// turns: the time that is added to the first token, and the CPU time of a token. Both include the
// client, which runs in this process. It also measures the memory of open streams.
func TestCostOfStreams(t *testing.T) {
	trial := streamTrial{streams: 100, tokens: 10, every: 20 * time.Millisecond, turns: 1, open: 200}
	full := os.Getenv("ANNEAL_GATEWAY") == "full"
	if full {
		trial = streamTrial{streams: 1000, tokens: 40, every: 100 * time.Millisecond, turns: 4, open: 5000}
	}
	s := startHarness(t, time.Now(), request.Limits{Generations: 10_000}, func(o *Options) {
		o.Now, o.Logger = time.Now, slog.New(slog.DiscardHandler)
	})
	s.createAccounts()
	s.deploy("d1", 4)
	engine := &pacedEngine{streamTrial: trial, begun: make([]time.Time, trial.streams),
		first: make([]time.Time, trial.streams)}
	s.replicas.respond = engine.respond
	backend := httptest.NewServer(http.HandlerFunc(engine.serve))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: trial.streams}
	hop := httptest.NewServer(proxy)
	defer hop.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: trial.streams}}
	gateway, bare := &streamCost{name: "gateway", url: s.url}, &streamCost{name: "bare proxy", url: hop.URL}
	for _, c := range []*streamCost{gateway, bare} { // opens the connections
		c.run(t, client, engine, s.keys["inference"])
		*c = streamCost{name: c.name, url: c.url}
	}
	for range trial.turns {
		for _, c := range []*streamCost{gateway, bare} {
			c.run(t, client, engine, s.keys["inference"])
		}
	}
	for _, c := range []*streamCost{gateway, bare} {
		t.Logf("%-10s %d streams: first token + p50 %s p99 %s; CPU time of a token %s", c.name, trial.streams,
			c.quantile(0.5), c.quantile(0.99), c.perToken())
	}
	t.Logf("the gateway adds %s to the p99 of the first token, and %s of CPU time to a token",
		gateway.quantile(0.99)-bare.quantile(0.99), gateway.perToken()-bare.perToken())
	client.CloseIdleConnections()
	proxy.Transport.(*http.Transport).CloseIdleConnections()
	direct := &streamCost{name: "no gateway", url: backend.URL}
	for _, c := range []*streamCost{direct, gateway} {
		t.Logf("%-10s memory of a stream, with its client, of %d: %d KiB", c.name, trial.open,
			c.memory(t, engine, s.keys["inference"])>>10)
	}
	if full {
		assert.LessOrEqual(t, gateway.quantile(0.99)-bare.quantile(0.99), time.Millisecond)
		assert.LessOrEqual(t, gateway.perToken()-bare.perToken(), 20*time.Microsecond)
	}
}

// A pacedEngine generates the tokens of streams at a fixed pace.
type pacedEngine struct {
	streamTrial
	begun, first []time.Time // by stream: when the engine got the request, and generated the first token
	// hold has a channel if new streams stop after the first token until it is closed.
	hold atomic.Pointer[chan struct{}]
}

// generate calls emit with each token of the stream with a number.
func (e *pacedEngine) generate(ctx context.Context, stream string, emit func(string) error) error {
	i, err := strconv.Atoi(stream)
	if err != nil {
		return err
	}
	measured := i < len(e.begun)
	if measured {
		e.begun[i] = time.Now()
	}
	hold := e.hold.Load()
	tokens := time.NewTicker(e.every)
	defer tokens.Stop()
	for n := range e.tokens {
		switch {
		case n > 0 && hold != nil:
			select {
			case <-*hold:
			case <-ctx.Done():
			}
		case hold == nil:
			select {
			case <-tokens.C:
			case <-ctx.Done():
			}
		}
		if n == 0 && measured {
			e.first[i] = time.Now()
		}
		if err := emit(" token"); err != nil {
			return err
		}
	}
	return nil
}

func (e *pacedEngine) respond(ctx context.Context, _ domain.Replica, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	err := e.generate(ctx, req.Prompt, func(text string) error {
		return emit(engines.Chunk{Text: text, Tokens: []int{7}})
	})
	return engines.Usage{PromptTokens: 1, CompletionTokens: e.tokens}, err
}

// serve is a server without a gateway, whose events are as long as those of the gateway.
func (e *pacedEngine) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.Copy(io.Discard, r.Body) // as much as a server must read
	flush := http.NewResponseController(w)
	_ = e.generate(r.Context(), r.Header.Get("Stream"), func(text string) error {
		_, err := fmt.Fprintf(w, "data: {\"id\":\"cmpl-0123456789\",\"object\":\"text_completion\",\"created\":1893557046,"+
			"\"model\":\"accounts/acme/deployments/d1\",\"choices\":[{\"index\":0,\"text\":%q,\"logprobs\":null,"+
			"\"finish_reason\":null}]}\n\n", text)
		if err == nil {
			err = flush.Flush()
		}
		return err
	})
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// A streamCost is what streams of one kind cost.
type streamCost struct {
	name, url string

	mu     sync.Mutex
	added  []time.Duration // by stream: time to the first token without that of the engine
	cpu    time.Duration
	tokens int
}

func (c *streamCost) quantile(share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(c.added))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))].Round(time.Microsecond)
}

func (c *streamCost) perToken() time.Duration { return c.cpu / time.Duration(max(c.tokens, 1)) }

// run opens the streams of a trial, spread over a second, and reads them to their end.
func (c *streamCost) run(t *testing.T, client *http.Client, e *pacedEngine, key string) {
	var all sync.WaitGroup
	before := cpuTime()
	ticker := time.NewTicker(time.Second / time.Duration(e.streams))
	defer ticker.Stop()
	for i := range e.streams {
		<-ticker.C
		all.Go(func() {
			began := time.Now()
			body, lines := c.open(t, client, key, i)
			if body == nil {
				return
			}
			defer body.Close()
			received := time.Now()
			n := 1
			for lines.Scan() {
				if bytes.HasPrefix(lines.Bytes(), []byte("data: {")) {
					n++
				}
			}
			assert.NoError(t, lines.Err())
			assert.GreaterOrEqual(t, n, e.tokens)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.added = append(c.added, e.begun[i].Sub(began)+received.Sub(e.first[i]))
			c.tokens += e.tokens
		})
	}
	all.Wait()
	c.cpu += cpuTime() - before
}

// open opens a stream, and reads its first token.
func (c *streamCost) open(t *testing.T, client *http.Client, key string, i int) (io.Closer, *bufio.Scanner) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+"/inference/v1/completions",
		strings.NewReader(fmt.Sprintf(`{"model": "accounts/acme/deployments/d1", "prompt": "%d", "max_tokens": 99, `+
			`"stream": true}`, i)))
	if !assert.NoError(t, err) {
		return nil, nil
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Stream", strconv.Itoa(i))
	res, err := client.Do(req)
	if !assert.NoError(t, err) {
		return nil, nil
	}
	lines := bufio.NewScanner(res.Body)
	if !assert.Equal(t, http.StatusOK, res.StatusCode) || !assert.True(t, lines.Scan()) {
		_ = res.Body.Close()
		return nil, nil
	}
	return res.Body, lines
}

// memory returns the memory of an open stream in bytes.
func (c *streamCost) memory(t *testing.T, e *pacedEngine, key string) uint64 {
	client := &http.Client{Transport: &http.Transport{}}
	hold := make(chan struct{})
	e.hold.Store(&hold)
	before := memoryInUse()
	bodies := make([]io.Closer, e.streamTrial.open)
	var opening sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range bodies {
		slots <- struct{}{}
		opening.Go(func() {
			bodies[i], _ = c.open(t, client, key, len(e.begun)+i)
			<-slots
		})
	}
	opening.Wait()
	used := memoryInUse() - before
	close(hold)
	for _, body := range bodies {
		if body != nil {
			_ = body.Close()
		}
	}
	client.CloseIdleConnections()
	e.hold.Store(nil)
	return used / uint64(len(bodies))
}

// memoryInUse returns the bytes of the heap and of stacks that are in use.
func memoryInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
