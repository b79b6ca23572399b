package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/described"
	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

const prism = "../cmd/anneal/testdata/clients/node/" + described.Prism

// needPrism skips a test in a short run, or when prism is not installed.
func needPrism(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: the requests are sequential")
	}
	if _, err := os.Stat(prism); err != nil {
		t.Skip("prism is not installed: run `make clients`")
	}
}

// documentBytes returns the OpenAPI document of a server.
func (s *harness) documentBytes() []byte {
	data, _ := s.server.document.Bytes()
	return data
}

// requireNoViolation requires that prism has forwarded a response without a violation of the
// document.
func requireNoViolation(t *testing.T, a response) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Empty(t, a.header.Get("sl-violations"))
	require.NotContains(t, a.header.Get("Content-Type"), "problem+json")
}

// TestPrismSeesNoViolation checks that prism, a validating proxy, finds no mismatch between the
// served document and the exchange of every test case.
func TestPrismSeesNoViolation(t *testing.T) {
	needPrism(t)
	var current atomic.Pointer[Server]
	first := newHarness(t, request.Limits{})
	current.Store(first.server)
	upstream := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().ServeHTTP(w, r) }))
	t.Cleanup(upstream.Close)
	between := described.StartPrism(t, prism, first.documentBytes(), upstream.URL, "--errors")
	for _, r := range operationRows() {
		t.Run(r.id, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			if r.prepare != nil {
				r.prepare(s)
			}
			s.set(r.scene)
			current.Store(s.server)
			through := *s
			through.url = between
			request := parseRequest(r.request).on(&through)
			if request.Header.Get("Content-Type") == "" && request.ContentLength > 0 {
				request.Header.Set("Content-Type", "application/json") // without the header, prism treats the body as text
			}
			requireNoViolation(t, through.send(request))
		})
	}
}

// TestPrismSeesNoViolationInExamples checks that prism finds no mismatch between the served
// document and its examples, in the order of the story. Requests whose response does not end are
// sent to the server directly, because prism forwards complete responses only, and so are forms
// with recordings: see TestPrismGarblesBinaryForms.
func TestPrismSeesNoViolationInExamples(t *testing.T) {
	needPrism(t)
	s := newExampleStory(t)
	proxy := strings.TrimPrefix(described.StartPrism(t, prism, s.documentBytes(), s.url, "--errors"), "http://")
	hidden := &pseudonyms{s.url, map[string]string{}, map[string]int{}}
	for _, step := range readStory(t) {
		if step.action != nil {
			s.act(step.action)
			continue
		}
		if s.proxy = proxy; step.events > 0 || strings.HasSuffix(step.request.file, ".wav") {
			s.proxy = ""
		}
		s.record(hidden, step)
		requireNoViolation(t, s.last)
	}
}

// TestPrismGarblesBinaryForms shows why a recording that is sent through prism "cannot be decoded":
// prism decodes every body that is not JSON as UTF-8 text (parseRequestBody in
// @stoplight/prism-http-server), and forwards U+FFFD for each byte that is not part of a character.
// The cause is not in this server, which receives each byte when the form is sent directly.
func TestPrismGarblesBinaryForms(t *testing.T) {
	needPrism(t)
	recording := exampleFile(t, "ticket-4182.wav")
	for i := range 256 {
		recording = append(recording, byte(i))
	}
	s := newHarness(t, request.Limits{})
	s.set(aSpeechDeployment)
	var stored string
	s.replicas.transcribe = func(ctx context.Context, _ domain.Replica, req engines.TranscriptionRequest,
		_ func(engines.TranscriptEvent) error) (_ engines.Transcript, err error) {
		stored, err = fetchText(ctx, req.Audio.URL)
		return engines.Transcript{Language: "en", Duration: 0.1}, err
	}
	form := func(through *harness) *http.Request {
		return through.form("/v1/audio/transcriptions", "inference", "file", "call.wav", bytes.NewReader(recording),
			"model=accounts/acme/deployments/d")
	}
	require.Equal(t, http.StatusOK, s.send(form(s)).status)
	require.Equal(t, string(recording), stored, "the server stores a recording byte for byte")

	var forwarded []byte
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forwarded, _ = io.ReadAll(r.Body) // prism may announce the length of the original
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text": ""}`)
	}))
	t.Cleanup(upstream.Close)
	through := *s
	through.url = described.StartPrism(t, prism, s.documentBytes(), upstream.URL, "--errors")
	response, err := http.DefaultClient.Do(form(&through))
	if err == nil { // prism may also fail to forward the longer body
		require.NoError(t, response.Body.Close())
	}
	require.NotContains(t, string(forwarded), string(recording),
		"prism forwards binary forms now: send the recordings of "+
			"the examples through it, and remove this test")
	require.Contains(t, string(forwarded), "\uFFFD")
}
