//go:build linux

package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHostilePrompts checks that prompts and schemas that are too large for a replica are rejected
// as invalid requests. They are not retried, and not counted as failures of a replica.
func TestHostilePrompts(t *testing.T) {
	s := serve(t, t.TempDir())
	user := s.user()
	user.deploy("base", object{"baseModel": baseModel})
	for _, size := range []int{500 << 10, 800 << 10, 2 << 20, 4<<20 - 4096} {
		text := strings.Repeat("word ", size/5)
		schema := object{"type": "object",
			"properties": object{"a": object{"type": "string", "enum": strings.Fields(strings.Repeat("abcdefg ", size/10))}}}
		described := object{"type": "object", "description": text, "properties": object{"a": object{"type": "string"}}}
		hi := []object{{"role": "user", "content": "hi"}}
		for name, one := range map[string]struct {
			path string
			body object
		}{
			"prompt": {"//inference/v1/completions", object{"model": baseModel, "prompt": text}},
			"messages": {"//inference/v1/chat/completions",
				object{"model": baseModel, "messages": []object{{"role": "user", "content": text}}}},
			"schema": {"//inference/v1/chat/completions",
				object{"model": baseModel, "messages": hi, "response_format": object{"type": "json_object", "schema": schema}}},
			"description": {"//inference/v1/chat/completions",
				object{"model": baseModel, "messages": hi, "response_format": object{"type": "json_object", "schema": described}}},
		} {
			t.Run(fmt.Sprintf("%s of %d KB", name, size>>10), func(t *testing.T) {
				one.body["max_tokens"] = 4
				status, answer, err := user.do(http.MethodPost, one.path, one.body)
				require.NoError(t, err)
				t.Logf("%d %.200s", status, errorMessage(answer))
				if status == http.StatusOK && size < 768<<10 {
					return // requests below the size limit may succeed
				}
				require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, status, "%.300s",
					errorMessage(answer))
			})
		}
	}
	status, answer, err := user.complete(baseModel, "hello")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.NotContains(t, s.log.output(), "a replica failed")
	require.Equal(t, "READY", user.get("/deployments/base")["state"])
	require.Zero(t, s.end())
}
