package main_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines/sandbox"
	"anneal/internal/cli"
	"anneal/internal/testutil"
)

// pages are the documents whose commands are run, in this order: a guide can use what the pages
// before it created.
var pages = []string{
	"README.md", "docs/quickstart.md", "docs/cli.md", "docs/http-api.md", "docs/clients.md", "docs/training.md",
	"docs/training-service.md", "docs/fine-tuning.md", "docs/batches.md",
	"docs/evaluators.md",
	"docs/models.md", "docs/deployments.md", "docs/releases.md", "docs/structured-output.md", "docs/speech.md",
	"docs/events.md", "docs/subscriptions.md", "docs/usage.md", "docs/proofs.md", "docs/what-if.md",
	"docs/operations.md", "docs/running.md", "docs/oidc.md", "docs/console.md", "docs/gpu-engines.md", "docs/limits.md",
}

// references are documents whose commands the tests do not run: they check their prose, links and
// command lines.
var references = []string{
	"ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
	"docs/adr/README.md", "docs/reference/README.md",
}

// maxPageLines are limits of documents that are read from beginning to end.
var maxPageLines = map[string]int{"README.md": 150, "ARCHITECTURE.md": 150}

const (
	documentedAddress = "127.0.0.1:8080" // where the documents' server listens
	maxProseColumns   = 100
)

// A block is a fenced part of a document. Its info string selects what the tests do with it: "sh"
// is run, "sh checked" requires other machines, hardware or packages and is parsed, "sh evaluators"
// is run where there is a sandbox, "go" is built and run, "js" is run where the clients for JavaScript
// are installed, and "text" is prose.
type block struct{ info, text string }

var fence = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")

func readPage(t *testing.T, path string) string {
	t.Helper()
	data := testutil.ReadFile(t, filepath.Join("..", "..", path))
	return string(data)
}

func blocksOf(text string) (all []block) {
	for _, match := range fence.FindAllStringSubmatch(text, -1) {
		all = append(all, block{match[1], match[2]})
	}
	return all
}

// TestDocuments runs every command and program of the README and the guides against one server,
// each page in a separate shell.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl", "sed", "timeout", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the commands of the documents need %s", tool)
		}
	}
	dir := t.TempDir()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(root, "examples"), filepath.Join(dir, "examples")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	require.NoError(t, os.Symlink(binary(t), filepath.Join(dir, "bin", "anneal")))
	s := serve(t, filepath.Join(dir, "data"), "--direct-domain", "direct.example.com")

	noSandbox := sandbox.New(sandbox.Options{}).Check(t.Context())
	if noSandbox != nil {
		t.Log(noSandbox)
	}
	expected := map[string][]string{
		"README.md":                {"ROS-15-PC", "deployment.ready.v1", ": equal"},
		"docs/quickstart.md":       {"COMPLETED", "READY"},
		"docs/http-api.md":         {"data: [DONE]"},
		"docs/clients.md":          {"ROS-15-PC", `"object":"response"`, `"object":"embedding"`, `"id":"codes"`},
		"docs/training-service.md": {`"supported_models":[{"model_name":"default/anneal-base"`, `"session_id":"`},
		"docs/fine-tuning.md": {`"object":"fine_tuning.job.event"`, `"object":"fine_tuning.job.checkpoint"`,
			`"object":"chat.completion"`},
		"docs/batches.md":       {`"custom_id":"q-3"`, `"status_code":200`, `"object":"batch"`},
		"docs/releases.md":      {"RUNNING", "PROMOTED", "deployment.releaseAdvanced.v1", "ROLLED_BACK"},
		"docs/events.md":        {"id: 1", ": equal"},
		"docs/subscriptions.md": {"whsec_", "whpk_", "subscription catalog paused", "subscription archive deleted"},
		"docs/proofs.md": {"VALID: position", "model.registered.v1", "still has all of them, unchanged",
			"no event between them is missing"},
		"docs/what-if.md": {"fewest-requests   4 ", `"firstTokenP90"`}, // its other blocks are not run
	}
	for _, page := range pages {
		var script strings.Builder
		for _, b := range blocksOf(readPage(t, page)) {
			switch {
			case b.info == "sh", b.info == "sh evaluators" && noSandbox == nil:
				script.WriteString(b.text)
			case b.info == "go":
				t.Run(page+", the program", func(t *testing.T) { runReader(t, s, dir, b.text) })
			case b.info == "js":
				t.Run(page+", the program", func(t *testing.T) { runNode(t, s, b.text) })
			}
		}
		if script.Len() > 0 {
			t.Run(page, func(t *testing.T) { runPage(t, s, dir, script.String(), expected[page]) })
		}
	}
	require.Zero(t, s.end())
}

// runPage runs the commands of a page in a shell, in a directory where the server's data are in
// ./data, and requires that their output contains the expected texts.
func runPage(t *testing.T, s *plane, dir, script string, expected []string) {
	address := strings.TrimPrefix(s.context.Address, "http://")
	cmd := exec.Command("bash", "-exu")
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(script, documentedAddress, address))
	cmd.Dir, cmd.Env = dir, environment(dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	overdue := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	defer overdue.Stop()
	require.NoError(t, cmd.Wait(), "%s", out.String())
	for _, text := range expected {
		require.Contains(t, out.String(), text)
	}
}

// runNode runs the program of docs/clients.md, which gets the address and the key from the environment.
func runNode(t *testing.T, s *plane, source string) {
	program, err := os.CreateTemp(nodeClientsDir(t), "_documents-*.mjs") // finds the packages in node_modules
	require.NoError(t, err)
	defer os.Remove(program.Name())
	_, err = program.WriteString(source)
	require.NoError(t, errors.Join(err, program.Close()))
	cmd := exec.Command("node", program.Name())
	cmd.Env = environment(t.TempDir(), "OPENAI_BASE_URL="+s.checkedProxy(t)+"/v1", "OPENAI_API_KEY="+s.context.APIKey)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "ROS-15-PC")
}

// runReader builds the program of a page, lets it read the server's events, and starts it again: it
// continues after the last event that it printed.
func runReader(t *testing.T, s *plane, dir, source string) {
	// The source is in this module, which has its imports; the go command
	// ignores directories whose names begin with an underscore.
	module, err := os.MkdirTemp(".", "_documents-")
	require.NoError(t, err)
	defer os.RemoveAll(module)
	file := filepath.Join(module, "main.go")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	program := filepath.Join(t.TempDir(), "program")
	for _, args := range [][]string{{"vet", file}, {"build", "-o", program, file}} {
		out, err := exec.Command("go", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	start := func() *process {
		p := &process{t: t, cmd: exec.Command(program), stderr: logFor(t, "the reader"), exited: make(chan struct{})}
		p.cmd.Dir = dir
		p.run()
		return p
	}
	const early = "deployment.created.v1 accounts/default/deployments/codes "
	first := start()
	first.waitForLine(early)
	first.waitForLine("dataset.created.v1 accounts/default/datasets/preferences ") // its position is saved by now
	first.kill()
	s.run("dataset", "derive", "later", "--from", "codes").ok(t)
	second := start()
	second.waitForLine("dataset.created.v1 accounts/default/datasets/later ")
	require.NotContains(t, second.stdout.output(), early)
	second.kill()
}

// TestDocumentsAreWellFormed checks what is not run: the form of pages, their links, and commands
// that require other machines, hardware or packages.
func TestDocumentsAreWellFormed(t *testing.T) {
	guides := testutil.Glob(t, filepath.Join("..", "..", "docs", "*.md"))
	for _, guide := range guides {
		require.Contains(t, pages, "docs/"+filepath.Base(guide), "a guide whose commands no test runs")
	}
	decisions := testutil.Glob(t, filepath.Join("..", "..", "docs", "adr", "*.md"))
	all := slices.Concat(pages, references)
	for _, decision := range decisions {
		all = append(all, "docs/adr/"+filepath.Base(decision))
	}
	for _, page := range all {
		text := readPage(t, page)
		if limit := maxPageLines[page]; limit > 0 {
			require.LessOrEqual(t, strings.Count(text, "\n"), limit, page)
		}
		checkLinks(t, page, text)
		for _, b := range blocksOf(text) {
			if !strings.HasPrefix(b.info, "go ") { // a file of CONTRIBUTING.md: see TestContributing
				require.Contains(t, []string{"sh", "sh checked", "sh evaluators", "go", "js", "text"}, b.info, page)
			}
			if strings.HasPrefix(b.info, "sh ") {
				checkCommands(t, page, b.text)
			}
		}
		prose := fence.ReplaceAllString(text, "")
		if page != "CONTRIBUTING.md" { // CONTRIBUTING.md names files that its reader adds
			checkPaths(t, page, prose)
		}
		checkProse(t, page, prose)
		for _, match := range regexp.MustCompile("`(anneal [a-z][^`]*)`").FindAllStringSubmatch(prose, -1) {
			if !strings.Contains(match[1], "COMMAND") {
				understood(t, page, strings.Join(strings.Fields(match[1]), " "), false)
			}
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// checkLinks requires that relative links lead to files of this repository.
func checkLinks(t *testing.T, page, text string) {
	for _, match := range link.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(match[1], "://") {
			require.FileExists(t, filepath.Join("..", "..", filepath.Dir(page), match[1]), "a link of %s", page)
		}
	}
}

var sourcePath = regexp.MustCompile("`((?:api|blobs|cmd|compose|disk|docs|domain|engines|eventlog|examples|internal|" +
	"projections|schedulers|workers)/[^`A-Z ]+)`")

// checkPaths requires that the files and directories that a page names exist.
func checkPaths(t *testing.T, page, prose string) {
	for _, match := range sourcePath.FindAllStringSubmatch(prose, -1) {
		_, err := os.Stat(filepath.Join("..", "..", match[1]))
		require.NoError(t, err, "%s names %s", page, match[1])
	}
}

// checkProse limits the width of lines that can be wrapped.
func checkProse(t *testing.T, page, prose string) {
	for line := range strings.Lines(prose) {
		wrappable := !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "#") &&
			strings.Contains(strings.TrimSpace(line), " ")
		if wrappable {
			require.LessOrEqual(t, len([]rune(strings.TrimSpace(line))), maxProseColumns, "%s: %s", page, line)
		}
	}
}

// checkCommands requires that the shell can parse a block, that each command is one that documents
// can contain, and that commands of anneal and targets of the Makefile exist with their flags.
func checkCommands(t *testing.T, page, text string) {
	if out, err := exec.Command("bash", "-n", "-c", text).CombinedOutput(); err != nil {
		require.Failf(t, "the shell cannot parse it", "%s: %s%s", page, out, text)
	}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " >")
		line, _, _ = strings.Cut(line, " # ")
		line = regexp.MustCompile(`^([A-Z_]+=\S* )+`).ReplaceAllString(line, "")
		switch command, rest, _ := strings.Cut(line, " "); command {
		case "anneal":
			understood(t, page, line, true)
		case "make":
			target, _, _ := strings.Cut(rest, " ")
			require.Regexp(t, `(?m)^`+regexp.QuoteMeta(target)+`:`, readPage(t, "Makefile"), page)
		case "go":
			for _, dir := range regexp.MustCompile(` \./([\w/-]+)`).FindAllStringSubmatch(line, -1) {
				require.DirExists(t, filepath.Join("..", "..", dir[1]), "%s: %s", page, line)
			}
		case "curl", "apt-get", "git", "export":
		default:
			require.Failf(t, "an unexpected command", "%s: %s", page, line)
		}
	}
}

// understood requires that the program accepts a command line with all its flags and, where it is
// complete, with its arguments.
func understood(t *testing.T, page, line string, complete bool) {
	found, rest, err := cli.NewRoot("dev").Find(wordsOf(line)[1:])
	require.NoError(t, err, "%s: %s", page, line)
	require.NoError(t, found.ParseFlags(rest), "%s: %s", page, line)
	if complete || found.HasSubCommands() {
		require.NoError(t, found.ValidateArgs(found.Flags().Args()), "%s: %s", page, line)
	}
}

var word = regexp.MustCompile(`'[^']*'|\S+`)

// wordsOf splits a command line as a shell does; a text in single quotes is one
// word.
func wordsOf(line string) (words []string) {
	for _, one := range word.FindAllString(line, -1) {
		words = append(words, strings.Trim(one, "'"))
	}
	return words
}
