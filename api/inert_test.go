package api

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/inert"
	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/internal/testutil"
)

// effectsFile says for each field of a request which file of the repository acts on it, or that the
// field is only shown in responses. It has one field a line: TYPE.FIELD, or ?NAME for a parameter
// of a query, and the file.
const effectsFile = "testdata/field_effects.txt"

const shown = "shown"

// A requestField is a field that requests can set.
type requestField struct {
	key    string // TYPE.FIELD, where TYPE declares the field
	goName string // name of the field in Go
	name   string // name in JSON
	owner  reflect.Type
	of     reflect.Type
}

// requestFields returns the fields of t that a request can set, those of embedded structs included.
func requestFields(t reflect.Type) (fields []requestField) {
	taken := map[string]bool{}
	var collect func(t reflect.Type)
	collect = func(declaring reflect.Type) {
		var embedded []reflect.Type
		for f := range declaring.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-" || !f.IsExported():
			case f.Anonymous && name == "":
				embedded = append(embedded, wire.Deref(f.Type))
			case !taken[name]:
				taken[name] = true
				if f.Tag.Get("api") != "output" {
					fields = append(fields, requestField{declaring.Name() + "." + name, f.Name, name, t, f.Type})
				}
			}
		}
		for _, e := range embedded {
			collect(e)
		}
	}
	collect(t)
	return fields
}

// fieldUses has the fields of all requests by key, except the fields that never have an effect.
type fieldUses struct {
	fields map[string]requestField
	inert  map[string]bool // keys of fields that the table of inert fields lists without a condition
	seen   map[reflect.Type]bool
}

func (u *fieldUses) walk(t reflect.Type) {
	t = wire.Deref(t)
	if t == reflect.TypeFor[request.File]() {
		return
	}
	switch wire.KindOf(t) {
	case wire.List, wire.Map:
		u.walk(t.Elem())
	case wire.Object:
		if u.seen[t] {
			return
		}
		u.seen[t] = true
		for _, f := range requestFields(t) {
			if u.inert[ownedBy(t, f.name)] {
				continue
			}
			if f.owner.Name() == "" { // the object that holds a resource and its ID
				f.key = "." + f.name
			}
			u.fields[f.key] = f
			u.walk(f.of)
		}
	}
}

func ownedBy(owner reflect.Type, field string) string { return owner.String() + "." + field }

// usesOf returns the fields and the parameters of all operations, and the table's entries that name
// none of them.
func usesOf(table []request.Operation) (uses fieldUses, parameters map[string]bool, unknown []string) {
	uses = fieldUses{map[string]requestField{}, map[string]bool{}, map[reflect.Type]bool{}}
	parameters = map[string]bool{}
	for _, f := range inert.Table {
		for _, name := range f.Requests {
			unknown = append(unknown, name+" "+f.Path)
		}
	}
	found := func(name string) {
		unknown = slices.DeleteFunc(unknown, func(one string) bool { return one == name })
	}
	for i := range table {
		op := &table[i]
		silent := map[string]bool{}
		for _, f := range openapi.InertFields(op) {
			owner, field := f.Owner()
			if owner == nil { // a field of an object whose fields the body's type does not list
				whole := f
				for owner == nil && strings.Contains(whole.Path, ".") {
					whole.Path = whole.Path[:strings.LastIndex(whole.Path, ".")]
					owner, _ = whole.Owner()
				}
				if owner, field := whole.Owner(); owner != nil {
					options, _ := wire.StructOf(owner).Field(field)
					if kind := wire.KindOf(wire.Deref(options.Type)); kind == wire.Map || kind == wire.Any {
						found(op.ID + " " + f.Path)
					}
				}
				owner = nil
			}
			settable := owner != nil && slices.ContainsFunc(requestFields(owner),
				func(one requestField) bool { return one.name == field })
			if owner != nil && f.Always() {
				uses.inert[ownedBy(owner, field)] = true
			}
			silent[f.Parameter()] = f.Always()
			if settable || op.Declares(f.Parameter()) {
				found(op.ID + " " + f.Path)
				found(op.Tag + " " + f.Path)
			}
		}
		for _, p := range op.Query {
			if !silent[p.Name] {
				parameters["?"+p.Name] = true
			}
		}
	}
	for i := range table {
		for _, body := range []reflect.Type{table[i].Body, table[i].Form} {
			if body != nil && body != request.NoBody {
				uses.walk(body)
			}
		}
	}
	return uses, parameters, unknown
}

// TestEveryFieldHasAnEffect enumerates the fields of all requests. Each of them is in the table of
// inert fields, or effectsFile names the file that acts on it, and that file uses the field.
func TestEveryFieldHasAnEffect(t *testing.T) {
	s := newHarness(t, request.Limits{})
	uses, parameters, unknown := usesOf(s.server.table)
	require.Empty(t, unknown, "the table of inert fields names fields that no request has")
	effects, sources := effectsOf(t), sources{}
	for _, key := range wire.SortedKeys(uses.fields) {
		f, where := uses.fields[key], effects[key]
		delete(effects, key)
		switch where {
		case "":
			t.Errorf("%s (%s): name the file that acts on it in %s, or add it to inert.Table", key, f.goName, effectsFile)
		case shown:
		default:
			if !sources.use(t, where, f.goName, f.name) {
				t.Errorf("%s: %s does not use the field %s", key, where, f.goName)
			}
		}
	}
	for _, name := range wire.SortedKeys(parameters) {
		where := effects[name]
		delete(effects, name)
		if where == "" || !sources.use(t, where, "", name[1:]) {
			t.Errorf("%s: name the file that reads the parameter in %s", name, effectsFile)
		}
	}
	require.Empty(t, effects, "%s names fields that no request has, or that are inert", effectsFile)
}

func effectsOf(t *testing.T) map[string]string {
	data := testutil.ReadFile(t, effectsFile)
	effects := map[string]string{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		require.Len(t, fields, 2, line)
		require.NotContains(t, effects, fields[0])
		effects[fields[0]] = fields[1]
	}
	return effects
}

// sources has, by file, the identifiers that the file selects and the strings in it.
type sources map[string]map[string]bool

// use reports whether the file uses a field: it selects goName, or has the string name.
func (s sources) use(t *testing.T, path, goName, name string) bool {
	if s[path] == nil {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", filepath.FromSlash(path)), nil, 0)
		require.NoError(t, err)
		words := map[string]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				words["."+n.Sel.Name] = true
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil {
					words[text] = true
				}
			}
			return true
		})
		s[path] = words
	}
	return s[path]["."+goName] || s[path][name]
}

// TestInertFieldsAreWarnedOf checks that a request that sets an inert field gets one warning that
// names the field, and that default values cause no warning.
func TestInertFieldsAreWarnedOf(t *testing.T) {
	for _, one := range []struct{ path, body, field string }{
		{"deployments?deploymentId=d&skipImageTagValidation=true",
			`{"baseModel": "accounts/default/models/anneal-base"}`, "skipImageTagValidation"},
		{"deployments?deploymentId=d", `{"baseModel": "accounts/default/models/anneal-base", "precision": "FP8", ` +
			`"acceleratorType": "VENDOR_A_H100_80GB"}`, "precision"},
		{"deployments?deploymentId=d", `{"baseModel": "accounts/default/models/anneal-base", "minReplicaCount": 1, ` +
			`"autoscalingPolicy": {"scaleToZeroWindow": "600s"}}`, "autoscalingPolicy.scaleToZeroWindow"},
		{"deployments?deploymentId=d", `{"baseModel": "accounts/default/models/anneal-base", "pricing_plan_id": "p"}`,
			"pricingPlanId"},
		{"deployments?deploymentId=d", `{"baseModel": "accounts/default/models/anneal-base", ` +
			`"hotLoadBucketType": "OBJECT_STORE_API"}`, "hotLoadBucketType"},
		{"deployments?deploymentId=d&disableSpeculativeDecoding=true",
			`{"baseModel": "accounts/default/models/anneal-base", "ngramSpeculationLength": 3}`, "ngramSpeculationLength"},
		{"deployments?deploymentId=d&disableSpeculativeDecoding=true",
			`{"baseModel": "accounts/default/models/anneal-base", "draftTokenCount": 3}`, "draftTokenCount"},
		{"deployments?deploymentId=d&disableSpeculativeDecoding=true", `{"baseModel": ` +
			`"accounts/default/models/anneal-base", "draftModel": "accounts/default/models/anneal-base"}`, "draftModel"},
		{"evaluators", `{"evaluatorId": "e", "evaluator": {"source": {"type": "TYPE_CODE_HOST", ` +
			`"codeHostRepositoryName": "org/repository"}}}`, "source.codeHostRepositoryName"},
	} {
		s := newHarness(t, request.Limits{})
		a := s.ok("POST", acme+"/"+one.path, one.body)
		warnings := a.header.Values("anneal-warning")
		require.Len(t, warnings, 1, "%s: %s", one.body, warnings)
		require.Contains(t, warnings[0], one.field+": accepted, but has no effect", one.body)
	}
	s := newHarness(t, request.Limits{})
	require.Empty(t, s.ok("POST", acme+"/deployments?deploymentId=d", `{"baseModel": `+
		`"accounts/default/models/anneal-base", "placement": {"multiRegion": "GLOBAL"}, "pricingPlanId": "", `+
		`"precision": "PRECISION_UNSPECIFIED", "autoTune": {"longPrompt": false}, `+
		`"hotLoadBucketType": "SERVICE_HOSTED"}`).header.Values("anneal-warning"),
		"defaults cause no warning, and SERVICE_HOSTED is what the server does")
	require.Len(t, s.ok("GET", acme+"/secrets?filter=a", "").header.Values("anneal-warning"), 1)
}

// TestInertFieldsAreDocumented checks that the document says of each inert field that it has no
// effect.
func TestInertFieldsAreDocumented(t *testing.T) {
	s := newHarness(t, request.Limits{})
	doc := s.document()
	for i := range s.server.table {
		op := &s.server.table[i]
		for _, f := range openapi.InertFields(op) {
			if owner, field := f.Owner(); owner != nil {
				component := doc.Components.Schemas[openapi.ComponentName(owner)]
				require.NotNil(t, component, "%s", owner)
				require.Contains(t, component.Value.Properties[field].Value.Description+
					fmt.Sprint(component.Value.Properties[field].Extensions), f.Text(), "%s.%s", owner, field)
			}
		}
	}
}
