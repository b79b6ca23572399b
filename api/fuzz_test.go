package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
)

// steady is the testing.TB of a harness that several inputs of a fuzz test share. A failure of the
// harness panics.
type steady struct {
	testing.TB
	dir  string
	ctx  context.Context
	ends *[]func()
}

func (steady) Helper()                        {}
func (t steady) Cleanup(f func())             { *t.ends = append(*t.ends, f) }
func (t steady) TempDir() string              { return t.dir }
func (t steady) Context() context.Context     { return t.ctx }
func (steady) Errorf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (steady) FailNow()                       { panic("the harness failed") }

// A fuzzHarness provides a harness that the inputs of a fuzz test share. It replaces the harness
// after maxInputs, so that resources do not accumulate.
type fuzzHarness struct {
	scene   string
	harness *harness
	inputs  int
	end     func()
}

// maxInputs is the number of inputs after which a harness is replaced.
const maxInputs = 2000

func newFuzzHarness(f *testing.F, scene string) *fuzzHarness {
	st := &fuzzHarness{scene: scene, end: func() {}}
	f.Cleanup(func() { st.end() })
	return st
}

func (st *fuzzHarness) on(t *testing.T) *harness {
	if st.harness == nil || st.inputs >= maxInputs {
		st.end()
		st.begin(t)
	}
	st.inputs++
	s := *st.harness
	s.TB = t
	return &s
}

func (st *fuzzHarness) begin(t *testing.T) {
	dir, err := os.MkdirTemp("", "anneal-fuzz")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var ends []func()
	st.harness, st.inputs = newHarness(steady{dir: dir, ctx: ctx, ends: &ends},
		request.Limits{Body: 64 << 10, Upload: 64 << 10, Wake: time.Millisecond, Validation: time.Second}), 0
	st.harness.set(st.scene)
	st.end = func() {
		for i := range ends {
			ends[len(ends)-1-i]()
		}
		cancel()
		_ = os.RemoveAll(dir)
	}
}

// A request may allocate at most fixedCost bytes of memory, plus costPerByte for each byte of its
// body and query.
const (
	fixedCost   = 16 << 20
	costPerByte = 1 << 10
)

// survive sends an arbitrary request to the handler, and requires that the response is not an
// internal error, matches the document, and has a message when it is an error, and that the
// allocated memory is within fixedCost and costPerByte.
func (s *harness) survive(r *http.Request, body []byte) response {
	s.Helper()
	r = r.WithContext(s.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	w := httptest.NewRecorder()
	before := allocated()
	s.server.ServeHTTP(w, r)
	took, limit := allocated()-before, uint64(fixedCost+costPerByte*(len(body)+len(r.URL.RawQuery)))
	require.Less(s, took, limit, "bytes of memory for %d bytes", len(body)+len(r.URL.RawQuery))
	a := response{w.Code, w.Header(), w.Body.Bytes()}
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		require.True(s, a.status < 500 || a.status == http.StatusNotImplemented, "%d %s", a.status, a.body)
	}
	if a.status >= 400 {
		tree := a.json(s)
		if inner, ok := tree["error"].(map[string]any); ok {
			tree = inner
		}
		require.NotEmpty(s, tree["message"])
	}
	var sent []byte
	if r.Header.Get("Content-Type") == "" {
		sent = body
	}
	s.validate(r, sent, a)
	return a
}

func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// as returns a request, for survive, with the API key of an alias.
func (s *harness) as(method, path, query, alias string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.URL.RawQuery = query
	r.Header.Set("Authorization", "Bearer "+s.keys[alias])
	return r
}

// everything is a setup transcript that creates a resource in each collection that the fuzz tests
// use.
const everything = aFilledOne + anEvaluator + aLoadedOne + aReviewed +
	"> POST /v1/accounts/acme/supervisedFineTuningJobs?supervisedFineTuningJobId=job user\n> {\"dataset\": " +
	"\"accounts/acme/datasets/rows\", \"baseModel\": \"accounts/default/models/anneal-base\"}\n\n"

// inputs returns the parsed requests of the test cases whose operations satisfy want.
func inputs(want func(*request.Operation) bool) (requests []scripted) {
	table := (&Server{}).operations()
	for _, r := range operationRows() {
		for i := range table {
			if table[i].ID == r.id && want(&table[i]) {
				requests = append(requests, parseRequest(r.request))
			}
		}
	}
	return requests
}

// FuzzQuery checks the responses of every list to arbitrary queries.
func FuzzQuery(f *testing.F) {
	lists := inputs(func(op *request.Operation) bool { return op.Method == http.MethodGet && op.Declares("filter") })
	for i, one := range lists {
		_, query, _ := strings.Cut(one.path, "?")
		f.Add(byte(i), query)
	}
	for _, query := range []string{
		"filter=state%20%3D%20READY%20AND%20exampleCount%3E2&orderBy=name%20desc,createTime&pageSize=1",
		"filter=type=%22*.created.v1%22%20OR%20NOT%20position%3E0",
		"page_size=2&pageToken=AAAA", "readMask=name,state&readMask=*", "filter=a:*&filter=b", "%zz=%",
		"pageSize=-1&orderBy=,,&readMask=.&filter=((((", "showDeleted=maybe;a=b"} {
		f.Add(byte(0), query)
	}
	st := newFuzzHarness(f, everything)
	f.Fuzz(func(t *testing.T, which byte, query string) {
		s, one := st.on(t), lists[int(which)%len(lists)]
		path, _, _ := strings.Cut(one.path, "?")
		s.survive(s.as(one.method, path, query, one.alias), nil)
	})
}

// FuzzMask checks the responses of reads and updates to arbitrary masks.
func FuzzMask(f *testing.F) {
	masked := inputs(func(op *request.Operation) bool {
		return op.Declares("updateMask") || op.Declares("readMask") && strings.HasSuffix(op.Path, "{id}")
	})
	for i := range masked {
		f.Add(byte(i), "name")
	}
	for _, mask := range []string{"*", "displayName,status.code", "display_name", "autoscalingPolicy.loadTargets.default",
		"criteria.codeSnippets", "a..b", ",", ".", "state", "*,name", "status.code.x"} {
		f.Add(byte(1), mask)
	}
	st := newFuzzHarness(f, everything)
	f.Fuzz(func(t *testing.T, which byte, mask string) {
		s, one := st.on(t), masked[int(which)%len(masked)]
		name := "readMask"
		if one.method == http.MethodPatch {
			name = "updateMask"
		}
		with(name, mask)(&one)
		path, query, _ := strings.Cut(one.path, "?")
		s.survive(s.as(one.method, path, query, one.alias), []byte(one.body))
	})
}

// FuzzRequest checks the responses of every operation with a JSON body, except inference, to
// arbitrary bodies.
func FuzzRequest(f *testing.F) {
	bodied := inputs(func(op *request.Operation) bool { return op.Body != nil && op.Gate == request.InAccount })
	for i, one := range bodied {
		f.Add(byte(i), []byte(one.body))
	}
	for _, body := range []string{"", "{}", "[]", "null", `{"a": {"a": {"a": []}}}`,
		`{"name": null, "displayName": "\u0000"}`, `{"exampleCount": 1e400}`, "{\"datasetId\": \"\xff\"}"} {
		f.Add(byte(3), []byte(body))
	}
	st := newFuzzHarness(f, everything)
	f.Fuzz(func(t *testing.T, which byte, body []byte) {
		s, one := st.on(t), bodied[int(which)%len(bodied)]
		path, query, _ := strings.Cut(one.path, "?")
		s.survive(s.as(one.method, path, query, one.alias), body)
	})
}

func FuzzCompletionBody(f *testing.F) {
	fuzzInference(f, "/inference/v1/completions", []string{
		`{"model": "default/anneal-base#acme/d", "prompt": ["one two", "three"], "n": 2, "max_tokens": 2, "echo": true, ` +
			`"seed": 7, "logprobs": 3, "logit_bias": {"7": -100}}`,
		`{"model": "accounts/acme/deployments/d", "prompt": [[5], [6, 7]], "stream": true, "stream_options": ` +
			`{"include_usage": true}, "perf_metrics_in_response": true}`,
		`{"model": "accounts/acme/deployments/d", "prompt": "a", "response_format": {"type": "json_schema", "schema": ` +
			`{"type": "object"}}, "stop": ["x"], "thinking": {"type": "enabled", "budget_tokens": 1024}}`,
		`{"model": "accounts/acme/deployments/d", "prompt": "a", "prediction": "b", "reasoning_effort": true, "metadata": ` +
			`{"a": 1}, "min_p": 1, "mirostat_target": 2, "colour": "red"}`})
}

func FuzzChatBody(f *testing.F) {
	fuzzInference(f, "/inference/v1/chat/completions", []string{
		`{"model": "accounts/acme/deployments/d", "messages": [{"role": "user", "content": "hi"}]}`,
		`{"model": "accounts/acme/deployments/d", "messages": [{"role": "system", "content": [{"type": "text", "text": ` +
			`"be kind"}]}, {"role": "user", "content": "hi", "name": "Ann"}], "stream": true}`,
		`{"model": "accounts/acme/deployments/d", "messages": [{"role": "assistant", "content": null, "tool_calls": ` +
			`[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", ` +
			`"tool_call_id": "c", "content": "5"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": ` +
			`{"type": "object"}}}], "tool_choice": "auto"}`,
		`{"messages": "hi", "tools": {}, "tool_choice": {"type": "function"}}`})
}

func fuzzInference(f *testing.F, path string, bodies []string) {
	for _, body := range bodies {
		f.Add([]byte(body))
	}
	st := newFuzzHarness(f, aLoadedOne+"! serve accounts/acme/deployments/d\n")
	f.Fuzz(func(t *testing.T, body []byte) {
		s := st.on(t)
		s.survive(s.as(http.MethodPost, path, "", "inference"), body)
	})
}

// FuzzMultipart checks the responses to uploads of arbitrary forms to a dataset.
func FuzzMultipart(f *testing.F) {
	form := func(field, name, content string) []byte {
		var out bytes.Buffer
		w := multipart.NewWriter(&out)
		_ = w.SetBoundary("b")
		part, _ := w.CreateFormFile(field, name)
		_, _ = io.WriteString(part, content)
		_ = w.Close()
		return out.Bytes()
	}
	const kind = "multipart/form-data; boundary=b"
	f.Add(kind, form("file", "rows.jsonl", threeRows))
	f.Add(kind, form("file", "../rows.jsonl", "nothing"))
	f.Add(kind, form("data", "rows.jsonl", threeRows))
	f.Add(kind, []byte("--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx"))
	f.Add("multipart/form-data", []byte("--b--"))
	f.Add("text/plain; boundary=", []byte{0xff})
	st := newFuzzHarness(f, "")
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		s := st.on(t)
		id := fmt.Sprint("d", st.inputs)
		create := s.as(http.MethodPost, "/v1/accounts/acme/datasets", "", "user")
		require.Equal(t, http.StatusOK, s.survive(create, []byte(`{"datasetId": "`+id+`"}`)).status)
		r := s.as(http.MethodPost, "/v1/accounts/acme/datasets/"+id+":upload", "", "user")
		r.Header.Set("Content-Type", contentType)
		s.survive(r, body)
	})
}
