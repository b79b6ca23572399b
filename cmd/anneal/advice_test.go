package main_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/internal/cli"
)

// TestAdviceExists checks for every text in the sources that each request, custom verb, command and
// flag that the text names exists, so that a message advises nothing that cannot be done.
func TestAdviceExists(t *testing.T) {
	a := newAdvice(t)
	texts := textsOf(parseSources(t))
	require.Greater(t, len(texts), 1000)
	for _, one := range texts {
		for _, named := range a.wrong(one.text) {
			t.Errorf("%s: %s does not exist: %q", one.dir, named, one.text)
		}
	}
	require.Greater(t, a.checked, 100, "texts name requests, verbs, commands and flags")
	for _, text := range []string{"list them with GET /v1/accounts/%s/nothing", "send POST models/X:fly", "call :fly",
		"run `anneal dataset fly`", "run 'anneal dataset list --fly'", "set --fly to 3"} {
		require.Len(t, a.wrong(text), 1, "%q", text)
	}
}

// advice holds what a text may name.
type advice struct {
	requests []string // such as "GET /v1/accounts/x/models/x"
	verbs    map[string]bool
	root     *cobra.Command
	flags    map[string]bool // names of the flags of all commands
	checked  int             // names found in texts
}

func newAdvice(t *testing.T) *advice {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "api.md")) // TestReference keeps it up to date
	require.NoError(t, err)
	a := &advice{verbs: map[string]bool{}, flags: map[string]bool{}, root: cli.NewRoot("dev")}
	for _, row := range regexp.MustCompile("`([A-Z]+ /[^`]*)`").FindAllStringSubmatch(string(page), -1) {
		request := regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(row[1], "x")
		a.requests = append(a.requests, request)
		if _, verb, ok := strings.Cut(request, ":"); ok {
			a.verbs[verb] = true
		}
	}
	require.NotEmpty(t, a.requests)
	a.requests = append(a.requests, "GET /docs/x") // the files of a page, which the reference leaves out
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) { a.flags[f.Name] = true })
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(a.root)
	return a
}

var (
	advisedRequest = regexp.MustCompile(`\b((?:GET|POST|PUT|PATCH|DELETE) )(/[\w/%.:-]*\w|[\w/%.-]+:[a-z]\w+)`)
	advisedVerb    = regexp.MustCompile("(?:^|[ (`'\"]):([a-z]\\w+)")
	advisedCommand = regexp.MustCompile("[`']anneal ([a-z][^`'|]*)[`']")
	advisedFlag    = regexp.MustCompile("(?:^|[\\s(`'])--([a-z][a-z0-9-]*)")
	placeholder    = regexp.MustCompile(`%[a-z]|\b[A-Z]{2,}\b`)
	jsonText       = regexp.MustCompile(`"\w+" ?:`)
)

// otherPrograms are the programs whose command lines are texts of the sources.
var otherPrograms = regexp.MustCompile(`^(uvicorn|vllm|whisper-server|llama-server) `)

// otherFlags are the flags of llama.cpp's programs that texts about llama.cpp name.
var otherFlags = map[string]bool{"lora": true, "chat-template-file": true}

// wrong returns the requests, verbs, commands and flags that a text names and that do not exist.
func (a *advice) wrong(text string) (names []string) {
	check := func(exists bool, name string) {
		if a.checked++; !exists {
			names = append(names, name)
		}
	}
	for _, found := range advisedRequest.FindAllStringSubmatch(text, -1) {
		check(a.hasRequest(found[1], found[2]), found[0])
	}
	if !jsonText.MatchString(text) {
		for _, found := range advisedVerb.FindAllStringSubmatch(text, -1) {
			check(a.verbs[found[1]], ":"+found[1])
		}
	}
	for _, found := range advisedCommand.FindAllStringSubmatch(text, -1) {
		words := strings.Fields(found[1])
		c, rest, err := a.root.Find(words)
		complete := !c.HasSubCommands() || len(rest) == 0 || c.Runnable() && strings.HasPrefix(rest[0], "-")
		exists := err == nil && c != a.root && complete
		check(exists, "anneal "+found[1])
	}
	if !strings.Contains(text, " ") || otherPrograms.MatchString(text) {
		return names
	}
	for _, found := range advisedFlag.FindAllStringSubmatch(text, -1) {
		check(a.flags[found[1]] || otherFlags[found[1]] && strings.Contains(text, "llama.cpp"), "--"+found[1])
	}
	return names
}

// hasRequest reports whether an operation has the method and the path. Parts that a text fills in
// match any part.
func (a *advice) hasRequest(method, path string) bool {
	pattern := regexp.QuoteMeta(method)
	if !strings.HasPrefix(path, "/") {
		pattern += ".*/" // the end of a path
	}
	last := 0
	for _, at := range placeholder.FindAllStringIndex(path, -1) {
		pattern += regexp.QuoteMeta(path[last:at[0]]) + ".+"
		last = at[1]
	}
	of := regexp.MustCompile("^" + pattern + regexp.QuoteMeta(path[last:]) + "$")
	return slices.ContainsFunc(a.requests, of.MatchString)
}

// A sourceText is a text in the sources of a directory.
type sourceText struct{ dir, text string }

// textsOf returns the texts of the sources. Concatenated literals are one text, in which "%s" stands
// for the parts that are not literals.
func textsOf(sources map[string][]*ast.File) (texts []sourceText) {
	inner := map[ast.Node]bool{} // operands of an expression that was visited
	eachNode(sources, func(dir string, node ast.Node) {
		expression, ok := node.(ast.Expr)
		if !ok || inner[node] {
			return
		}
		if text, ok := literalOf(expression, inner); ok {
			texts = append(texts, sourceText{dir, text})
		}
	})
	return texts
}

// literalOf returns the text of a literal, or of a concatenation that contains a literal. It adds
// the operands to inner.
func literalOf(expression ast.Expr, inner map[ast.Node]bool) (text string, literal bool) {
	inner[expression] = true
	switch e := expression.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, ok := literalOf(e.X, inner)
		if !ok {
			left = "%s"
		}
		right, also := literalOf(e.Y, inner)
		if !also {
			right = "%s"
		}
		return left + right, ok || also
	}
	delete(inner, expression)
	return "", false
}
