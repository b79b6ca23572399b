package subscriptions

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/delivery"
	"anneal/blobs/outbound"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

const (
	subscriptionName = domain.Name("accounts/acme/subscriptions/s")
	secretName       = domain.Name("accounts/acme/secrets/store")
)

// fastPolicy has the times of DefaultPolicy divided by about a thousand.
var fastPolicy = Policy{FirstBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, GiveUp: time.Hour,
	FileInterval: time.Millisecond, FileEvents: 10, DeadLetters: 1000, Retries: 256}

// keysOf returns signing keys that differ for each name.
func keysOf(name string) domain.SigningKeys {
	return domain.NewSigningKeys(fmt.Appendf(nil, "%32s", "shared "+name), fmt.Appendf(nil, "%32s", "seed "+name))
}

// A harness is a log with the world that follows it, and sealed values.
type harness struct {
	testing.TB
	log    eventlog.Log
	world  *projections.World
	blobs  *blobs.Store
	vault  *secrets.Vault
	policy Policy
	client *http.Client
	plan   atomic.Pointer[faults.Plan] // plan of injected faults; nil injects none
	keys   domain.SigningKeys
}

func newHarness(t testing.TB) *harness { return newHarnessOn(t, eventlog.NewMemory()) }

func newHarnessOn(t testing.TB, log eventlog.Log) *harness {
	b := &harness{TB: t, log: log, world: projections.NewWorld(), vault: secrets.NewMemoryVault(),
		policy: fastPolicy, client: outbound.KeepAliveClient(true, 10*time.Second),
		keys: keysOf("first")}
	b.blobs = faults.OpenStore(t, t.TempDir(), &b.plan)
	go func() { _ = b.world.Run(t.Context(), b.log) }()
	return b
}

func (b *harness) do(intent domain.Intent) uint64 {
	b.Helper()
	change, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: time.Now()}, intent)
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), change.Position()))
	return change.Position()
}

func (b *harness) on(command domain.Command[domain.Subscription]) {
	b.Helper()
	b.do(domain.Intend(domain.Subscriptions, subscriptionName, command))
}

// seal returns the harness's signing secret.
func (b *harness) seal(keys domain.SigningKeys) *domain.SigningSecret {
	sealed, err := b.vault.Seal(b.Context(), subscriptionName, []byte(keys.Text().Reveal()))
	require.NoError(b, err)
	return &domain.SigningSecret{Value: sealed, PublicKey: keys.PublicKey()}
}

// subscribe creates the subscription.
func (b *harness) subscribe(spec domain.SubscriptionSpec) {
	b.Helper()
	command := domain.CreateSubscription{SubscriptionSpec: spec}
	if spec.Webhook != nil {
		command.Signing = b.seal(b.keys)
	}
	b.on(command)
}

// record records an event of a dataset, and returns its position.
func (b *harness) record(dataset string, n int) uint64 {
	b.Helper()
	name := domain.NewName("acme", domain.Datasets.Collection, dataset)
	if n == 0 {
		return b.do(domain.Intend(domain.Datasets, name, domain.CreateDataset{DatasetSpec: domain.DatasetSpec{
			DisplayName: "0", UserUploaded: &struct{}{}}}))
	}
	row, _ := b.world.View().Datasets.Get(name)
	spec := row.State.DatasetSpec
	spec.DisplayName = fmt.Sprint(n)
	return b.do(domain.Intend(domain.Datasets, name, domain.UpdateDataset{DatasetSpec: spec}))
}

// start starts a runner, as the start of a control plane does. stop ends it.
func (b *harness) start() (stop func()) {
	runner := &Runner{Log: b.plan.Load().Log(b.log), World: b.world, Blobs: b.blobs,
		Open: secrets.ObservedVault{Vault: b.vault}.Open, Webhook: b.client,
		Store: b.client, Visible: visible, Now: time.Now, Logger: slog.New(slog.DiscardHandler), Policy: b.policy}
	return faults.Start(b, runner.Run)
}

// visible hides the events of secrets, as the API does.
func visible(e eventlog.Event) (eventlog.Event, bool) {
	return e, e.Name.Collection() != domain.Secrets.Collection
}

func (b *harness) subscription() domain.Subscription {
	row, _ := b.world.View().Subscriptions.Get(subscriptionName)
	return row.State
}

// delivery returns the stored state of the deliveries.
func (b *harness) delivery() delivery.State {
	row, _ := b.world.View().Subscriptions.Get(subscriptionName)
	state, err := delivery.Load(b.Context(), b.blobs, subscriptionName, row.CreateEvent)
	require.NoError(b, err)
	return state
}

// eventually waits until a condition holds.
func (b *harness) eventually(condition func() bool) {
	b.Helper()
	require.Eventually(b, condition, 30*time.Second, time.Millisecond)
}

// selected returns the events of the log that the subscription selects after a position.
func (b *harness) selected(after uint64) (all []eventlog.Event) {
	s := b.subscription()
	for e, err := range b.log.Read(b.Context(), "events.acme.>", after) {
		require.NoError(b, err)
		if _, ok := visible(e); ok && s.Selects(e.Type, e.Name, e.Time) {
			all = append(all, e)
		}
	}
	return all
}

// A receiver is a webhook. respond decides the response to an event; nil responds with 204.
type receiver struct {
	*httptest.Server
	// responds to an event; returns false to leave the response 204 to the receiver
	respond func(w http.ResponseWriter, r *http.Request, e received) bool

	mu  sync.Mutex
	all []received // accepted events in the order of their arrival
}

// A received event is a request to a receiver.
type received struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Subject  string `json:"subject"`
	Position string `json:"position"`
	Data     struct {
		DisplayName string `json:"displayName"`
	} `json:"data"`
	header http.Header
	body   []byte
}

func newReceiver(t testing.TB, respond func(w http.ResponseWriter, r *http.Request, e received) bool) *receiver {
	v := &receiver{respond: respond}
	v.Server = httptest.NewServer(v)
	t.Cleanup(v.Close)
	return v
}

func (v *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var e received
	e.body = make([]byte, r.ContentLength)
	for n := 0; n < len(e.body); {
		k, err := r.Body.Read(e.body[n:])
		if n += k; err != nil && n < len(e.body) {
			return
		}
	}
	if json.Unmarshal(e.body, &e) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.header = r.Header
	if v.respond != nil && v.respond(w, r, e) {
		return
	}
	v.mu.Lock()
	v.all = append(v.all, e)
	v.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (v *receiver) events() []received {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]received(nil), v.all...)
}

// first returns the accepted events without repetitions, in the order of their first arrival.
func (v *receiver) first() (all []received) {
	seen := map[string]bool{}
	for _, e := range v.events() {
		if !seen[e.ID] {
			seen[e.ID] = true
			all = append(all, e)
		}
	}
	return all
}

// requireComplete requires that the receiver has accepted exactly the selected events after a
// position, at least once each, and first in the order of the log for each resource.
func (b *harness) requireComplete(v *receiver, after uint64) {
	b.Helper()
	require.EventuallyWithT(b, func(c *assert.CollectT) { // a delivery may record events, which are delivered too
		want, got := map[string][]string{}, map[string][]string{}
		for _, e := range b.selected(after) {
			want[string(e.Name)] = append(want[string(e.Name)], e.ID)
		}
		for _, e := range v.first() {
			got[e.Subject] = append(got[e.Subject], e.ID)
		}
		assert.Equal(c, want, got)
	}, 30*time.Second, 5*time.Millisecond)
}

// idle waits until everything is delivered and stored.
func (b *harness) idle() {
	b.Helper()
	all := b.selected(0)
	last := all[len(all)-1].Position
	b.eventually(func() bool {
		state := b.delivery()
		return state.Cursor.Position >= last && len(state.Retries) == 0
	})
}
