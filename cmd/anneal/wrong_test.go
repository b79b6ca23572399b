package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// TestInvalidRequests checks that each invalid request gets one clear error, and changes nothing.
func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--worker=false", "--max-upload", "200000")
	user := s.user()
	user.dataset("codes", 5)
	for i := range 3 {
		user.must(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("empty-%d", i), "dataset": object{}})
	}
	user.must(http.MethodPost, "/deployments?deploymentId=d1", object{"baseModel": baseModel})
	user.until("/deployments/d1", "state", "READY") // the last change that the setup made
	anyone := s.as("default", "")
	other := s.otherAccount("rival")
	datasetsToken := user.get("/datasets?pageSize=1")["nextPageToken"].(string)
	deep := strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)

	for name, test := range map[string]struct {
		as     caller
		method string
		path   string
		body   any
		status int
		says   []string // parts of the message
	}{
		"no key": {anyone, "GET", "/datasets", nil, 401, []string{"Authorization: Bearer"}},
		"a truncated key": {s.as("default", user.key[:40]), "GET", "/datasets", nil, 401,
			[]string{"mistyped or cut off", "copy the whole key again"}},
		"a mistyped key": {s.as("default", user.key[:len(user.key)-1]+"x"), "GET", "/datasets", nil, 401,
			[]string{"mistyped or cut off", "copy the whole key again"}},
		"another account's resource": {s.as("default", other.key), "GET", "/datasets/codes", nil, 403,
			[]string{"accounts/rival", "accounts/default"}},
		"another account's list": {s.as("default", other.key), "GET", "/datasets", nil, 403,
			[]string{"accounts/rival"}},
		"an unknown account": {s.as("nobody", user.key), "GET", "/datasets", nil, 403,
			[]string{"accounts/nobody"}},
		"an unknown resource": {user, "GET", "/datasets/nothing", nil, 404,
			[]string{"accounts/default/datasets/nothing"}},
		"an unknown path":                {user, "GET", "//v2/anything", nil, 404, []string{"/v1/accounts/ACCOUNT"}},
		"an unknown method":              {user, "PUT", "/datasets/codes", nil, 405, []string{"PUT", "GET"}},
		"not JSON":                       {user, "POST", "/datasets", "{datasetId", 400, []string{"JSON"}},
		"JSON that is nested too deeply": {user, "POST", "/datasets", deep, 400, []string{"64"}},
		"not UTF-8":                      {user, "POST", "/datasets", "{\"datasetId\":\"a\xff\"}", 400, []string{"UTF-8"}},
		"a body that is too large": {user, "POST", "/datasets", `{"datasetId":"` + strings.Repeat("a", 5<<20) + `"}`,
			413, []string{"limit of 4194304"}},
		"an unknown field": {user, "POST", "/datasets",
			object{"datasetId": "x", "dataset": object{"colour": "red"}}, 400, []string{"dataset.colour"}},
		"a field of the wrong type": {user, "POST", "/deployments", object{"baseModel": 7}, 400, []string{"baseModel"}},
		"an invalid ID": {user, "POST", "/datasets", object{"datasetId": "Not An ID", "dataset": object{}},
			400, []string{"datasetId"}},
		"an ID in use": {user, "POST", "/datasets", object{"datasetId": "codes", "dataset": object{}}, 409,
			[]string{"exists"}},
		"a missing required field": {user, "POST", "/deployments", object{}, 400, []string{"baseModel"}},
		"several violations, all reported": {user, "POST", "/deployments",
			object{"displayName": strings.Repeat("x", 64), "minReplicaCount": -1}, 400,
			[]string{"baseModel", "displayName", "minReplicaCount"}},
		"an unknown model": {user, "POST", "/deployments", object{"baseModel": "accounts/default/models/none"},
			400, []string{"baseModel", "is not a model that"}},
		"a minimum above the maximum": {user, "POST", "/deployments",
			object{"baseModel": baseModel, "minReplicaCount": 3, "maxReplicaCount": 2}, 400, []string{"maxReplicaCount"}},
		"an expiry in the past": {user, "POST", "/deployments",
			object{"baseModel": baseModel, "expireTime": "2001-01-01T00:00:00Z"}, 400, []string{"expireTime"}},
		"both of two exclusive fields": {user, "POST", "/supervisedFineTuningJobs",
			object{"dataset": "accounts/default/datasets/codes", "baseModel": baseModel, "warmStartFrom": baseModel}, 400,
			[]string{"warmStartFrom"}},
		"an unknown dataset": {user, "POST", "/supervisedFineTuningJobs",
			object{"dataset": "accounts/default/datasets/none", "baseModel": baseModel}, 400,
			[]string{"dataset", "is not a dataset of"}},
		"an invalid filter":            {user, "GET", "/datasets?filter=state+%3D+%3D", nil, 400, []string{"filter"}},
		"a filter on an unknown field": {user, "GET", "/datasets?filter=colour+%3D+1", nil, 400, []string{"colour"}},
		"an order by an unknown field": {user, "GET", "/datasets?orderBy=colour", nil, 400, []string{"colour"}},
		"a mask of an unknown field":   {user, "GET", "/datasets/codes?readMask=colour", nil, 400, []string{"colour"}},
		"an unknown parameter":         {user, "GET", "/datasets?colour=red", nil, 400, []string{"colour"}},
		"a negative page":              {user, "GET", "/datasets?pageSize=-1", nil, 400, []string{"pageSize"}},
		"an invalid page token":        {user, "GET", "/datasets?pageToken=xyz", nil, 400, []string{"pageToken"}},
		"a page token of another list": {user, "GET", "/deployments?pageSize=1&pageToken=" + datasetsToken, nil, 400,
			[]string{"pageToken"}},
		"a page token, another filter": {user, "GET", "/datasets?pageSize=1&filter=state+%3D+READY&pageToken=" +
			datasetsToken, nil, 400, []string{"pageToken"}},
		"a page token, another account": {other, "GET", "/datasets?pageSize=1&pageToken=" + datasetsToken, nil, 400,
			[]string{"pageToken"}},
		"an output-only field": {user, "PATCH", "/datasets/codes?updateMask=state",
			object{"name": "accounts/default/datasets/codes", "state": "READY"}, 400, []string{"state"}},
		"another name than the path's": {user, "PATCH", "/datasets/codes",
			object{"name": "accounts/default/datasets/other"}, 400, []string{"name"}},
		"rows for a dataset that has rows": {user, "POST", "/datasets/codes:validateUpload", object{}, 200, nil},
		"an upload that is not a form":     {user, "POST", "/datasets/empty-0:upload", object{}, 400, []string{"multipart"}},
		"a completion without a prompt": {user, "POST", "//inference/v1/completions", object{"model": baseModel}, 400,
			[]string{"prompt"}},
		"a temperature that is too high": {user, "POST", "//inference/v1/completions",
			object{"model": baseModel, "prompt": "x", "temperature": 3}, 400, []string{"temperature"}},
		"a completion of an unknown model": {user, "POST", "//inference/v1/completions",
			object{"model": "accounts/default/models/none", "prompt": "x"}, 404, []string{"accounts/default/models/none"}},
		"too many stop texts": {user, "POST", "//inference/v1/completions",
			object{"model": baseModel, "prompt": "x", "stop": []string{"1", "2", "3", "4", "5"}}, 400, []string{"stop"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.as.t = t
			before := anyone.get("//readyz")["position"]
			status, answer, err := test.as.do(test.method, test.path, test.body)
			require.NoError(t, err)
			require.Equal(t, test.status, status, "%v", answer)
			message := errorMessage(answer)
			for _, part := range test.says {
				require.Contains(t, message, part)
			}
			require.NotContains(t, message, user.key, "no secret in a message")
			require.Equal(t, before, anyone.get("//readyz")["position"], "nothing changed")
		})
	}
}

// errorMessage returns the message of an error response of either API, with its field violations.
func errorMessage(answer object) string {
	text := ""
	if message, ok := answer["message"].(string); ok {
		text = message
	}
	if message, ok := at(answer, "error.message").(string); ok {
		text = message
	}
	details, _ := json.Marshal(answer["details"])
	return text + string(details)
}

// otherAccount creates an account and returns its admin.
func (s *plane) otherAccount(id string) caller {
	s.t.Helper()
	var made struct{ APIKey string }
	require.NoError(s.t, json.Unmarshal([]byte(s.run("account", "create", id, "-o", "json", "--data", s.dir).ok(s.t)),
		&made))
	return s.as(id, made.APIKey)
}

// TestInvalidRows checks that invalid rows are reported by their line numbers, and that the upload
// can be repeated.
func TestInvalidRows(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--worker=false", "--max-upload", "20000")
	user := s.user()
	good := string(bytes.TrimSpace(exampleRows(t, 1)))
	user.must(http.MethodPost, "/datasets", object{"datasetId": "mended", "dataset": object{}})
	broken := strings.Join([]string{good, good, `{"messages":[`,
		`{"messages":[{"content":"who says this?"},{"role":"assistant","content":"nobody"}]}`, good}, "\n")
	status, answer, err := user.upload("mended", []byte(broken))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "%v", answer)
	message := errorMessage(answer)
	require.Regexp(t, `rows\.jsonl:3: \S`, message)
	require.Regexp(t, `rows\.jsonl:4: .*role`, message)
	require.NotRegexp(t, `rows\.jsonl:[125]:`, message)
	refused := user.get("/datasets/mended")
	require.Equal(t, "UPLOADING", refused["state"])
	require.Equal(t, "INVALID_ARGUMENT", at(refused, "status.code"))
	require.Contains(t, at(refused, "status.message"), "rows.jsonl:3")

	status, answer, err = user.upload("mended", exampleRows(t, 2))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "%v", answer)
	require.Contains(t, errorMessage(answer), "3", "the minimum number of rows")

	status, answer, err = user.upload("mended", exampleRows(t, 300))
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, status, "%v", answer)
	require.Contains(t, errorMessage(answer), "20000 bytes")

	status, answer, err = user.upload("mended", exampleRows(t, 5))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.Equal(t, "READY", answer["state"])
	status, answer, err = user.upload("mended", exampleRows(t, 6))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "%v", answer)
	require.Contains(t, errorMessage(answer), "READY", "accepted content cannot be replaced")
	require.Equal(t, "5", user.get("/datasets/mended")["exampleCount"])
}

// TestExpiredKey checks that a key is valid until it expires, and that the error then states the
// expiry.
func TestExpiredKey(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--worker=false")
	expires := time.Now().Add(5 * time.Second).UTC()
	made := s.user().must(http.MethodPost, "/apiKeys",
		object{"apiKeyId": "brief", "apiKey": object{"role": "user", "expireTime": expires.Format(time.RFC3339Nano)}})
	brief := s.as("default", made["key"].(string))
	brief.get("/datasets")
	var answer object
	eventually(t, "the key expires", func() bool {
		status, said, err := brief.do(http.MethodGet, "/datasets", nil)
		require.NoError(t, err)
		answer = said
		return status == http.StatusUnauthorized
	})
	require.False(t, time.Now().Before(expires))
	require.Contains(t, errorMessage(answer), "expired at")
	status, answer, err := brief.complete(baseModel, "hello")
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Contains(t, errorMessage(answer), "expired at")
}

// TestServerThatCannotStart checks that a server that cannot start reports the reason in one line,
// and leaves the directory unchanged.
func TestServerThatCannotStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	running := serve(t, t.TempDir(), "--worker=false")
	newer := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(newer, "version"), []byte("999\n"), 0o600))
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "version"), []byte("hello\n"), 0o600))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"the port is in use": {[]string{"--data", t.TempDir(), "--listen", taken.Addr().String()}, 1,
			regexp.QuoteMeta(taken.Addr().String()) + " is in use.*--listen"},
		"the NATS port is in use": {[]string{"--data", t.TempDir(), "--listen", "127.0.0.1:0", "--nats-listen",
			taken.Addr().String()}, 1, regexp.QuoteMeta(taken.Addr().String())},
		"the directory is in use": {[]string{"--data", running.dir, "--listen", "127.0.0.1:0"}, 1,
			fmt.Sprintf("in use by process %d", running.cmd.Process.Pid)},
		"a newer program wrote it": {[]string{"--data", newer, "--listen", "127.0.0.1:0"}, 1,
			"version 999, written by a newer program"},
		"another program wrote it": {[]string{"--data", foreign, "--listen", "127.0.0.1:0"}, 1, "does not contain a version"},
		"the directory is a file":  {[]string{"--data", file, "--listen", "127.0.0.1:0"}, 1, "the data directory"},
		"an address without port":  {[]string{"--data", t.TempDir(), "--listen", "localhost"}, 2, "--listen.*HOST:PORT"},
		"an invalid port":          {[]string{"--data", t.TempDir(), "--listen", "127.0.0.1:99999"}, 1, "99999"},
		"a time that is negative":  {[]string{"--data", t.TempDir(), "--lost-after", "-1s"}, 2, "--lost-after"},
		"a limit of zero": {[]string{"--data", t.TempDir(), "--max-upload", "0"}, 2,
			"--max-upload 0 must be positive"},
		"devices without a number": {[]string{"--data", t.TempDir(), "--accelerators", "VENDOR_A_H100_80GB"}, 2,
			"--accelerators.*TYPE=N"},
		"an unknown pool":        {[]string{"--data", t.TempDir(), "--pool", "swimming"}, 2, "--pool.*training or inference"},
		"a superfluous argument": {[]string{"data"}, 2, "usage: anneal serve"},
		"an unknown flag":        {[]string{"--colour", "red"}, 2, "--colour.*--help"},
		"an unreachable cluster": {[]string{"--data", t.TempDir(), "--listen", "127.0.0.1:0", "--nats-url",
			"nats://" + taken.Addr().String()}, 1, "."},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, logFor(t, "anneal serve"), append([]string{"serve"}, test.args...)...)
			require.Equal(t, test.code, p.await())
			require.Regexp(t, "^anneal: .*"+test.says, lastLine(p.stderr.output()))
			require.NotContains(t, p.stderr.output(), "goroutine ", "an error message, not a panic")
			require.Empty(t, p.stdout.output())
		})
	}
	require.Equal(t, "ok", running.user().get("//readyz")["status"], "the running server is not disturbed")
	content := testutil.ReadFile(t, filepath.Join(newer, "version"))
	require.Equal(t, "999\n", string(content))
	require.Zero(t, running.end())
}
