package main_test

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// A usageLoad sends completions from several clients until it is stopped.
type usageLoad struct {
	user     caller
	stop     atomic.Bool
	answered atomic.Int64 // requests with status 200
	tokens   atomic.Int64 // prompt tokens of the answered requests
	unknown  atomic.Int64 // requests whose connection broke: they may be metered
	refused  atomic.Int64
	clients  sync.WaitGroup
}

func (l *usageLoad) start(clients int, pause time.Duration) {
	for range clients {
		l.clients.Go(func() {
			for !l.stop.Load() {
				status, answer, err := l.user.complete("accounts/default/deployments/d", "hello")
				switch {
				case err != nil:
					l.unknown.Add(1)
					<-time.After(10 * time.Millisecond) // the server restarts
				case status == http.StatusOK:
					l.answered.Add(1)
					tokens, _ := at(answer, "usage.prompt_tokens").(float64)
					l.tokens.Add(int64(tokens))
				default:
					l.refused.Add(1)
				}
				<-time.After(pause)
			}
		})
	}
}

// metered returns the requests and the prompt tokens of the account's usage.
func (c caller) metered() (requests, tokens int64, ok bool) {
	status, answer, err := c.do(http.MethodGet, "/usage?groupBy=account", nil)
	if err != nil || status != http.StatusOK {
		return 0, 0, false
	}
	rows, _ := answer["usage"].([]any)
	for _, row := range rows {
		n, _ := strconv.ParseInt(row.(object)["requests"].(string), 10, 64)
		requests += n
		n, _ = strconv.ParseInt(row.(object)["promptTokens"].(string), 10, 64)
		tokens += n
	}
	return requests, tokens, true
}

// TestUsageIsExactThroughOutages sends completions while all NATS servers, or two of three, stop again
// and again, and kills the control plane when its spool is full. Each answered request must be metered
// exactly once. ANNEAL_OUTAGES is the number of outages, and ANNEAL_OUTAGE_SECONDS the maximum length of
// one.
func TestUsageIsExactThroughOutages(t *testing.T) {
	outages := testutil.Variable(t, "ANNEAL_OUTAGES", 2)
	longest := time.Duration(testutil.Variable(t, "ANNEAL_OUTAGE_SECONDS", 2)) * time.Second
	random := testutil.Random(t)
	c := startNATS(t)
	s := c.serve(t.TempDir(), "--lame-duck", "0s", "--listen", freePort(t))
	s.joined()
	user, anyone := s.user(), s.as("", "")
	user.deploy("d", object{"baseModel": baseModel})
	load := &usageLoad{user: user}
	load.start(4, min(longest/20, 200*time.Millisecond))
	begun, down, kills := time.Now(), time.Duration(0), 0
	for i := range outages {
		stopped := []int{1, 2}
		if i%4 == 3 {
			stopped = []int{0, 1, 2} // agents cannot be reached either
		}
		for _, server := range stopped {
			c.stop(server)
		}
		outage := longest/2 + time.Duration(random.Int64N(int64(longest/2)))
		answered, since := load.answered.Load(), time.Now()
		<-time.After(outage)   // the outage itself
		if len(stopped) == 2 { // an agent that must reconnect can take longer than the outage
			eventually(t, "requests are answered without quorum", func() bool { return load.answered.Load() > answered })
		}
		down += time.Since(since)
		for _, server := range stopped {
			c.start(server)
		}
		if random.IntN(2) == 0 || i == outages-1 {
			s.kill()
			s.start()
			kills++
		}
		eventually(t, "the server is ready to write", func() bool {
			status, _ := anyone.status(http.MethodGet, "//readyz/write", nil)
			return status == http.StatusOK
		})
		answered = load.answered.Load()
		eventually(t, "requests are answered again", func() bool { return load.answered.Load() > answered })
	}
	load.stop.Store(true)
	load.clients.Wait()
	eventually(t, "all usage is metered", func() bool {
		requests, _, ok := user.metered()
		return ok && requests >= load.answered.Load()
	})
	require.Zero(t, s.end()) // waits for the records in the spool
	s.start()
	requests, tokens, ok := user.metered()
	require.True(t, ok)
	answered, unknown := load.answered.Load(), load.unknown.Load()
	t.Logf("%d requests answered and %d refused in %v, of which NATS was down %v; %d kills, with %d requests without "+
		"an answer; %d requests metered", answered, load.refused.Load(), time.Since(begun).Round(time.Second),
		down.Round(time.Second), kills, unknown, requests)
	require.LessOrEqual(t, requests, answered+unknown)
	if requests == answered {
		require.Equal(t, load.tokens.Load(), tokens)
	}
	require.Zero(t, s.end())
}
