package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// batchFile uploads a file of completion requests to a model, and returns its ID.
func (c caller) batchFile(model string, requests int, maxTokens int) string {
	c.t.Helper()
	var lines bytes.Buffer
	for i := range requests {
		line := testutil.Marshal(c.t, object{"custom_id": fmt.Sprintf("r-%d", i), "method": "POST", "url": "/v1/completions",
			"body": object{"model": model, "prompt": fmt.Sprintf("Chair %d", i), "max_tokens": maxTokens,
				"ignore_eos": true}})
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
	data := testutil.ReadAll(c.t, res.Body)
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

// startBatch creates a batch of a file, and returns its path.
func (c caller) startBatch(input string) string {
	c.t.Helper()
	return "//v1/batches/" + c.must(http.MethodPost, "//v1/batches", object{"input_file_id": input,
		"endpoint": "/v1/completions", "completion_window": "24h"})["id"].(string)
}

// storedResults returns the bodies of the durable results of all batches, by custom_id. files is the
// directory of the stored files.
func storedResults(t *testing.T, files string) map[string][]object {
	t.Helper()
	segments := testutil.Glob(t, filepath.Join(files, "batches", "*", "*", "results", "*.jsonl"))
	found := map[string][]object{}
	for _, file := range segments {
		text := testutil.ReadFile(t, file)
		for line := range strings.Lines(string(text)) {
			var one struct{ Result batchLine }
			require.NoError(t, json.Unmarshal([]byte(line), &one))
			found[one.Result.CustomID] = append(found[one.Result.CustomID], one.Result.Response.Body)
		}
	}
	return found
}

// A usageReader reads usage records as an application does: it ignores an event whose ID it has seen.
type usageReader struct {
	consumer jetstream.Consumer
	ids      map[string]bool
	complete map[string]int // complete records by request ID
	repeated int            // events whose ID the reader had seen
}

func (s *plane) usage() *usageReader {
	s.t.Helper()
	js, err := jetstream.New(s.reader(s.operator(), nil))
	require.NoError(s.t, err)
	consumer, err := js.OrderedConsumer(s.t.Context(), "USAGE", jetstream.OrderedConsumerConfig{})
	require.NoError(s.t, err)
	return &usageReader{consumer: consumer, ids: map[string]bool{}, complete: map[string]int{}}
}

// read reads the records that are available.
func (u *usageReader) read(t *testing.T) {
	t.Helper()
	for {
		messages, err := u.consumer.FetchNoWait(500)
		require.NoError(t, err)
		n := 0
		for m := range messages.Messages() {
			n++
			var record struct{ Complete bool }
			require.NoError(t, json.Unmarshal(m.Data(), &record))
			switch id := m.Headers().Get("ce-id"); {
			case u.ids[id]:
				u.repeated++
			case record.Complete:
				u.ids[id] = true
				u.complete[m.Headers().Get("ce-correlation")]++
			}
		}
		if n == 0 {
			return
		}
	}
}

// countsOnce waits until each result has a complete usage record, and requires that none has two.
func (u *usageReader) countsOnce(t *testing.T, results map[string]batchLine) {
	t.Helper()
	eventually(t, "each result has a usage record", func() bool {
		u.read(t)
		for _, one := range results {
			if u.complete[one.Response.RequestID] == 0 {
				return false
			}
		}
		return true
	})
	for request, n := range u.complete {
		require.Equal(t, 1, n, "usage records of request %s", request)
	}
	require.Equal(t, len(results), len(u.complete), "requests with usage records")
}

// TestBatchSurvivesKills kills the control plane while a batch runs. Every request must have exactly
// one result and one usage record, and a request whose result was durable must not run again.
func TestBatchSurvivesKills(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	files := filepath.Join(dir, "blobs")
	s := serve(t, dir)
	user := s.user()
	user.deploy("base", object{"baseModel": baseModel})
	const requests = 2000
	input := user.batchFile("base", requests, 48)
	path := user.startBatch(input)
	status, refused, err := user.do(http.MethodDelete, "//v1/files/"+input, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "%v", refused)
	require.Equal(t, "IN_USE", at(refused, "error.code"))

	durable := 0
	for kill := range 2 {
		usage := s.usage()
		eventually(t, "more results are durable, and further requests are complete", func() bool {
			now := len(storedResults(t, files)) // before the usage, which grows meanwhile
			usage.read(t)
			return now > durable && len(usage.complete) >= now+8
		})
		s.kill()
		durable = len(storedResults(t, files))
		t.Logf("kill %d: %d of %d results are durable", kill, durable, requests)
		s.start()
		user = s.user()
	}
	require.Less(t, durable, requests, "the batch was complete before the last kill")
	ended := user.until(path, "status", "completed")
	require.EqualValues(t, requests, at(ended, "request_counts.completed"))
	require.Nil(t, ended["error_file_id"])
	lines := user.batchResults(ended["output_file_id"].(string))
	require.Len(t, lines, requests)
	for id, stored := range storedResults(t, files) {
		require.Len(t, stored, 1, "%s ran again after its result was durable", id)
		require.Equal(t, stored[0], lines[id].Response.Body)
	}
	require.Equal(t, http.StatusOK, lines["r-7"].Response.StatusCode)
	require.EqualValues(t, 48, at(lines["r-7"].Response.Body, "usage.completion_tokens"))
	s.usage().countsOnce(t, lines)
	require.Equal(t, true, user.must(http.MethodDelete, "//v1/files/"+input, nil)["deleted"])
	s.checkEvents()
}

// TestControlPlanesShareBatches runs a batch with two control planes, and kills or pauses the one
// that runs it. The other takes over when the lease has expired. Every request must have exactly one
// result and one usage record, also when the paused process continues and both send requests.
func TestControlPlanesShareBatches(t *testing.T) {
	if os.Getenv("ANNEAL_CRASHES") == "" {
		t.Skip("slow: a lease expires after half a minute; make crash runs it")
	}
	const requests = 4000
	for name, stop := range map[string]func(*plane) (again func()){
		"killed": func(s *plane) func() {
			s.kill()
			return s.start
		},
		"paused": func(s *plane) func() {
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
			return func() { require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := startPair(t, "")
			first := p.direct(0)
			path := first.startBatch(first.batchFile("d", requests, 24))
			files := p.files
			eventually(t, "results are durable", func() bool { return len(storedResults(t, files)) > 0 })
			const tokens = `anneal_completion_tokens_total{kind="completion"}`
			holder, other := 0, 1
			if metric(t, p.direct(holder), tokens) == 0 {
				holder, other = other, holder
			}
			require.Zero(t, metric(t, p.direct(other), tokens), "only one runs batches")
			again := stop(p.planes[holder])
			durable := len(storedResults(t, files))
			require.Less(t, durable, requests, "the batch was complete before the holder stopped")
			eventually(t, "the other control plane has taken over", func() bool {
				return len(storedResults(t, files)) > durable
			})
			again()
			user := p.direct(other)
			ended := user.until(path, "status", "completed")
			require.EqualValues(t, requests, at(ended, "request_counts.completed"))
			lines := user.batchResults(ended["output_file_id"].(string))
			require.Len(t, lines, requests)
			twice := 0
			for id, stored := range storedResults(t, files) {
				require.Equal(t, stored[0], lines[id].Response.Body, "the first result counts")
				twice += len(stored) - 1
			}
			t.Logf("%d results were durable when the holder was %s; %d results were stored twice", durable, name, twice)
			p.planes[other].usage().countsOnce(t, lines)
		})
	}
}

// metric returns the value of a metric of a control plane, 0 if the control plane does not have it.
func metric(t *testing.T, of caller, name string) (value float64) {
	t.Helper()
	res, err := of.send(http.MethodGet, "//metrics", nil)
	require.NoError(t, err)
	defer res.Body.Close()
	for in := bufio.NewScanner(res.Body); in.Scan(); {
		if number, found := strings.CutPrefix(in.Text(), name+" "); found {
			value, err = strconv.ParseFloat(number, 64)
			require.NoError(t, err)
		}
	}
	return value
}

// TestUnmodifiedClientsBatch checks that a program written for OpenAI's batches works without
// changes.
func TestUnmodifiedClientsBatch(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "data"))
	user := s.user()
	user.deploy("base", object{"baseModel": baseModel})
	t.Run("openai for JavaScript", func(t *testing.T) {
		output := s.driveAt(t, "/v1", "base", nodeClientsDir(t), "node", "openai-batches.mjs")
		require.Equal(t, "batch", at(output, "file.purpose"))
		require.Equal(t, "validating", at(output, "created.status"))
		require.Equal(t, "completed", at(output, "batch.status"), "%v", output)
		require.Equal(t, object{"total": 3.0, "completed": 2.0, "failed": 1.0}, at(output, "batch.request_counts"))
		require.Equal(t, object{"team": "orders"}, at(output, "batch.metadata"))
		require.Equal(t, []any{"one", "two"}, output["answered"])
		require.Equal(t, []any{"wrong"}, output["failed"])
		require.EqualValues(t, http.StatusBadRequest, output["status"])
		require.Equal(t, "failed", at(output, "invalid.status"))
		require.EqualValues(t, 2, output["line"])
		require.Contains(t, output["batches"], at(output, "batch.id"))
		require.Contains(t, []any{"cancelling", "cancelled"}, output["cancelled"])
		require.Equal(t, "BadRequestError", at(output, "refused.kind"))
		require.Equal(t, "endpoint", at(output, "refused.param"))
		require.Equal(t, "NotFoundError", at(output, "missing.kind"))
	})
}
