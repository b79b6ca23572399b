package routing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/routing/admission"
	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/live"
)

// A testbed is a Router with a deployment.
type testbed struct {
	testing.TB
	core   *request.Core
	router *Router
	do     func(domain.Command[domain.Deployment]) // changes the deployment
}

// newGateway returns a testbed whose deployment has n ready replicas with slots.
func newGateway(t testing.TB, n, slots int) *testbed {
	world := projections.NewWorld()
	position := uint64(0)
	apply := func(intent domain.Intent) {
		position++
		state, _ := world.Row(intent.Name)
		record, err := intent.Decide(state, time.Now())
		require.NoError(t, err)
		require.NoError(t, world.Apply(eventlog.Event{Record: record, Position: position, ID: "x", Name: intent.Name,
			Time: time.Now()}))
	}
	do := func(command domain.Command[domain.Deployment]) {
		apply(domain.Intend(domain.Deployments, deployment, command))
	}
	do(domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{BaseModel: "accounts/acme/models/m",
		MinReplicaCount: n, MaxReplicaCount: &n}, Operator: true})
	for i := range n {
		node := domain.NewName(domain.System, domain.Nodes.Collection, fmt.Sprint("n", i))
		row, _ := world.View().Deployments.Get(deployment)
		id := row.State.NextReplica()
		do(domain.PlaceReplica{ID: id, Node: node, Generation: 1})
		do(domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: node})
		world.Live().Load(deployment, id, live.ReplicaLoad{Ready: true, Slots: slots, Time: time.Now()})
	}
	do(domain.MarkDeploymentReady{Generation: 1})
	return &testbed{t, request.NewCore(&request.Core{World: world, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Limits: request.DefaultLimits, Busy: request.NewCounters(), Closing: t.Context()}),
		NewRouter(nil, nil, prometheus.NewRegistry(), []byte("secret")), do}
}

// anyBody is a request.Connection that reads bodies of any size.
type anyBody struct{ request.Connection }

// ReadBody implements request.Connection.
func (anyBody) ReadBody(r *http.Request, _ int64) ([]byte, error) { return io.ReadAll(r.Body) }

// call returns a call of an account with headers as NAME, VALUE. Its body is {}.
func (g *testbed) call(account string, headers ...string) *request.Call {
	return g.callWith(account, "{}", headers...)
}

// callWith returns a call with a body.
func (g *testbed) callWith(account, body string, headers ...string) *request.Call {
	g.Helper()
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c := &request.Call{Core: g.core, Request: r, Writer: httptest.NewRecorder(), Time: time.Now(), Conn: anyBody{},
		Principal: request.Principal{Account: account}}
	_, err := c.ReadBody()
	require.NoError(g, err)
	return c
}

// serve sends a request whose prompt and answer have the given numbers of tokens, and which takes
// d.
func (g *testbed) serve(ctx context.Context, c *request.Call, prompt, answer int64, d time.Duration) error {
	_, err := g.router.Send(ctx, c, Request{Deployment: deployment, Answer: answer,
		Prompt: func(string) balance.Prompt { return balance.Prompt{Tokens: prompt} },
		Send: func(ctx context.Context, a *Attempt) (bool, error) {
			if err := pause(ctx, d/2); err != nil {
				return false, err
			}
			a.FirstToken()
			if err := pause(ctx, d/2); err != nil {
				return true, err
			}
			a.Answered(int(answer))
			return true, nil
		}})
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (g *testbed) queue() *queue {
	row, _ := g.core.World.View().Deployments.Get(deployment)
	found, _ := g.router.balancers.of(row, g.core.Now)
	return found.queue
}

// requireEmpty requires that nothing waits or is in progress.
func (g *testbed) requireEmpty() {
	g.Helper()
	q := g.queue()
	require.Zero(g, q.admission.Len())
	require.Zero(g, q.admission.Tokens())
	require.Zero(g, q.admission.InFlight())
	require.Empty(g, q.waiting)
	for _, load := range q.replicas {
		require.Zero(g, load.inFlight)
		require.Zero(g, load.pending)
	}
}

// TestQueueLosesNoRequest sends requests at random times, of which some fail on a replica, some are
// refused by one, and some are canceled. Each of them ends, and nothing remains in the queue.
func TestQueueLosesNoRequest(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			g := newGateway(t, 3, 2)
			g.core.Limits.QueueWait = time.Duration(1+random.IntN(20)) * time.Second
			var all sync.WaitGroup
			var mu sync.Mutex
			outcomes := map[string]int{}
			for range 400 {
				wait := time.Duration(random.IntN(20_000)) * time.Millisecond
				d := time.Duration(1+random.IntN(300)) * time.Millisecond
				patience, fails, prompt := time.Duration(random.IntN(10_000))*time.Millisecond, random.IntN(10), random.Int64N(9000)
				account := fmt.Sprint("a", random.IntN(4))
				all.Go(func() {
					time.Sleep(wait)
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					attempts := 0
					_, err := g.router.Send(ctx, g.call(account), Request{Deployment: deployment, Answer: 100,
						Prompt: func(string) balance.Prompt { return balance.Prompt{Tokens: prompt} },
						Send: func(ctx context.Context, a *Attempt) (bool, error) {
							attempts++
							if err := pause(ctx, d); err != nil {
								return false, err
							}
							if fails == 0 && attempts == 1 {
								return false, &domain.Error{Code: domain.Unavailable, Reason: engines.ReplicaLost}
							}
							if fails == 1 {
								return false, &domain.Error{Code: domain.ResourceExhausted}
							}
							a.FirstToken()
							return true, nil
						}})
					mu.Lock()
					defer mu.Unlock()
					outcomes[outcomeOf(err)]++
				})
			}
			all.Wait()
			total := 0
			for _, n := range outcomes {
				total += n
			}
			require.Equal(t, 400, total, "%v", outcomes)
			require.Positive(t, outcomes["ok"])
			g.requireEmpty()
		})
	}
}

func outcomeOf(err error) string {
	var fault *domain.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &fault):
		return fault.Code.String() + " " + fault.Reason
	}
	return err.Error()
}

// p90 returns the 90th percentile of times.
func p90(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)*9/10]
}

// TestNeighboursThroughTheRouter checks that a neighbour that sends ten times as many requests as
// the replicas serve hardly delays an account.
func TestNeighboursThroughTheRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, 2, 8)
		g.core.Limits.QueueWait = time.Hour
		victim := func() time.Duration {
			var times []time.Duration
			for range 60 {
				begin := time.Now()
				require.NoError(t, g.serve(t.Context(), g.call("victim"), 500, 50, 400*time.Millisecond))
				times = append(times, time.Since(begin))
				time.Sleep(100 * time.Millisecond)
			}
			return p90(times)
		}
		alone := victim()
		ctx, cancel := context.WithCancel(t.Context())
		var neighbour sync.WaitGroup
		for range 160 {
			neighbour.Go(func() {
				for ctx.Err() == nil {
					_ = g.serve(ctx, g.call("neighbour"), 500, 50, 400*time.Millisecond)
				}
			})
		}
		synctest.Wait()
		require.Positive(t, g.queue().admission.Len())
		beside := victim()
		cancel()
		neighbour.Wait()
		t.Logf("p90 alone %v, beside a neighbour %v", alone, beside)
		assert.LessOrEqual(t, beside, alone*135/100)
		g.requireEmpty()
	})
}

// TestBatchDoesNotStarve checks that requests of the class batch get a tenth beside those of
// clients.
func TestBatchDoesNotStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, 1, 4)
		g.core.Limits.QueueWait = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Second)
		defer cancel()
		var all sync.WaitGroup
		var counts [2]int
		var mu sync.Mutex
		for class, name := range Priorities {
			for range 20 {
				all.Go(func() {
					for ctx.Err() == nil {
						c := g.call(fmt.Sprint("a", class), request.PriorityHeader, name)
						if g.serve(ctx, c, 100, 10, 100*time.Millisecond) == nil {
							mu.Lock()
							counts[class]++
							mu.Unlock()
						}
					}
				})
			}
		}
		all.Wait()
		assert.InDelta(t, 0.1, float64(counts[1])/float64(counts[0]+counts[1]), 0.01, "%v", counts)
	})
}

// TestClassOf checks the class of a call by the priority of its key and by its header.
func TestClassOf(t *testing.T) {
	g := newGateway(t, 1, 1)
	for _, test := range []struct {
		key, header string
		want        admission.Class
		err         string
	}{
		{"", "", admission.Interactive, ""},
		{"", "interactive", admission.Interactive, ""},
		{"", "batch", admission.Batch, ""},
		{"interactive", "batch", admission.Batch, ""},
		{"batch", "", admission.Batch, ""},
		{"batch", "batch", admission.Batch, ""},
		{"batch", "interactive", 0, "the header anneal-priority is interactive, and the priority of the API key is batch"},
		{"", "urgent", 0, `the header anneal-priority is "urgent": it must be interactive or batch`},
	} {
		c := g.call("acme", request.PriorityHeader, test.header)
		c.Principal.Priority = test.key
		class, err := classOf(c)
		if test.err != "" {
			assert.ErrorContains(t, err, test.err)
			continue
		}
		assert.NoError(t, err)
		assert.Equal(t, test.want, class, "%+v", test)
	}
}

// TestRefusedRequestsReturn checks that requests with a long predicted wait are refused, and that
// those that return with their ticket, or only after Retry-After, are admitted; a ticket once.
func TestRefusedRequestsReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, 1, 1)
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() { _ = g.serve(t.Context(), g.call("acme"), 100, 10, time.Second) })
		}
		time.Sleep(3500 * time.Millisecond) // the queue knows its rate now
		refused := func(headers ...string) http.Header {
			c := g.call("acme", headers...)
			err := g.serve(t.Context(), c, 100, 10, time.Second)
			require.Equal(t, ReasonOverloaded, request.ReasonOf(err), "%v", err)
			require.ErrorContains(t, err, string(deployment))
			return c.Writer.Header()
		}
		first := refused()
		ticket := first.Get(request.TicketHeader)
		require.NotEmpty(t, ticket)
		require.NotEmpty(t, first.Get("Retry-After"))
		refused(request.TicketHeader, ticket) // too early; it gets a second ticket
		wait, err := time.ParseDuration(first.Get("Retry-After") + "s")
		require.NoError(t, err)
		time.Sleep(wait + time.Second)
		begin := time.Now()
		require.NoError(t, g.serve(t.Context(), g.call("acme", request.TicketHeader, ticket), 100, 10, time.Second))
		assert.Less(t, time.Since(begin), 10*time.Second)
		assert.EqualValues(t, 1, g.queue().counts.honoured[0])
		require.NoError(t, g.serve(t.Context(), g.call("acme"), 100, 10, time.Second), "the other ticket, without the header")
		all.Wait()
		g.requireEmpty()
	})
}

// TestTicketsAreHonoured sends twice as many requests as the replicas serve. Of the refused clients
// with a ticket, at least 99 % are served when they return, also those that send the same request
// without it.
func TestTicketsAreHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(4, 4))
		g := newGateway(t, 2, 4)
		var mu sync.Mutex
		var returned, served int
		waits := []time.Duration{}
		var all sync.WaitGroup
		for i := range 960 { // 16 a second; the replicas serve 8 a second
			account, naive, late := fmt.Sprint("a", i%3), i%5 == 0, time.Duration(random.IntN(2500))*time.Millisecond
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second / 16)
				body := fmt.Sprint(i)
				c := g.callWith(account, body)
				if err := g.serve(t.Context(), c, 100, 20, time.Second); err == nil {
					return
				}
				ticket := c.Writer.Header().Get(request.TicketHeader)
				after, err := time.ParseDuration(c.Writer.Header().Get("Retry-After") + "s")
				if ticket == "" || err != nil {
					return
				}
				time.Sleep(after + late)
				c = g.callWith(account, body, request.TicketHeader, ticket)
				if naive {
					c = g.callWith(account, body)
				}
				begin := time.Now()
				err = g.serve(t.Context(), c, 100, 20, time.Second)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					served++
					waits = append(waits, time.Since(begin)-time.Second)
				} else if naive {
					t.Log(err)
				}
				returned++
			})
		}
		all.Wait()
		t.Logf("%d of %d refused clients were served when they returned; p90 of their further wait: %v", served, returned,
			p90(waits))
		assert.Greater(t, returned, 50)
		assert.GreaterOrEqual(t, served*100, returned*99)
		assert.Less(t, p90(waits), 4*time.Second)
		g.requireEmpty()
	})
}

// TestCanceledAnswersCount checks that the tokens of an answer count although its client has left
// before the end, so that an account gains nothing by leaving.
func TestCanceledAnswersCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, 1, 1)
		g.core.Limits.QueueWait = time.Hour
		ctx, stop := context.WithTimeout(t.Context(), 400*time.Second)
		defer stop()
		var all sync.WaitGroup
		served := map[string]int{}
		var mu sync.Mutex
		for _, account := range []string{"stays", "leaves"} {
			for range 4 {
				all.Go(func() {
					for ctx.Err() == nil {
						patience := time.Hour
						if account == "leaves" {
							patience = 990 * time.Millisecond
						}
						_, _ = g.router.Send(ctx, g.call(account), Request{Deployment: deployment, Answer: 100,
							Prompt: func(string) balance.Prompt { return balance.Prompt{Tokens: 100} },
							Send: func(ctx context.Context, a *Attempt) (bool, error) {
								a.FirstToken()
								mu.Lock()
								served[account]++
								mu.Unlock()
								if err := pause(ctx, min(patience, time.Second)); err != nil {
									return true, err
								}
								if patience < time.Second {
									a.Answered(99)
									return true, context.Canceled
								}
								a.Answered(100)
								return true, nil
							}})
					}
				})
			}
		}
		all.Wait()
		share := float64(served["stays"]) / float64(served["stays"]+served["leaves"])
		assert.InDelta(t, 0.5, share, 0.02, "%v", served)
	})
}

// BenchmarkFastPath measures the admission of a request to a replica with capacity.
func BenchmarkFastPath(b *testing.B) {
	g := newGateway(b, 4, 64)
	row, ready, err := newSendState(g.call("acme"), Request{Deployment: deployment}, g.router).awaitReplicas(b.Context())
	require.NoError(b, err)
	c := g.call("acme")
	prompt := balance.Prompt{Tokens: 100}
	q := Request{Deployment: deployment, Answer: 100, Prompt: func(string) balance.Prompt { return prompt }}
	b.ReportAllocs()
	for b.Loop() {
		a, err := newSendState(c, q, g.router).admit(b.Context(), row, slices.Clone(ready))
		if err != nil {
			b.Fatal(err)
		}
		a.end(nil, false)
	}
}
