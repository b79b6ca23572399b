package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAcceleratorRowsAreParsed(t *testing.T) {
	type row = map[string]any
	for text, want := range map[string]row{
		"8B=1":     {"maxParameterCount": "8000000000", "acceleratorCount": 1},
		"0.5B=0":   {"maxParameterCount": "500000000", "acceleratorCount": 0},
		"350M=2":   {"maxParameterCount": "350000000", "acceleratorCount": 2},
		"1.1T=64":  {"maxParameterCount": "1100000000000", "acceleratorCount": 64},
		"15=1":     {"maxParameterCount": "15", "acceleratorCount": 1},
		"any=4":    {"acceleratorCount": 4},
		"dpo:8B=2": {"method": "dpo", "maxParameterCount": "8000000000", "acceleratorCount": 2},
		"rlor:any=8xVENDOR_A_H100_80GB": {"method": "rlor", "acceleratorCount": 8,
			"acceleratorType": "VENDOR_A_H100_80GB"},
	} {
		got, err := parseAcceleratorRow(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, wrong := range []string{"", "8B", "8B=", "=1", "8B=x", "8B=1x", "8B=one", ":8B=1", "8G=1", "-8B=1", "0=1",
		"NaN=1", "InfB=1", "1e9B=1", "8B=1.5", "8B=2 xVENDOR", "none"} {
		_, err := parseAcceleratorRow(wrong)
		require.ErrorContains(t, err, "[METHOD:]SIZE=COUNT[xTYPE]", wrong)
	}
}

func TestSizesAreShown(t *testing.T) {
	for count, want := range map[string]string{"8000000000": "8B", "500000000": "500M", "1500000000": "1.5B",
		"1100000000000": "1.1T", "494032768": "494032768", "15": "15", "-": "any"} {
		require.Equal(t, want, shownSize(count))
		if parsed, ok := parseSize(want); ok && want != "any" {
			require.Equal(t, count, fmt.Sprint(parsed))
		}
	}
}

// TestAcceleratorsAreSetAndShown checks the requests of both commands and their tables.
func TestAcceleratorsAreSetAndShown(t *testing.T) {
	tables := map[string]string{"system": `[{"method": "dpo", "maxParameterCount": "8000000000", "acceleratorCount": 2},
		{"maxParameterCount": "70000000000", "acceleratorCount": 8, "acceleratorType": "VENDOR_A_H100_80GB"}]`, "acme": `[]`}
	var posted map[string]any
	handler := func(w http.ResponseWriter, r *http.Request) {
		account := "system"
		if r.URL.Path == "/v1/accounts/acme" || r.URL.Path == "/v1/accounts/acme:setJobAccelerators" {
			account = "acme"
		}
		if r.Method == http.MethodPost {
			require.Equal(t, "/v1/accounts/"+account+":setJobAccelerators", r.URL.Path)
			require.NoError(t, json.NewDecoder(r.Body).Decode(&posted))
		}
		fmt.Fprintf(w, `{"name": "accounts/%s", "jobAccelerators": %s}`, account, tables[account])
	}
	shown := `(?s)METHOD +PARAMETERS UP TO +ACCELERATORS +TYPE\ndpo +8B +2 +-\nevery method +70B +8 +VENDOR_A_H100_80GB\n$`
	out, _, err := runOutput(t, handler, "accelerators", "set", "dpo:8B=2", "70B=8xVENDOR_A_H100_80GB")
	require.NoError(t, err)
	require.Regexp(t, shown, out)
	require.Len(t, posted["rows"], 2)
	out, _, err = runOutput(t, handler, "accelerators", "list")
	require.NoError(t, err)
	require.Regexp(t, shown, out)
	out, _, err = runOutput(t, handler, "accelerators", "list", "acme")
	require.NoError(t, err)
	require.Regexp(t, shown, out)
	require.Contains(t, out, "account acme has no rows of its own")
	out, _, err = runOutput(t, handler, "accelerators", "set", "none", "--account", "acme", "-o", "json")
	require.NoError(t, err)
	require.JSONEq(t, "[]", out)
	require.Equal(t, map[string]any{"rows": []any{}}, posted)
	_, _, err = runOutput(t, handler, "accelerators", "set", "none", "8B=1")
	require.ErrorContains(t, err, `row "none" must be [METHOD:]SIZE=COUNT[xTYPE]`)
}
