package cli

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

func TestTerminalEscapes(t *testing.T) {
	var shown bytes.Buffer
	term := &terminal{out: &shown}
	for _, p := range []string{"a\tb\n", "red \x1b[31m\r", "\x9b2J \u009b2J \u202e", "crlf\r\n", "世", "\xe4\xb8", "\x96",
		"👩\u200d💻\x00"} {
		n, err := term.Write([]byte(p))
		require.NoError(t, err)
		require.Equal(t, len(p), n)
	}
	require.Equal(t, "a\tb\nred \\u001b[31m\\u000d\\x9b2J \\u009b2J \\u202ecrlf\r\n世世👩\u200d💻\\u0000", shown.String())
	shown.Reset()
	redraw(term, "50 % \x1b[2J")
	require.Equal(t, clearLine+`50 % \u001b[2J`, shown.String())
}

// TestEveryCommandPrintsThroughATerminal checks that commands print only through a terminal.
func TestEveryCommandPrintsThroughATerminal(t *testing.T) {
	commands := leaves(NewRoot("test"))
	require.Greater(t, len(commands), 60)
	for _, c := range commands {
		require.IsType(t, &terminal{}, c.OutOrStdout(), c.CommandPath())
		require.IsType(t, &terminal{}, c.ErrOrStderr(), c.CommandPath())
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	set, logs := token.NewFileSet(), 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "terminal.go" {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 0 {
				// the handlers of package slog escape control characters
				made, ofPackage := call.Fun.(*ast.SelectorExpr)
				own, _ := call.Fun.(*ast.Ident)
				if ofPackage && made.Sel.Name == "NewTextHandler" || own != nil && own.Name == "newLogHandler" {
					logs++
					return false
				}
			}
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch of, _ := s.X.(*ast.Ident); {
			case of == nil:
			case of.Name == "os" && (s.Sel.Name == "Stdout" || s.Sel.Name == "Stderr"),
				of.Name == "fmt" && strings.HasPrefix(s.Sel.Name, "Print"),
				of.Name == "cmd" && strings.HasPrefix(s.Sel.Name, "Print"):
				t.Errorf("%s prints past the terminal: %s.%s", set.Position(n.Pos()), of.Name, s.Sel.Name)
			}
			return true
		})
	}
	require.Equal(t, 4, logs)
}

// TestListsAndGetsEscape checks that every list and get command escapes control characters of a
// malicious server.
func TestListsAndGetsEscape(t *testing.T) {
	const hostile = "x\u001b]0;owned\u0007\u009b2J\u202e\r\nState: READY\ty"
	run := 0
	for _, c := range leaves(NewRoot("test")) {
		if c.Name() != "list" && c.Name() != "get" || c.CommandPath() == "anneal server list" { // not over HTTP
			continue
		}
		args := strings.Fields(c.CommandPath())[1:]
		if strings.Contains(c.Use, " ID") || strings.Contains(c.Use, " BATCH") {
			args = append(args, "some-id")
		}
		for _, format := range []string{"table", "json"} {
			shown := terminalOutput(t, func(w http.ResponseWriter, r *http.Request) {
				item := map[string]any{}
				for _, field := range []string{"name", "state", "displayName", "description", "subject", "actor", "type", "email",
					"keyName", "format", "value", "id", "status"} {
					item[field] = hostile
				}
				w.Header().Set("Anneal-Warning", "warned of \u009b31m")
				of := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
				_ = json.NewEncoder(w).Encode(map[string]any{of: []any{item}, "name": hostile, "state": hostile,
					"displayName": hostile, "id": hostile, "data": []any{item},
					"jobAccelerators": []any{map[string]any{"method": hostile}}})
			}, append(args, "-o", format)...)
			require.NotContains(t, shown, "\nState: READY", args)
			for _, r := range shown {
				require.False(t, unicode.IsControl(r) && r != '\n' || r == 0x202e, "%v prints %q", args, shown)
			}
			require.Contains(t, shown, `x\u001b]0;owned\u0007\u009b2J\u202e`, args)
			run++
		}
	}
	require.Greater(t, run, 30)
}

// terminalOutput returns what a command prints to both outputs, on a terminal.
func terminalOutput(t *testing.T, handler http.HandlerFunc, args ...string) string {
	var shown bytes.Buffer
	_, err := execute(t, &terminal{out: &shown}, &terminal{out: &shown}, handler, args...)
	require.NoError(t, err, args)
	return shown.String()
}
