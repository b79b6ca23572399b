package cli

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// eachCommand calls visit for every command that does not only contain others.
func eachCommand(c *cobra.Command, visit func(*cobra.Command)) {
	for _, child := range c.Commands() {
		eachCommand(child, visit)
	}
	if !c.HasSubCommands() {
		visit(c)
	}
}

// TestWrongArgumentsAreNamed checks for every command that the error of a missing argument names it,
// and that the error of an unexpected one shows it.
func TestWrongArgumentsAreNamed(t *testing.T) {
	missing := 0
	eachCommand(NewRoot("test"), func(c *cobra.Command) {
		if c.Args == nil {
			return // a command of cobra
		}
		if err := c.Args(c, nil); err != nil {
			missing++
			require.Regexp(t, "^"+argumentNames(c)[0]+`\b.*missing; usage: `+c.CommandPath(), err.Error())
			if c.Example != "" {
				require.Regexp(t, "; for example: .*"+c.CommandPath(), err.Error())
			}
		}
		many := slices.Repeat([]string{"surplus"}, 100)
		require.ErrorContains(t, c.Args(c, many), `unexpected argument "surplus"; usage: `+c.CommandPath())
	})
	require.Greater(t, missing, 50)
	require.Equal(t, "RESOURCE and A and B are missing; usage: anneal diff RESOURCE A B [flags]",
		strings.Split(missingArguments(command(t, "diff"), []string{"RESOURCE", "A", "B"}).Error(), "; for")[0])
}

func command(t *testing.T, words ...string) *cobra.Command {
	c, _, err := NewRoot("test").Find(words)
	require.NoError(t, err)
	return c
}

// TestPromptsOfStandardInput checks that a completion reads its prompt from standard input, and that a
// missing prompt is an error that shows an example.
func TestPromptsOfStandardInput(t *testing.T) {
	for _, input := range []string{"", "\n \n"} {
		c := NewRoot("test")
		c.SetArgs([]string{"complete"})
		c.SetIn(strings.NewReader(input))
		require.EqualError(t, c.Execute(), "PROMPT is missing; usage: anneal complete [PROMPT] [flags]; for example: "+
			`anneal complete --model polite "good morning"`, "%q", input)
	}
	text := t.TempDir() + "/prompt"
	require.NoError(t, os.WriteFile(text, []byte("good morning\n"), 0o600))
	in, err := os.Open(text)
	require.NoError(t, err)
	defer in.Close()
	c := command(t, "complete")
	c.SetIn(in)
	prompt, err := readPrompt(c, nil)
	require.NoError(t, err)
	require.Equal(t, "good morning", prompt)
}

// TestEmptyTables checks that an empty table says on standard error that there are no rows and what the
// user can do, and that JSON has no such text.
func TestEmptyTables(t *testing.T) {
	shown := func(line ...string) (out, text string) {
		var stdout, stderr bytes.Buffer
		root := NewRoot("test")
		root.SetOut(&stdout)
		root.SetErr(&stderr)
		c, flags, err := root.Find(line)
		require.NoError(t, err)
		require.NoError(t, c.ParseFlags(flags))
		none := noRows{"no usage", "request an earlier period"}
		if c.Name() == "list" {
			none = datasets.emptyList(c)
		}
		require.NoError(t, printItems(c, none, []map[string]any{}, column{"ID", "#name"}))
		return stdout.String(), stderr.String()
	}
	for _, test := range []struct{ line, text string }{
		{"usage", "no usage: request an earlier period\n"},
		{"usage --from 2026-03-01T00:00:00Z",
			"no usage with --from \"2026-03-01T00:00:00Z\": give another value, or leave it out\n"},
		{"dataset list", "no datasets: `anneal dataset create --help` shows how to create one\n"},
		{"dataset list --filter state=READY",
			"no datasets with --filter \"state=READY\": give another value, or leave it out\n"},
	} {
		out, text := shown(strings.Fields(test.line)...)
		require.Equal(t, test.text, text, test.line)
		require.Equal(t, "ID\n", out)
		out, text = shown(append(strings.Fields(test.line), "-o", "json")...)
		require.Empty(t, text, test.line)
		require.Equal(t, "[]\n", out)
	}
}
