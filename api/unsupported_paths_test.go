package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
)

// missingPath sends a request "METHOD PATH", and returns the response, which is 404.
func missingPath(t *testing.T, s *harness, target string) response {
	t.Helper()
	method, path, _ := strings.Cut(target, " ")
	a := s.call(method, path, "user", "")
	require.Equal(t, http.StatusNotFound, a.status, target)
	return a
}

// TestUnsupportedPathsSayWhatIsMissing checks that errors of paths of the OpenAI API without a
// counterpart state what is not supported, in the format of that interface.
func TestUnsupportedPathsSayWhatIsMissing(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for path, want := range map[string]string{
		"GET /v1/responses/resp_1":                        "responses are not stored",
		"DELETE /v1/responses/resp_1":                     "responses are not stored",
		"GET /v1/responses/resp_1/input_items":            "responses are not stored",
		"POST /v1/conversations":                          "conversations are not stored",
		"GET /v1/chat/completions/chatcmpl-1":             "chat completions are not stored",
		"POST /v1/uploads":                                "POST /v1/files",
		"POST /v1/fine_tuning/checkpoints/m/permissions":  "permissions of checkpoints are not supported",
		"POST /v1/fine_tuning/alpha/graders/run":          "graders are not supported",
		"POST /v1/evals":                                  "create an evaluator",
		"POST /v1/images/generations":                     "images is not supported",
		"POST /v1/audio/speech":                           "speech is not supported",
		"POST /v1/moderations":                            "moderations are not supported",
		"POST /v1/threads/runs":                           "threads are not supported",
		"GET /v1/vector_stores/vs_1":                      "vector stores are not supported",
		"GET /v1/organization/usage/completions?limit=10": "organizations are not supported",
	} {
		failed, ok := missingPath(t, s, path).json(t)["error"].(map[string]any)
		require.True(t, ok, path)
		require.Contains(t, failed["message"], want, path)
		require.Equal(t, "NO_SUCH_PATH", failed["code"], path)
	}
	a := s.call(http.MethodGet, "/v1/responsesX", "user", "")
	require.Contains(t, string(a.body), "resources are at")
	for path, meant := range map[string]string{"dataset": ": did you mean datasets; ",
		"deploments/d": ": did you mean deployments; ", "models/m/x": "\\\"; resources are at",
		"colours": "\\\"; resources are at"} {
		a := s.call(http.MethodGet, "/v1/accounts/acme/"+path, "user", "")
		require.Contains(t, string(a.body), meant, path)
	}
}

// TestUnsupportedPathsDoNotExist checks that no operation is listed as unsupported.
func TestUnsupportedPathsDoNotExist(t *testing.T) {
	for _, op := range (&Server{}).operations() {
		if op.Method != http.MethodPost || op.Path != "/v1/responses" && op.Path != "/v1/chat/completions" {
			require.Empty(t, unsupportedReason(op.Path), "%s %s", op.Method, op.Path)
		}
	}
}

// TestWrongBaseURLs checks that a client of the OpenAI API whose base URL lacks /v1, or has it
// twice, gets an error of that API which says so.
func TestWrongBaseURLs(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for target, meant := range map[string]string{
		"POST /chat/completions":    "/v1/chat/completions",
		"POST /completions":         "/v1/completions",
		"POST /embeddings":          "/v1/embeddings",
		"POST /responses":           "/v1/responses",
		"POST //chat/completions":   "/v1/chat/completions",
		"POST /v1/v1/completions":   "/v1/completions",
		"POST /files":               "/v1/files",
		"GET /models":               "/v1/models",
		"POST /v2/chat/completions": "",
		"GET /datasets":             "",
		"POST /chat":                "",
		"GET /v1/frobnicate":        "",
	} {
		a := missingPath(t, s, target)
		if meant == "" {
			require.NotContains(t, string(a.body), "base URL", target)
			continue
		}
		failed, ok := a.json(t)["error"].(map[string]any)
		require.True(t, ok, "%s: %s", target, a.body)
		require.Contains(t, failed["message"], "base URL", target)
		require.Contains(t, failed["message"], "goes to "+meant, target)
	}
}
