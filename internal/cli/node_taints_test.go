package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// decoded returns the JSON object in text.
func decoded(t *testing.T, text string) (object map[string]any) {
	require.NoError(t, json.Unmarshal([]byte(text), &object))
	return object
}

// TestPoliciesAreShownAsTheyAreSet checks that labels, taints and the policy of an account are
// printed in the form in which flags take them.
func TestPoliciesAreShownAsTheyAreSet(t *testing.T) {
	const taints = `[{"key": "dedicated", "value": "acme", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]`
	out, _, err := runOutput(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"name": "accounts/acme", "nodes": {"nodeSelector": {"tier": "spot", "a": "b"}, "tolerations": `+
			taints+`}}`)
	}, "account", "get", "acme")
	require.NoError(t, err)
	require.Regexp(t, `Node selector: +a=b, tier=spot\n`, out)
	require.Regexp(t, `Tolerated taints: +dedicated=acme:NoSchedule, a:NoSchedule\n`, out)
	item := decoded(t, `{"labels": {"tier": "spot", "zone": ""}, "taints": `+taints+`}`)
	require.Equal(t, "tier=spot, zone=", cell(item, "labels"))
	require.Equal(t, "dedicated=acme:NoSchedule, a:NoSchedule", cell(item, "taints"))
}
