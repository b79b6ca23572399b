package settings_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/internal/settings"
	"anneal/internal/usage"
)

// flags are the flags of a command in these tests.
type flags struct {
	set     *pflag.FlagSet
	listen  string
	timeout time.Duration
	count   int
	public  bool
	labels  []string
}

func newFlags(t *testing.T, file string, args ...string) *flags {
	f := &flags{set: pflag.NewFlagSet("serve", pflag.ContinueOnError)}
	f.set.StringVar(&f.listen, "listen", "127.0.0.1:8080", "")
	f.set.DurationVar(&f.timeout, "max-wait", time.Second, "")
	f.set.IntVar(&f.count, "count", 1, "")
	f.set.BoolVar(&f.public, "public", false, "")
	f.set.StringArrayVar(&f.labels, "label", nil, "")
	f.set.String(settings.ConfigFlag, "", "")
	f.set.Var(f.set.Lookup("max-wait").Value, "hold", "")
	require.NoError(t, f.set.MarkDeprecated("hold", "use --max-wait"))
	if file != "" {
		path := filepath.Join(t.TempDir(), "anneal.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		args = append(args, "--config", path)
	}
	require.NoError(t, f.set.Parse(args))
	return f
}

// TestPrecedence checks that a flag takes precedence over a variable, a variable over the file, and
// the file over the default, for flags of every form.
func TestPrecedence(t *testing.T) {
	const file = "listen: file:1\nmax-wait: 3s\ncount: 3\npublic: true\nlabel: [a=3, b=3]\n"
	variables := map[string]string{"ANNEAL_LISTEN": "variable:1", "ANNEAL_MAX_WAIT": "2s", "ANNEAL_LABEL": "a=2 b=2",
		"ANNEAL_COUNT": ""}
	f := newFlags(t, file, "--listen", "flag:1")
	all, err := settings.Apply(f.set, func(name string) string { return variables[name] })
	require.NoError(t, err)
	require.Equal(t, "flag:1", f.listen)
	require.Equal(t, 2*time.Second, f.timeout)
	require.Equal(t, 3, f.count, "an empty variable sets nothing")
	require.True(t, f.public)
	require.Equal(t, []string{"a=2", "b=2"}, f.labels)
	require.ElementsMatch(t, []settings.Setting{{"listen", "flag:1", settings.FromFlag},
		{"max-wait", "2s", settings.FromVariable}, {"count", "3", settings.FromFile}, {"public", "true", settings.FromFile},
		{"label", "[a=2,b=2]", settings.FromVariable}}, all)

	f = newFlags(t, file)
	_, err = settings.Apply(f.set, func(string) string { return "" })
	require.NoError(t, err)
	require.Equal(t, []string{"a=3", "b=3"}, f.labels)
	require.True(t, f.set.Lookup("listen").Changed, "code that asks whether a flag is given sees the setting")
}

// TestFormerNamesTakePrecedence checks that a flag that is given by its former name is not
// overwritten by a variable of the new name.
func TestFormerNamesTakePrecedence(t *testing.T) {
	f := newFlags(t, "max-wait: 3s\n", "--hold", "9s")
	_, err := settings.Apply(f.set, func(string) string { return "" })
	require.NoError(t, err)
	require.Equal(t, 9*time.Second, f.timeout)
}

// TestFileInVariable checks that ANNEAL_CONFIG names the configuration file.
func TestFileInVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "anneal.yaml")
	require.NoError(t, os.WriteFile(path, []byte("# nothing but a comment\ncount: 4\n"), 0o600))
	f := newFlags(t, "")
	_, err := settings.Apply(f.set, func(name string) string {
		return map[string]string{"ANNEAL_CONFIG": path}[name]
	})
	require.NoError(t, err)
	require.Equal(t, 4, f.count)
}

// TestInvalidSettings checks that all violations are in one error, each with its place.
func TestInvalidSettings(t *testing.T) {
	f := newFlags(t, "listn: x\nlabel: {a: b}\ncount: three\npublic:\nhold: 2s\nlisten: [a, b]\n"+
		"max-wait: 1s\nmax-wait: 2s\n")
	_, err := settings.Apply(f.set, func(name string) string {
		return map[string]string{"ANNEAL_MAX_WAIT": "20"}[name]
	})
	require.ErrorAs(t, err, &usage.Error{})
	for _, want := range []string{"8 settings are invalid", "line 1, listn: no such setting, did you mean listen?",
		"line 2, label: a setting must be a text, number, boolean or list of these", `count: "three" must be a whole number`,
		"line 4, public: the setting has no value", "line 5, hold: no such setting", "listen: must be one value, not a list",
		"line 8, max-wait: the setting is given twice", `ANNEAL_MAX_WAIT: "20" must be a duration`} {
		require.ErrorContains(t, err, want)
	}
}

// TestInvalidFiles checks the errors of files that are no configuration.
func TestInvalidFiles(t *testing.T) {
	for file, want := range map[string]string{
		"- a\n":                   "must be a mapping of settings",
		"count: 1\n---\ncount: 2": "must have one YAML document",
		"count: [1":               "is not valid YAML",
	} {
		_, err := settings.Apply(newFlags(t, file).set, func(string) string { return "" })
		require.ErrorContains(t, err, want, file)
	}
	_, err := settings.Apply(newFlags(t, "", "--config", filepath.Join(t.TempDir(), "none.yaml")).set,
		func(string) string { return "" })
	require.ErrorContains(t, err, "--config")
	large := newFlags(t, "#"+string(make([]byte, settings.MaxFile)))
	_, err = settings.Apply(large.set, func(string) string { return "" })
	require.ErrorContains(t, err, "has more than 1048576 bytes")
}
