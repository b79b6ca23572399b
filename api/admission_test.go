package api

import (
	"context"
	"slices"
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

// started has the texts of requests in the order in which a replica began with them.
type started struct {
	mu  sync.Mutex
	all []string
}

func (o *started) add(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, text)
}

func (o *started) texts() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
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
	var order started
	s.replicas.responding(func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		order.add(req.Prompt)
		<-turns
		return echo(ctx, r, req, emit)
	})
	s.shares(turns, order.texts, func(alias, text string) response {
		return s.call("POST", "/v1/completions", alias, `{"model": "smart", "prompt": "`+text+`", "max_tokens": 2}`)
	})
}

// TestRecordingsOfNeighbours checks that an account's twenty recordings neither delay nor reject that of
// another account.
func TestRecordingsOfNeighbours(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.slots(s.deploySpeech("d1", "listen"), 2)
	turns := make(chan struct{})
	var order started
	s.replicas.transcribe = func(ctx context.Context, _ domain.Replica, req engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		text, err := fetchText(ctx, req.Audio.URL)
		if err != nil {
			return engines.Transcript{}, err
		}
		order.add(text)
		<-turns
		return transcribeText(ctx, req, emit)
	}
	s.shares(turns, order.texts, func(alias, text string) response {
		return s.send(s.form("/v1/audio/transcriptions", alias, "file", "speech.wav", strings.NewReader(text),
			"model=listen"))
	})
}

// shares sends twenty requests of one account with the text "one two" to the two slots of a deployment, and
// then one of another account with the text "other". texts returns the texts in the order in which the
// replica began with them. No request ends before turns is closed.
func (s *harness) shares(turns chan struct{}, texts func() []string, send func(alias, text string) response) {
	s.Helper()
	var all sync.WaitGroup
	statuses := make(chan int, 21)
	for range 20 {
		all.Go(func() { statuses <- send("user", "one two").status })
	}
	s.awaitQueue(18)
	all.Go(func() { statuses <- send("other", "other").status })
	s.awaitQueue(19)
	close(turns)
	all.Wait()
	for range 21 {
		require.Equal(s, 200, <-statuses)
	}
	require.Len(s, texts(), 21)
	at := slices.Index(texts(), "other")
	require.GreaterOrEqual(s, at, 2)
	// dispatch sends it first, but goroutines of a few later ones may run before its own
	require.LessOrEqual(s, at, 15, "the other account waits for requests that came before: %v", texts())
}

// TestScriptsReadTickets checks that web pages of allowed origins can read the header of a ticket.
func TestScriptsReadTickets(t *testing.T) {
	require.Contains(t, newCORSPolicy([]string{AnyOrigin}, nil).exposed, request.TicketHeader)
}
