package api

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/disk"
	"anneal/domain"
	"anneal/engines"
)

func TestDraftModelIsInUse(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(register("accounts/acme/models/draft", false))
	a := s.call("POST", "/v1/accounts/acme/deployments?deploymentId=d1", "user",
		`{"baseModel": "accounts/default/models/anneal-base", "draftModel": "accounts/acme/models/draft"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	a = s.call("DELETE", "/v1/accounts/acme/models/draft", "user", "")
	require.Equal(t, 400, a.status, "%s", a.body)
	require.Equal(t, "IN_USE", reasonOf(t, a))
	require.Contains(t, string(a.body), "accounts/acme/deployments/d1")
}

// TestReferencesOfJobsAreInUse checks that the resources that an unfinished job names cannot be
// deleted.
func TestReferencesOfJobsAreInUse(t *testing.T) {
	s := servingHarness(t, 0)
	s.deploy("d2", 0)
	for _, one := range [][2]string{
		{"/datasets", `{"dataset": {}, "datasetId": "d"}`},
		{"/secrets", `{"name": "s1", "keyName": "TOKEN", "value": "v"}`},
		{"/rlorTrainerJobs?rlorTrainerJobId=j",
			`{"dataset": "accounts/acme/datasets/d", "keepAlive": true, "objectStoreConfig": {"credentialsSecret": ` +
				`"accounts/acme/secrets/s1"},
			"rolloutDeploymentName": "accounts/acme/deployments/d1", "hotLoadDeploymentId": "d2"}`},
	} {
		a := s.call("POST", acme+one[0], "admin", one[1])
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	paths := []string{"/secrets/s1", "/deployments/d1", "/deployments/d2", "/datasets/d"}
	for _, path := range paths {
		a := s.call("DELETE", acme+path, "admin", "")
		require.Equal(t, 400, a.status, "%s: %s", path, a.body)
		require.Equal(t, "IN_USE", reasonOf(t, a))
		require.Contains(t, string(a.body), "accounts/acme/rlorTrainerJobs/j")
	}
	require.Equal(t, 200, s.call("DELETE", acme+"/deployments/d2?ignoreChecks=true", "admin", "").status)
	s.do(domain.IntendJob("accounts/acme/rlorTrainerJobs/j",
		domain.FailJob{Status: domain.Status{Code: "INTERNAL", Message: "x"}}))
	for _, path := range paths {
		require.Equal(t, 200, s.call("DELETE", acme+path, "admin", "").status, path)
	}
}

// TestBusyDeploymentIsInUse checks that a response in progress counts as use of its deployment.
func TestBusyDeploymentIsInUse(t *testing.T) {
	s := servingHarness(t, 1)
	begun, release := make(chan struct{}), make(chan struct{})
	s.replicas.respond = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		err := emit(engines.Chunk{Text: "long"})
		close(begun)
		<-release
		return engines.Usage{}, err
	}
	var answering sync.WaitGroup
	answering.Go(func() { s.complete(`"prompt": "a"`) })
	<-begun
	a := s.call("DELETE", "/v1/accounts/acme/deployments/d1", "user", "")
	close(release)
	answering.Wait()
	require.Equal(t, 400, a.status, "%s", a.body)
	require.Equal(t, "RECENTLY_USED", reasonOf(t, a))
}

// TestDisconnectLeavesNoDataKeys checks that the reconciler erases the data keys of replaced and
// deleted values, also when the client disconnects during the request.
func TestDisconnectLeavesNoDataKeys(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/secrets", "admin",
		`{"name": "s", "keyName": "K", "value": "one"}`).status)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		method, body string
		left         int
	}{{"PATCH", `{"value": "two"}`, 1}, {"DELETE", "", 0}} {
		r := s.request(c.method, "/v1/accounts/acme/secrets/s", "admin", strings.NewReader(c.body)).WithContext(gone)
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, r)
		require.Equal(t, 200, w.Code, "%s", w.Body)
		s.reconcile()
		require.Len(t, s.dataKeys(), c.left)
	}
}

// TestPreviewsOfLongRows checks that the pages of a preview are also limited in bytes, and together
// have every row once.
func TestPreviewsOfLongRows(t *testing.T) {
	s := newHarness(t, request.Limits{})
	row := func(fill string) string { return `{"text": "` + strings.Repeat(fill, 3<<20) + `"}` }
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "d"}`).status)
	a := s.upload("/v1/accounts/acme/datasets/d:upload", "user", "file", "rows.jsonl",
		strings.NewReader(row("a")+"\n"+row("b")+"\n"+`{"text": "c"}`+"\n"+row("d")+row("d")))
	require.Equal(t, 400, a.status, "the last line is not one JSON value")
	var seen []string
	for token, more := "", true; more; {
		a := s.call("GET", "/v1/accounts/acme/datasets/d:preview?pageToken="+token, "user", "")
		require.Equal(t, 200, a.status)
		require.Less(t, len(a.body), 5<<20)
		var page struct {
			Examples      []json.RawMessage `json:"examples"`
			NextPageToken string            `json:"nextPageToken"`
		}
		require.NoError(t, json.Unmarshal(a.body, &page))
		for _, example := range page.Examples {
			seen = append(seen, string(example[9:12]))
		}
		token, more = page.NextPageToken, page.NextPageToken != ""
	}
	require.Len(t, seen, 4)
}

// TestMatchTokenIsBoundToRequest checks that a page token of the operation match is valid only for
// the same request.
func TestMatchTokenIsBoundToRequest(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, id := range []string{"one", "two"} {
		path := "/v1/accounts/acme/deploymentShapes"
		a := s.call("POST", path, "admin",
			`{"deploymentShapeId": "`+id+`", "deploymentShape": {"baseModel": "accounts/default/models/anneal-base", `+
				`"presetType": "MULTI_LORA"}}`)
		require.Equal(t, 200, a.status, "%s", a.body)
		versions := s.call("GET", path+"/"+id+"/versions", "admin", "").json(t)["deploymentShapeVersions"].([]any)
		name := versions[0].(map[string]any)["name"].(string)
		require.Equal(t, 200, s.call("PATCH", "/v1/"+name, "admin", `{"validated": true}`).status)
	}
	match := func(addons, query string) response {
		return s.call("POST", "/v1/accounts/acme/deploymentShapeVersions:match?pageSize=1"+query, "user",
			`{"createDeploymentRequest": {"deployment": {"baseModel": "accounts/default/models/anneal-base", `+
				`"enableAddons": `+addons+`}}}`)
	}
	token, _ := match("true", "").json(t)["nextPageToken"].(string)
	require.NotEmpty(t, token)
	require.Equal(t, 200, match("true", "&pageToken="+token).status)
	require.Equal(t, 400, match("false", "&pageToken="+token).status)
}

// TestSuspendedAccountCannotBuild checks that a suspended account cannot start the build of an
// evaluator.
func TestSuspendedAccountCannotBuild(t *testing.T) {
	s := newHarness(t, request.Limits{})
	one := "/v1/accounts/acme/evaluators/e"
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/evaluators", "user",
		`{"evaluatorId": "e", "evaluator": {}}`).status)
	s.putFile(arrivalsOf(evaluatorRow(s, "accounts/acme/evaluators/e"))+"main.py", "def evaluate(): ...\n")
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme:suspend", "operator",
		`{"suspendState": "FAILED_PAYMENTS"}`).status)
	a := s.call("POST", one+":validateUpload", "user", "")
	require.Equal(t, 400, a.status, "%s", a.body)
	require.Equal(t, "ACCOUNT_SUSPENDED", reasonOf(t, a))
	require.Equal(t, 200, s.call("GET", one, "user", "").status)
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme:restore", "operator", "").status)
	a = s.call("POST", one+":validateUpload", "user", "")
	require.Equal(t, 200, a.status, "%s", a.body)
}

func TestHeadOpensNoStream(t *testing.T) {
	s := newHarness(t, request.Limits{})
	r := s.request("HEAD", "/v1/accounts/acme/events", "user", nil)
	r.Header.Set("Accept", "text/event-stream")
	require.Equal(t, "application/json", s.send(r).header.Get("Content-Type"))
}

// TestCodesAgreeWithStatuses checks that the HTTP status of an error is the status of its code in
// StatusOfCode, except for the reasons with a more specific status.
func TestCodesAgreeWithStatuses(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   domain.Code
		status int
	}{
		{&domain.Error{Code: domain.ResourceExhausted, Reason: disk.Full, Message: "full"}, domain.ResourceExhausted, 429},
		{&domain.Error{Code: domain.Unimplemented, Reason: request.ReasonMethod, Message: "no"}, domain.Unimplemented, 405},
		{&domain.Error{Code: domain.ResourceExhausted, Reason: request.ReasonTooManyStreams, Message: "many"},
			domain.ResourceExhausted, 429},
		{request.BodyTooLarge(1), domain.OutOfRange, 413},
		{context.DeadlineExceeded, domain.DeadlineExceeded, 504},
	} {
		f := request.ErrorOf(c.err)
		require.Equal(t, c.code, f.Code)
		require.Equal(t, c.status, request.HTTPStatus(f))
	}
}
