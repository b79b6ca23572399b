package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/projections"
)

// BenchmarkCreateOverHTTP compares creates of datasets over a loopback connection with bare
// appends of the same event to the same embedded durable log. Creates and appends alternate, so
// that both meet the same state of the disk.
func BenchmarkCreateOverHTTP(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			c := newCreation(b)
			var made, appended time.Duration
			operations := 0
			round := 4 * max(clients, 50)
			for b.Loop() {
				made += share(clients, round, c.create)
				appended += share(clients, round, c.append)
				operations += round
			}
			perSecond := func(d time.Duration) float64 { return float64(operations) / d.Seconds() }
			b.ReportMetric(perSecond(made), "creates/s")
			b.ReportMetric(perSecond(appended), "appends/s")
			b.ReportMetric(float64(appended)/float64(made), "ratio")
			b.ReportMetric(0, "ns/op") // hides the sum of creates and appends, which is meaningless
		})
	}
}

// share calls do n times in total, from concurrent clients, and returns the duration.
func share(clients, n int, do func()) time.Duration {
	var left atomic.Int64
	left.Store(int64(n))
	return timed(func() {
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for left.Add(-1) >= 0 {
					do()
				}
			})
		}
		all.Wait()
	})
}

// A creation is a server on a durable log with one account.
type creation struct {
	b      *testing.B
	log    eventlog.Log
	url    string
	key    string
	client *http.Client
	record domain.Record
	next   atomic.Int64
}

const createdSpec = `{"displayName": "a dataset like others", "exampleCount": "1000", "format": "CHAT"}`

func newCreation(b *testing.B) *creation {
	nats, err := natsserver.Start(natsserver.Options{Dir: b.TempDir()})
	require.NoError(b, err)
	b.Cleanup(nats.Close)
	c := &creation{b: b, log: nats.Log(), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	world := projections.NewWorld()
	ctx, stop := context.WithCancel(context.Background())
	followed := make(chan struct{})
	go func() { defer close(followed); _ = world.Run(ctx, c.log) }()
	b.Cleanup(func() { stop(); <-followed })

	key, err := request.MintKey(pepper, "accounts/acme/apiKeys/k")
	require.NoError(b, err)
	c.key = key.Text
	for _, intent := range []domain.Intent{
		domain.Intend(domain.Accounts, "accounts/acme", domain.CreateAccount{}),
		domain.Intend(domain.APIKeys, "accounts/acme/apiKeys/k",
			domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: domain.RoleAdmin},
				Hash: key.Hash}),
	} {
		change, err := eventlog.Do(ctx, c.log, world, eventlog.Request{}, intent)
		require.NoError(b, err)
		require.NoError(b, world.WaitFor(ctx, change.Position()))
	}

	server := New(Options{Log: c.log, World: world, Pepper: pepper})
	web := httptest.NewServer(server)
	c.url = web.URL + "/v1/accounts/acme/datasets"
	b.Cleanup(func() { web.Close(); server.Close() })

	c.create() // appends repeat the event of this create
	for e, err := range c.log.Read(ctx, "events.acme.datasets.>", 0) {
		require.NoError(b, err)
		c.record = e.Record
	}
	require.NotEmpty(b, c.record.Type)
	return c
}

// create posts one dataset and reads the response.
func (c *creation) create() {
	body := fmt.Sprintf(`{"datasetId": "d-%d", "dataset": %s}`, c.next.Add(1), createdSpec)
	r, err := http.NewRequest(http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		c.b.Error(err)
		return
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(r)
	if err != nil {
		c.b.Error(err)
		return
	}
	text, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || response.StatusCode != http.StatusOK {
		c.b.Errorf("%d %s %v", response.StatusCode, text, err)
	}
}

// append appends the created event of a dataset with another ID to the log.
func (c *creation) append() {
	id := fmt.Sprintf("e-%d", c.next.Add(1))
	_, err := c.log.Append(context.Background(),
		eventlog.Write{Event: eventlog.Event{Record: c.record, ID: id, Command: id,
			Name: domain.NewName("acme", domain.Datasets.Collection, id), Time: time.Now(), Actor: "accounts/acme/apiKeys/k"}})
	if err != nil {
		c.b.Error(err)
	}
}
