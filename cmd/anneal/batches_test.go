package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// batchFile uploads a file of completion requests, and returns its ID.
func (c caller) batchFile(requests int, maxTokens int) string {
	c.t.Helper()
	var lines bytes.Buffer
	for i := range requests {
		line, err := json.Marshal(object{"custom_id": fmt.Sprintf("r-%d", i), "method": "POST", "url": "/v1/completions",
			"body": object{"model": "base", "prompt": fmt.Sprintf("Chair %d", i), "max_tokens": maxTokens,
				"ignore_eos": true}})
		require.NoError(c.t, err)
		lines.Write(append(line, '\n'))
	}
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	require.NoError(c.t, w.WriteField("purpose", "batch"))
	part, err := w.CreateFormFile("file", "requests.jsonl")
	require.NoError(c.t, err)
	_, _ = part.Write(lines.Bytes()) // a buffer accepts all writes
	require.NoError(c.t, w.Close())
	c.contentType = w.FormDataContentType()
	return c.must(http.MethodPost, "//v1/files", &body)["id"].(string)
}

// A batchLine is a line of a file with results.
type batchLine struct {
	CustomID string `json:"custom_id"`
	Response *struct {
		StatusCode int    `json:"status_code"`
		RequestID  string `json:"request_id"`
		Body       object `json:"body"`
	} `json:"response"`
}

// batchResults returns the lines of a file with results, by custom_id.
func (c caller) batchResults(file string) map[string]batchLine {
	c.t.Helper()
	res, err := c.send(http.MethodGet, "//v1/files/"+file+"/content", nil)
	require.NoError(c.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, res.StatusCode, "%s", data)
	lines := map[string]batchLine{}
	for in := bufio.NewScanner(bytes.NewReader(data)); in.Scan(); {
		var one batchLine
		require.NoError(c.t, json.Unmarshal(in.Bytes(), &one))
		require.NotContains(c.t, lines, one.CustomID, "a result is there twice")
		lines[one.CustomID] = one
	}
	return lines
}

// storedResults returns the request IDs of the durable results of all batches, by custom_id.
func storedResults(t *testing.T, data string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(data, "blobs", "batches", "*", "*", "results", "*.jsonl"))
	require.NoError(t, err)
	found := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			var one struct{ Result batchLine }
			require.NoError(t, json.Unmarshal([]byte(line), &one))
			found[one.Result.CustomID] = one.Result.Response.RequestID
		}
	}
	return found
}

// TestBatchSurvivesKills kills the control plane while a batch runs. Every request must have exactly
// one result, and a request whose result was durable must not run again: its result has the ID of
// the request that ran before the kill.
func TestBatchSurvivesKills(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, dir)
	user := s.user()
	user.must(http.MethodPost, "/deployments?deploymentId=base", object{"baseModel": baseModel, "minReplicaCount": 1})
	user.until("/deployments/base", "state", "READY")
	const requests = 2000
	input := user.batchFile(requests, 48)
	path := "//v1/batches/" + user.must(http.MethodPost, "//v1/batches", object{"input_file_id": input,
		"endpoint": "/v1/completions", "completion_window": "24h"})["id"].(string)
	status, refused, err := user.ask(http.MethodDelete, "//v1/files/"+input, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "%v", refused)
	require.Equal(t, "IN_USE", at(refused, "error.code"))

	durable := map[string]string{}
	for kill := range 2 {
		eventually(t, "more results are durable", func() bool { return len(storedResults(t, dir)) > len(durable) })
		s.kill()
		durable = storedResults(t, dir)
		t.Logf("kill %d: %d of %d results are durable", kill, len(durable), requests)
		s.start()
		user = s.user()
	}
	require.Less(t, len(durable), requests, "the batch was complete before the last kill")
	ended := user.until(path, "status", "completed")
	require.EqualValues(t, requests, at(ended, "request_counts.completed"))
	require.Nil(t, ended["error_file_id"])
	lines := user.batchResults(ended["output_file_id"].(string))
	require.Len(t, lines, requests)
	for id, request := range durable {
		require.Equal(t, request, lines[id].Response.RequestID, "%s ran again", id)
	}
	require.Equal(t, http.StatusOK, lines["r-7"].Response.StatusCode)
	require.EqualValues(t, 48, at(lines["r-7"].Response.Body, "usage.completion_tokens"))
	require.Equal(t, true, user.must(http.MethodDelete, "//v1/files/"+input, nil)["deleted"])
}

// TestUnmodifiedClientsBatch checks that a program written for OpenAI's batches works without
// changes.
func TestUnmodifiedClientsBatch(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "data"))
	user := s.user()
	user.must(http.MethodPost, "/deployments?deploymentId=base", object{"baseModel": baseModel, "minReplicaCount": 1})
	user.until("/deployments/base", "state", "READY")
	t.Run("openai for JavaScript", func(t *testing.T) {
		said := s.driveAt(t, "/v1", "base", nodeClientsDir(t), "node", "openai-batches.mjs")
		require.Equal(t, "batch", at(said, "file.purpose"))
		require.Equal(t, "validating", at(said, "created.status"))
		require.Equal(t, "completed", at(said, "batch.status"), "%v", said)
		require.Equal(t, object{"total": 3.0, "completed": 2.0, "failed": 1.0}, at(said, "batch.request_counts"))
		require.Equal(t, object{"team": "orders"}, at(said, "batch.metadata"))
		require.Equal(t, []any{"one", "two"}, said["answered"])
		require.Equal(t, []any{"wrong"}, said["failed"])
		require.EqualValues(t, http.StatusBadRequest, said["status"])
		require.Equal(t, "failed", at(said, "invalid.status"))
		require.EqualValues(t, 2, said["line"])
		require.Contains(t, said["batches"], at(said, "batch.id"))
		require.Contains(t, []any{"cancelling", "cancelled"}, said["cancelled"])
		require.Equal(t, "BadRequestError", at(said, "refused.kind"))
		require.Equal(t, "endpoint", at(said, "refused.param"))
		require.Equal(t, "NotFoundError", at(said, "missing.kind"))
	})
}
