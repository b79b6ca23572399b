package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// A textField is a string field of a body: its path, and the field whose rule applies.
type textField struct {
	path, field string
	isKey       bool
	body        func(text string) any // returns a body with only this field
}

// textFieldsOf lists all strings of a wire type that a request may set, and the keys of its maps.
func textFieldsOf(t reflect.Type) (all []textField) {
	var walk func(t reflect.Type, path, field string, wrap func(any) any)
	walk = func(t reflect.Type, path, field string, wrap func(any) any) {
		switch t = wire.Deref(t); wire.KindOf(t) {
		case wire.Object:
			for _, f := range wire.StructOf(t).Fields {
				if !f.Output {
					walk(f.Type, wire.Join(path, f.Name), f.Name, func(v any) any { return wrap(map[string]any{f.Name: v}) })
				}
			}
		case wire.Map:
			all = append(all, textField{path, field, true,
				func(text string) any { return wrap(map[string]any{text: sample(wire.Deref(t.Elem()))}) }})
			walk(t.Elem(), wire.Join(path, "k"), field, func(v any) any { return wrap(map[string]any{"k": v}) })
		case wire.List:
			walk(t.Elem(), path+"[0]", field, func(v any) any { return wrap([]any{v}) })
		case wire.Text:
			all = append(all, textField{path, field, false, func(text string) any { return wrap(text) }})
		}
	}
	walk(t, "", "", func(v any) any { return v })
	return all
}

func sample(t reflect.Type) any {
	if wire.KindOf(t) == wire.Text {
		return "x"
	}
	return json.Number("1")
}

// TestControlCharactersInEveryTextField checks that every string in a body of the management
// interface is rejected when it contains a control character. The error must name the field and not
// repeat the value. The test lists the fields that allow control characters.
func TestControlCharactersInEveryTextField(t *testing.T) {
	raw, lines := map[string]bool{}, map[string]bool{}
	fields := 0
	for _, op := range (&Server{}).operations() {
		if op.Body == nil || op.IsInference() {
			continue
		}
		for _, f := range textFieldsOf(op.Body) {
			fields++
			refused := func(text string) (domain.Violations, bool) {
				var v domain.Violations
				wire.Normalize(&v, op.Body, f.body("a"+text+"b"))
				return v, len(v) > 0
			}
			_, noEscape := refused("\u001b[31m")
			_, noNewline := refused("\n")
			switch {
			case !noEscape:
				raw[f.field] = true
				require.False(t, f.isKey, "%s: %s", op.ID, f.path)
				continue
			case !noNewline:
				lines[f.field] = true
				require.False(t, f.isKey, "%s: %s", op.ID, f.path)
			}
			for _, character := range []string{"\u0000", "\u001b[31m", "\r", "\u007f", "\u009b2J", "\u202e", "\u2066",
				"\u200b"} {
				v, wrong := refused(character)
				require.True(t, wrong, "%s: %s takes %q", op.ID, f.path, character)
				require.True(t, strings.HasPrefix(v[0].Field, f.path), "%s: %s, not %s", op.ID, f.path, v[0].Field)
				require.NotContains(t, v[0].Field+v[0].Description, character, "%s: %s", op.ID, f.path)
			}
			if !f.isKey {
				_, wrong := refused("ü 世界 👩\u200d💻")
				require.False(t, wrong, "%s: %s", op.ID, f.path)
			}
		}
	}
	require.Greater(t, fields, 200)
	require.Equal(t, []string{"extraBody", "fileContents", "jinjaTemplate", "requirements", "value"}, wire.SortedKeys(raw))
	require.Equal(t, []string{"description", "filter"}, wire.SortedKeys(lines))
	for field := range wire.TextForms {
		require.True(t, slices.Contains(append(wire.SortedKeys(raw), wire.SortedKeys(lines)...), field),
			"no body has the field %s", field)
	}
}

// TestMapKeysHaveNoFieldRules checks that the rules of a field do not apply to a map key with the
// same name.
func TestMapKeysHaveNoFieldRules(t *testing.T) {
	var v domain.Violations
	wire.Normalize(&v, reflect.TypeFor[struct {
		Labels map[string]string `json:"labels"`
	}](), map[string]any{"labels": map[string]any{"value": "\u001b"}})
	require.Len(t, v, 1)
	require.Equal(t, "labels.value", v[0].Field)
}

// TestControlCharactersAreRefused checks that a string or field name with a control character is
// rejected with an error that contains no control characters, and that no event is recorded.
func TestControlCharactersAreRefused(t *testing.T) {
	s := newHarness(t, request.Limits{})
	before := s.events()
	for _, body := range []string{
		`{"datasetId":"d","dataset":{"displayName":"red \u001b[31m"}}`,
		`{"datasetId":"d","dataset":{"red \u009b31m\u202e":1}}`,
		`{"datasetId":"d\u001b]0;x\u0007","dataset":{}}`,
	} {
		a := s.call(http.MethodPost, "/v1/accounts/acme/datasets", "admin", body)
		require.Equal(t, http.StatusBadRequest, a.status, string(a.body))
		var fullOutput struct{ Message string }
		require.NoError(t, json.Unmarshal(a.body, &fullOutput))
		require.NotEmpty(t, fullOutput.Message)
		require.Equal(t, domain.Printable(fullOutput.Message), fullOutput.Message)
	}
	require.Equal(t, before, s.events())
}

// TestStoredControlCharactersAreKept checks that NormalizeStored keeps strings with control
// characters that an older version has stored.
func TestStoredControlCharactersAreKept(t *testing.T) {
	type older struct {
		DisplayName string            `json:"displayName"`
		Labels      map[string]string `json:"labels"`
	}
	old := map[string]any{"displayName": "red \u001b[31m", "labels": map[string]any{"a\u001b": "\u009b"}}
	require.Equal(t, wire.Body(old), wire.NormalizeStored(reflect.TypeFor[older](), old))
}
