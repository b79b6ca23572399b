package main_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// An unmodifiedClient is one row of docs/clients.md.
type unmodifiedClient struct {
	test    string // test that runs the client
	client  string
	version string // npm PACKAGE, go MODULE, pypi PACKAGE, or the version itself
	tried   string
	result  string // what the test requires
}

// unmodifiedClients are the subtests of the functions TestUnmodifiedClients….
var unmodifiedClients = []unmodifiedClient{
	{"TestUnmodifiedClients/openai for Go", "openai for Go", "go github.com/openai/openai-go/v3",
		"completions, chat and responses, also streamed; embeddings; list of models; a wrong parameter; both base URLs",
		"the same texts and token counts as plain HTTP; the error names the parameter"},
	{"TestUnmodifiedClients/openai for JavaScript", "openai for JavaScript", "npm openai",
		"completions and chat, also streamed; list of models; a wrong parameter; a missing model; both base URLs",
		"the same texts and token counts as plain HTTP; errors have the client's types"},
	{"TestUnmodifiedClients/openai for JavaScript, responses and embeddings", "openai for JavaScript, responses",
		"npm openai", "responses, also streamed, parsed with zod, and with tool calls; embeddings as numbers and in " +
			"Base64; a model by its name; both base URLs",
		"the same texts and token counts as plain HTTP; the client's events in order; errors name the parameter"},
	{"TestUnmodifiedClients/openai for JavaScript, structured output", "openai for JavaScript, with zod schemas",
		"npm openai", "parsed chat responses and tool calls, also streamed; a response that is cut off",
		"responses match the schema; tool calls have parsed arguments; the cut is reported"},
	{"TestUnmodifiedClients/ai with its provider for OpenAI", "AI SDK with @ai-sdk/openai", "npm @ai-sdk/openai",
		"responses, also streamed; objects; two steps with a tool call; embeddings; a wrong parameter",
		"the same texts and token counts as plain HTTP; the tool is executed; the error has its status and message"},
	{"TestUnmodifiedClients/ai with its provider for the hosted service", "AI SDK with @ai-sdk/fireworks",
		"npm @ai-sdk/fireworks", "chat, also streamed; completions; objects; embeddings; a wrong parameter",
		"the same texts and token counts as plain HTTP; the error has its status and message"},
	{"TestUnmodifiedClients/ai with its compatible provider", "AI SDK with @ai-sdk/openai-compatible",
		"npm @ai-sdk/openai-compatible", "chat, also streamed; a wrong parameter",
		"the same texts and token counts as plain HTTP; the error has its status and message"},
	{"TestUnmodifiedClients/LangChain", "LangChain with ChatOpenAI, ChatFireworks and OpenAIEmbeddings",
		"npm @langchain/openai", "chat, also streamed, and with a tool call; responses; completions; objects; embeddings; " +
			"a wrong parameter", "the same texts and token counts as plain HTTP; the error names the parameter"},
	{"TestUnmodifiedClients/ai with its compatible provider, structured output", "AI SDK with zod schemas", "npm ai",
		"objects, lists, choices and tool calls, also streamed",
		"responses match the schema; tool calls have parsed arguments"},
	{"TestUnmodifiedClientsTranscribe/openai for Go", "openai for Go", "go github.com/openai/openai-go/v3",
		"transcription in all formats, with timestamps, also streamed; a wrong parameter",
		"the spoken text in each format; the error names the parameter"},
	{"TestUnmodifiedClientsTranscribe/openai for JavaScript", "openai for JavaScript", "npm openai",
		"transcription in all formats, with timestamps, also streamed; a wrong parameter",
		"the spoken text in each format; errors have the client's types"},
	{"TestUnmodifiedClientsFineTune/openai for JavaScript", "openai for JavaScript, fine-tuning", "npm openai",
		"files; supervised fine-tuning with hyperparameters and a validation file; events; checkpoints; chat with the new " +
			"model; pause and cancel; a grader that is not supported",
		"the file's content; the job succeeds and its model responds; errors name the fields"},
	{"TestUnmodifiedClientsFineTune/openai for Go", "openai for Go, fine-tuning", "go github.com/openai/openai-go/v3",
		"files; DPO; events; checkpoints; chat with the new model", "the job succeeds and its model responds"},
	{"TestUnmodifiedClientsBatch/openai for JavaScript", "openai for JavaScript, batches", "npm openai",
		"a file of requests; create, retrieve, list and cancel; an invalid file; a wrong endpoint; a missing batch",
		"each request has a result; invalid lines are named; errors have the client's types"},
	{"TestUnmodifiedClientsTranscribe/curl", "curl", "any", "transcription with a key without Bearer", "the spoken text"},
}

// clientsTable begins the table of docs/clients.md, which ends the page.
const clientsTable = "| client | version | what is tried | result |\n"

// TestClientsPage checks that docs/clients.md lists the clients of all functions
// TestUnmodifiedClients…, with the versions that are installed. With -update it writes the table.
func TestClientsPage(t *testing.T) {
	var listed []string
	table := clientsTable + "|---|---|---|---|\n"
	for _, one := range unmodifiedClients {
		listed = append(listed, one.test)
		table += fmt.Sprintf("| %s | %s | %s | %s |\n", one.client, installedVersion(t, one.version), one.tried, one.result)
	}
	require.ElementsMatch(t, clientSubtests(t), listed,
		"the subtests of the functions TestUnmodifiedClients…, and the rows in unmodifiedClients")
	page := readPage(t, "docs/clients.md")
	prose, written, found := strings.Cut(page, clientsTable)
	require.True(t, found, "docs/clients.md has no table")
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join("..", "..", "docs", "clients.md"), []byte(prose+table), 0o666))
		return
	}
	require.Equal(t, table, clientsTable+written, "docs/clients.md is out of date: run make reference")
}

// clientSubtests returns the names of the subtests with constant names in the functions
// TestUnmodifiedClients….
func clientSubtests(t *testing.T) (names []string) {
	t.Helper()
	files := testutil.Glob(t, "*_test.go")
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "TestUnmodifiedClients") {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if subtest, ok := subtestName(n); ok {
					names = append(names, f.Name.Name+"/"+subtest)
				}
				return true
			})
		}
	}
	require.NotEmpty(t, names)
	return names
}

// subtestName returns the name in a call t.Run("name", …).
func subtestName(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return "", false
	}
	run, ok := call.Fun.(*ast.SelectorExpr)
	literal, isLiteral := call.Args[0].(*ast.BasicLit)
	if !ok || run.Sel.Name != "Run" || !isLiteral {
		return "", false
	}
	name, err := strconv.Unquote(literal.Value)
	return name, err == nil
}

// installedVersion returns the pinned version of a client.
func installedVersion(t *testing.T, of string) string {
	t.Helper()
	registry, name, found := strings.Cut(of, " ")
	if !found {
		return of
	}
	switch registry {
	case "npm":
		data := testutil.ReadFile(t, "testdata/clients/node/package.json")
		var packages struct{ Dependencies map[string]string }
		require.NoError(t, json.Unmarshal(data, &packages))
		require.Contains(t, packages.Dependencies, name)
		return packages.Dependencies[name]
	case "pypi":
		return lineAfter(t, "testdata/clients/python/requirements.txt", name+"==")
	}
	return lineAfter(t, "testdata/clients/openaigo/go.mod", "require "+name+" v")
}

// lineAfter finds the first line of a file that begins with prefix, and returns the rest of the
// line.
func lineAfter(t *testing.T, file, prefix string) string {
	t.Helper()
	data := testutil.ReadFile(t, file)
	lines := strings.Split(string(data), "\n")
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, prefix) })
	require.GreaterOrEqual(t, i, 0, "%s has no line %s…", file, prefix)
	return strings.TrimPrefix(lines[i], prefix)
}
