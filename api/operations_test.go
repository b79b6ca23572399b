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
)

// TestEveryOperationHasARow: the table of the tests and the document that the
// server serves tell the same operations, and each has its golden exchange.
func TestEveryOperationHasARow(t *testing.T) {
	s := newStage(t, Limits{})
	var described, tested, golden []string
	for _, item := range s.document().Paths.Map() {
		for _, op := range item.Operations() {
			described = append(described, op.OperationID)
		}
	}
	for _, r := range operationRows() {
		tested = append(tested, r.id)
	}
	files, err := filepath.Glob("testdata/operations/*.golden")
	require.NoError(t, err)
	for _, file := range files {
		golden = append(golden, strings.TrimSuffix(filepath.Base(file), ".golden"))
	}
	slices.Sort(described)
	slices.Sort(tested)
	slices.Sort(golden)
	require.Equal(t, described, tested, "the operations of the document, and those of the table in operation_rows_test.go")
	if !*update {
		require.Equal(t, tested, golden, "the rows, and the files of testdata/operations: go test ./api -run TestOperations -update, and delete what is left over")
	}
}

// TestOperations asks for every operation: by who may not, wrongly in every way
// that all operations have in common, and then as its row says.
func TestOperations(t *testing.T) {
	table := map[string]*request.Operation{}
	all := operations(nil)
	for i := range all {
		table[all[i].ID] = &all[i]
	}
	for _, r := range operationRows() {
		t.Run(r.id, func(t *testing.T) {
			require.Contains(t, table, r.id)
			s := newStage(t, Limits{})
			if r.stage != nil {
				r.stage(s)
			}
			s.set(r.scene)
			x := &examination{stage: s, op: table[r.id], valid: parseRequest(r.request)}
			before := x.position()
			if x.op.Gate != request.Everyone {
				x.strangers()
				x.otherRoles()
				x.nothingThere()
				x.unknownQuery()
				x.unknownMasks()
				x.wrongBodies()
			}
			require.Equal(t, before, x.position(), "what was refused changed nothing")
			s.clock.at(epoch.Add(time.Hour)) // whatever was asked before
			a := x.golden(r)
			x.projected(a)
			x.repeated(a)
		})
	}
}

// An examination is of one operation on a stage that is set for its row.
type examination struct {
	*stage
	op    *request.Operation
	valid scripted
}

func (x *examination) position() uint64 {
	last, err := x.log.Last(x.Context())
	require.NoError(x, err)
	return last.Position
}

// ask sends the row's request as edit makes it, under the same request ID.
func (x *examination) ask(edit func(*scripted), headers ...string) answer {
	x.Helper()
	one := x.valid
	if edit != nil {
		edit(&one)
	}
	r := one.on(x.stage)
	r.Header.Set("X-Request-Id", "request-1")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return x.send(r)
}

// refused requires a refusal with a message in the shape of the path.
func (x *examination) refused(status int, a answer, says ...string) {
	x.Helper()
	require.Equal(x, status, a.status, "%s", a.body)
	message, _ := a.json(x)["message"].(string)
	if x.op.IsInference() {
		inner, _ := a.json(x)["error"].(map[string]any)
		message, _ = inner["message"].(string)
	}
	require.NotEmpty(x, message, "%s", a.body)
	for _, one := range says {
		require.Contains(x, message, one)
	}
}

// strangers: no key is 401. The key of another account is 403, in the same
// words whether what is named is there or not.
func (x *examination) strangers() {
	x.Helper()
	a := x.ask(func(one *scripted) { one.alias = "" })
	x.refused(http.StatusUnauthorized, a)
	require.NotEmpty(x, a.header.Get("WWW-Authenticate"))
	if x.op.IsInference() {
		x.strangersToModels()
		return
	}
	stranger := func(one *scripted) { one.alias = "other" }
	a = x.ask(stranger)
	x.refused(http.StatusForbidden, a)
	if gone, ok := x.elsewhere("none"); ok {
		b := x.ask(func(one *scripted) { stranger(one); one.path = gone })
		require.Equal(x, string(a.body), string(b.body), "the answer tells whether it exists")
	}
}

// strangersToModels: models are named in bodies.
func (x *examination) strangersToModels() {
	x.Helper()
	if x.valid.body == "" {
		return // a list shows everybody their own
	}
	for _, id := range []string{"d", "none"} {
		a := x.ask(func(one *scripted) {
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
		x.refused(http.StatusForbidden, a, "accounts/acme/deployments/"+id)
	}
}

// otherRoles: keys of the account whose role lacks the permission.
func (x *examination) otherRoles() {
	x.Helper()
	for _, role := range []string{domain.RoleAdmin, domain.RoleUser, domain.RoleInference} {
		lacks := !slices.Contains(request.Granted[role], x.op.Permission)
		if x.op.Gate == request.ByOperator || x.op.Gate != request.ToModels && lacks {
			x.refused(http.StatusForbidden, x.ask(func(one *scripted) { one.alias = role }))
		}
	}
}

// nothingThere: what the path names and does not exist is 404, and named.
func (x *examination) nothingThere() {
	x.Helper()
	if path, ok := x.elsewhere("none"); ok {
		x.refused(http.StatusNotFound, x.ask(func(one *scripted) { one.path = path }), "none")
	}
}

// elsewhere is the row's path with another ID of the resource.
func (x *examination) elsewhere(id string) (string, bool) {
	path, query, _ := strings.Cut(x.valid.path, "?")
	pattern := regexp.QuoteMeta(x.op.Path)
	for _, name := range []string{"account", "id", "version"} {
		pattern = strings.ReplaceAll(pattern, `\{`+name+`\}`, `(?P<`+name+`>[^/:]+)`)
	}
	at := regexp.MustCompile("^" + pattern + "$")
	found := at.FindStringSubmatchIndex(path)
	require.NotNil(x, found, "%s is no path of %s", path, x.op.Path)
	group := at.SubexpIndex("id")
	if group < 0 {
		return "", false
	}
	out := path[:found[2*group]] + id + path[found[2*group+1]:]
	if query != "" {
		out += "?" + query
	}
	return out, true
}

// with is the row's request with a query parameter set.
func with(name, value string) func(*scripted) {
	return func(one *scripted) {
		path, query, _ := strings.Cut(one.path, "?")
		values, _ := url.ParseQuery(query)
		values.Set(name, value)
		one.path = path + "?" + values.Encode()
	}
}

// unknownQuery: a parameter that an operation does not have is refused, by a
// handler that has looked at every one that the operation declares. Asking
// models ignores it, and says so.
func (x *examination) unknownQuery() {
	x.Helper()
	if x.op.IsInference() && x.op.Method == http.MethodPost {
		require.Contains(x, x.ask(with("colour", "red")).header.Get("anneal-warning"), "colour")
		return
	}
	declared := map[string]bool{}
	for _, p := range x.op.Query {
		declared[p.Name] = true
	}
	x.refused(http.StatusBadRequest, x.ask(with("colour", "red")), "colour: is not a query parameter here; there are: "+wire.OrNone(strings.Join(wire.SortedKeys(declared), ", ")))
}

func (x *examination) unknownMasks() {
	x.Helper()
	for _, mask := range []string{"readMask", "updateMask"} {
		if x.op.Declares(mask) {
			x.refused(http.StatusBadRequest, x.ask(with(mask, "colour")), mask, "colour")
		}
	}
}

// golden sends the row's request and holds the answer to its file.
func (x *examination) golden(r row) answer {
	x.Helper()
	var headers []string
	if x.op.Repeatable() {
		headers = []string{request.IdempotencyHeader, "the-first"}
	}
	a := x.ask(nil, headers...)
	require.Equal(x, http.StatusOK, a.status, "%s", a.body)
	got := "> " + strings.ReplaceAll(r.request, "\n", "\n> ") + "\n"
	if r.bulky {
		got += "< 200\n< " + a.header.Get("Content-Type") + "\n"
	} else {
		got += transcribed(x.stage, a)
	}
	file := filepath.Join("testdata", "operations", r.id+".golden")
	if *update {
		require.NoError(x, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(x, os.WriteFile(file, []byte(got), 0o644))
		return a
	}
	want, err := os.ReadFile(file)
	require.NoError(x, err)
	require.Equal(x, string(want), got)
	return a
}

// projected: a read mask answers what it names, and nothing else.
func (x *examination) projected(a answer) {
	x.Helper()
	if !x.op.Declares("readMask") {
		return
	}
	items, listed := listOf(a.json(x))
	require.NotEmpty(x, items, "a row's list shows something")
	field := "name"
	if _, ok := items[0]["name"]; !ok {
		field = "type"
	}
	b := x.ask(with("readMask", field))
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

// listOf are the items of a page, or the one resource that an answer is.
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

// repeated: the same request with the same Idempotency-Key has the same answer,
// byte for byte, and records nothing; another body with that key is 409.
func (x *examination) repeated(a answer) {
	x.Helper()
	if !x.op.Repeatable() {
		return
	}
	before := x.position()
	b := x.ask(nil, request.IdempotencyHeader, "the-first")
	require.Equal(x, a.status, b.status, "%s", b.body)
	require.Equal(x, string(a.body), string(b.body))
	require.Equal(x, "true", b.header.Get(request.ReplayedHeader))
	c := x.ask(func(one *scripted) { one.body += " " }, request.IdempotencyHeader, "the-first")
	x.refused(http.StatusConflict, c, request.IdempotencyHeader)
	require.Equal(x, before, x.position(), "a repetition records nothing")
	for _, size := range []int{0, request.MaxIdempotencyKey + 1} {
		x.refused(http.StatusBadRequest, x.ask(nil, request.IdempotencyHeader, strings.Repeat("k", size)), request.IdempotencyHeader)
	}
}

// violations are the fields that a refusal names; those of asking models are
// told in the message alone.
func violations(x *examination, a answer) []string {
	x.Helper()
	var body struct {
		Error   request.InferenceErrorBody `json:"error"`
		Details []struct {
			Violations []domain.Violation `json:"fieldViolations"`
		} `json:"details"`
	}
	require.NoError(x, json.Unmarshal(a.body, &body))
	var fields []string
	for said := range strings.SplitSeq(body.Error.Message, "; ") {
		field, _, _ := strings.Cut(said, ": ")
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
