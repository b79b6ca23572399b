package inert

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// at returns an object that has a value at a path.
func at(path string, value any) map[string]any {
	names := strings.Split(path, ".")
	for i := len(names) - 1; i > 0; i-- {
		value = map[string]any{names[i]: value}
	}
	return map[string]any{names[0]: value}
}

// TestEachFieldIsWarnedOf checks that a value of each field that never has an effect causes its
// warning, that its default causes none, and that the texts of the table form sentences.
func TestEachFieldIsWarnedOf(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Table {
		require.NotEmpty(t, f.Requests, f.Path)
		require.NotEmpty(t, f.Reason, f.Path)
		require.NotRegexp(t, `^[A-Z][a-z]|\.$`, f.Reason, "%s: a clause without a full stop", f.Path)
		for _, request := range f.Requests {
			key := request + " " + f.Path + f.when()
			require.False(t, seen[key], "%s has two entries", key)
			seen[key] = true
			require.Contains(t, Of(request), f)
		}
		if !f.Always() {
			require.NotNil(t, f.When.Holds, f.Path)
			require.NotEmpty(t, f.When.Text, f.Path)
			continue
		}
		one := []Field{{Requests: f.Requests, Path: f.Path, Reason: f.Reason}}
		if name := f.Parameter(); name != "" {
			require.Equal(t, []string{f.Warning()}, ParameterWarnings(one, url.Values{name: {"true"}}))
			require.Empty(t, ParameterWarnings(one, url.Values{name: {"false"}, "other": {"true"}}))
			continue
		}
		for _, value := range []any{"x", true, json.Number("2"), []any{"x"}, map[string]any{"a": "b"}} {
			require.Equal(t, []string{f.Warning()}, Warnings(one, at(f.Path, value), Facts{}), f.Path)
		}
		for _, value := range []any{nil, "", false, json.Number("0"), 0.0, []any{}, map[string]any{"a": false},
			"PURPOSE_UNSPECIFIED"} {
			require.Empty(t, Warnings(one, at(f.Path, value), Facts{}), f.Path)
		}
		require.Contains(t, f.Text(), "It has no effect: "+f.Reason+".")
	}
}

// TestConditions checks conditions on other fields, on the server and on elements of lists.
func TestConditions(t *testing.T) {
	deployment := func(fields string, facts Facts) []string {
		require.NoError(t, json.Unmarshal([]byte(fields), &facts.Fields))
		return Warnings(Of("deployments"), facts.Fields, facts)
	}
	require.Empty(t, deployment(`{"directRouteType": "INTERNET", "directRouteApiKeys": ["k"]}`, Facts{DirectRoutes: true}))
	require.Len(t, deployment(`{"directRouteType": "INTERNET", "directRouteApiKeys": ["k"]}`, Facts{}), 1)
	require.Len(t, deployment(`{"directRouteApiKeys": ["k"]}`, Facts{}), 1)
	require.Len(t, deployment(`{"placement": {"regions": ["US_IOWA_1"]}}`, Facts{}), 1)
	require.Empty(t, deployment(`{"placement": {"regions": ["US_IOWA_1"]}}`, Facts{Located: true}))
	require.Empty(t, deployment(`{"placement": {"multiRegion": "GLOBAL"}}`, Facts{}))
	has := func(_, precision string, copies bool) bool {
		return precision == "BF16" || precision == "FP16" && copies
	}
	for fields, n := range map[string]int{`{"precision": "BF16"}`: 0, `{"precision": "FP16"}`: 0,
		`{"precision": "FP8"}`:                        1,
		`{"precision": "BF16", "enableAddons": true}`: 0, `{"precision": "FP16", "enableAddons": true}`: 1,
		`{"precision": "FP8", "enableHotLoad": true}`: 1} {
		require.Len(t, deployment(fields, Facts{HasPrecision: has}), n, fields)
	}
	var chat map[string]any
	require.NoError(t, json.Unmarshal([]byte(`{"messages": [{"role": "user"}, {"role": "assistant", "refusal": "no"}],
		"stream_options": {"include_usage": true}, "stream": true}`), &chat))
	require.Equal(t, []string{"messages.refusal: accepted, but has no effect: prompts do not contain refusals"},
		Warnings(Of("createChatCompletion"), chat, Facts{Fields: chat}))
}
