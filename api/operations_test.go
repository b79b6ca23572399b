package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/internal/testutil"
)

// TestEveryOperationHasARow checks that operationRows and the served document have the same
// operations, and that each operation has a golden file unless it is bulky.
func TestEveryOperationHasARow(t *testing.T) {
	s := newHarness(t, request.Limits{})
	var described, tested, golden []string
	for _, item := range s.document().Paths.Map() {
		for _, op := range item.Operations() {
			described = append(described, op.OperationID)
		}
	}
	for _, r := range operationRows() {
		tested = append(tested, r.id)
	}
	files := testutil.Glob(t, "testdata/operations/*.golden")
	for _, file := range files {
		golden = append(golden, strings.TrimSuffix(filepath.Base(file), ".golden"))
	}
	slices.Sort(described)
	slices.Sort(tested)
	slices.Sort(golden)
	require.Equal(t, described, tested, "the operations of the document, and the rows in operation_rows_test.go")
	if !*update {
		require.Equal(t, tested, golden,
			"the rows, and the files of testdata/operations: go test ./api -run TestOperations -update, and delete what is "+
				"left over")
	}
}

// TestOperations checks the responses of every operation to requests without permission, to
// requests with the errors that operations have in common, and to the request of the operation's
// test case.
func TestOperations(t *testing.T) {
	table := map[string]*request.Operation{}
	all := (&Server{}).operations()
	for i := range all {
		table[all[i].ID] = &all[i]
	}
	for _, r := range operationRows() {
		t.Run(r.id, func(t *testing.T) {
			require.Contains(t, table, r.id)
			s := newHarness(t, request.Limits{})
			if r.prepare != nil {
				r.prepare(s)
			}
			s.set(r.scene)
			x := &operationTest{harness: s, op: table[r.id], valid: parseRequest(r.request)}
			before := x.position()
			if x.op.Gate != request.Everyone {
				x.unauthenticated()
				x.otherRoles()
				x.missing()
				x.unknownQuery()
				x.unknownMasks()
				x.wrongBodies()
			}
			require.Equal(t, before, x.position(), "rejected requests change nothing")
			s.clock.at(epoch.Add(time.Hour)) // the same time for any number of earlier requests
			a := x.golden(r)
			x.projected(a)
			x.repeated(a)
		})
	}
}

// An operationTest tests one operation on a harness on which the test case of the operation is
// prepared.
type operationTest struct {
	*harness
	op    *request.Operation
	valid scripted
}

func (x *operationTest) position() uint64 {
	last, err := x.log.Last(x.Context())
	require.NoError(x, err)
	return last.Position
}

// sendRow sends the request of the test case after edit has modified it. All requests have the same
// request ID.
func (x *operationTest) sendRow(edit func(*scripted), headers ...string) response {
	x.Helper()
	one := x.valid
	if edit != nil {
		edit(&one)
	}
	r := one.on(x.harness)
	r.Header.Set("X-Request-Id", "request-1")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return x.send(r)
}

// rejected requires an error response with a message in the format of the path.
func (x *operationTest) rejected(status int, a response, says ...string) {
	x.Helper()
	require.Equal(x, status, a.status, "%s", a.body)
	message, _ := a.json(x)["message"].(string)
	if x.op.HasInferenceErrors() {
		inner, _ := a.json(x)["error"].(map[string]any)
		message, _ = inner["message"].(string)
	}
	require.NotEmpty(x, message, "%s", a.body)
	for _, one := range says {
		require.Contains(x, message, one)
	}
}

// unauthenticated requires 401 without an API key, and 403 with the key of another account, with a
// message that does not depend on whether the resource exists.
func (x *operationTest) unauthenticated() {
	x.Helper()
	a := x.sendRow(func(one *scripted) { one.alias = "" })
	x.rejected(http.StatusUnauthorized, a)
	require.NotEmpty(x, a.header.Get("WWW-Authenticate"))
	if x.op.IsInference() {
		x.unauthenticatedInference()
		return
	}
	if x.op.Gate == request.InOwnAccount {
		x.invisible()
		return
	}
	if x.op.ID == "getCaller" {
		return // every key may read who it is
	}
	stranger := func(one *scripted) { one.alias = "other" }
	a = x.sendRow(stranger)
	x.rejected(http.StatusForbidden, a)
	if gone, ok := x.elsewhere("none"); ok {
		b := x.sendRow(func(one *scripted) { stranger(one); one.path = gone })
		require.Equal(x, string(a.body), string(b.body), "the error shows whether the resource exists")
	}
}

// unauthenticatedInference is like unauthenticated, for operations whose bodies name a model.
func (x *operationTest) unauthenticatedInference() {
	x.Helper()
	if x.valid.body == "" {
		return // the list of models is never forbidden
	}
	for _, id := range []string{"d", "none"} {
		a := x.sendRow(func(one *scripted) {
			one.alias = "other"
			one.body = strings.ReplaceAll(one.body, "/deployments/d\"", "/deployments/"+id+"\"")
			one.fields = slices.Clone(one.fields)
			for i, field := range one.fields {
				one.fields[i] = strings.TrimSuffix(field, "/deployments/d")
				if one.fields[i] != field {
					one.fields[i] += "/deployments/" + id
				}
			}
		})
		x.rejected(http.StatusForbidden, a, "accounts/acme/deployments/"+id)
	}
}

// invisible requires 404 for a resource of another account, with a message that does not depend on
// whether the resource exists. Operations without a resource work on the account of the key.
func (x *operationTest) invisible() {
	x.Helper()
	gone, ok := x.elsewhere("none")
	if !ok {
		return
	}
	stranger := func(one *scripted) { one.alias = "other" }
	a := x.sendRow(stranger)
	x.rejected(http.StatusNotFound, a)
	b := x.sendRow(func(one *scripted) { stranger(one); one.path = gone })
	path, _, _ := strings.Cut(x.valid.path, "?")
	id := strings.Split(strings.TrimPrefix(path, strings.Split(x.op.Path, "{")[0]), "/")[0]
	require.Equal(x, strings.ReplaceAll(string(a.body), `\"`+id+`\"`, `\"none\"`), string(b.body))
}

// otherRoles requires 403 with each API key of the account whose role lacks the permission.
func (x *operationTest) otherRoles() {
	x.Helper()
	for _, role := range []string{domain.RoleAdmin, domain.RoleUser, domain.RoleInference} {
		lacks := !slices.Contains(request.Granted[role], x.op.Permission)
		if x.op.Gate == request.ByOperator || x.op.Gate != request.ToModels && lacks {
			x.rejected(http.StatusForbidden, x.sendRow(func(one *scripted) { one.alias = role }))
		}
	}
}

// missing requires 404 for a resource that does not exist, with a message that names the resource.
func (x *operationTest) missing() {
	x.Helper()
	if path, ok := x.elsewhere("none"); ok {
		x.rejected(http.StatusNotFound, x.sendRow(func(one *scripted) { one.path = path }), "none")
	}
}

// elsewhere returns the path of the test case's request with another ID of the resource. It returns
// false when the path has no ID.
func (x *operationTest) elsewhere(id string) (string, bool) {
	path, query, _ := strings.Cut(x.valid.path, "?")
	pattern := regexp.QuoteMeta(x.op.Path)
	for _, name := range []string{"account", "id", "version", "checkpoint", "position"} {
		pattern = strings.ReplaceAll(pattern, `\{`+name+`\}`, `(?P<`+name+`>[^/:]+)`)
	}
	pattern = strings.ReplaceAll(pattern, `\{model\}`, `(?P<model>.+)`)
	pattern = strings.ReplaceAll(pattern, `\{path\}`, `(?P<path>.+)`)
	at := regexp.MustCompile("^" + pattern + "$")
	found := at.FindStringSubmatchIndex(path)
	require.NotNil(x, found, "%s is no path of %s", path, x.op.Path)
	group := max(at.SubexpIndex("id"), at.SubexpIndex("position"))
	if group < 0 {
		return "", false
	}
	out := path[:found[2*group]] + id + path[found[2*group+1]:]
	if query != "" {
		out += "?" + query
	}
	return out, true
}

// with returns an edit that sets a query parameter.
func with(name, value string) func(*scripted) {
	return func(one *scripted) {
		path, query, _ := strings.Cut(one.path, "?")
		values, _ := url.ParseQuery(query)
		values.Set(name, value)
		one.path = path + "?" + values.Encode()
	}
}

// unknownQuery requires that an unknown query parameter is rejected with an error that lists all
// parameters that the operation declares. Inference operations must ignore the parameter with a
// warning.
func (x *operationTest) unknownQuery() {
	x.Helper()
	if x.op.IsInference() && x.op.Method == http.MethodPost {
		require.Contains(x, x.sendRow(with("colour", "red")).header.Get("anneal-warning"), "colour")
		return
	}
	declared := map[string]bool{}
	for _, p := range x.op.Query {
		declared[p.Name] = true
	}
	x.rejected(http.StatusBadRequest, x.sendRow(with("colour", "red")),
		"colour: is not a query parameter of this operation; valid parameters: "+wire.OrNone(
			strings.Join(wire.SortedKeys(declared),
				", ")))
}

func (x *operationTest) unknownMasks() {
	x.Helper()
	for _, mask := range []string{"readMask", "updateMask"} {
		if x.op.Declares(mask) {
			x.rejected(http.StatusBadRequest, x.sendRow(with(mask, "colour")), mask, "colour")
		}
	}
}

// golden sends the request of the test case, and compares the response with the golden file.
func (x *operationTest) golden(r row) response {
	x.Helper()
	var headers []string
	if x.op.Repeatable() {
		headers = []string{request.IdempotencyHeader, "the-first"}
	}
	a := x.sendRow(nil, headers...)
	require.Equal(x, http.StatusOK, a.status, "%s", a.body)
	got := "> " + strings.ReplaceAll(r.request, "\n", "\n> ") + "\n"
	if r.bulky {
		got += "< 200\n< " + a.header.Get("Content-Type") + "\n"
	} else {
		got += transcribed(x.harness, a)
	}
	file := filepath.Join("testdata", "operations", r.id+".golden")
	if *update {
		require.NoError(x, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(x, os.WriteFile(file, []byte(got), 0o644))
		return a
	}
	want := testutil.ReadFile(x, file)
	require.Equal(x, string(want), got)
	return a
}

// projected requires that the response to a request with a read mask contains exactly the fields of
// the mask.
func (x *operationTest) projected(a response) {
	x.Helper()
	if !x.op.Declares("readMask") {
		return
	}
	items, listed := listOf(a.json(x))
	require.NotEmpty(x, items, "a row's list is not empty")
	field := "name"
	for _, other := range []string{"type", "kind"} { // of events and of audit records
		if _, ok := items[0][field]; !ok {
			field = other
		}
	}
	if _, ok := items[0][field]; !ok {
		field = "requests" // a row of usage
	}
	b := x.sendRow(with("readMask", field))
	require.Equal(x, http.StatusOK, b.status, "%s", b.body)
	masked, _ := listOf(b.json(x))
	require.Len(x, masked, len(items))
	for i, one := range masked {
		require.Equal(x, map[string]any{field: items[i][field]}, one)
	}
	if listed {
		require.Equal(x, a.json(x)["totalSize"], b.json(x)["totalSize"])
	}
}

// listOf returns the items of a list response, or the resource of any other response. listed
// reports whether the response is a list.
func listOf(tree map[string]any) (items []map[string]any, listed bool) {
	if _, listed = tree["totalSize"]; !listed {
		return []map[string]any{tree}, false
	}
	for _, value := range tree {
		list, _ := value.([]any)
		for _, item := range list {
			items = append(items, item.(map[string]any))
		}
	}
	return items, true
}

// repeated requires that a retry with the same Idempotency-Key gets the response a, byte for byte,
// and records nothing, and that a request with the same key and another body gets 409.
func (x *operationTest) repeated(a response) {
	x.Helper()
	if !x.op.Repeatable() {
		return
	}
	before := x.position()
	b := x.sendRow(nil, request.IdempotencyHeader, "the-first")
	require.Equal(x, a.status, b.status, "%s", b.body)
	require.Equal(x, string(a.body), string(b.body))
	require.Equal(x, "true", b.header.Get(request.ReplayedHeader))
	c := x.sendRow(func(one *scripted) { one.body += " " }, request.IdempotencyHeader, "the-first")
	x.rejected(http.StatusConflict, c, request.IdempotencyHeader)
	require.Equal(x, before, x.position(), "a repeated request records nothing")
	for _, size := range []int{0, request.MaxIdempotencyKey + 1} {
		x.rejected(http.StatusBadRequest, x.sendRow(nil, request.IdempotencyHeader, strings.Repeat("k", size)),
			request.IdempotencyHeader)
	}
}

// violations returns the fields that an error names. In errors of inference operations, the names
// are in the message.
func violations(x *operationTest, a response) []string {
	x.Helper()
	var body struct {
		Error   request.InferenceErrorBody `json:"error"`
		Details []struct {
			Violations []domain.Violation `json:"fieldViolations"`
		} `json:"details"`
	}
	require.NoError(x, json.Unmarshal(a.body, &body))
	var fields []string
	for message := range strings.SplitSeq(body.Error.Message, "; ") {
		field, _, _ := strings.Cut(message, ": ")
		fields = append(fields, field)
	}
	for _, d := range body.Details {
		for _, v := range d.Violations {
			require.NotEmpty(x, v.Description, v.Field)
			fields = append(fields, v.Field)
		}
	}
	return fields
}
