package main_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// An eavesdropper keeps the headers and bodies of all responses.
type eavesdropper struct {
	http.RoundTripper
	mu       sync.Mutex
	received bytes.Buffer
}

func (e *eavesdropper) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := e.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	e.record([]byte(fmt.Sprintf("\n%s %s: %v\n", r.Method, r.URL, res.Header)))
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(res.Body, writerFunc(e.record)), res.Body}
	return res, nil
}

func (e *eavesdropper) record(data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.received.Write(data)
}

type writerFunc func([]byte)

func (f writerFunc) Write(data []byte) (int, error) {
	f(data)
	return len(data), nil
}

// TestTenantsDoNotSeeNodeNames tells the main story as a tenant: a job that survives the loss of its
// node, a deployment that serves, and one that waits for capacity. No response, no event of a stream,
// no line of a log and no output of a command names a node. The operator sees the names in events. It
// also checks what the waiting deployment shows, over HTTP and in the command line.
func TestTenantsDoNotSeeNodeNames(t *testing.T) {
	t.Parallel()
	const secret, device = "node-secret-", "VENDOR_A_L4_24GB"
	f := newFleet(t, "--lost-after", "6s")
	user, recorder := f.user(), f.tail()
	tap := &eavesdropper{RoundTripper: user.http.Transport}
	user.http.Transport = tap
	f.work(secret+"7", "--accelerators", device+"=2")
	stream, err := user.send(http.MethodGet, "/events", nil, "Accept", "text/event-stream", "Last-Event-ID", "0")
	require.NoError(t, err)
	streamed := make(chan struct{})
	go func() { defer close(streamed); _, _ = io.Copy(io.Discard, stream.Body) }()

	one := func(id string) {
		user.must(http.MethodPost, "/deployments?deploymentId="+id, object{"baseModel": baseModel, "minReplicaCount": 1,
			"maxReplicaCount": 1, "acceleratorType": device, "acceleratorCount": 1})
	}
	one("serves")
	user.until("/deployments/serves", "state", "READY")
	user.dataset("codes", 40)
	user.job("j", "codes", 40)
	const job, path = "accounts/default/supervisedFineTuningJobs/j", "/supervisedFineTuningJobs/j"
	recorder.awaitEvent(t, job, "supervisedFineTuningJob.checkpointed.v1", 1)
	began := time.Now().Add(-time.Second)
	one("waits")
	eventually(t, "the deployment is in the queue", func() bool {
		return at(user.get("/deployments/waits"), "queue.position") != nil
	})
	waiting := user.get("/deployments/waits")
	require.EqualValues(t, 1, at(waiting, "queue.position"))
	require.EqualValues(t, 1, at(waiting, "queue.length"))
	require.Contains(t, at(waiting, "queue.waitingFor"), "1 x "+device)
	require.Contains(t, at(waiting, "queue.noEstimateReason"), "an estimate needs 4 earlier deployments")
	since, err := time.Parse(time.RFC3339, at(waiting, "queue.since").(string))
	require.NoError(t, err)
	require.WithinRange(t, since, began, time.Now())
	require.Contains(t, at(waiting, "status.message"), "position 1 of 1 in the queue")
	table := f.run("deployment", "get", "waits").ok(t)
	require.Contains(t, table, "1 of 1")
	require.Contains(t, table, "an estimate needs 4 earlier deployments")
	require.Contains(t, f.run("deployment", "list").ok(t), "QUEUE")

	for range 3 {
		_, answer, err := user.complete("accounts/default/deployments/serves", "one")
		require.NoError(t, err, "%v", answer)
	}
	f.workers[secret+"7"].kill()
	_, _, _ = user.complete("accounts/default/deployments/serves", "one")
	f.work(secret+"8", "--accelerators", device+"=3")
	lost := recorder.awaitEvent(t, job, "supervisedFineTuningJob.requeued.v1", 1)
	require.Contains(t, lost.data["reason"], "accounts/system/nodes/"+secret+"7", "the operator sees the name")
	user.until(path, "state", "JOB_STATE_COMPLETED")
	var log string
	eventually(t, "the job has its log", func() bool {
		url, _ := user.get(path + ":getTrainerLogsEndpoint")["signedUrl"].(string)
		res, err := http.Get(url) //nolint:noctx // a test
		if err != nil {
			return false
		}
		defer res.Body.Close()
		log = string(testutil.ReadAll(t, res.Body))
		return strings.Contains(log, "the training is complete")
	})
	require.NotContains(t, log, secret)
	user.lossCurve("j")
	for _, path := range []string{"", "/events?pageSize=200", "/events?pageSize=200&orderBy=position%20desc",
		path + "/events", path + "/checkpoints", "/deployments", "/deployments/serves", "/deployments/serves/events",
		"/supervisedFineTuningJobs", "/models", "/auditRecords", "/quotas", "//inference/v1/models",
		"//v1/fine_tuning/jobs", "//v1/fine_tuning/jobs/j/events"} {
		user.get(path)
	}
	for _, args := range [][]string{{"events"}, {"sft", "get", "j"}, {"why", "supervisedFineTuningJobs/j"},
		{"blame", "deployments/serves"}, {"deployment", "get", "serves"}, {"usage"}} {
		out := f.run(args...)
		require.NotContains(t, out.stdout+out.stderr, secret, args)
	}
	stream.Body.Close()
	<-streamed
	tap.mu.Lock()
	received := tap.received.String()
	tap.mu.Unlock()
	require.Contains(t, received, "a node was lost")
	require.Contains(t, received, "supervisedFineTuningJob.completed.v1")
	if place := strings.Index(received, secret); place >= 0 {
		t.Fatalf("a tenant sees the name: %s", received[max(0, place-600):min(len(received), place+200)])
	}
	require.Contains(t, f.run("events", "--context", f.dir+"/operator.json", "--all-accounts").ok(t)+
		fmt.Sprint(recorder.all()), secret)
}
