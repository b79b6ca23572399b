package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

// TestInputsBeyondLimits checks that an inference request that exceeds a limit gets one error with
// the status 400 or 413 that names the field, the given value, the limit and the way out.
func TestInputsBeyondLimits(t *testing.T) {
	s := servingHarness(t, 1)
	list := func(n int, item string) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }
	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	const message = `{"role": "user", "content": "a"}`
	const item = `{"role": "user", "content": "a"}`
	const call = `{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}`
	tool := func(i int) string {
		return fmt.Sprintf(`{"type": "function", "function": {"name": "f%d"}}`, i)
	}
	var tools []string
	for i := range 129 {
		tools = append(tools, tool(i))
	}
	var biases []string
	for i := range 1025 {
		biases = append(biases, fmt.Sprintf(`"%d": 1`, i))
	}
	for _, c := range []struct {
		path, body, field string
		given, limit      int
	}{
		{"completions", `"prompt": ` + list(129, `"a"`), "prompt", 129, 128},
		{"completions", `"prompt": ` + list(129, `[1]`), "prompt", 129, 128},
		{"completions", `"prompt": ` + list(5, `"a"`) + `, "n": 103`, "n", 515, 512},
		{"completions", `"prompt": "a", "stop": ` + list(5, `"a"`), "stop", 5, 4},
		{"completions", `"prompt": "a", "stop": ` + text(513), "stop", 513, 512},
		{"completions", `"prompt": "a", "user": ` + text(513), "user", 513, 512},
		{"completions", `"prompt": "a", "prompt_cache_isolation_key": ` + text(513), "prompt_cache_isolation_key", 513, 512},
		{"completions", `"prompt": "a", "logit_bias": {` + strings.Join(biases, ",") + `}`, "logit_bias", 1025, 1024},
		{"completions", `"prompt": "a", "speculation": ` + text(65537), "speculation", 65537, 65536},
		{"completions", `"prompt": "a", "response_format": {"type": "grammar", "grammar": ` + text(262145) + `}`,
			"response_format.grammar", 262145, 262144},
		{"chat/completions", `"messages": ` + list(10001, message), "messages", 10001, 10000},
		{"chat/completions", `"messages": [` + message + `], "tools": [` + strings.Join(tools, ",") + `]`, "tools", 129, 128},
		{"chat/completions", `"messages": [{"role": "user", "content": "a", "name": ` + text(65) + `}]`, "messages", 65, 64},
		{"chat/completions", `"messages": [{"role": "assistant", "tool_calls": ` + list(129, call) + `}]`, "messages", 129,
			128},
		{"responses", `"input": ` + list(10001, item), "input", 10001, 10000},
		{"responses", `"input": "a", "user": ` + text(513), "user", 513, 512},
		{"embeddings", `"input": ` + list(2049, `"a"`), "input", 2049, 2048},
		{"embeddings", `"input": "a", "user": ` + text(513), "user", 513, 512},
	} {
		a := s.call("POST", "/v1/"+c.path, "user", `{"model": "accounts/acme/deployments/d1", `+c.body+`}`)
		require.Equal(t, 400, a.status, "%s of %s: %.300s", c.field, c.path, a.body)
		fault := a.json(t)["error"].(map[string]any)
		require.Equal(t, c.field, fault["param"], "%s", a.body)
		says := fault["message"].(string)
		require.Equal(t, 1, strings.Count(says, "must"), "one violation: %s", says)
		require.Contains(t, says, c.field)
		require.Regexp(t, fmt.Sprintf(`\b%d\b`, c.given), says)
		require.Regexp(t, fmt.Sprintf(`\b%d\b`, c.limit), says)
		require.Less(t, len(says), 300)
	}
	// a body and a prompt that are too large as a whole
	limit := int(request.DefaultLimits.Body)
	for _, path := range []string{"completions", "chat/completions", "responses", "embeddings"} {
		body := `{"prompt": ` + text(limit) + `}`
		a := s.call("POST", "/v1/"+path, "user", body)
		require.Equal(t, 413, a.status)
		says := a.json(t)["error"].(map[string]any)["message"]
		require.Equal(t, fmt.Sprintf("the body has %d bytes, more than the limit of %d: send a smaller "+
			"body", len(body), limit), says)
	}
	s.replicas.responding(func(context.Context, domain.Replica, engines.CompletionRequest,
		func(engines.Chunk) error) (engines.Usage, error) {
		var v domain.Violations
		v.Add("messages", "have 900 tokens, which fill the context length of 512: shorten them")
		return engines.Usage{}, v.Err()
	})
	for path, body := range map[string]string{"chat/completions": `"messages": [` + message + `]`,
		"responses": `"input": "a"`} {
		a := s.call("POST", "/v1/"+path, "user", `{"model": "accounts/acme/deployments/d1", `+body+`}`)
		field := strings.Split(body, `"`)[1]
		require.Equal(t, 400, a.status)
		require.Equal(t, field, a.json(t)["error"].(map[string]any)["param"], "%s", a.body)
	}
}
