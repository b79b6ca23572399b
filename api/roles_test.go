package api

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"anneal/api/request"
	"anneal/internal/testutil"

	"github.com/stretchr/testify/require"
)

var placeholders = regexp.MustCompile(`\{[a-z]+\}`)

// TestRoles checks which kinds of API keys every operation authorizes, against a golden file. All
// paths are below accounts/acme, so that the key other belongs to another account. Bodies are
// invalid and named resources do not exist, so that every request fails after authorization.
func TestRoles(t *testing.T) {
	s := newHarness(t, request.Limits{})
	columns := []string{"admin", "user", "inference", "reader", "other", "operator", ""}
	var out strings.Builder
	out.WriteString("# Who may call which operation: a key's role in the account of the path, the admin of another\n" +
		"# account (other), the operator, and a request without a key (anyone). Written by TestRoles with -update.\n#\n")
	fmt.Fprintf(&out, "# %-68s %s\n", "operation", "admin user inference reader other operator anyone")
	for _, op := range (&Server{}).operations() {
		path := strings.ReplaceAll(op.Path, "{account}", "acme")
		path = placeholders.ReplaceAllString(path, "none")
		row := make([]string, len(columns))
		for i, alias := range columns {
			body := "{"
			if op.Method == http.MethodGet {
				body = ""
			}
			status := s.call(op.Method, path, alias, body).status
			mark := "-"
			if status != http.StatusUnauthorized && status != http.StatusForbidden {
				mark = "x"
			}
			row[i] = fmt.Sprintf("%-*s", len(cmp.Or(alias, "anyone")), mark)
		}
		name := op.ID
		if op.Hidden {
			name = op.Method + " " + op.Path
		}
		fmt.Fprintf(&out, "%-70s %s\n", name, strings.TrimRight(strings.Join(row, " "), " "))
	}
	file := filepath.Join("testdata", "roles.golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
	want := testutil.ReadFile(t, file)
	wanted, got := strings.Split(string(want), "\n"), strings.Split(out.String(), "\n")
	for i, line := range got {
		require.True(t, slices.Contains(wanted, line),
			"line %d of the permissions is new or has changed: if this is intended, run the test with -update\n%s", i+1, line)
	}
	require.Len(t, got, len(wanted), "run the test with -update")
}
