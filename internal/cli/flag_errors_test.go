package cli

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/usage"
)

// usageError returns the message of the usage error of a command line.
func usageError(t *testing.T, line string) string {
	t.Helper()
	c := NewRoot("test")
	c.SetArgs(strings.Fields(line))
	var wrong usage.Error
	require.ErrorAs(t, c.Execute(), &wrong, line)
	return wrong.Error()
}

// TestUnknownFlagsSuggestTheNearest checks that the error of an unknown flag suggests the most
// similar flag that the help shows.
func TestUnknownFlagsSuggestTheNearest(t *testing.T) {
	for line, shown := range map[string]string{
		"sft create --epoch 3":             "unknown flag --epoch: did you mean --epochs?",
		"sft create --lerning-rate 3":      "unknown flag --lerning-rate: did you mean --learning-rate?",
		"deployment create --min 3":        "unknown flag --min: did you mean --min-replicas?",
		"dataset list --contxt x":          "unknown flag --contxt: did you mean --context?",
		"serve --holt 3s":                  "unknown flag --holt",
		"dataset list --colour red":        "unknown flag --colour",
		"dataset list -z":                  "unknown shorthand flag: 'z' in -z",
		"dataset create d --fil=rows.json": "unknown flag --fil: did you mean --file?",
		"dataset create d --flie x":        "unknown flag --flie: did you mean --file?",
		"sft create --epcohs 3":            "unknown flag --epcohs: did you mean --epochs?",
		"sft create --model m":             "unknown flag --model: did you mean --base-model?",
	} {
		command, _, _ := strings.Cut(line, " -")
		require.Equal(t, shown+" (see anneal "+strings.TrimSuffix(command, " d")+" --help)", usageError(t, line), line)
	}
}

// TestUnknownFlagsShowArguments checks that the error of an unknown flag shows the usage of a command
// with arguments, because the flag of one command is the argument of another.
func TestUnknownFlagsShowArguments(t *testing.T) {
	for line, shown := range map[string]string{
		"dataset upload d --file rows.jsonl":     "unknown flag --file; usage: anneal dataset upload ID FILE [flags]",
		"batch create --file r.jsonl":            "unknown flag --file; usage: anneal batch create FILE [flags]",
		"model upload m --dir d":                 "unknown flag --dir; usage: anneal model upload ID DIR [flags]",
		"deployment scale d --count 2":           "unknown flag --count; usage: anneal deployment scale ID REPLICAS [flags]",
		"deployment scale d -1":                  "argument -1 must not be negative; usage: ",
		"quota set acme jobs -1":                 "argument -1 must not be negative; usage: ",
		"quota set acme requests-per-minute -60": "argument -60 must not be negative",
	} {
		require.Contains(t, usageError(t, line), shown, line)
	}
}

// TestMisspeltCommandsBeforeFlags checks that the error names the misspelt command and not the flag
// after it.
func TestMisspeltCommandsBeforeFlags(t *testing.T) {
	for line, want := range map[string]string{
		"deploymnt create base --model m": `unknown command "deploymnt", did you mean deployment? (see anneal --help)`,
		"sft crate x --dataset codes":     `unknown command "crate", did you mean create? (see anneal sft --help)`,
		"sft --dataset codes":             "unknown flag --dataset (see anneal sft --help)",
	} {
		require.Equal(t, want, usageError(t, line), line)
	}
}

// TestInvalidValuesOfFlags checks that the error of an invalid value names the flag, the value and
// what the flag takes, for every type of flag, and never a function of Go.
func TestInvalidValuesOfFlags(t *testing.T) {
	for line, shown := range map[string]string{
		"sft create --epochs eight": `--epochs: "eight" must be a whole number`,
		"sft create --epochs 99999999999999999999": `--epochs: "99999999999999999999" is out of range: the flag takes a ` +
			`whole number`,
		"chat --temperature warm x":                 `--temperature: "warm" must be a number, such as 0.5`,
		"sft create --watch=maybe":                  `--watch: "maybe" must be true or false`,
		"key create --expire soon":                  `--expire: "soon" must be a duration, such as 30s, 10m or 720h`,
		"deployment create --load-target fast":      `--load-target: "fast" must be NAME=VALUE`,
		"serve --accelerators VENDOR_A_H100_80GB=x": "--accelerators: ",
	} {
		require.Contains(t, usageError(t, line), shown, line)
	}
	for _, c := range commands(NewRoot("test")) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "string" || f.Value.Type() == "stringArray" || f.Value.Type() == "stringSlice" {
				return
			}
			err := c.Flags().Set(f.Name, "¿?")
			require.Error(t, err, "%s --%s", c.CommandPath(), f.Name)
			message := flagError(c, err).Error()
			require.True(t, strings.HasPrefix(message, "--"+f.Name+": "), message)
			require.NotContains(t, message, "strconv", "%s --%s", c.CommandPath(), f.Name)
			require.NotContains(t, message, "time: ", "%s --%s", c.CommandPath(), f.Name)
		})
	}
}

// TestMisspeltCommandsSuggestTheNearest checks that a swap of two letters counts as one error.
func TestMisspeltCommandsSuggestTheNearest(t *testing.T) {
	for typed, want := range map[string]string{"stf": "sft", "dop": "dpo", "evla": "eval",
		"deploy": "deployment",
		"chta":   "chat", "whoma": "whoami", "frobnicate": "", "x": ""} {
		require.Equal(t, want, similarCommand(NewRoot("test"), typed), typed)
	}
	for _, test := range []struct {
		a, b     string
		distance int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"flie", "file", 1}, {"ab", "ba", 1}, {"abc", "cab", 2}, {"ca", "abc", 3},
		{"epoch", "epochs", 1}, {"kitten", "sitting", 3}} {
		require.Equal(t, test.distance, domain.EditDistance(test.a, test.b), "%s %s", test.a, test.b)
		require.Equal(t, test.distance, domain.EditDistance(test.b, test.a), "%s %s", test.b, test.a)
	}
}
