package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
)

// chatRows are the rows of a file that jobs of the method supervised can train on.
var chatRows = strings.Repeat(`{"messages": [{"role": "user", "content": "Capital of Peru?"}, `+
	`{"role": "assistant", "content": "Lima"}]}`+"\n", 3)

// pairRows are the rows of a file that jobs of the method dpo can train on.
var pairRows = strings.Repeat(`{"input": {"messages": [{"role": "user", "content": "Hi"}]}, `+
	`"preferred_output": [{"role": "assistant", "content": "Hello"}], `+
	`"non_preferred_output": [{"role": "assistant", "content": "What?"}]}`+"\n", 3)

// promptRows are the rows of a file that jobs of the method reinforcement can train on.
var promptRows = strings.Repeat(
	`{"messages": [{"role": "user", "content": "Capital of Peru?"}], "ground_truth": "Lima"}`+
		"\n", 3)

// file uploads a file and returns its ID.
func (s *harness) file(name, content string) string {
	s.Helper()
	a := s.send(s.form("/v1/files", "user", "file", name, strings.NewReader(content), "purpose=fine-tune"))
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
	require.Equal(s, "processed", a.json(s)["status"], "%s", a.body)
	return a.json(s)["id"].(string)
}

// TestNamesOfFiles checks that a file whose name has control characters or is too long is rejected,
// and that nothing of it is stored.
func TestNamesOfFiles(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for name, message := range map[string]string{
		strings.Repeat("n", 256): "file: must have a file name of at most 255 characters",
		"a\u202eb.jsonl":         "file: must not have control characters",
	} {
		a := s.send(s.form("/v1/files", "user", "file", name, strings.NewReader(chatRows), "purpose=fine-tune"))
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		require.Contains(t, string(a.body), message)
	}
	require.Empty(t, s.call("GET", "/v1/files", "user", "").json(t)["data"])
}

// TestFilesAreDatasets checks that a file is a dataset that the management interface shows, and that
// its content is what was uploaded, whatever its name.
func TestFilesAreDatasets(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for name, stored := range map[string]string{"rows.jsonl": "rows.jsonl", "my rows (1).jsonl": "my_rows__1_.jsonl",
		"Größe.jsonl": "Gr__e.jsonl", "..hidden": "hidden", "行.jsonl": "jsonl"} {
		content := strings.TrimSuffix(chatRows, "\n")
		id := s.file(name, content)
		a := s.call("GET", "/v1/files/"+id, "user", "").json(t)
		require.Equal(t, name, a["filename"])
		require.EqualValues(t, len(content), a["bytes"])
		require.Equal(t, "fine-tune", a["purpose"])
		row, ok := s.world.View().Datasets.Get(domain.NewName("acme", "datasets", id))
		require.True(t, ok)
		require.Equal(t, map[string]int64{stored: int64(len(content))}, row.State.Files.Sizes)
		require.EqualValues(t, 3, row.State.ExampleCount)
		got := s.call("GET", "/v1/files/"+id+"/content", "user", "")
		require.Equal(t, content, string(got.body))
		require.Equal(t, "application/octet-stream", got.header.Get("Content-Type"))

		deleted := s.call("DELETE", "/v1/files/"+id, "user", "")
		require.Equal(t, map[string]any{"id": id, "object": "file", "deleted": true}, deleted.json(t))
		require.Equal(t, http.StatusNotFound, s.call("GET", "/v1/files/"+id, "user", "").status)
		_, ok = s.world.View().Datasets.Get(domain.NewName("acme", "datasets", id))
		require.False(t, ok)
	}
}

// TestFileAfterItsPurpose checks a form whose first field is the purpose, as curl and the client for
// Python send it.
func TestFileAfterItsPurpose(t *testing.T) {
	s := newHarness(t, request.Limits{})
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	require.NoError(t, w.WriteField("purpose", "fine-tune"))
	part, err := w.CreateFormFile("file", "rows.jsonl")
	require.NoError(t, err)
	_, err = part.Write([]byte(chatRows))
	require.NoError(t, errors.Join(err, w.Close()))
	r := s.request(http.MethodPost, "/v1/files", "user", &form)
	r.Header.Set("Content-Type", w.FormDataContentType())
	a := s.send(r)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(t, "rows.jsonl", a.json(t)["filename"])
}

// TestContentOfSeveralFiles checks that the content of a dataset with several files has all rows,
// each on its own line.
func TestContentOfSeveralFiles(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := domain.Name("accounts/acme/datasets/parts")
	files := domain.Files{Prefix: "datasets/acme/parts/", Sizes: map[string]int64{}}
	for file, content := range map[string]string{"a.jsonl": `{"text": "1"}`, "b.jsonl": "{\"text\": \"2\"}\n",
		"c.jsonl": `{"text": "3"}`} {
		size := s.putFile(files.Prefix+file, content)
		files.Sizes[file] = size
	}
	s.do(domain.Intend(domain.Datasets, name, domain.CreateDataset{}), domain.Intend(domain.Datasets, name,
		domain.UploadDataset{Upload: 1, Files: files}))
	got := s.call("GET", "/v1/files/parts/content", "user", "")
	require.Equal(t, "{\"text\": \"1\"}\n{\"text\": \"2\"}\n{\"text\": \"3\"}", string(got.body))
	require.Equal(t, "parts.jsonl", s.call("GET", "/v1/files/parts", "user", "").json(t)["filename"])
}

// TestRejectedFilesLeaveNothing checks that a form with violations is rejected with all of them,
// whatever the order of its fields, and that neither a dataset nor a stored file remains.
func TestRejectedFilesLeaveNothing(t *testing.T) {
	s := newHarness(t, request.Limits{})
	invalid := strings.Replace(chatRows, `"assistant"`, `"robot"`, 1)
	for _, one := range []struct {
		fields  string // the fields after the file, separated by a vertical bar
		rows    string
		message []string
	}{
		{"", chatRows, []string{"purpose: is required: send fine-tune"}},
		{"purpose=vision", chatRows, []string{`purpose: "vision" is not supported`}},
		{"purpose=user_data|expires_after[anchor]=created_at|expires_after[seconds]=3600|colour=red", chatRows,
			[]string{"expires_after: is not supported", "colour: is not a field of this form", `purpose: "user_data"`}},
		{"file=text", chatRows, []string{"file: has no file name"}},
		{"purpose=" + strings.Repeat("x", 2000), chatRows, []string{"purpose: must have at most 1024 bytes"}},
		{strings.Repeat("colour=red|", 20), chatRows, []string{"the form has more than 16 fields", "colour"}},
		{"purpose=fine-tune", invalid, []string{"rows.jsonl:1", "robot"}},
		{"purpose=fine-tune", "no JSON", []string{"rows.jsonl:1"}},
		{"purpose=fine-tune", "", []string{"file: has 0 rows"}},
	} {
		var fields []string
		if one.fields != "" {
			fields = strings.Split(strings.TrimSuffix(one.fields, "|"), "|")
		}
		a := s.send(s.form("/v1/files", "user", "file", "rows.jsonl", strings.NewReader(one.rows), fields...))
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", one.fields, a.body)
		for _, text := range one.message {
			require.Contains(t, inferenceMessage(t, a), text)
		}
		require.Zero(t, s.world.View().Datasets.Count("acme"), one.fields)
		list := s.call("GET", "/v1/files", "user", "").json(t)
		require.Empty(t, list["data"])
		require.Nil(t, list["first_id"])
	}
}

// keyedFile sends a file with an idempotency key.
func (s *harness) keyedFile(key, rows string) response {
	s.Helper()
	r := s.form("/v1/files", "user", "file", "rows.jsonl", strings.NewReader(rows), "purpose=fine-tune")
	r.Header.Set("Idempotency-Key", key)
	return s.send(r)
}

// TestRejectedFileIsSentAgain checks that a repeated request gets the error of the first, also if the
// error is too long to be stored, or the server crashed before it stored the error.
func TestRejectedFileIsSentAgain(t *testing.T) {
	s := newHarness(t, request.Limits{})
	long := "" // with a reason of its own for each row: the message states equal reasons once
	for i := range 100 {
		long += strings.Replace(chatRows, `"assistant"`, fmt.Sprintf(`"robot-%d"`, i), 1)
	}
	first := s.keyedFile("long", long)
	require.Equal(t, http.StatusBadRequest, first.status, "%s", first.body)
	require.Greater(t, len(first.body), 4<<10)
	again := s.keyedFile("long", long)
	require.Equal(t, http.StatusBadRequest, again.status, "%s", again.body)
	require.Equal(t, inferenceMessage(t, first), inferenceMessage(t, again))

	failing := s.another(func(o *Options) { o.Idempotency = lostResponses{o.Idempotency} })
	first = failing.keyedFile("short", "no JSON")
	require.Equal(t, http.StatusBadRequest, first.status, "%s", first.body)
	s.clock.add(request.ClaimTime)
	again = s.keyedFile("short", "no JSON")
	require.Equal(t, http.StatusBadRequest, again.status, "%s", again.body)
	require.Equal(t, inferenceMessage(t, first), inferenceMessage(t, again))
	require.Zero(t, s.world.View().Datasets.Count("acme"))
}

// A quotaLog sets a quota after the event that creates a dataset.
type quotaLog struct {
	eventlog.Log
	set func()
}

func (l quotaLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	position, err := l.Log.Append(ctx, w)
	if w.Event.Type == "dataset.created.v1" {
		l.set()
	}
	return position, err
}

// TestRejectedUploadLeavesNoFile checks that a file whose upload exceeds a quota that was set after the
// creation of its dataset leaves no dataset.
func TestRejectedUploadLeavesNoFile(t *testing.T) {
	s := newHarness(t, request.Limits{})
	quota := domain.NewName("acme", domain.Quotas.Collection, domain.QuotaStorageBytes)
	other := s.another(func(o *Options) {
		o.Log = quotaLog{o.Log, func() {
			s.do(domain.Intend(domain.Quotas, quota, domain.SetQuota{MaxValue: 5}))
			require.NoError(t, o.World.WaitFor(t.Context(), s.events()))
		}}
	})
	a := other.keyedFile("k", chatRows)
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	s.do(domain.Intend(domain.Quotas, quota, domain.LiftQuota{}))
	require.Zero(t, s.world.View().Datasets.Count("acme"))
	a = s.keyedFile("k", chatRows)
	require.Equal(t, http.StatusConflict, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "send the file with another Idempotency-Key")
	a = s.keyedFile("k2", chatRows)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
}

// inferenceMessage returns the message of an error in the format of the OpenAI API.
func inferenceMessage(t *testing.T, a response) string {
	t.Helper()
	var message request.InferenceError
	require.NoError(t, json.Unmarshal(a.body, &message))
	require.NotNil(t, message.Error.Param, "%s", a.body)
	require.Equal(t, "invalid_request_error", message.Error.Type)
	return message.Error.Message
}

// TestFileOfTheLimit checks that a file may be exactly as large as the limit of uploads, and not one
// byte larger.
func TestFileOfTheLimit(t *testing.T) {
	s := newHarness(t, request.Limits{Upload: int64(len(chatRows))})
	s.file("rows.jsonl", chatRows)
	a := s.send(s.form("/v1/files", "user", "file", "rows.jsonl", strings.NewReader(chatRows+" "), "purpose=fine-tune"))
	require.Equal(t, http.StatusRequestEntityTooLarge, a.status, "%s", a.body)
	a = s.send(s.form("/v1/files", "user", "file", "rows.jsonl", bytes.NewReader(make([]byte, 2<<20)),
		"purpose=fine-tune"))
	require.Equal(t, http.StatusRequestEntityTooLarge, a.status, "%s", a.body)
	require.Equal(t, 1, s.world.View().Datasets.Count("acme"))
}

// TestPagesOfFiles checks that the pages of the list have every file once, in both orders, and that
// wrong parameters are rejected together.
func TestPagesOfFiles(t *testing.T) {
	s := newHarness(t, request.Limits{})
	var ids []string
	for i := range 5 {
		s.clock.at(epoch.Add(time.Duration(i) * time.Minute))
		ids = append(ids, s.file(fmt.Sprintf("rows-%d.jsonl", i), chatRows))
	}
	for order, want := range map[string][]string{"asc": ids, "desc": {ids[4], ids[3], ids[2], ids[1], ids[0]}} {
		var got []string
		for after, more := "", true; more; {
			page := s.call("GET", "/v1/files?limit=2&order="+order+"&after="+after, "user", "").json(t)
			for _, one := range page["data"].([]any) {
				got = append(got, one.(map[string]any)["id"].(string))
			}
			require.Equal(t, got[len(got)-1], page["last_id"])
			after, more = page["last_id"].(string), page["has_more"].(bool)
		}
		require.Equal(t, want, got, order)
	}
	require.Empty(t, s.call("GET", "/v1/files?purpose=batch", "user", "").json(t)["data"])
	require.Empty(t, s.call("GET", "/v1/files", "other", "").json(t)["data"], "files of another account")
	a := s.call("GET", "/v1/files?limit=0&order=up&after=none&colour=red", "user", "")
	require.Equal(t, http.StatusBadRequest, a.status)
	for _, message := range []string{"limit: must be from 1 to 10000, not 0", "order: must be asc or desc", "after: ",
		"colour: "} {
		require.Contains(t, string(a.body), message)
	}
}
