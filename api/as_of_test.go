package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/internal/testutil"
	"anneal/projections"
)

// withoutAsOf are the operations with the method GET and a JSON response that have no parameter asOf,
// with the reason.
var withoutAsOf = map[string]string{
	"getProtectedResource": "not in the log", "getCaller": "who sends the request",
	"getDigest": "a digest of the present", "listBackups": "not in the log", "listRebuilds": "not in the log",
	"getHealth": "not in the log", "getReadiness": "not in the log", "getWriteReadiness": "not in the log",
	"listInferenceModels": "models that answer now", "listCompatibleModels": "models that answer now",
	"getCompatibleModel": "a model that answers now", "getInferenceModel": "a model that answers now",
	"previewDataset": "rows of a file", "proveEvent": "an event", "proveAnyEvent": "an event",
	"listFineTuningEvents":                   "events",
	"listUsage":                              "has times of its own",
	"listAllUsage":                           "has times of its own",
	"listAuditRecords":                       "a stream beside the log",
	"listAllAuditRecords":                    "a stream beside the log",
	"getDelivery":                            "a file beside the log",
	"listDeadLetters":                        "a file beside the log",
	"listReinforcementFineTuningJobRollouts": "a file of the job",
}

// TestEveryGetAndListHasAsOf checks that every operation that reads resources has the parameter asOf, in
// the document too, and shows the state at the position of an earlier response after later changes.
func TestEveryGetAndListHasAsOf(t *testing.T) {
	table := map[string]*request.Operation{}
	all := (&Server{}).operations()
	for i := range all {
		op := &all[i]
		if op.Method != http.MethodGet || op.Response == nil {
			require.False(t, op.Declares("asOf"), op.ID)
			continue
		}
		isFile, isHistory := strings.HasSuffix(op.ID, "Endpoint"), op.Streamed != nil
		require.Equal(t, !isFile && !isHistory && withoutAsOf[op.ID] == "", op.Declares("asOf"), op.ID)
		if op.Declares("asOf") {
			table[op.ID] = op
		}
	}
	require.Greater(t, len(table), 40)
	for id := range withoutAsOf {
		require.True(t, slices.ContainsFunc(all, func(op request.Operation) bool { return op.ID == id }), id)
	}
	documented := 0
	for _, item := range newHarness(t, request.Limits{}).document().Paths.Map() {
		for _, op := range item.Operations() {
			declared := op.Parameters.GetByInAndName("query", "asOf") != nil
			require.Equal(t, table[op.OperationID] != nil, declared, op.OperationID)
			if declared {
				documented++
			}
		}
	}
	require.Equal(t, len(table), documented)
	for _, r := range operationRows() {
		if op := table[r.id]; op != nil {
			t.Run(r.id, func(t *testing.T) { shownAsOf(t, op, r) })
		}
	}
}

// shownAsOf checks the request of a test case with asOf, before and after its resource has changed.
func shownAsOf(t *testing.T, op *request.Operation, r row) {
	s := newHarness(t, request.Limits{})
	if r.prepare != nil {
		r.prepare(s)
	}
	s.set(r.scene)
	x := &operationTest{harness: s, op: op, valid: parseRequest(r.request)}
	s.clock.at(epoch.Add(time.Hour))
	now := x.sendRow(nil)
	require.Equal(t, http.StatusOK, now.status, "%s", now.body)
	position := positionOf(t, now.header)
	asOf := with("asOf", strconv.FormatUint(position, 10))
	s.clock.at(epoch.Add(time.Hour))
	before := x.sendRow(asOf)
	require.Equal(t, http.StatusOK, before.status, "%s", before.body)
	require.Equal(t, position, positionOf(t, before.header))
	require.JSONEq(t, stable(t, now.body), stable(t, before.body))

	x.changeEverything()
	s.clock.at(epoch.Add(time.Hour))
	after := x.sendRow(asOf)
	require.Equal(t, http.StatusOK, after.status, "%s", after.body)
	require.Equal(t, position, positionOf(t, after.header))
	require.JSONEq(t, string(before.body), string(after.body), "the state at a position does not change")

	refused := x.sendRow(with("asOf", strconv.FormatUint(x.position()+1, 10)))
	x.rejected(http.StatusBadRequest, refused, fmt.Sprintf("asOf: must be at most %d, the position of the last event "+
		"of the log, not %d:",
		x.position(), x.position()+1))
	if _, named := x.elsewhere("none"); named && op.Gate != request.WithKey && op.ID != "getQuota" {
		x.rejected(http.StatusNotFound, x.sendRow(with("asOf", "1")), "at position 1 of the log, ")
	}
}

// changeEverything changes and deletes the resources of the harness as far as that is possible, so
// that a read with asOf differs from a read of the present.
func (x *operationTest) changeEverything() {
	before := x.position()
	for _, kind := range domain.Kinds {
		collection := kind.CollectionID()
		for row := range x.world.View().RowsOf(kind) {
			if name := row.Head().Name; name.Account() == "acme" && collection != domain.APIKeys.Collection {
				if x.call("DELETE", "/v1/"+string(name), "admin", "").status != http.StatusOK {
					x.call("PATCH", "/v1/"+string(name), "admin", `{"displayName": "changed"}`)
				}
			}
		}
	}
	x.call("PATCH", "/v1/accounts/acme", "operator", `{"displayName": "changed"}`)
	x.call("DELETE", "/v1/accounts/system/nodes/n1", "operator", "")
	x.ok("POST", acme+"/datasets", `{"datasetId": "later", "dataset": {}}`)
	x.call("PATCH", acme+"/quotas/datasets", "operator", `{"maxValue": 3}`)
	x.call("PATCH", acme+"/quotas/requests-per-minute", "operator", `{"maxValue": 3000}`)
	require.Greater(x, x.position(), before+1)
}

// stable returns a response without the fields that are not recorded in the log.
func stable(t testing.TB, body []byte) string {
	var tree any
	require.NoError(t, json.Unmarshal(body, &tree))
	var strip func(any)
	strip = func(value any) {
		switch v := value.(type) {
		case []any:
			for _, one := range v {
				strip(one)
			}
		case map[string]any:
			for _, live := range []string{"lastUsedTime", "seenTime", "devices", "trainerLogs", "replicaStats"} {
				delete(v, live)
			}
			if queue, ok := v["queue"].(map[string]any); ok {
				delete(queue, "position")
				delete(queue, "length")
			}
			for _, one := range v {
				strip(one)
			}
		}
	}
	strip(tree)
	text := testutil.Marshal(t, tree)
	return string(text)
}

// TestListsAsOf checks filters, orders and pages of an earlier state, by position and by time.
func TestListsAsOf(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for i := range 25 {
		s.ok("POST", acme+"/datasets", fmt.Sprintf(`{"datasetId": "d%02d", "dataset": {"displayName": "name %d"}}`, i, i%3))
	}
	queries := []string{"pageSize=200", "pageSize=4", "pageSize=4&orderBy=displayName%20desc",
		"pageSize=3&filter=displayName%20%3D%20%22name%201%22", "pageSize=7&orderBy=createTime%20desc",
		"pageSize=2&filter=displayName%20%3D%20%22name%202%22&orderBy=displayName,createTime&readMask=name"}
	want := map[string][]any{}
	for _, q := range queries {
		want[q], _ = s.pages(q, nil)
	}
	last := s.last()
	e, err := s.log.At(t.Context(), last.Position)
	require.NoError(t, err)
	at := e.Time.Format(time.RFC3339Nano)
	change := func(i int) {
		s.call("DELETE", fmt.Sprintf(acme+"/datasets/d%02d", i), "user", "")
		s.ok("POST", acme+"/datasets", fmt.Sprintf(`{"datasetId": "later%d", "dataset": {"displayName": "name 1"}}`, i))
	}
	for i := range 5 {
		change(i)
	}
	position := strconv.FormatUint(last.Position, 10)
	changes := 5
	for _, q := range queries {
		for _, asOf := range []string{"asOf=" + position, "as_of=" + position, "asOf=" + url.QueryEscape(at)} {
			items, pages := s.pages(q+"&"+asOf, func() { changes++; change(changes) })
			require.Equal(t, want[q], items, "%s %s", q, asOf)
			require.Equal(t, q != queries[0], pages > 1, q)
		}
	}
	first := s.ok("GET", acme+"/datasets?pageSize=4&asOf="+position, "").json(t)
	token := url.QueryEscape(first["nextPageToken"].(string))
	for _, other := range []string{"", "&asOf=" + strconv.FormatUint(last.Position-1, 10)} {
		a := s.call("GET", acme+"/datasets?pageSize=4&pageToken="+token+other, "user", "")
		require.Equal(t, http.StatusBadRequest, a.status, "a token is of one position: %s", a.body)
		require.Contains(t, string(a.body), "pageToken")
	}
}

// pages returns the items of all pages of the list of datasets, and the number of pages. It calls between
// before each page but the first.
func (s *harness) pages(query string, between func()) (items []any, pages int) {
	return s.pagesBy("pageToken", query, between)
}

// pagesBy is like pages; parameter is the name of the query parameter of page tokens.
func (s *harness) pagesBy(parameter, query string, between func()) (items []any, pages int) {
	token := ""
	for {
		a := s.ok("GET", acme+"/datasets?"+query+token, "")
		page := a.json(s)
		items, pages = append(items, page["datasets"].([]any)...), pages+1
		next, more := page["nextPageToken"].(string)
		if !more {
			return items, pages
		}
		if token = "&" + parameter + "=" + url.QueryEscape(next); between != nil {
			between()
		}
	}
}

// TestTimeIsPinned checks that a page token has the position of the first page, when an event with an
// earlier time is recorded afterwards: the clocks of control planes differ.
func TestTimeIsPinned(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for i := range 6 {
		s.ok("POST", acme+"/datasets", fmt.Sprintf(`{"datasetId": "d%d", "dataset": {}}`, i))
	}
	for i, parameter := range []string{"pageToken", "page_token"} {
		at := "asOf=" + url.QueryEscape(s.clock.tick().Format(time.RFC3339Nano))
		items, pages := s.pagesBy(parameter, "pageSize=2&"+at, sync.OnceFunc(func() {
			now := s.clock.tick()
			s.clock.at(epoch)
			s.ok("DELETE", fmt.Sprintf(acme+"/datasets/d%d", 5-i), "")
			s.clock.at(now)
		}))
		require.Equal(t, 3, pages, parameter)
		require.Len(t, items, 6-i, parameter)
	}
}

func TestAsOfIsValidated(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.ok("POST", acme+"/datasets", `{"datasetId": "d", "dataset": {}}`)
	last := s.last()
	beyond := strconv.FormatUint(last.Position+1, 10)
	for value, says := range map[string]string{
		"soon": `must be a position of the log (a whole number) or a time such as 2026-03-01T12:00:00Z, not "soon"`,
		"-1":   `2026-03-01T12:00:00Z, not "-1"`, "1.5": `2026-03-01T12:00:00Z, not "1.5"`,
		"99999999999999999999": "must be a position of the log",
		"0":                    "must be at least 1, the position of the first event of the log, not 0",
		beyond: fmt.Sprintf("must be at most %d, the position of the last event of the log, not "+
			"%s", last.Position, beyond),
		"2001-01-01T00:00:00Z":      "2001-01-01T00:00:00Z is before the first event of the log",
		"2999-01-01T00:00:00+02:00": "is in the future (the server's time is 2030-01-02T",
		"2030-01-02":                `2026-03-01T12:00:00Z, not "2030-01-02"`,
	} {
		for _, path := range []string{"/datasets/d", "/datasets", "/quotas"} {
			a := s.call("GET", acme+path+"?asOf="+value, "user", "")
			require.Equal(t, http.StatusBadRequest, a.status, "%s %s", value, a.body)
			details := a.json(t)["details"].([]any)
			require.Equal(t, "INVALID_FIELDS", details[0].(map[string]any)["reason"])
			violation := details[1].(map[string]any)["fieldViolations"].([]any)[0].(map[string]any)
			require.Equal(t, "asOf", violation["field"])
			require.Contains(t, violation["description"], says)
			require.NotEmpty(t, a.header.Get("X-Request-Id"))
		}
	}
	a := s.call("GET", acme+"/datasets?asOf=soon&pageSize=-1&colour=red", "user", "")
	for _, field := range []string{`"asOf"`, `"pageSize"`, `"colour"`} {
		require.Contains(t, string(a.body), field, "all violations are in one response")
	}
	require.Equal(t, http.StatusBadRequest,
		s.call("GET", acme+"/datasets?asOf=3&asOf=4", "user", "").status, "it is given once")
	require.Equal(t, http.StatusBadRequest, s.call("POST", acme+"/datasets?asOf=3", "user", `{"dataset": {}}`).status)
	zoned := epoch.Add(30 * time.Second).In(time.FixedZone("", 7200)).Format(time.RFC3339)
	require.Contains(t, zoned, "+")
	s.ok("GET", acme+"/datasets/d?asOf="+zoned, "") // a + that is not encoded

	bare := s.another(func(o *Options) { o.World = worldWithoutArchive(t, s) })
	a = bare.call("GET", acme+"/datasets?asOf=1", "user", "")
	require.Equal(t, http.StatusBadRequest, a.status)
	require.Contains(t, string(a.body), "NO_ARCHIVE")
}

// TestAsOfShowsWhatTheCallerMaySeeNow checks that reads with asOf apply the permissions of the
// present, and show no values of secrets.
func TestAsOfShowsWhatTheCallerMaySeeNow(t *testing.T) {
	s := newHarness(t, request.Limits{})
	publish := func(public bool) string {
		s.do(domain.Intend(domain.Models, "accounts/other/models/shared", domain.RegisterModel{
			ModelSpec: domain.ModelSpec{DisplayName: "shared", Kind: domain.BaseModel, Public: public},
			Files:     domain.Files{Prefix: "models/other/shared/", Sizes: map[string]int64{"model.safetensors": 42}}}))
		last := s.last()
		return strconv.FormatUint(last.Position, 10)
	}
	remove := func() {
		s.do(domain.Intend(domain.Models, "accounts/other/models/shared", domain.RequestDeletion(domain.Models)),
			domain.Intend(domain.Models, "accounts/other/models/shared", domain.DeleteModel{}))
	}
	const path = "/v1/accounts/other/models/shared"
	public := publish(true)
	require.Equal(t, http.StatusOK, s.call("GET", path+"?asOf="+public, "user", "").status)
	remove()
	require.Equal(t, http.StatusForbidden, s.call("GET", path+"?asOf="+public, "user", "").status, "it is deleted")
	private := publish(false)
	for _, position := range []string{public, private} {
		require.Equal(t, http.StatusForbidden, s.call("GET", path+"?asOf="+position, "user", "").status, "it is private now")
		require.Equal(t, http.StatusOK, s.call("GET", path+"?asOf="+position, "other", "").status)
	}
	remove()
	again := publish(true)
	require.Equal(t, http.StatusForbidden, s.call("GET", path+"?asOf="+private, "user", "").status, "it was private then")
	require.Equal(t, http.StatusOK, s.call("GET", path+"?asOf="+again, "user", "").status)
	require.Equal(t, http.StatusForbidden, s.call("GET", path+"?asOf="+public, "user", "").status,
		"its owner has deleted the model that was public then")
	require.Equal(t, http.StatusOK, s.call("GET", path+"?asOf="+public, "other", "").status)

	s.call("POST", acme+"/secrets", "admin", `{"name": "s", "keyName": "TOKEN", "value": "canary-value"}`)
	s.call("POST", acme+"/apiKeys", "admin", `{"apiKeyId": "temporary", "apiKey": {"role": "user"}}`)
	last := s.last()
	position := strconv.FormatUint(last.Position, 10)
	require.Equal(t, http.StatusOK, s.call("DELETE", acme+"/secrets/s", "admin", "").status)
	require.Equal(t, http.StatusOK, s.call("DELETE", acme+"/apiKeys/temporary", "admin", "").status)
	for _, one := range []string{"/secrets", "/secrets/s", "/apiKeys", "/apiKeys/temporary"} {
		a := s.call("GET", acme+one+"?asOf="+position, "admin", "")
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		for _, hidden := range []string{"canary-value", "ciphertext", `"value"`, `"hash"`, `"key"`} {
			require.NotContains(t, string(a.body), hidden)
		}
		require.Equal(t, http.StatusForbidden, s.call("GET", acme+one+"?asOf="+position, "user", "").status)
	}
}

// worldWithoutArchive returns a world that has folded the log of the harness and has no archive.
func worldWithoutArchive(t *testing.T, s *harness) *projections.World {
	w := projections.NewWorld()
	for e, err := range s.log.Read(t.Context(), "events.>", 0) {
		require.NoError(t, err)
		require.NoError(t, w.Apply(e))
	}
	return w
}
