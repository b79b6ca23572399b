package api

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// TestReasoningOfModelsThatDoNotReason checks that a model that does not reason accepts every value
// of reasoning_effort and thinking with a warning that names the field that the caller used, that
// the completion is the same, and that only the strict setting rejects a value that enables
// reasoning.
func TestReasoningOfModelsThatDoNotReason(t *testing.T) {
	s := servingHarness(t, 1)
	s.replicas.responding(func(ctx context.Context, replica domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if req.Reasoning.Acts() {
			return engines.Usage{}, engines.ReasoningError(nil, "has no effect, because this model does not reason: omit it")
		}
		return echo(ctx, replica, req, emit)
	})
	for _, value := range []struct {
		field, value string
		disables     bool
	}{
		{"reasoning_effort", `"low"`, false}, {"reasoning_effort", `"medium"`, false},
		{"reasoning_effort", `"high"`, false}, {"reasoning_effort", `"none"`, true}, {"reasoning_effort", "true", false},
		{"reasoning_effort", "false", true}, {"reasoning_effort", "17", false},
		{"thinking", `{"type": "enabled"}`, false}, {"thinking", `{"type": "enabled", "budget_tokens": 2048}`, false},
		{"thinking", `{"type": "disabled"}`, true},
	} {
		for path, prompt := range map[string]string{
			"/inference/v1/completions": `"prompt": "a b"`, "/v1/completions": `"prompt": "a b", "n": 3`,
			"/v1/chat/completions": `"messages": [{"role": "user", "content": "a b"}], ` +
				`"context_length_exceeded_behavior": "error", "max_tokens": 4`,
			"/inference/v1/chat/completions": `"messages": [{"role": "user", "content": "a b"}], "stream": true`,
		} {
			send := func(extra string) response {
				return s.call("POST", path, "user", `{"model": "accounts/acme/deployments/d1", "seed": 1, `+prompt+extra+`}`)
			}
			// the parts of a response that depend on the completion only
			content := func(a response) (all []string) {
				for _, part := range strings.Split(string(a.body), `"`) {
					if strings.Contains(part, "a b") || part == "a" || part == "b" || part == "a " || part == "b " {
						all = append(all, part)
					}
				}
				return all
			}
			s.server.inference.Strict = false
			plain, a := send(""), send(`, "`+value.field+`": `+value.value)
			require.Equal(t, 200, a.status, "%s %s %s: %s", path, value.field, value.value, a.body)
			require.NotEmpty(t, content(plain), "%s", plain.body)
			require.Equal(t, content(plain), content(a))
			require.Equal(t, []string{value.field + ": has no effect, because this model does not reason: omit it"},
				a.header.Values("anneal-warning"))

			s.server.inference.Strict = true
			a = send(`, "` + value.field + `": ` + value.value)
			if value.disables {
				require.Equal(t, 200, a.status, "%s", a.body)
				continue
			}
			require.Equal(t, 400, a.status, "%s", a.body)
			fault := a.json(t)["error"].(map[string]any)
			require.Equal(t, value.field, fault["param"])
			require.Contains(t, fault["message"], value.field+": has no effect")
		}
	}
}

// TestReasoningErrorsNameTheField checks that an engine's error about reasoning names the field that
// the caller used.
func TestReasoningErrorsNameTheField(t *testing.T) {
	s := servingHarness(t, 1)
	s.replicas.responding(func(context.Context, domain.Replica, engines.CompletionRequest,
		func(engines.Chunk) error) (engines.Usage, error) {
		var v domain.Violations
		v.Add("reasoning", "cannot limit the reasoning tokens")
		return engines.Usage{}, v.Err()
	})
	for field, value := range map[string]string{"reasoning_effort": "2000",
		"thinking": `{"type": "enabled", "budget_tokens": 2000}`} {
		a := s.complete(`"prompt": "a", "` + field + `": ` + value)
		require.Equal(t, 400, a.status)
		require.Equal(t, field, a.json(t)["error"].(map[string]any)["param"], "%s", a.body)
		require.NotContains(t, string(a.body), map[string]string{"thinking": "reasoning_effort",
			"reasoning_effort": "thinking"}[field])
	}
}
