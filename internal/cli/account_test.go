package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAccountFromFile checks that the flags override the fields of the file.
func TestAccountFromFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "account.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"display_name": "Acme", "email": "a@example.com",
		"accountType": "ENTERPRISE"}`), 0o600))
	var body map[string]any
	_, err := runAgainst(t, func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, json.NewDecoder(r.Body).Decode(&body))
		fmt.Fprint(w, `{"key": "k"}`)
	}, "account", "create", "acme", "--file", file, "--email", "b@example.com")
	require.NoError(t, err)
	require.Equal(t, map[string]any{"accountId": "acme", "account": map[string]any{"display_name": "Acme",
		"email": "b@example.com", "accountType": "ENTERPRISE"}}, body)
}

// TestAccountShowsItsQueueWeight checks that the weight that an operator has set is visible.
func TestAccountShowsItsQueueWeight(t *testing.T) {
	out, _, err := runOutput(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"name": "accounts/acme", "queueWeight": 2}`)
	}, "account", "get", "acme")
	require.NoError(t, err)
	require.Regexp(t, `Queue weight: +2\n`, out)
}
