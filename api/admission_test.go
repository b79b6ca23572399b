package api

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections/live"
)

// slots records that the replica of a deployment serves n requests concurrently.
func (s *harness) slots(name domain.Name, n int) {
	s.Helper()
	for id := range mustRow(s, name).Replicas {
		s.world.Live().Load(name, id, live.ReplicaLoad{Ready: true, Slots: n, Time: s.clock.tick()})
	}
}

// awaitQueue waits until n requests wait in the admission queues of the server.
func (s *harness) awaitQueue(n int) {
	s.Helper()
	require.Eventually(s, func() bool {
		sum := 0
		for _, queue := range s.server.gateway.QueueLengths("test") {
			sum += queue.Waiting
		}
		return sum == n
	}, patience, time.Millisecond)
}

// TestNeighboursOverHTTP checks that the twenty requests that an account has sent before do not delay
// another account: it is served when the first of them end.
func TestNeighboursOverHTTP(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deploy("d1", 1)
	require.Equal(t, 200, s.call("PATCH", "/v1/"+string(name), "operator", `{"aliases": ["smart"]}`).status)
	s.slots(name, 2)
	turns := make(chan struct{})
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		<-turns
		return echo(ctx, r, req, emit)
	})
	s.shares(turns, func(alias string) response {
		return s.call("POST", "/v1/completions", alias, `{"model": "smart", "prompt": "a b", "max_tokens": 2}`)
	})
}

// TestRecordingsOfNeighbours checks that an account's twenty recordings neither delay nor reject that of
// another account.
func TestRecordingsOfNeighbours(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.slots(s.deploySpeech("d1", "listen"), 2)
	turns := make(chan struct{})
	s.replicas.transcribe = func(ctx context.Context, _ domain.Replica, req engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		<-turns
		return transcribeText(ctx, req, emit)
	}
	s.shares(turns, func(alias string) response {
		return s.send(s.form("/v1/audio/transcriptions", alias, "file", "speech.wav", strings.NewReader("one two"),
			"model=listen"))
	})
}

// shares sends twenty requests of one account, and then one of another account to the two slots of a
// deployment. Each value of turns ends one request.
func (s *harness) shares(turns chan struct{}, send func(alias string) response) {
	s.Helper()
	var all sync.WaitGroup
	statuses := make(chan int, 20)
	for range 20 {
		all.Go(func() { statuses <- send("user").status })
	}
	s.awaitQueue(18)
	other := make(chan response, 1)
	go func() { other <- send("other") }()
	s.awaitQueue(19)
	for ended, waits := 0, true; waits; {
		select {
		case turns <- struct{}{}:
			ended++
			require.LessOrEqual(s, ended, 10, "the other account waits for the requests that came before")
		case answer := <-other:
			require.Equal(s, 200, answer.status, "%s", answer.body)
			waits = false
		}
	}
	close(turns)
	all.Wait()
	for range 20 {
		require.Equal(s, 200, <-statuses)
	}
}
