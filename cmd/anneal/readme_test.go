package main_test

import (
	"bytes"
	"fmt"
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
)

const textAddress = "127.0.0.1:8080" // where the README's server listens

// What the README says can be done is done here, command by command.
func TestReadme(t *testing.T) {
	text := readme(t)
	dir := t.TempDir()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(root, "examples"), filepath.Join(dir, "examples")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	require.NoError(t, os.Symlink(binary(t), filepath.Join(dir, "bin", "anneal")))
	s := serve(t, filepath.Join(dir, "data"))

	blocks := fenced(text, "sh")
	if err := sandbox.New(sandbox.Options{}).Check(t.Context()); err != nil {
		t.Log(err)
		blocks = slices.DeleteFunc(blocks, func(block string) bool { return strings.Contains(block, "anneal evaluator") })
	}
	t.Run("commands", func(t *testing.T) { runBlocks(t, s, dir, blocks) })
	t.Run("the subscriber in Go", func(t *testing.T) { runSubscriber(t, s, fenced(text, "go")) })
	t.Run("indented commands", func(t *testing.T) { understood(t, root, text) })
	require.Zero(t, s.end())
}

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	return string(data)
}

// fenced are the README's blocks in a language.
func fenced(text, language string) (blocks []string) {
	for _, match := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

// runBlocks types all blocks into one shell, as a reader would from top to
// bottom, in a folder where the server's data lie in ./data.
func runBlocks(t *testing.T, s *plane, dir string, blocks []string) {
	require.NotEmpty(t, blocks)
	for _, tool := range []string{"bash", "curl", "sed", "timeout", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the README's commands need %s", tool)
		}
	}
	script := strings.ReplaceAll(strings.Join(blocks, "\n"), textAddress, strings.TrimPrefix(s.context.Address, "http://"))
	cmd := exec.Command("bash", "-exu")
	cmd.Stdin = strings.NewReader(script)
	cmd.Dir, cmd.Env = dir, environment(dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	overdue := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	defer overdue.Stop()
	require.NoError(t, cmd.Wait(), "%s", out.String())
	for _, seen := range []string{"COMPLETED", "READY", "deployment.ready.v1", ": equal"} {
		require.Contains(t, out.String(), seen)
	}
}

// program is the README's snippet with what stands around it in a program.
const program = `package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	listen(ctx, struct{ NATSURL, NATSUser, NATSPassword string }{os.Args[1], os.Args[2], os.Args[3]})
	<-ctx.Done()
}

func listen(ctx context.Context, context struct{ NATSURL, NATSUser, NATSPassword string }) {
%s}
`

// runSubscriber builds the snippet and lets it hear what the server did.
func runSubscriber(t *testing.T, s *plane, blocks []string) {
	require.Len(t, blocks, 1)
	// It lies in this module, which has its imports; the go command passes over
	// folders whose names begin with an underscore.
	dir, err := os.MkdirTemp(".", "_readme-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	source := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(source, fmt.Appendf(nil, program, blocks[0]), 0o600))
	subscriber := filepath.Join(t.TempDir(), "subscriber")
	for _, args := range [][]string{{"vet", source}, {"build", "-o", subscriber, source}} {
		out, err := exec.Command("go", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	p := &process{t: t, cmd: exec.Command(subscriber, s.context.NATSURL, s.context.NATSUser, s.context.NATSPassword), stderr: logFor(t, "the subscriber"), exited: make(chan struct{})}
	p.run()
	p.says("deployment.created.v1 accounts/default/deployments/codes")
}

// understood checks the commands that stand indented in the text: targets of
// the Makefile, and command lines that the program knows with all their flags.
func understood(t *testing.T, root, text string) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	made, typed := 0, 0
	for _, match := range regexp.MustCompile(`(?m)^    (make|anneal) (.+)$`).FindAllStringSubmatch(text, -1) {
		if match[1] == "make" {
			require.Regexp(t, `(?m)^`+regexp.QuoteMeta(match[2])+`:`, string(makefile))
			made++
			continue
		}
		line, _, _ := strings.Cut(match[2], " >")
		o := command(t, t.TempDir(), append(wordsOf(line), "--help")...)
		require.Contains(t, o.ok(t), "Usage:", "%s", line)
		typed++
	}
	require.Positive(t, made)
	require.Positive(t, typed)
	for _, match := range regexp.MustCompile("`(anneal [a-z][^`]*)`").FindAllStringSubmatch(text, -1) {
		if line := match[1]; strings.ToUpper(line) != line && !strings.Contains(line, "COMMAND") && !strings.Contains(line, "/") {
			command(t, t.TempDir(), append(strings.Fields(line)[1:], "--help")...).ok(t)
		}
	}
}

var word = regexp.MustCompile(`'[^']*'|\S+`)

// wordsOf splits a command line as a shell does; what stands in single quotes is
// one word.
func wordsOf(line string) (words []string) {
	for _, one := range word.FindAllString(line, -1) {
		words = append(words, strings.Trim(one, "'"))
	}
	return words
}
