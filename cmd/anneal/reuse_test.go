package main_test

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPrefixCacheAndSpeculation checks that cached prompt prefixes and predicted tokens are not
// computed again, and that they do not change the responses.
func TestPrefixCacheAndSpeculation(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	user := s.user()
	user.deploy("d1", object{"baseModel": baseModel, "ngramSpeculationLength": 3, "draftTokenCount": 6})
	complete := func(more object) (text string, metrics object) {
		t.Helper()
		body := object{"model": "accounts/default/deployments/d1", "temperature": 0, "max_tokens": 60,
			"perf_metrics_in_response": true,
			"prompt":                   "Give the capital of France, and then say which letters it is written with."}
		maps.Copy(body, more)
		status, answer, err := user.do(http.MethodPost, "//inference/v1/completions", body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, "%v", answer)
		metrics = answer["perf_metrics"].(object)
		usage := answer["usage"].(object)
		require.Equal(t, usage["prompt_tokens_details"].(object)["cached_tokens"], metrics["cached-prompt-tokens"])
		return textOf(t, answer), metrics
	}
	first, metrics := complete(nil)
	require.NotEmpty(t, first)
	require.Zero(t, metrics["cached-prompt-tokens"])
	require.Contains(t, metrics, "speculation-generated-tokens", "the deployment speculates")
	require.NotContains(t, metrics, "speculation-prompt-tokens")

	again, metrics := complete(nil)
	require.Equal(t, first, again)
	require.Equal(t, metrics["prompt-tokens"].(float64)-1, metrics["cached-prompt-tokens"])

	isolated, metrics := complete(object{"prompt_cache_isolation_key": "another"})
	require.Equal(t, first, isolated)
	require.Zero(t, metrics["cached-prompt-tokens"], "an isolation key has a separate prefix cache")

	predicted, metrics := complete(object{"prediction": object{"type": "content", "content": first + " and more"}})
	require.Equal(t, first, predicted)
	require.Positive(t, metrics["speculation-prompt-tokens"])
	require.Contains(t, metrics, "speculation-prompt-matched-tokens")
}
