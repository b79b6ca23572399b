package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A routed transport sends requests to the control planes that are ready, in turn. It opens a
// connection that is refused to another one. Its requests name the last position that any of its
// responses had, so that they are linearizable over all control planes.
type routed struct {
	to       *balancer
	base     *http.Transport
	position atomic.Uint64

	mu       sync.Mutex
	requests []sentRequest
}

// A sentRequest is the outcome of a request.
type sentRequest struct {
	begin, end time.Time
	what       string
	failed     string // "" if the request succeeded or was refused by a rule
}

func (r *routed) RoundTrip(req *http.Request) (res *http.Response, err error) {
	for range len(r.to.servers) + 1 {
		out := req.Clone(req.Context())
		target := r.to.choose()
		out.URL.Scheme, out.URL.Host, out.Host = target.Scheme, target.Host, ""
		if position := r.position.Load(); position > 0 && strings.HasPrefix(req.URL.Path, "/v1/accounts/") {
			out.Header.Set("anneal-at-least", strconv.FormatUint(position, 10))
		}
		if req.GetBody != nil {
			if out.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		res, err = r.base.RoundTrip(out)
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" {
			break
		}
	}
	if err == nil {
		at, _ := strconv.ParseUint(res.Header.Get("anneal-position"), 10, 64)
		for last := r.position.Load(); at > last && !r.position.CompareAndSwap(last, at); {
			last = r.position.Load()
		}
	}
	return res, err
}

// record records the outcome of a request.
func (r *routed) record(begin time.Time, what string, status int, err error) {
	one := sentRequest{begin: begin, end: time.Now(), what: what}
	switch {
	case err != nil:
		one.failed = err.Error()
	case status >= 500 || status == http.StatusTooManyRequests:
		one.failed = strconv.Itoa(status)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, one)
}

// recorded is a transport that records each exchange of another one.
type recorded struct{ *routed }

func (r recorded) RoundTrip(req *http.Request) (*http.Response, error) {
	begin := time.Now()
	res, err := r.routed.RoundTrip(req)
	status := 0
	if err == nil {
		status = res.StatusCode
	}
	r.record(begin, req.Method+" "+req.URL.Path, status, err)
	return res, err
}

// A faultLoad is a load of operations, jobs and completions on a faultyCluster.
type faultLoad struct {
	t         *testing.T
	cluster   *faultyCluster
	registers *workload
	ctx       context.Context
	stop      context.CancelFunc
	clients   sync.WaitGroup
	mu        sync.Mutex
	jobs      []string // IDs of jobs whose create was acknowledged
}

// faultEpochs makes each job take some seconds, so that faults interrupt it.
const faultEpochs = 30

// faultRegisters is far more than a run sends; the load ends before.
const faultRegisters = math.MaxInt32

func (c *faultyCluster) load() *faultLoad {
	pace := time.NewTicker(8 * time.Millisecond)
	l := &faultLoad{t: c.t, cluster: c, registers: &workload{t: c.t, begin: time.Now(), pace: pace.C, noLists: true}}
	l.ctx, l.stop = context.WithCancel(c.t.Context())
	l.registers.left.Store(faultRegisters)
	user := c.user
	user.http = &http.Client{Transport: recorded{c.routed}, Timeout: 3 * time.Second}
	for number := range 8 {
		l.clients.Go(func() { l.registers.client(number, user) })
	}
	for number := range 2 {
		l.clients.Go(func() { l.train(number, user) })
		l.clients.Go(func() { l.infer(number == 0) })
	}
	c.t.Cleanup(func() { l.end(); pace.Stop() })
	return l
}

func (l *faultLoad) end() {
	l.registers.left.Store(0)
	l.stop()
	l.clients.Wait()
}

// quiet waits while no fault is under way.
func (l *faultLoad) quiet(d time.Duration) {
	<-time.After(d) // in which requests are sent
}

// wait waits before another request, and reports whether the load continues.
func (l *faultLoad) wait(d time.Duration) bool {
	select {
	case <-time.After(d): // a pause between two requests of a client
		return true
	case <-l.ctx.Done():
		return false
	}
}

// train creates one job after the other, and waits for the end of each.
func (l *faultLoad) train(number int, user caller) {
	for n := 0; l.ctx.Err() == nil; n++ {
		id := fmt.Sprintf("job-%d-%d", number, n)
		for created := false; !created; {
			status, _, err := user.do(http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId="+id,
				jobOn("codes", faultEpochs))
			created = err == nil && (status == http.StatusOK || status == http.StatusConflict)
			if !created && !l.wait(time.Second) {
				return
			}
		}
		l.mu.Lock()
		l.jobs = append(l.jobs, id)
		l.mu.Unlock()
		for l.wait(500 * time.Millisecond) {
			_, job, err := user.do(http.MethodGet, "/supervisedFineTuningJobs/"+id, nil)
			if state := fmt.Sprint(job["state"]); err == nil && (state == "JOB_STATE_COMPLETED" || state == "JOB_STATE_FAILED") {
				break
			}
		}
	}
}

// infer sends one completion after the other.
func (l *faultLoad) infer(stream bool) {
	user := l.cluster.user
	user.http = &http.Client{Transport: l.cluster.routed, Timeout: 30 * time.Second}
	for n := 0; l.wait(50 * time.Millisecond); n++ {
		begin := time.Now()
		res, err := user.send(http.MethodPost, "//inference/v1/completions", object{"model": "accounts/default/deployments/d",
			"prompt": fmt.Sprintf("Packing code %d", n), "max_tokens": 16, "temperature": 0, "ignore_eos": true,
			"stream": stream})
		status := 0
		if err == nil {
			status = res.StatusCode
			var data []byte
			data, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
			if stream && err == nil && status == http.StatusOK && !strings.Contains(string(data), "data: [DONE]") {
				err = fmt.Errorf("a stream ends early: %.300s", data)
			} else if status >= 500 {
				err = fmt.Errorf("response %d: %.300s", status, data)
			}
		}
		l.cluster.routed.record(begin, "completion", status, err)
	}
}

// report checks that fewer than one in a thousand requests outside of the faults failed, and logs
// the requests within each fault.
func (l *faultLoad) report(faults []fault) {
	inside, failed := make([]int, len(faults)), make([]int, len(faults))
	outside, bad := 0, 0
	for _, one := range l.cluster.routed.requests {
		within := -1
		for i, f := range faults {
			if one.begin.Before(f.end) && one.end.After(f.begin) {
				within = i
			}
		}
		switch {
		case within >= 0 && one.failed != "":
			failed[within]++
			fallthrough
		case within >= 0:
			inside[within]++
		case one.failed != "":
			bad++
			l.t.Logf("outside of faults, %s failed: %s", one.what, one.failed)
			fallthrough
		default:
			outside++
		}
	}
	for i, f := range faults {
		l.t.Logf("%-28s %5.1f s, %5d requests, %4d failed, %4.1f s without a write", f, f.end.Sub(f.begin).Seconds(),
			inside[i], failed[i], l.withoutWrites(f).Seconds())
	}
	l.t.Logf("outside of faults: %d of %d requests failed", bad, outside)
	require.Greater(l.t, outside, 100*len(faults))
	require.Less(l.t, float64(bad), float64(outside)/1000)
}

// withoutWrites returns the longest time within a fault in which no change was acknowledged.
func (l *faultLoad) withoutWrites(f fault) (longest time.Duration) {
	times := []time.Time{f.begin, f.end}
	for _, one := range l.cluster.routed.requests {
		if one.failed == "" && one.end.After(f.begin) && one.end.Before(f.end) && one.what != "completion" &&
			!strings.HasPrefix(one.what, http.MethodGet) {
			times = append(times, one.end)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	for i, end := range times[1:] {
		longest = max(longest, end.Sub(times[i]))
	}
	return longest
}

// readAll adds a read of every register at the end to the history.
func (l *faultLoad) readAll() {
	l.registers.left.Store(faultRegisters)
	for epoch := range l.registers.epoch.Load() + 1 {
		for _, kind := range registerKinds {
			for i := range registersPerKind {
				id := fmt.Sprintf("r%d-%d", epoch, i)
				in := registerInput{name: kind.collection + "/" + id, op: "get", atOnce: !kind.purged}
				call := l.registers.now()
				status, answer, err := l.registers.do(l.cluster.user, kind, in, id)
				require.NoError(l.t, err)
				l.registers.recordResponse(0, kind, in, call, status, answer, err)
			}
		}
	}
}

// checkAcknowledged checks that the log has an event with every value that was acknowledged.
func (l *faultLoad) checkAcknowledged(events []receivedEvent) {
	recorded := map[string]bool{}
	for _, e := range events {
		var find func(any)
		find = func(value any) {
			switch value := value.(type) {
			case string:
				recorded[e.subject+" "+value] = true
			case object:
				for _, inner := range value {
					find(inner)
				}
			case []any:
				for _, inner := range value {
					find(inner)
				}
			}
		}
		find(e.data)
	}
	acknowledged := 0
	for _, op := range l.registers.history {
		in, out := op.Input.(registerInput), op.Output.(registerOutput)
		if in.value != "" && out.status == http.StatusOK {
			acknowledged++
			require.True(l.t, recorded["accounts/default/"+in.name+" "+in.value], "%+v is acknowledged, but not in the log", in)
		}
	}
	require.Positive(l.t, acknowledged)
	l.t.Logf("%d acknowledged changes are in the log", acknowledged)
}
