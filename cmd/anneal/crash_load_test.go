package main_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A ledger records the changes that a server has acknowledged, and therefore must not lose.
type ledger struct {
	mu    sync.Mutex
	rows  map[string]*entry // by path below the account: /datasets/x
	acks  int
	grown chan struct{} // closed at the next acknowledgement
}

// An entry is the state of one resource as its client knows it. After a request without a
// response, the client does not know whether the request was executed.
type entry struct {
	exists []bool   // possible answers to whether the resource exists
	names  []string // possible display names; empty if the resource has no name
	ready  bool     // the dataset's rows were accepted
}

func newLedger() *ledger {
	return &ledger{rows: map[string]*entry{}, grown: make(chan struct{})}
}

// mayChange adds a state to the possible states of a resource, before a request that leads to it.
func (l *ledger) mayChange(path string, exists bool, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.rows[path]
	if e == nil {
		e = &entry{exists: []bool{false}}
		l.rows[path] = e
	}
	e.exists = append(e.exists, exists)
	if name != "" {
		e.names = append(e.names, name)
	}
}

// acknowledged records the state of a resource after a response.
func (l *ledger) acknowledged(path string, exists bool, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.rows[path]
	e.exists = []bool{exists}
	if name != "" {
		e.names = []string{name}
	}
	l.more()
}

// accepted records that a dataset's rows were accepted.
func (l *ledger) accepted(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows[path].ready = true
	l.more()
}

func (l *ledger) more() {
	l.acks++
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *ledger) count() (acks int, grown <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acks, l.grown
}

// check compares the ledger with the server's lists. No client may have a request in progress.
func (l *ledger) check(t *testing.T, user caller, when string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	listed := map[string]object{}
	for _, collection := range []string{"datasets", "secrets", "deployments", "supervisedFineTuningJobs"} {
		for _, item := range user.list("/"+collection, collection) {
			listed[item["name"].(string)[len("accounts/default"):]] = item
		}
	}
	for path, e := range l.rows {
		item, there := listed[path]
		assert.Contains(t, e.exists, there, "%s: %s: does it exist?", when, path)
		if there && len(e.names) > 0 {
			assert.Contains(t, e.names, item["displayName"], "%s: %s", when, path)
		}
		if e.ready {
			assert.Equal(t, "READY", item["state"], "%s: %s", when, path)
			assert.Equal(t, "4", item["exampleCount"], "%s: %s", when, path)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// A load is a set of clients that continuously create, change and delete resources, and retry
// requests without a response.
type load struct {
	*ledger
	user    caller
	clients sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc

	mu      sync.Mutex
	up      chan struct{} // closed while the server accepts requests
	open    sync.WaitGroup
	jobs    []string // IDs of the jobs whose create was acknowledged
	maxJobs int      // number of jobs to create
}

// startLoad returns a load, whose clients begin when resume is called. All jobs are trained on an
// existing dataset.
func startLoad(t testing.TB, user caller, jobs int) *load {
	l := &load{ledger: newLedger(), user: user, up: make(chan struct{}), maxJobs: jobs}
	l.ctx, l.stop = context.WithCancel(context.Background())
	t.Cleanup(l.end)
	for client := range 3 {
		random := rand.New(rand.NewPCG(uint64(client), 7))
		l.clients.Go(func() {
			for n := 0; l.ctx.Err() == nil; n++ {
				l.one(fmt.Sprintf("c%d-%d", client, n), random.IntN(100))
			}
		})
	}
	return l
}

// end stops the clients.
func (l *load) end() {
	l.stop()
	l.clients.Wait()
}

// resume lets the clients send requests.
func (l *load) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.up)
}

// pause stops new requests, and waits for those in progress.
func (l *load) pause() {
	l.mu.Lock()
	l.up = make(chan struct{})
	l.mu.Unlock()
	l.open.Wait()
}

// enter waits until a request may be sent. It returns false when the load has ended.
func (l *load) enter() bool {
	for {
		l.mu.Lock()
		up := l.up
		select {
		case <-up:
			l.open.Add(1)
			l.mu.Unlock()
			return true
		default:
		}
		l.mu.Unlock()
		select {
		case <-up:
		case <-l.ctx.Done():
			return false
		}
	}
}

// one executes an operation on a resource with the ID. kind, a number from 0 to 99, selects the
// operation.
func (l *load) one(id string, kind int) {
	switch {
	case kind < 30:
		if l.create("/datasets/"+id, http.MethodPost, "/datasets",
			object{"datasetId": id, "dataset": object{"displayName": "new"}}, "new") && kind < 10 {
			l.upload(id)
		}
		l.send("/datasets/"+id, true, "renamed", http.MethodPatch, "/datasets/"+id,
			object{"name": "accounts/default/datasets/" + id, "displayName": "renamed"})
	case kind < 60:
		name := "accounts/default/secrets/" + id
		if l.create("/secrets/"+id, http.MethodPost, "/secrets", object{"name": name, "keyName": "KEY", "value": "canary"},
			"") && kind < 45 {
			l.send("/secrets/"+id, false, "", http.MethodDelete, "/secrets/"+id, nil)
		}
	case kind < 80:
		l.create("/deployments/"+id, http.MethodPost, "/deployments?deploymentId="+id,
			object{"baseModel": baseModel, "displayName": id}, id)
	case l.wantsJob():
		path := "/supervisedFineTuningJobs/" + id
		if l.create(path, http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId="+id,
			jobOn("shared", crashEpochs), "") {
			l.mu.Lock()
			l.jobs = append(l.jobs, id)
			l.mu.Unlock()
		}
	}
}

func (l *load) wantsJob() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.maxJobs > 0 {
		l.maxJobs--
		return true
	}
	return false
}

func (l *load) create(path, method, at string, body any, name string) bool {
	return l.send(path, true, name, method, at, body)
}

// send sends a request until it gets a response, and records the response in the ledger. After a
// lost response, an error that the change already happened counts as success. send returns false
// when the load has ended.
func (l *load) send(path string, exists bool, name, method, at string, body any) bool {
	l.mayChange(path, exists, name)
	for first := true; l.enter(); first = false {
		status, answer, err := l.user.do(method, at, body)
		l.finish(func() {
			if err == nil && (status == http.StatusOK || !first &&
				(status == http.StatusConflict || !exists && status == http.StatusNotFound)) {
				l.acknowledged(path, exists, name)
			} else if err == nil && status < 500 {
				assert.Fail(l.user.t, "an operation is refused", "%s %s: %d %v", method, at, status, answer)
			}
		})
		if err == nil && status < 500 {
			return true
		}
		l.backOff()
	}
	return false
}

// upload sends rows until they are accepted.
func (l *load) upload(dataset string) {
	for first := true; l.enter(); first = false {
		status, answer, err := l.user.upload(dataset, exampleRows(l.user.t, 4))
		l.finish(func() {
			switch {
			case err != nil || status >= 500:
			// A bad request after the first attempt means that the response to the first attempt
			// was lost.
			case status == http.StatusOK && answer["state"] == "READY", status == http.StatusBadRequest && !first:
				l.accepted("/datasets/" + dataset)
			default:
				assert.Fail(l.user.t, "an upload is refused", "%s: %d %v", dataset, status, answer)
			}
		})
		if err == nil && status < 500 {
			return
		}
		l.backOff()
	}
}

func (l *load) finish(note func()) {
	note()
	l.open.Done()
}

// backOff waits for a moment after a transient error.
func (l *load) backOff() {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-l.ctx.Done():
	}
}

func (l *load) jobIDs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.jobs)
}

// checkInvariants checks the whole log: every position once, no resource created twice
// without a delete, no attempt
// started twice or during another, and no job completed twice.
func checkInvariants(t *testing.T, events []receivedEvent) {
	t.Helper()
	ids, created := map[string]bool{}, map[string]bool{}
	attempt, live, completed := map[string]float64{}, map[string]bool{}, map[string]bool{}
	for i, h := range events {
		require.EqualValues(t, i+1, h.position)
		require.False(t, ids[h.id], "the event %s is recorded twice", h.id)
		ids[h.id] = true
		switch h.kind {
		case "dataset.created.v1", "deployment.created.v1", "secret.created.v1", "account.created.v1", "apiKey.created.v1",
			"supervisedFineTuningJob.created.v1":
			require.False(t, created[h.subject], "%s is created twice", h.subject)
			created[h.subject] = true
		case "dataset.deleted.v1", "secret.deleted.v1", "deployment.purged.v1":
			created[h.subject] = false
		case "supervisedFineTuningJob.started.v1":
			require.False(t, live[h.subject], "%s is started while an attempt is under way", h.subject)
			require.False(t, completed[h.subject], "%s is started after it completed", h.subject)
			next, _ := h.data["attempt"].(float64)
			require.Equal(t, attempt[h.subject]+1, next, "%s", h.subject)
			attempt[h.subject], live[h.subject] = next, true
		case "supervisedFineTuningJob.abandoned.v1": // reserved, and never started
			require.False(t, live[h.subject], "%s", h.subject)
			number, _ := h.data["attempt"].(float64)
			require.Equal(t, attempt[h.subject]+1, number, "%s", h.subject)
			attempt[h.subject] = number
		case "supervisedFineTuningJob.requeued.v1":
			require.True(t, live[h.subject], "%s", h.subject)
			live[h.subject] = false
		case "supervisedFineTuningJob.completed.v1":
			require.True(t, live[h.subject], "%s completes without an attempt", h.subject)
			require.False(t, completed[h.subject], "%s is completed twice", h.subject)
			live[h.subject], completed[h.subject] = false, true
		case "supervisedFineTuningJob.failed.v1":
			require.Fail(t, "a job failed", "%s: %v", h.subject, h.data)
		}
	}
}
