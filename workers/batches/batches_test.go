package batches

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
	"anneal/projections"
)

const (
	batchName  = domain.Name("accounts/acme/batches/batch-1")
	inputName  = domain.Name("accounts/acme/batchFiles/file-1")
	deployment = domain.Name("accounts/acme/deployments/d")
)

// requestTrace is the trace of the requests that create resources.
var requestTrace = domain.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "a=1"}

// A harness is a log with the world that follows it, and a gateway.
type harness struct {
	testing.TB
	log     *eventlog.Memory
	world   *projections.World
	blobs   *blobs.Store
	gateway *fakeGateway
	plan    atomic.Pointer[faults.Plan] // plan of injected faults; nil injects none
}

// A fakeGateway answers each request with respond, and records what is sent.
type fakeGateway struct {
	respond     func(ctx context.Context, customer string) Response
	slots       int
	interactive bool

	mu      sync.Mutex
	trace   domain.Trace   // trace of the last request
	sent    map[string]int // by custom_id, which is also the prompt: how often the request was sent
	inside  int            // number of requests in progress
	highest int            // highest number of requests in progress so far
}

func (g *fakeGateway) Resolve(_ context.Context, _ domain.Name, _, model string) (domain.Name, error) {
	if model != "m" {
		return "", domain.Errorf(domain.NotFound, "there is no model %s", model)
	}
	return deployment, nil
}

func (g *fakeGateway) Load(domain.Name) (int, bool) { return g.slots, g.interactive }

func (g *fakeGateway) Send(ctx context.Context, q Request) Response {
	var body struct{ Prompt string }
	_ = json.Unmarshal(q.Body, &body) // the tests send valid bodies
	g.mu.Lock()
	g.sent[body.Prompt]++
	g.trace = q.Trace
	g.inside++
	g.highest = max(g.highest, g.inside)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.inside--
	}()
	return g.respond(ctx, body.Prompt)
}

// times returns how often a request was sent.
func (g *fakeGateway) times(customer string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sent[customer]
}

func echo(_ context.Context, prompt string) Response {
	return Response{Status: 200, Body: []byte(`{"text":"` + prompt + `"}`)}
}

func newHarness(t testing.TB) *harness {
	b := &harness{TB: t, log: eventlog.NewMemory(), world: projections.NewWorld(),
		gateway: &fakeGateway{respond: echo, sent: map[string]int{}, slots: 2 * maxOfDeployment}}
	b.blobs = faults.OpenStore(t, t.TempDir(), &b.plan)
	go func() { _ = b.world.Run(t.Context(), b.log) }()
	return b
}

func (b *harness) do(at time.Time, intent domain.Intent) {
	b.Helper()
	change, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: at, Correlation: "request-1",
		Trace: requestTrace}, intent)
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), change.Position()))
}

// create creates a batch at the given time. lines is the content of its input file.
func (b *harness) create(at time.Time, lines string) {
	b.Helper()
	files := domain.Files{Prefix: "batches/acme/input/", Sizes: map[string]int64{"in.jsonl": int64(len(lines))}}
	_, err := b.blobs.Put(b.Context(), files.Prefix+"in.jsonl", strings.NewReader(lines))
	require.NoError(b, err)
	b.do(at, domain.Intend(domain.BatchFiles, inputName, domain.CreateBatchFile{BatchFileSpec: domain.BatchFileSpec{
		Filename: "in.jsonl", Purpose: domain.PurposeBatch, Files: files}}))
	b.do(at, domain.Intend(domain.Batches, batchName, domain.CreateBatch{BatchSpec: domain.BatchSpec{Input: inputName,
		Endpoint: "/v1/completions", Window: domain.BatchWindow}, CreatedBy: "accounts/acme/apiKeys/k"}))
}

// start starts a runner, as the start of a control plane does. stop ends it.
func (b *harness) start() (stop func()) {
	runner := &Runner{Log: b.plan.Load().Log(b.log), World: b.world, Blobs: b.blobs, Gateway: b.gateway, Now: time.Now,
		Logger: slog.New(slog.DiscardHandler)}
	return faults.Start(b, runner.Run)
}

func (b *harness) batch() domain.Batch {
	row, ok := b.world.View().Batches.Get(batchName)
	require.True(b, ok)
	return row.State
}

// until waits until the batch has the state.
func (b *harness) until(state string) domain.Batch {
	b.Helper()
	for {
		view := b.world.View()
		if now := b.batch(); now.State == state {
			return now
		}
		select {
		case <-b.world.Changed(view.Position):
		case <-time.After(30 * time.Second):
			b.Fatalf("the batch is %+v, not %s", b.batch(), state)
		}
	}
}

// file returns the results in an output or error file, by custom_id.
func (b *harness) file(name domain.Name) map[string]result {
	b.Helper()
	row, ok := b.world.View().BatchFiles.Get(name)
	require.True(b, ok, "file %q", name)
	found := map[string]result{}
	for key, size := range row.State.Files.Sizes {
		content, err := b.blobs.Get(b.Context(), row.State.Files.Prefix+key)
		require.NoError(b, err)
		data := testutil.ReadAll(b, content)
		require.NoError(b, content.Close())
		require.EqualValues(b, size, len(data))
		for in := bufio.NewScanner(bytes.NewReader(data)); in.Scan(); {
			var one result
			require.NoError(b, json.Unmarshal(in.Bytes(), &one))
			require.NotContains(b, found, one.CustomID, "one line per request")
			found[one.CustomID] = one
		}
	}
	return found
}

func requestFor(id string) string {
	return fmt.Sprintf(`{"custom_id": %q, "method": "POST", "url": "/v1/completions", "body": {"model": "m", `+
		`"prompt": %q}}`, id, id) + "\n"
}

func requests(n int) string {
	var lines strings.Builder
	for i := range n {
		lines.WriteString(requestFor(fmt.Sprintf("r%d", i)))
	}
	return lines.String()
}

// TestBatchCompletes checks that each request has one result: in the output file if its status is
// 200, otherwise in the error file.
func TestBatchCompletes(t *testing.T) {
	b := newHarness(t)
	b.gateway.respond = func(ctx context.Context, prompt string) Response {
		if prompt == "r3" {
			return Response{Status: 400, Body: []byte(`{"error":{"message":"no"}}`)}
		}
		return echo(ctx, prompt)
	}
	b.create(time.Now(), "\n"+requests(20)+"\r\n")
	b.start()
	end := b.until(domain.BatchCompletedState)
	require.Equal(t, domain.BatchCounts{Total: 20, Completed: 19, Failed: 1}, end.Counts)
	require.Equal(t, "m", end.Model)
	output, failed := b.file(end.Results.Output), b.file(end.Results.Errors)
	require.Len(t, output, 19)
	require.JSONEq(t, `{"text":"r7"}`, string(output["r7"].Response.Body))
	require.NotEmpty(t, output["r7"].Response.RequestID)
	require.Equal(t, []string{"r3"}, slices.Collect(maps.Keys(failed)))
	require.Equal(t, 400, failed["r3"].Response.StatusCode)
	require.Nil(t, failed["r3"].Error)
}

// TestEventsNameTheRequest checks that what a batch records and sends belongs to the request that
// created the batch.
func TestEventsNameTheRequest(t *testing.T) {
	b := newHarness(t)
	b.create(time.Now(), requests(3))
	b.start()
	b.until(domain.BatchCompletedState)
	reactions, created := 0, ""
	for e, err := range b.log.Read(t.Context(), "events.acme.>", 0) {
		require.NoError(t, err)
		require.Equal(t, requestTrace, e.Trace, e.Type)
		require.Equal(t, "request-1", e.Correlation, e.Type)
		switch {
		case e.Type == "batch.created.v1":
			created = e.ID
		case e.Actor == "task/batches":
			reactions++
			require.Equal(t, created, e.Cause, e.Type)
		}
	}
	require.GreaterOrEqual(t, reactions, 3)
	b.gateway.mu.Lock()
	defer b.gateway.mu.Unlock()
	require.Equal(t, requestTrace, b.gateway.trace)
}

// TestNoFileWithoutErrors checks that a file that would be empty is not created.
func TestNoFileWithoutErrors(t *testing.T) {
	b := newHarness(t)
	b.create(time.Now(), requests(1))
	b.start()
	end := b.until(domain.BatchCompletedState)
	require.NotEmpty(t, end.Results.Output)
	require.Empty(t, end.Results.Errors)
}

// TestInvalidLines checks that a batch with invalid lines fails with all errors and their line
// numbers, and sends no request.
func TestInvalidLines(t *testing.T) {
	with := func(from, to string) string { return strings.Replace(requestFor("x"), from, to, 1) }
	for name, c := range map[string]struct{ lines, said string }{
		"no JSON":         {"\n{\n", "2 invalid_json_line "},
		"no object":       {"7\n", "1 invalid_json_line "},
		"no UTF-8":        {"{\"custom_id\": \"\xff\"}\n", "1 invalid_json_line "},
		"empty":           {" \n", "0 empty_file "},
		"unknown field":   {with(`"url"`, `"when": 1, "url"`), "1 unknown_parameter when"},
		"no custom_id":    {with(`"custom_id": "x", `, ""), "1 invalid_value custom_id"},
		"empty custom_id": {requestFor(""), "1 invalid_custom_id custom_id"},
		"wrong method":    {with("POST", "GET"), "1 invalid_method method"},
		"wrong url":       {with("/v1/completions", "/v1/embeddings"), "1 invalid_url url"},
		"no body":         {with(`{"model": "m", "prompt": "x"}`, "null"), "1 invalid_value body"},
		"no model":        {with(`"model": "m", `, ""), "1 invalid_value body.model"},
		"stream":          {with(`"prompt"`, `"stream": true, "prompt"`), "1 invalid_value body.stream"},
		"same custom_id":  {requestFor("x") + "\n" + requestFor("x"), "3 duplicate_custom_id custom_id"},
		"two models":      {requestFor("y") + with(`"m"`, `"n"`), "2 mismatched_model body.model"},
		"no such model":   {with(`"m"`, `"n"`), "1 model_not_found body.model"},
		"long line": {with(`"prompt"`, `"user": "`+strings.Repeat("u", domain.MaxBatchLine)+`", "prompt"`),
			"1 line_too_long "},
		"all": {with(`"custom_id": "x", "method": "POST"`, `"method": "GET"`),
			"1 invalid_value custom_id|1 invalid_method method"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHarness(t)
			b.create(time.Now(), c.lines)
			b.start()
			var said []string
			for _, f := range b.until(domain.BatchFailedState).Failures {
				require.NotEmpty(t, f.Message)
				said = append(said, fmt.Sprintf("%d %s %s", f.Line, f.Code, f.Param))
			}
			require.Equal(t, c.said, strings.Join(said, "|"))
			require.Zero(t, b.gateway.highest, "no request is sent")
		})
	}
}

// TestManyInvalidLines checks the limits of the requests in a file and of the listed errors.
func TestManyInvalidLines(t *testing.T) {
	b := newHarness(t)
	b.create(time.Now(), strings.Repeat("{\n", domain.MaxBatchRequests+1))
	b.start()
	failures := b.until(domain.BatchFailedState).Failures
	require.Len(t, failures, domain.MaxBatchErrors+2)
	require.Contains(t, failures[domain.MaxBatchErrors].Message, "50001 requests, more than the limit of 50000")
	require.Equal(t, "and 49900 more errors", failures[domain.MaxBatchErrors+1].Message)
}

// TestRestart checks that a request whose result is durable is not sent again by another runner,
// and that no result is lost or doubled.
func TestRestart(t *testing.T) {
	b := newHarness(t)
	held := make(chan struct{}, 20)
	b.gateway.respond = func(ctx context.Context, prompt string) Response {
		if prompt < "r15" || len(prompt) == 2 { // prompts r0 to r14
			return echo(ctx, prompt)
		}
		held <- struct{}{}
		<-ctx.Done()
		return Response{Status: 499}
	}
	b.create(time.Now(), requests(20))
	stop := b.start()
	for range 5 {
		<-held
	}
	stop()
	require.Equal(t, domain.BatchInProgress, b.batch().State)
	b.gateway.respond = echo
	b.start()
	end := b.until(domain.BatchCompletedState)
	require.Equal(t, domain.BatchCounts{Total: 20, Completed: 20}, end.Counts)
	require.Len(t, b.file(end.Results.Output), 20)
	for i := range 20 {
		want := 1
		if i >= 15 {
			want = 2
		}
		require.Equal(t, want, b.gateway.times(fmt.Sprintf("r%d", i)), "r%d", i)
	}
}

// TestDoubleResults checks that only the first result counts if two processes have stored a result
// of one request.
func TestDoubleResults(t *testing.T) {
	b := newHarness(t)
	b.create(time.Now(), requests(2))
	row, _ := b.world.View().Batches.Get(batchName)
	s := &session{Runner: &Runner{Blobs: b.blobs}, name: batchName, event: row.CreateEvent}
	for number, text := range []string{"first", "second"} {
		require.NoError(t, s.store(t.Context(), number, []stored{{Line: 1, Result: result{ID: "x", CustomID: "r0",
			Response: &answer{StatusCode: 200, RequestID: "q", Body: json.RawMessage(`"` + text + `"`)}}}}))
	}
	b.start()
	end := b.until(domain.BatchCompletedState)
	require.Equal(t, domain.BatchCounts{Total: 2, Completed: 2}, end.Counts)
	require.Equal(t, `"first"`, string(b.file(end.Results.Output)["r0"].Response.Body))
	require.Zero(t, b.gateway.times("r0"))
}

// TestCancel checks that a cancelled batch interrupts its requests, and keeps the results so far.
func TestCancel(t *testing.T) {
	b := newHarness(t)
	held, first := make(chan struct{}, 20), make(chan struct{})
	b.gateway.respond = func(ctx context.Context, prompt string) Response {
		if prompt == "r0" {
			close(first)
			return echo(ctx, prompt)
		}
		held <- struct{}{}
		<-ctx.Done()
		return Response{Status: 499}
	}
	b.create(time.Now(), requests(20))
	b.start()
	<-held
	<-first
	b.do(time.Now(), domain.Intend(domain.Batches, batchName, domain.CancelBatch{}))
	end := b.until(domain.BatchCancelledState)
	require.Equal(t, domain.BatchCounts{Total: 20, Completed: 1}, end.Counts)
	require.Len(t, b.file(end.Results.Output), 1)
	missing := b.file(end.Results.Errors)
	require.Len(t, missing, 19)
	require.Equal(t, "batch_cancelled", missing["r9"].Error.Code)
}

// TestExpire checks that a batch ends at its expireTime, and that its error file lists the requests
// without a response.
func TestExpire(t *testing.T) {
	b := newHarness(t)
	b.gateway.respond = func(ctx context.Context, prompt string) Response {
		if prompt == "r0" {
			return echo(ctx, prompt)
		}
		<-ctx.Done()
		return Response{Status: 499}
	}
	b.create(time.Now().Add(3*time.Second-domain.BatchTime), requests(3))
	b.start()
	end := b.until(domain.BatchExpiredState)
	require.Equal(t, domain.BatchCounts{Total: 3, Completed: 1}, end.Counts)
	require.Equal(t, "batch_expired", b.file(end.Results.Errors)["r2"].Error.Code)
}
