package described

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

const small = `{"openapi": "3.1.0", "info": {"title": "small", "version": "1"}, "paths": {
  "/openapi.json": {"get": {"operationId": "getDocument", "responses": {"200": {"description": "ok", "content": ` +
	`{"application/json": {"schema": {"type": "object"}}}}}}},
  "/inference/v1/things": {"get": {"operationId": "listThings", "responses": {
    "401": {"$ref": "#/components/responses/InferenceUnauthenticated"}}}},
  "/things/{id}": {"post": {"operationId": "makeThing",
    "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}, {"name": "dryRun", ` +
	`"in": "query", "schema": {"type": "boolean"}}],
    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
    "responses": {"200": {"description": "ok", "content": {
      "application/json": {"schema": {"$ref": "#/components/schemas/Thing"}},
      "text/event-stream": {"schema": {"type": "string", "contentSchema": {"$ref": ` +
	`"#/components/schemas/Thing"}}}}}}}}},
  "components": {"responses": {"InferenceUnauthenticated": {"description": "no key"}},
    "schemas": {"Thing": {"type": "object", "properties": {"size": {"type": "integer"}, "maxSize": ` +
	`{"type": "integer"}}},
    "ManagementError": {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}},
    "InferenceError": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}}}}}`

// TestWhatIsReported checks that a Transport reports each mismatch between a server and its
// document once, reports nothing else, and does not change the response for the client.
func TestWhatIsReported(t *testing.T) {
	for name, one := range map[string]struct {
		path, sent, media, answer string
		status                    int
		message                   []string
	}{
		"as described": {"/things/a", `{"size": 1, "max_size": 2}`, "application/json", `{"size": 1}`, 200,
			nil},
		"a stream as described": {"/things/a", `{}`, "text/event-stream",
			"id: 1\ndata: {\"size\": 1}\n\n: still here\n\ndata: {\"error\": {}}\n\ndata: [DONE]\n\n", 200, nil},
		"a path that is not described, rejected": {"/nothing", `{}`, "application/json", `{"message": "no"}`, 404, nil},
		"a file":                                 {"/blobs/x", ``, "text/plain", "anything", 200, nil},
		"a response of another type": {"/things/a", `{}`, "application/json", `{"size": "large"}`, 200,
			[]string{"the response does not match the OpenAPI document"}},
		"an unknown field": {"/things/a", `{}`, "application/json", `{"colour": 1}`, 200, []string{"colour"}},
		"an invalid request that succeeds": {"/things/a?dryRun=5", `{"size": "large"}`, "application/json", `{}`, 200,
			[]string{"the server accepted a request that does not match the OpenAPI document"}},
		"a status that is not described": {"/things/a", `{}`, "application/json", `{}`, 418, []string{"418"}},
		"events of another type": {"/things/a", `{}`, "text/event-stream",
			"data: {\"size\": 1}\n\ndata: {\"size\": \"one\"}\n\ndata: 7\n\n", 200, []string{`"one"`, "7"}},
		"a path that is not described, accepted": {"/nothing", `{}`, "application/json", `{}`, 200,
			[]string{"does not describe"}},
		"a verb that is not described": {"/things/a:fly", `{}`, "application/json", `{}`, 200, []string{"does not describe"}},
		"an error in another format": {"/inference/v1/nothing", `{}`, "application/json", `{"message": "no"}`, 404,
			[]string{"InferenceError"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/openapi.json" {
					_, _ = io.WriteString(w, small)
					return
				}
				w.Header().Set("Content-Type", one.media)
				w.WriteHeader(one.status)
				for part := range bytes.SplitAfterSeq([]byte(one.answer), []byte("e")) { // in pieces, as a network delivers it
					_, _ = w.Write(part)
					w.(http.Flusher).Flush()
				}
			}))
			defer server.Close()
			var said []error
			client := &http.Client{Transport: &Transport{Address: server.URL, Documents: &Fetch{},
				Report: func(err error) { said = append(said, err) }}}
			res, err := client.Post(server.URL+one.path, "application/json", strings.NewReader(one.sent))
			require.NoError(t, err)
			body := testutil.ReadAll(t, res.Body)
			require.NoError(t, res.Body.Close())
			require.Equal(t, one.answer, string(body))
			require.Len(t, said, len(one.message), "%v", said)
			for i, part := range one.message {
				require.ErrorContains(t, said[i], part)
			}
		})
	}
}

// TestResponseThatBreaksOff checks that a Transport interrupts a response for the client when the
// server interrupts the response, and does not report a mismatch.
func TestResponseThatBreaksOff(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/openapi.json" {
			_, _ = io.WriteString(w, small)
			return
		}
		w.Header().Set("Content-Length", "100")
		_, _ = fmt.Fprint(w, `{"size": 1`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	client := &http.Client{Transport: &Transport{Address: server.URL, Documents: &Fetch{},
		Report: func(err error) { require.NoError(t, err) }}}
	res, err := client.Post(server.URL+"/things/a", "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.Error(t, err)
	require.Equal(t, `{"size": 1`, string(body))
	require.NoError(t, res.Body.Close())
}
