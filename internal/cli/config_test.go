package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/internal/settings"
)

// otherVariables are the variables of the program that set no flag.
var otherVariables = map[string]bool{"ANNEAL_API_KEY": true, "ANNEAL_URL": true, "ANNEAL_CONTEXT": true,
	"ANNEAL_NATS_PASSWORD": true, "ANNEAL_NATS_READER_PASSWORD": true, "ANNEAL_NATS_ISSUER_SEED": true,
	"ANNEAL_KERNEL": true}

// TestVariablesAreUnambiguous checks that no variable sets a flag of serve, work or witness and has
// another meaning too.
func TestVariablesAreUnambiguous(t *testing.T) {
	inSources := map[string]bool{}
	variable := regexp.MustCompile(`"(ANNEAL_[A-Z_]+)"`)
	require.NoError(t, filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range variable.FindAllStringSubmatch(string(text), -1) {
			inSources[found[1]] = true
		}
		return err
	}))
	require.NotEmpty(t, inSources)
	for name, create := range configurable {
		create().LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.False(t, otherVariables[settings.Variable(f.Name)] || inSources[settings.Variable(f.Name)],
				"--%s of %s and another setting have the variable %s", f.Name, name, settings.Variable(f.Name))
		})
	}
}

// TestEveryFlagIsASetting checks that a variable sets each flag of serve, work and witness: an
// invalid value of each flag with a type of few values is refused by the name of its variable.
func TestEveryFlagIsASetting(t *testing.T) {
	for name, create := range configurable {
		tried := 0
		create().LocalFlags().VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "int", "int64", "bool", "duration":
			default:
				return
			}
			if f.Deprecated != "" || f.Name == "help" {
				return
			}
			variable := settings.Variable(f.Name)
			_, err := settings.Apply(create().LocalFlags(), func(name string) string {
				return map[string]string{variable: "x!"}[name]
			})
			require.ErrorContains(t, err, variable+`: "x!" must be`, "%s --%s", name, f.Name)
			tried++
		})
		require.True(t, tried > 3 || name == "witness", name)
	}
}
