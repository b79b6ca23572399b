package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/described"
	"anneal/internal/testutil"
)

const baseModel = "accounts/default/models/anneal-base"

// object is a JSON object.
type object = map[string]any

// at returns the value at a dotted path of a JSON object; nil when there is none.
func at(o object, path string) any {
	var value any = o
	for part := range strings.SplitSeq(path, ".") {
		inner, ok := value.(object)
		if !ok {
			return nil
		}
		value = inner[part]
	}
	return value
}

// A caller sends requests to a server over HTTP, as a user's program would.
type caller struct {
	t             testing.TB
	address       string
	account, key  string
	http          *http.Client
	contentType   string // content type of string bodies; "" is JSON
	authorization string // replaces Bearer and the key
}

// user returns the admin of account default.
func (s *plane) user() caller { return s.as(s.context.Account, s.context.APIKey) }

func (s *plane) as(account, key string) caller {
	return caller{t: s.t, address: s.context.Address, account: account, key: key,
		http: &http.Client{Timeout: patience, Transport: s.watched()}}
}

// documents reads the OpenAPI document once for all servers of this build.
var documents described.Fetch

// watched returns a transport that checks every exchange with the server against the server's
// OpenAPI document. It checks nothing with a server of another program.
func (s *plane) watched() http.RoundTripper {
	if s.program != "" {
		return http.DefaultTransport
	}
	return &described.Transport{Address: s.context.Address, Documents: &documents,
		Report: func(err error) { assert.NoError(s.t, err) }}
}

// url returns the URL of a path: below the account or, when it begins with "//", below the root of
// the server. It returns a URL unchanged.
func (c caller) url(path string) string {
	switch {
	case strings.HasPrefix(path, "http://"):
		return path
	case strings.HasPrefix(path, "//"):
		return c.address + path[1:]
	}
	return c.address + "/v1/accounts/" + c.account + path
}

// send sends one request and returns the response. A body is sent as JSON, except for a reader or a
// string, which is sent unchanged.
func (c caller) send(method, path string, body any, header ...string) (*http.Response, error) {
	var in io.Reader
	contentType := "application/json"
	switch body := body.(type) {
	case nil:
		contentType = ""
	case string:
		in = strings.NewReader(body)
	case io.Reader:
		in = body
	default:
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, c.url(path), in)
	if err != nil {
		return nil, err
	}
	if c.contentType != "" {
		contentType = c.contentType
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	switch {
	case c.authorization != "":
		req.Header.Set("Authorization", c.authorization)
	case c.key != "":
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.http.Do(req)
}

// do sends one request and returns the status and the object of a JSON response.
func (c caller) do(method, path string, body any) (status int, answer object, err error) {
	res, err := c.send(method, path, body)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil, err
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return res.StatusCode, nil, fmt.Errorf("%s %s: response %s is not a JSON object: %.200q", method, path, res.Status,
			data)
	}
	return res.StatusCode, answer, nil
}

// must sends one request, requires the status 200, and returns the response.
func (c caller) must(method, path string, body any) object {
	c.t.Helper()
	status, answer, err := c.do(method, path, body)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, status, "%s %s: %v", method, path, answer)
	return answer
}

func (c caller) get(path string) object {
	c.t.Helper()
	return c.must(http.MethodGet, path, nil)
}

// until reads a resource until one of its fields has the value want, and returns the resource. It
// fails immediately when the field has the value of a failed or ended state.
func (c caller) until(path, field string, want any) (found object) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%s: %s = %v", path, field, want), func() bool {
		found = c.get(path)
		switch is := at(found, field); is {
		case want:
			return true
		case "FAILED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED":
			require.FailNow(c.t, fmt.Sprintf("%s: %s is %v", path, field, is), "%v", found)
		}
		return false
	})
	return found
}

// list reads all pages of a collection.
func (c caller) list(path, field string) []object {
	c.t.Helper()
	items, err := c.pages(path, field)
	require.NoError(c.t, err)
	return items
}

func (c caller) pages(path, field string) (items []object, err error) {
	join := "?"
	if strings.Contains(path, "?") {
		join = "&"
	}
	for token := ""; ; {
		status, page, err := c.do(http.MethodGet, path+join+"pageSize=200&pageToken="+token, nil)
		if err != nil {
			return nil, err
		}
		if status != http.StatusOK {
			return nil, fmt.Errorf("%s: response %d: %v", path, status, page)
		}
		part, _ := page[field].([]any)
		for _, item := range part {
			items = append(items, item.(object))
		}
		if token, _ = page["nextPageToken"].(string); token == "" {
			return items, nil
		}
	}
}

// form returns a multipart body with one file.
func form(name string, content []byte) (contentType string, body *bytes.Buffer) {
	body = &bytes.Buffer{}
	w := multipart.NewWriter(body)
	part, _ := w.CreateFormFile("file", name) // a buffer accepts all writes
	_, _ = part.Write(content)
	_ = w.Close()
	return w.FormDataContentType(), body
}

// upload uploads a file into a dataset, and returns the status and the object of the response.
func (c caller) upload(dataset string, content []byte) (status int, answer object, err error) {
	contentType, body := form("rows.jsonl", content)
	c.contentType = contentType
	return c.do(http.MethodPost, "/datasets/"+dataset+":upload", body)
}

// deploy creates a deployment with the given settings, by default with one replica, and waits until
// it is READY.
func (c caller) deploy(id string, settings object) object {
	c.t.Helper()
	body := object{"minReplicaCount": 1}
	maps.Copy(body, settings)
	c.must(http.MethodPost, "/deployments?deploymentId="+id, body)
	return c.until("/deployments/"+id, "state", "READY")
}

// dataset creates a dataset of the first rows of the shipped example, and waits until it is READY.
func (c caller) dataset(id string, rows int) {
	c.t.Helper()
	c.must(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{"displayName": id}})
	status, answer, err := c.upload(id, exampleRows(c.t, rows))
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, status, "%v", answer)
	c.until("/datasets/"+id, "state", "READY")
}

// exampleRows returns the first rows of the shipped example.
func exampleRows(t testing.TB, n int) []byte {
	t.Helper()
	data := testutil.ReadFile(t, filepath.Join("..", "..", "examples", "packing-codes.jsonl"))
	rows := bytes.SplitAfterN(data, []byte("\n"), n+1)
	require.Greater(t, len(rows), n)
	return bytes.Join(rows[:n], nil)
}

// job starts a supervised fine-tuning job with 4 rows per step, and returns the created job.
func (c caller) job(id, dataset string, epochs int) object {
	c.t.Helper()
	return c.must(http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId="+id, jobOn(dataset, epochs))
}

func jobOn(dataset string, epochs int) object {
	return object{"dataset": "accounts/default/datasets/" + dataset, "baseModel": baseModel, "epochs": epochs,
		"batchSizeSamples": 4}
}

// lossCurve downloads the metrics file of a supervised job as a user would, and returns its rows.
func (c caller) lossCurve(job string) []object {
	c.t.Helper()
	return c.curve("/supervisedFineTuningJobs/" + job)
}

// curve returns the rows of the metrics file of the job at a path.
func (c caller) curve(job string) (rows []object) {
	c.t.Helper()
	link, _ := c.get(job + ":getMetricsFileEndpoint")["signedUrl"].(string)
	require.NotEmpty(c.t, link)
	res, err := caller{http: c.http}.send(http.MethodGet, link, nil)
	require.NoError(c.t, err)
	defer res.Body.Close()
	require.Equal(c.t, http.StatusOK, res.StatusCode)
	for scanner := bufio.NewScanner(res.Body); scanner.Scan(); {
		var row object
		require.NoError(c.t, json.Unmarshal(scanner.Bytes(), &row))
		rows = append(rows, row)
	}
	return rows
}

// requireCompleteCurve requires every step from 1 to steps exactly once, in order, each with a loss.
func requireCompleteCurve(t testing.TB, rows []object, steps int) {
	t.Helper()
	require.Len(t, rows, steps)
	for i, row := range rows {
		require.EqualValues(t, i+1, row["step"], "row %d", i)
		require.IsType(t, 0.0, row["train/loss"], "row %d: %v", i, row)
		for _, key := range []string{"epoch", "learning_rate", "tokens", "time"} {
			require.Contains(t, row, key, "row %d", i)
		}
		_, err := time.Parse(time.RFC3339Nano, fmt.Sprint(row["time"]))
		require.NoError(t, err)
	}
}

// complete requests a completion of a model, and returns the status and the object of the response.
func (c caller) complete(model, prompt string) (status int, answer object, err error) {
	return c.do(http.MethodPost, "//inference/v1/completions",
		object{"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0})
}

// textOf returns the text of a completion's first choice.
func textOf(t testing.TB, answer object) string {
	t.Helper()
	choices, _ := answer["choices"].([]any)
	require.NotEmpty(t, choices, "%v", answer)
	text, ok := choices[0].(object)["text"].(string)
	require.True(t, ok, "%v", answer)
	return text
}

// history returns every event of an account, in order, as the API lists it.
func (c caller) history() []object {
	c.t.Helper()
	return c.list("/events", "events")
}

// positionOf returns an event's position in the log.
func positionOf(t testing.TB, event object) uint64 {
	t.Helper()
	position, err := strconv.ParseUint(fmt.Sprint(event["position"]), 10, 64)
	require.NoError(t, err)
	return position
}
