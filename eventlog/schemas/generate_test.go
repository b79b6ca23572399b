package schemas_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
)

type object = map[string]any

// A generator derives schemas from Go types as encoding/json encodes them.
type generator struct {
	texts map[string]string // comments of types ("domain.Files") and of their fields ("domain.Files.Sums")
}

// hidden are the types of fields that the API leaves out of events, and shown are types of fields
// that it shows in another form.
var (
	hidden = []reflect.Type{reflect.TypeFor[domain.Sealed](), reflect.TypeFor[[]byte]()}
	signed = reflect.TypeFor[domain.SignedURL]()
)

const (
	hiddenText = "Only in the log: the API leaves it out."
	signedText = "The API leaves out the signature of the URL."
)

// schema returns the schema of the data of a type of event.
func (g generator) schema(eventType string, data reflect.Type) object {
	out := g.of(data)
	out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	out["$id"] = eventlog.DataSchema(eventType)
	out["title"] = eventType
	return out
}

func (g generator) of(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[domain.Count]():
		return object{"type": "string", "pattern": "^-?[0-9]+$"}
	case reflect.TypeFor[[]byte]():
		return object{"type": []any{"string", "null"}, "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Interface:
		return object{}
	case reflect.Pointer:
		return nullable(g.of(t.Elem()))
	case reflect.Slice:
		return nullable(object{"type": "array", "items": g.of(t.Elem())})
	case reflect.Map:
		return nullable(object{"type": "object", "additionalProperties": g.of(t.Elem())})
	case reflect.Struct:
		return g.object(t)
	}
	panic("no schema of " + t.String())
}

func nullable(of object) object {
	if name, ok := of["type"].(string); ok {
		of["type"] = []any{name, "null"}
	}
	return of
}

func (g generator) object(t reflect.Type) object {
	properties, required := object{}, []string{}
	fields := reflect.VisibleFields(t)
	slices.SortStableFunc(fields, func(a, b reflect.StructField) int { return len(a.Index) - len(b.Index) })
	for _, f := range fields {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "" || name == "-" {
			continue
		}
		owner := t
		if n := len(f.Index) - 1; n > 0 {
			owner = t.FieldByIndex(f.Index[:n]).Type
		}
		if _, taken := properties[name]; taken {
			continue // a field of the outer struct hides this field
		}
		optional := strings.Contains(options, "omit")
		property := g.of(f.Type)
		if names, ok := property["type"].([]any); ok && optional { // encoding/json omits the field when it is null
			property["type"] = names[0]
		}
		texts := []string{withJSONNames(g.texts[owner.String()+"."+f.Name], fields)}
		elem := elemOf(f.Type)
		switch {
		case slices.Contains(hidden, elem):
			optional, texts = true, append(texts, hiddenText)
		case elem == signed:
			texts = append(texts, signedText)
		}
		if text := strings.TrimSpace(strings.Join(texts, " ")); text != "" {
			property["description"] = text
		}
		if properties[name] = property; !optional {
			required = append(required, name)
		}
	}
	out := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = toAny(required)
	}
	if text := g.texts[t.String()]; text != "" {
		out["description"] = text
	}
	return out
}

// withJSONNames replaces Go names of fields in a text by their names in JSON. Names of one word
// stay, because the text may mean the word.
func withJSONNames(text string, fields []reflect.StructField) string {
	for _, f := range fields {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); strings.ToLower(f.Name[1:]) != f.Name[1:] {
			text = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(text, name)
		}
	}
	return text
}

// elemOf returns the type of the elements of pointers, maps and slices other than []byte.
func elemOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Map ||
		t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		t = t.Elem()
	}
	return t
}

func toAny(names []string) (all []any) {
	for _, name := range names {
		all = append(all, name)
	}
	return all
}

// textsOf returns the first paragraphs of the comments of the types of a package, and of their
// fields.
func textsOf(t *testing.T, directory string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	paths := testutil.Glob(t, filepath.Join(directory, "*.go"))
	require.NotEmpty(t, paths)
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			declared, ok := n.(*ast.GenDecl)
			if !ok || declared.Tok != token.TYPE {
				return true
			}
			for _, spec := range declared.Specs {
				one := spec.(*ast.TypeSpec)
				structure, ok := one.Type.(*ast.StructType)
				if !ok {
					continue
				}
				name := file.Name.Name + "." + one.Name.Name
				texts[name] = textOf(one.Name.Name, one.Doc, declared.Doc)
				for _, field := range structure.Fields.List {
					for _, fieldName := range field.Names {
						texts[name+"."+fieldName.Name] = textOf(fieldName.Name, field.Doc, field.Comment)
					}
				}
			}
			return false
		})
	}
	return texts
}

// absent matches the word for a value that encoding/json omits or encodes as null.
var absent = regexp.MustCompile(`\bnil\b`)

// textOf returns the first paragraph of the first comment, without the name at its beginning.
func textOf(name string, comments ...*ast.CommentGroup) string {
	for _, one := range comments {
		if one == nil {
			continue
		}
		paragraph, _, _ := strings.Cut(one.Text(), "\n\n")
		text := strings.Join(strings.Fields(paragraph), " ")
		for _, start := range []string{name + " is ", name + " are ", name + " "} {
			text = strings.TrimPrefix(text, start)
		}
		text = absent.ReplaceAllString(text, "absent")
		if text = strings.TrimSuffix(text, "."); text == "" {
			continue
		}
		runes := []rune(text)
		return string(unicode.ToUpper(runes[0])) + string(runes[1:]) + "."
	}
	return ""
}
