package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// commands are all that can be typed, groups among them.
func commands(c *cobra.Command) (all []*cobra.Command) {
	all = append(all, c)
	for _, child := range c.Commands() {
		all = append(all, commands(child)...)
	}
	return all
}

// What --help shows is in one style, the same every time, and for who types: no
// types of the language that this is written in, and no words of its inside.
func TestHelpIsForWhoTypes(t *testing.T) {
	inside := regexp.MustCompile(`stringArray|stringToString|\bstrings\b|\(default \[\]\)|\b(world|digest|fold(s|ed)?|pulse|desk|projection)\b|\[flags\]\n.*\[command\]`)
	again := commands(newRoot())
	for i, c := range commands(newRoot()) {
		help := c.Short + "\n" + c.Long + "\n" + c.UsageString()
		require.NotRegexp(t, inside, help, c.CommandPath())
		require.Equal(t, c.UsageString(), again[i].UsageString())
		require.Regexp(t, `^[A-Z].*[^.]$`, c.Short, c.CommandPath())
		c.Flags().VisitAll(func(f *pflag.Flag) {
			require.Regexp(t, `^[^A-Z].*[^.]$|^[A-Z]{2,}`, f.Usage, "%s --%s", c.CommandPath(), f.Name)
		})
	}
}

// The examples are command lines that are understood.
func TestExamplesAreUnderstood(t *testing.T) {
	shown := 0
	for _, c := range commands(newRoot()) {
		for line := range strings.Lines(c.Example) {
			_, typed, found := strings.Cut(line, "anneal ")
			require.True(t, found, line)
			typed, _, _ = strings.Cut(typed, " > ")
			meant, rest, err := newRoot().Find(words(typed))
			require.NoError(t, err, line)
			require.True(t, meant.CommandPath() == c.CommandPath() || strings.HasPrefix(typed, "work "), "%s: %s", c.CommandPath(), line)
			require.NoError(t, meant.ParseFlags(rest), line)
			require.NoError(t, meant.ValidateArgs(meant.Flags().Args()), line)
			shown++
		}
	}
	require.Greater(t, shown, 30)
}

// What a line lacks is told wherever it is typed, also where there is no server.
func TestLinesAreJudgedBeforeAServerIsLookedFor(t *testing.T) {
	for _, line := range []string{"model create m", "model prepare m", "model export m", "shape match", "deployment create", "deployment scale d many", "evaluator create e",
		"addon load", "rlor step r", "dataset derive d", "account suspend a", "quota set a jobs many", "work", "events --from x", "evaluator preview", "node token --id A_"} {
		c := newRoot()
		c.SetArgs(append(strings.Fields(line), "--context", "nowhere.json"))
		var usage usageError
		require.ErrorAs(t, c.Execute(), &usage, line)
		require.NotContains(t, usage.Error(), "nowhere.json")
	}
}

// words are those of a command line, as a shell parts them.
func words(line string) (all []string) {
	for _, word := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(line, -1) {
		all = append(all, strings.NewReplacer(`'`, "", `"`, "").Replace(word))
	}
	return all
}

// Listed are the lists as they are typed with the filters and orders that their
// help shows.
func Listed() (lines [][]string) {
	example := regexp.MustCompile(`such as '(.*)'`)
	for _, c := range commands(newRoot()) {
		for _, flag := range []string{"filter", "order-by"} {
			if f := c.Flags().Lookup(flag); f != nil && c.Name() != "derive" {
				lines = append(lines, append(strings.Fields(c.CommandPath())[1:], "--"+flag, example.FindStringSubmatch(f.Usage)[1]))
			}
		}
	}
	return lines
}
