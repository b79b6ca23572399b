package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections/live"
)

// routeOf returns a field of the header anneal-route, such as replica.
func routeOf(t *testing.T, a response, field string) string {
	t.Helper()
	require.Equal(t, 200, a.status, "%s", a.body)
	for part := range strings.SplitSeq(a.header.Get("anneal-route"), "; ") {
		if name, value, _ := strings.Cut(part, "="); name == field {
			return value
		}
	}
	require.Fail(t, "the header anneal-route has no such field", "%s: %q", field, a.header.Get("anneal-route"))
	return ""
}

// TestPromptsReturnToTheirCache checks that a prompt goes to the replica that has its beginning cached,
// while that replica is not busy, for each kind of request; and that the header says so.
func TestPromptsReturnToTheirCache(t *testing.T) {
	s := servingHarness(t, 4)
	long := func(topic string) string { return strings.Repeat(topic+" ", 8000/len(topic)) }
	send := map[string]func(prompt, fields string) response{
		"completions": func(prompt, fields string) response {
			return s.complete(fmt.Sprintf(`"prompt": %q, "max_tokens": 1%s`, prompt, fields))
		},
		"chat": func(prompt, fields string) response {
			return s.call("POST", "/inference/v1/chat/completions", "inference",
				fmt.Sprintf(`{%s, "messages": [{"role": "user", "content": %q}], "max_tokens": 1%s}`, toD1, prompt, fields))
		},
		"token IDs": func(prompt, fields string) response {
			ids := strings.TrimSuffix(strings.Repeat(fmt.Sprint(len(prompt)%97, ","), 2000), ",")
			return s.complete(fmt.Sprintf(`"prompt": [%s], "max_tokens": 1%s`, ids, fields))
		},
	}
	for kind, send := range send {
		t.Run(kind, func(t *testing.T) {
			home := map[string]string{}
			for _, topic := range []string{kind + " of bees", kind + " of whales and ships"} {
				first := send(long(topic), "")
				require.Equal(t, "0", routeOf(t, first, "cached-tokens"))
				home[topic] = routeOf(t, first, "replica")
			}
			for topic, at := range home {
				for _, fields := range []string{"", `, "stream": true`} {
					again := send(long(topic), fields)
					require.Equal(t, at, routeOf(t, again, "replica"), "%s%s", topic, fields)
					require.NotEqual(t, "0", routeOf(t, again, "cached-tokens"))
					require.Equal(t, "4", routeOf(t, again, "candidates"))
				}
			}
			other := send(long(kind+" of bees"), `, "prompt_cache_isolation_key": "k"`)
			require.Equal(t, "0", routeOf(t, other, "cached-tokens"), "isolated prompts share no cache")
		})
	}
}

// TestLongPromptsSpread checks that requests avoid a replica that has to process a long prompt.
func TestLongPromptsSpread(t *testing.T) {
	s := servingHarness(t, 2)
	held, release := make(chan string), make(chan struct{})
	s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if len(req.Prompt) > 1000 {
			held <- r.ID
			<-release
		}
		return echo(ctx, r, req, emit)
	}
	done := make(chan response)
	go func() {
		done <- s.complete(fmt.Sprintf(`"prompt": %q, "max_tokens": 1`, strings.Repeat("word ", 20_000)))
	}()
	busy := <-held
	for range 5 {
		require.NotEqual(t, busy, routeOf(t, s.complete(`"prompt": "a"`), "replica"))
	}
	close(release)
	require.Equal(t, busy, routeOf(t, <-done, "replica"))
}

// TestReportsOfEngines checks that a report of pending tokens keeps requests away from a replica, and
// that a replica whose engine reports nothing is used as before.
func TestReportsOfEngines(t *testing.T) {
	s := servingHarness(t, 2)
	busy := routeOf(t, s.complete(`"prompt": "a"`), "replica")
	report := func(pending int64) {
		s.world.Live().Load("accounts/acme/deployments/d1", busy, live.ReplicaLoad{Ready: true, Slots: 8,
			Time: s.clock.tick(), Engine: live.EngineLoad{PendingTokens: pending, CacheTokens: -1}})
	}
	report(-1)
	require.Equal(t, busy, routeOf(t, s.complete(`"prompt": "a"`), "replica"))
	report(1_000_000_000)
	require.NotEqual(t, busy, routeOf(t, s.complete(`"prompt": "a"`), "replica"))
	report(0)
	require.Equal(t, busy, routeOf(t, s.complete(`"prompt": "a"`), "replica"))
}

// TestFailingReplicaIsAvoided checks that a replica whose engine fails gets no requests after some
// failures, and is tested by one request after a pause.
func TestFailingReplicaIsAvoided(t *testing.T) {
	s := servingHarness(t, 2)
	broken := routeOf(t, s.complete(`"prompt": "a"`), "replica")
	s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if r.ID == broken {
			return engines.Usage{}, domain.Errorf(domain.Internal, "the engine panicked")
		}
		return echo(ctx, r, req, emit)
	}
	failures := 0
	for range 100 { // the clock advances by a second whenever it is read
		if s.complete(`"prompt": "a"`).status != 200 {
			failures++
		}
	}
	require.Greater(t, failures, 5)
	require.Less(t, failures, 20, "the pauses become longer")
	s.clock.add(time.Minute)
	s.replicas.respond = echo
	tested := s.complete(`"prompt": "a"`)
	require.Equal(t, broken, routeOf(t, tested, "replica"))
	require.Equal(t, "half-open", routeOf(t, tested, "breaker"))
	require.Equal(t, broken, routeOf(t, s.complete(`"prompt": "a"`), "replica"))
}
