package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// streamLimit is the time within which each stream must end, however the processes that serve it end.
const streamLimit = 90 * time.Second

// An openStream is what a client received of a stream.
type openStream struct {
	gateway  int
	err      error // of the connection
	status   int
	text     string
	chunks   int
	finishes int    // number of finish reasons
	failure  string // code of the error that ended the stream
	done     bool   // the stream ended with [DONE]
	took     time.Duration
}

// A streamBurst is a number of streams of one prompt that are sent at the same time, in turn to the
// control planes.
type streamBurst struct {
	p       *pair
	prompt  string
	tokens  int
	streams []openStream
	begun   atomic.Int64 // streams that have their first chunk
	clients sync.WaitGroup
}

func (p *pair) burst(n, tokens int, prompt string, gateways ...int) *streamBurst {
	b := &streamBurst{p: p, prompt: prompt, tokens: tokens, streams: make([]openStream, n)}
	for i := range b.streams {
		b.streams[i].gateway = gateways[i%len(gateways)]
		b.clients.Go(func() { b.read(&b.streams[i]) })
	}
	return b
}

func (b *streamBurst) read(s *openStream) {
	began := time.Now()
	defer func() { s.took = time.Since(began) }()
	ctx, cancel := context.WithTimeout(b.p.t.Context(), streamLimit)
	defer cancel()
	body, _ := json.Marshal(object{"model": "accounts/default/deployments/k", "prompt": b.prompt, "max_tokens": b.tokens,
		"temperature": 0, "ignore_eos": true, "stream": true}) // such values can always be marshaled
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		b.p.direct(s.gateway).address+"/inference/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		s.err = err
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+b.p.user.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.err = err
		return
	}
	defer res.Body.Close()
	if s.status = res.StatusCode; s.status != http.StatusOK {
		data, _ := io.ReadAll(res.Body) // the status is the outcome
		s.failure = string(data)
		return
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		if s.done = data == "[DONE]"; s.done {
			break
		}
		s.add(data)
		if s.chunks == 1 {
			b.begun.Add(1)
		}
	}
	s.err = lines.Err()
}

// add adds an event to the stream.
func (s *openStream) add(data string) {
	var event struct {
		Choices []struct {
			Text   string `json:"text"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Error *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(data), &event); err != nil {
		s.failure = "not JSON: " + data
		return
	}
	if event.Error != nil {
		s.failure = event.Error.Message
		return
	}
	for _, c := range event.Choices {
		s.chunks++
		s.text += c.Text
		if c.Finish != "" {
			s.finishes++
		}
	}
}

// await waits until n streams have begun.
func (b *streamBurst) await(n int64) {
	b.p.t.Helper()
	require.Eventually(b.p.t, func() bool { return b.begun.Load() >= n || b.p.t.Failed() }, patience, time.Millisecond)
}

// A streamOutcome counts how streams ended.
type streamOutcome struct{ answered, cut, refused, disconnected int }

// end waits for all streams. It checks that each was answered once, with the text want, or failed
// clearly: with an error event after a part of that text, or because its gateway, killed, was killed.
func (b *streamBurst) end(want string, killed int) (o streamOutcome) {
	t := b.p.t
	t.Helper()
	b.clients.Wait()
	for i, s := range b.streams {
		assert.Less(t, s.took, streamLimit, "stream %d", i)
		switch {
		case s.done:
			o.answered++
			assert.Equal(t, want, s.text, "stream %d", i)
			assert.Equal(t, 1, s.finishes, "stream %d", i)
		case s.gateway == killed:
			o.disconnected++
			assert.True(t, strings.HasPrefix(want, s.text), "stream %d: %q", i, s.text)
		case s.chunks > 0:
			o.cut++
			assert.NoError(t, s.err, "stream %d", i)
			assert.NotEmpty(t, s.failure, "stream %d", i)
			assert.True(t, strings.HasPrefix(want, s.text), "stream %d: %q", i, s.text)
		default:
			o.refused++
			assert.NoError(t, s.err, "stream %d", i)
			assert.NotEmpty(t, s.failure, "stream %d", i)
		}
	}
	return o
}

// TestKilledUnderStreams kills a worker with one of two replicas, then a control plane, and then both a
// worker and a control plane at the same time, as if they ran on one machine, each under 200 streams.
// Each stream is answered once, or fails with an error within its limit; those that have not begun when
// a worker is killed are answered by another replica.
func TestKilledUnderStreams(t *testing.T) {
	p, _ := startPair(t, "")
	token := filepath.Join(t.TempDir(), "node.token")
	require.NoError(t, os.WriteFile(token, []byte(p.token), 0o600))
	const device = "VENDOR_A_L4_24GB"
	work := func(id string) *process {
		worker := launch(t, logFor(t, "anneal work "+id), "work", "--join", p.cluster.url(0), "--token-file", token,
			"--node-id", id, "--data", t.TempDir(), "--accelerators", device+"=1")
		worker.waitForLine("node " + id + " joined ")
		return worker
	}
	workers := []*process{work("one"), work("two")}
	ready := func(gateway, n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " replicas are ready"), func() bool {
			_, found, err := p.direct(gateway).do(http.MethodGet, "/deployments/k", nil)
			if err != nil || found["replicaStats"] == nil {
				return false
			}
			return at(found, "replicaStats.readyReplicaCount") == float64(n)
		})
	}
	eventually(t, "the devices have registered", func() bool {
		status, _, err := p.user.do(http.MethodPost, "/deployments?deploymentId=k", object{"baseModel": baseModel,
			"minReplicaCount": 2, "maxReplicaCount": 2, "acceleratorType": device, "acceleratorCount": 1})
		return err == nil && (status == http.StatusOK || status == http.StatusConflict)
	})
	ready(0, 2)
	ready(1, 2)
	const prompt = "Packing code for 15 pink chairs"
	n, tokens := 200, 60
	reference := p.burst(1, tokens, prompt, 0)
	reference.clients.Wait()
	want := reference.streams[0].text
	require.True(t, reference.streams[0].done, "%+v", reference.streams[0])

	b := p.burst(n, tokens, prompt, 0, 1)
	b.await(8)
	workers[0].kill()
	o := b.end(want, -1)
	t.Logf("a worker was killed: %+v", o)
	require.Zero(t, o.refused)
	require.LessOrEqual(t, o.cut, 64, "only streams that have begun fail")
	require.GreaterOrEqual(t, o.answered, n-64)

	b = p.burst(n, tokens, prompt, 0, 1)
	b.await(8)
	p.planes[1].kill()
	o = b.end(want, 1)
	t.Logf("a control plane was killed: %+v", o)
	require.Zero(t, o.refused)
	require.Zero(t, o.cut)
	require.GreaterOrEqual(t, o.answered, n/2)
	if testing.Short() {
		return
	}
	p.planes[1].start()
	work("three")
	ready(0, 2)
	ready(1, 2)
	b = p.burst(n, tokens, prompt, 0, 1)
	b.await(8)
	workers[1].kill()
	p.planes[0].kill()
	o = b.end(want, 0)
	t.Logf("a worker and a control plane were killed: %+v", o)
	require.Zero(t, o.refused)
	require.LessOrEqual(t, o.cut, 64)
	require.GreaterOrEqual(t, o.answered+o.cut, n/2)
}
