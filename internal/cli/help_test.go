package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/internal/usage"
)

// commands returns all commands, including groups.
func commands(c *cobra.Command) (all []*cobra.Command) {
	all = append(all, c)
	for _, child := range c.Commands() {
		all = append(all, commands(child)...)
	}
	return all
}

// leaves returns the commands that contain no others.
func leaves(c *cobra.Command) (all []*cobra.Command) {
	if !c.HasSubCommands() {
		return []*cobra.Command{c}
	}
	for _, child := range c.Commands() {
		all = append(all, leaves(child)...)
	}
	return all
}

// TestHelpIsForUsers checks that help texts have one style, do not vary between runs, and contain
// neither names of Go types nor internal terms.
func TestHelpIsForUsers(t *testing.T) {
	inside := regexp.MustCompile(
		`stringArray|stringToString|\bstrings\b|\(default \[\]\)|` +
			`\b(world|digest|fold(s|ed)?|pulse|desk|projection)\b|\[flags\]\n.*\[command\]`)
	again := commands(NewRoot("test"))
	for i, c := range commands(NewRoot("test")) {
		help := strings.ReplaceAll(c.Short+"\n"+c.Long+"\n"+c.UsageString(), "anneal world", "")
		help = regexp.MustCompile(`(?m)^  world +`).ReplaceAllString(help, "")
		require.NotRegexp(t, inside, help, c.CommandPath())
		require.Equal(t, c.UsageString(), again[i].UsageString())
		require.Regexp(t, `^[A-Z].*[^.]$`, c.Short, c.CommandPath())
		c.Flags().VisitAll(func(f *pflag.Flag) {
			require.Regexp(t, `^[^A-Z].*[^.]$|^[A-Z]{2,}`, f.Usage, "%s --%s", c.CommandPath(), f.Name)
		})
	}
}

// TestHelpHasSections checks that long helps show the flags in sections. Flags without a section
// come first.
func TestHelpHasSections(t *testing.T) {
	for line, titles := range map[string][]string{
		"serve": {"Addresses and data", "Log and NATS", "TLS", "Login with OpenID Connect", "Backups", "Traces",
			"Nodes, jobs and deployments", "Limits of requests",
			"Estimated costs", "Node", "Engines of the node", "Configuration and logs", "Other", "Common flags"},
		"work": {"Flags", "Node", "Engines of the node", "Metrics and traces", "Configuration and logs",
			"Common flags"},
		"deployment create": {"Flags", "Devices", "Scaling", "Common flags"},
		"deployment update": {"Flags", "Devices", "Scaling", "Common flags"},
		"transcribe":        {"Flags", "Decoding", "Speakers", "Common flags"},
		"dataset create":    {"Flags", "Common flags"},
	} {
		c, _, err := NewRoot("test").Find(strings.Fields(line))
		require.NoError(t, err, line)
		c.InitDefaultHelpFlag()
		help := c.UsageString()
		var shown []string
		for _, title := range regexp.MustCompile(`(?m)^([A-Z][A-Za-z, ]*):\n +-`).FindAllStringSubmatch(help, -1) {
			shown = append(shown, title[1])
		}
		require.Equal(t, titles, shown, line)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.Equal(t, !f.Hidden, regexp.MustCompile(`--`+f.Name+`\s`).MatchString(help), "%s --%s", line, f.Name)
		})
	}
}

// TestExamplesAreValid checks that the commands in examples are valid command lines.
func TestExamplesAreValid(t *testing.T) {
	shown := 0
	for _, c := range commands(NewRoot("test")) {
		for line := range strings.Lines(c.Example) {
			_, typed, found := strings.Cut(line, "anneal ")
			require.True(t, found, line)
			typed, _, _ = strings.Cut(typed, " > ")
			typed, _, _ = strings.Cut(typed, " < ")
			meant, rest, err := NewRoot("test").Find(words(typed))
			require.NoError(t, err, line)
			require.True(t, meant.CommandPath() == c.CommandPath() || strings.HasPrefix(typed, "work "), "%s: %s",
				c.CommandPath(), line)
			require.NoError(t, meant.ParseFlags(rest), line)
			require.NoError(t, meant.ValidateArgs(meant.Flags().Args()), line)
			shown++
		}
	}
	require.Greater(t, shown, 30)
}

// TestCommandLinesAreCheckedWithoutAServer checks that a missing argument or flag is reported even
// without a server.
func TestCommandLinesAreCheckedWithoutAServer(t *testing.T) {
	for _, line := range []string{"model create m", "model prepare m", "model export m", "shape match",
		"deployment create", "deployment scale d many", "evaluator create e",
		"addon load", "rlor step r", "dataset derive d", "account suspend a", "quota set a jobs many", "work",
		"events --from x", "evaluator preview", "node token --id A_"} {
		c := NewRoot("test")
		c.SetArgs(append(strings.Fields(line), "--context", "nowhere.json"))
		var wrong usage.Error
		require.ErrorAs(t, c.Execute(), &wrong, line)
		require.NotContains(t, wrong.Error(), "nowhere.json")
	}
}

// words splits a command line as a shell does.
func words(line string) (all []string) {
	for _, word := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`).FindAllString(line, -1) {
		all = append(all, strings.NewReplacer(`'`, "", `"`, "").Replace(word))
	}
	return all
}
