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
)

// Each wrong request gets one clear answer, and changes nothing.
func TestWrongRequests(t *testing.T) {
	s := serve(t, t.TempDir(), "--worker=false", "--max-upload", "200000")
	user := s.user()
	user.dataset("codes", 5)
	for i := range 3 {
		user.must(http.MethodPost, "/datasets", object{"datasetId": fmt.Sprintf("empty-%d", i), "dataset": object{}})
	}
	user.must(http.MethodPost, "/deployments?deploymentId=d1", object{"baseModel": baseModel})
	user.until("/deployments/d1", "state", "READY") // the last change that is not a test's own
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
		"no key":                         {anyone, "GET", "/datasets", nil, 401, []string{"Authorization: Bearer"}},
		"a key that was cut":             {s.as("default", user.key[:40]), "GET", "/datasets", nil, 401, []string{"not whole"}},
		"a key that was mistyped":        {s.as("default", user.key[:len(user.key)-1]+"x"), "GET", "/datasets", nil, 401, []string{"not whole"}},
		"another account's resource":     {s.as("default", other.key), "GET", "/datasets/codes", nil, 403, []string{"accounts/rival", "accounts/default"}},
		"another account's list":         {s.as("default", other.key), "GET", "/datasets", nil, 403, []string{"accounts/rival"}},
		"an account that is not":         {s.as("nobody", user.key), "GET", "/datasets", nil, 403, []string{"accounts/nobody"}},
		"a resource that is not":         {user, "GET", "/datasets/nothing", nil, 404, []string{"accounts/default/datasets/nothing"}},
		"a path that is not":             {user, "GET", "//v2/anything", nil, 404, []string{"/v1/accounts/ACCOUNT"}},
		"a method that is not":           {user, "PUT", "/datasets/codes", nil, 405, []string{"PUT", "GET"}},
		"no JSON":                        {user, "POST", "/datasets", "{datasetId", 400, []string{"JSON"}},
		"JSON that is too deep":          {user, "POST", "/datasets", deep, 400, []string{"64"}},
		"not UTF-8":                      {user, "POST", "/datasets", "{\"datasetId\":\"a\xff\"}", 400, []string{"UTF-8"}},
		"a body that is too large":       {user, "POST", "/datasets", `{"datasetId":"` + strings.Repeat("a", 5<<20) + `"}`, 413, []string{"4194304 bytes"}},
		"an unknown field":               {user, "POST", "/datasets", object{"datasetId": "x", "dataset": object{"colour": "red"}}, 400, []string{"dataset.colour"}},
		"a field of the wrong type":      {user, "POST", "/deployments", object{"baseModel": 7}, 400, []string{"baseModel"}},
		"an ID that is none":             {user, "POST", "/datasets", object{"datasetId": "Not An ID", "dataset": object{}}, 400, []string{"datasetId"}},
		"an ID that is taken":            {user, "POST", "/datasets", object{"datasetId": "codes", "dataset": object{}}, 409, []string{"exists"}},
		"a required field left out":      {user, "POST", "/deployments", object{}, 400, []string{"baseModel"}},
		"several faults, all told":       {user, "POST", "/deployments", object{"displayName": strings.Repeat("x", 64), "minReplicaCount": -1}, 400, []string{"baseModel", "displayName", "minReplicaCount"}},
		"a model that is not":            {user, "POST", "/deployments", object{"baseModel": "accounts/default/models/none"}, 400, []string{"baseModel", "names no model"}},
		"a minimum above the maximum":    {user, "POST", "/deployments", object{"baseModel": baseModel, "minReplicaCount": 3, "maxReplicaCount": 2}, 400, []string{"maxReplicaCount"}},
		"an expiry in the past":          {user, "POST", "/deployments", object{"baseModel": baseModel, "expireTime": "2001-01-01T00:00:00Z"}, 400, []string{"expireTime"}},
		"both of two that exclude":       {user, "POST", "/supervisedFineTuningJobs", object{"dataset": "accounts/default/datasets/codes", "baseModel": baseModel, "warmStartFrom": baseModel}, 400, []string{"warmStartFrom"}},
		"a dataset that is not":          {user, "POST", "/supervisedFineTuningJobs", object{"dataset": "accounts/default/datasets/none", "baseModel": baseModel}, 400, []string{"dataset", "names no dataset"}},
		"a filter that is none":          {user, "GET", "/datasets?filter=state+%3D+%3D", nil, 400, []string{"filter"}},
		"a filter on no field":           {user, "GET", "/datasets?filter=colour+%3D+1", nil, 400, []string{"colour"}},
		"an order by no field":           {user, "GET", "/datasets?orderBy=colour", nil, 400, []string{"colour"}},
		"a mask of no field":             {user, "GET", "/datasets/codes?readMask=colour", nil, 400, []string{"colour"}},
		"an unknown parameter":           {user, "GET", "/datasets?colour=red", nil, 400, []string{"colour"}},
		"a negative page":                {user, "GET", "/datasets?pageSize=-1", nil, 400, []string{"pageSize"}},
		"a page token that is none":      {user, "GET", "/datasets?pageToken=xyz", nil, 400, []string{"pageToken"}},
		"a page token of another list":   {user, "GET", "/deployments?pageSize=1&pageToken=" + datasetsToken, nil, 400, []string{"pageToken"}},
		"a page token, another filter":   {user, "GET", "/datasets?pageSize=1&filter=state+%3D+READY&pageToken=" + datasetsToken, nil, 400, []string{"pageToken"}},
		"a page token, another account":  {other, "GET", "/datasets?pageSize=1&pageToken=" + datasetsToken, nil, 400, []string{"pageToken"}},
		"an output-only field":           {user, "PATCH", "/datasets/codes?updateMask=state", object{"name": "accounts/default/datasets/codes", "state": "READY"}, 400, []string{"state"}},
		"another name than the path's":   {user, "PATCH", "/datasets/codes", object{"name": "accounts/default/datasets/other"}, 400, []string{"name"}},
		"rows for what has its rows":     {user, "POST", "/datasets/codes:validateUpload", object{}, 200, nil},
		"an upload that is no form":      {user, "POST", "/datasets/empty-0:upload", object{}, 400, []string{"multipart"}},
		"a completion without a prompt":  {user, "POST", "//inference/v1/completions", object{"model": baseModel}, 400, []string{"prompt"}},
		"a temperature that is too high": {user, "POST", "//inference/v1/completions", object{"model": baseModel, "prompt": "x", "temperature": 3}, 400, []string{"temperature"}},
		"a completion of no model":       {user, "POST", "//inference/v1/completions", object{"model": "accounts/default/models/none", "prompt": "x"}, 404, []string{"accounts/default/models/none"}},
		"too many stop texts":            {user, "POST", "//inference/v1/completions", object{"model": baseModel, "prompt": "x", "stop": []string{"1", "2", "3", "4", "5"}}, 400, []string{"stop"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.as.t = t
			before := anyone.get("//readyz")["position"]
			status, answer, err := test.as.ask(test.method, test.path, test.body)
			require.NoError(t, err)
			require.Equal(t, test.status, status, "%v", answer)
			message := messageOf(answer)
			for _, part := range test.says {
				require.Contains(t, message, part)
			}
			require.NotContains(t, message, user.key, "no secret in a message")
			require.Equal(t, before, anyone.get("//readyz")["position"], "nothing changed")
		})
	}
}

// messageOf is what a refusal says, in either shape of errors, with the field
// violations that come with it.
func messageOf(answer object) string {
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

// otherAccount makes an account and answers its admin.
func (s *plane) otherAccount(id string) caller {
	s.t.Helper()
	var made struct{ APIKey string }
	require.NoError(s.t, json.Unmarshal([]byte(s.run("account", "create", id, "-o", "json", "--data", s.dir).ok(s.t)), &made))
	return s.as(id, made.APIKey)
}

// Rows that are wrong are named by their true lines, and the upload can be
// repeated.
func TestWrongRows(t *testing.T) {
	s := serve(t, t.TempDir(), "--worker=false", "--max-upload", "20000")
	user := s.user()
	good := string(bytes.TrimSpace(exampleRows(t, 1)))
	user.must(http.MethodPost, "/datasets", object{"datasetId": "mended", "dataset": object{}})
	broken := strings.Join([]string{good, good, `{"messages":[`, `{"messages":[{"content":"who says this?"},{"role":"assistant","content":"nobody"}]}`, good}, "\n")
	status, answer, err := user.upload("mended", []byte(broken))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "%v", answer)
	message := messageOf(answer)
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
	require.Contains(t, messageOf(answer), "3", "the fewest rows there may be")

	status, answer, err = user.upload("mended", exampleRows(t, 300))
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, status, "%v", answer)
	require.Contains(t, messageOf(answer), "20000 bytes")

	status, answer, err = user.upload("mended", exampleRows(t, 5))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.Equal(t, "READY", answer["state"])
	status, answer, err = user.upload("mended", exampleRows(t, 6))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "%v", answer)
	require.Contains(t, messageOf(answer), "READY", "content does not change once it is accepted")
	require.Equal(t, "5", user.get("/datasets/mended")["exampleCount"])
}

// A key is good until its time is over, and then says so.
func TestExpiredKey(t *testing.T) {
	s := serve(t, t.TempDir(), "--worker=false")
	expires := time.Now().Add(5 * time.Second).UTC()
	made := s.user().must(http.MethodPost, "/apiKeys", object{"apiKeyId": "brief", "apiKey": object{"role": "user", "expireTime": expires.Format(time.RFC3339Nano)}})
	brief := s.as("default", made["key"].(string))
	brief.get("/datasets")
	var answer object
	eventually(t, "the key expires", func() bool {
		status, said, err := brief.ask(http.MethodGet, "/datasets", nil)
		require.NoError(t, err)
		answer = said
		return status == http.StatusUnauthorized
	})
	require.False(t, time.Now().Before(expires))
	require.Contains(t, messageOf(answer), "expired at")
	status, answer, err := brief.complete(baseModel, "hello")
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Contains(t, messageOf(answer), "expired at")
}

// A server that cannot start says why in one line, and leaves the folder as it
// was.
func TestServerThatCannotStart(t *testing.T) {
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
		"the port is in use":        {[]string{"--data", t.TempDir(), "--listen", taken.Addr().String()}, 1, regexp.QuoteMeta(taken.Addr().String()) + " is in use.*--listen"},
		"the NATS port is in use":   {[]string{"--data", t.TempDir(), "--listen", "127.0.0.1:0", "--nats-listen", taken.Addr().String()}, 1, regexp.QuoteMeta(taken.Addr().String())},
		"the folder is in use":      {[]string{"--data", running.dir, "--listen", "127.0.0.1:0"}, 1, fmt.Sprintf("in use by process %d", running.cmd.Process.Pid)},
		"a newer program wrote it":  {[]string{"--data", newer, "--listen", "127.0.0.1:0"}, 1, "version 999, written by a newer program"},
		"another program wrote it":  {[]string{"--data", foreign, "--listen", "127.0.0.1:0"}, 1, "does not hold a version"},
		"the folder is a file":      {[]string{"--data", file, "--listen", "127.0.0.1:0"}, 1, "the data folder"},
		"an address without port":   {[]string{"--data", t.TempDir(), "--listen", "localhost"}, 2, "--listen.*HOST:PORT"},
		"a port that is none":       {[]string{"--data", t.TempDir(), "--listen", "127.0.0.1:99999"}, 1, "99999"},
		"a time that is negative":   {[]string{"--data", t.TempDir(), "--lost-after", "-1s"}, 2, "--lost-after"},
		"a limit that lets nothing": {[]string{"--data", t.TempDir(), "--max-upload", "0"}, 2, "--max-upload must be positive"},
		"devices without a number":  {[]string{"--data", t.TempDir(), "--accelerators", "VENDOR_A_H100_80GB"}, 2, "--accelerators.*TYPE=N"},
		"a pool that is none":       {[]string{"--data", t.TempDir(), "--pool", "swimming"}, 2, "--pool.*training or inference"},
		"an argument too many":      {[]string{"data"}, 2, "usage: anneal serve"},
		"an unknown flag":           {[]string{"--colour", "red"}, 2, "--colour.*--help"},
		"an unreachable cluster":    {[]string{"--data", t.TempDir(), "--listen", "127.0.0.1:0", "--nats-url", "nats://" + taken.Addr().String()}, 1, "."},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, logFor(t, "anneal serve"), append([]string{"serve"}, test.args...)...)
			require.Equal(t, test.code, p.await())
			require.Regexp(t, "^anneal: .*"+test.says, lastLine(p.stderr.whole()))
			require.NotContains(t, p.stderr.whole(), "goroutine ", "a message, not a breakdown")
			require.Empty(t, p.stdout.whole())
		})
	}
	require.Equal(t, "ok", running.user().get("//readyz")["status"], "the one that runs is not disturbed")
	content, err := os.ReadFile(filepath.Join(newer, "version"))
	require.NoError(t, err)
	require.Equal(t, "999\n", string(content))
	require.Zero(t, running.end())
}
