// Package settings sets flags of a command from environment variables and from a configuration
// file. A flag of the command line takes precedence over a variable, a variable over the file, and
// the file over the default of the flag.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"anneal/domain"
	"anneal/internal/usage"
)

// Sources of the value of a setting.
const (
	FromDefault  = "default"
	FromFlag     = "flag"
	FromVariable = "variable"
	FromFile     = "file"
)

// MaxFile is the maximum size of a configuration file, in bytes.
const MaxFile = 1 << 20

// ConfigFlag is the flag with the path of the configuration file.
const ConfigFlag = "config"

// A Setting is a flag with its value and the source of the value.
type Setting struct {
	Flag   string
	Value  string
	Source string // FromDefault, FromFlag, FromVariable or FromFile
}

// Variable returns the environment variable that sets a flag, such as ANNEAL_MAX_UPLOAD for
// max-upload.
func Variable(flag string) string {
	return "ANNEAL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Apply sets the flags of f that the command line does not set: from the environment if the
// variable of the flag is set and not empty, otherwise from the file that the flag --config names.
// It returns all settings in the order of the flags, or a usage.Error with all violations: unknown
// settings of the file, and invalid values.
func Apply(f *pflag.FlagSet, environment func(name string) string) ([]Setting, error) {
	var all []Setting
	var violations []string
	violate := func(format string, args ...any) { violations = append(violations, fmt.Sprintf(format, args...)) }
	path := pathOf(f, environment)
	file, err := read(path)
	if err != nil {
		return nil, err
	}
	for _, entry := range file {
		if err := entry.check(f); err != nil {
			violate("%s, line %d, %s: %v", path, entry.line, entry.name, err)
		}
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if !isSetting(flag) {
			return
		}
		source, values := sourceOf(f, flag, environment, file)
		if source == FromVariable || source == FromFile {
			if err := set(f, flag, values); err != nil {
				violate("%s: %v", place(flag, source, path), err)
			}
		}
		all = append(all, Setting{flag.Name, flag.Value.String(), source})
	})
	if len(violations) > 0 {
		return nil, usage.Errorf("%s", list(violations))
	}
	return all, nil
}

// isSetting reports whether variables and files can set a flag. The former names of renamed flags
// are for the command line only.
func isSetting(flag *pflag.Flag) bool {
	return flag.Name != "help" && flag.Name != ConfigFlag && flag.Deprecated == ""
}

// pathOf returns the path of the configuration file; "" for none.
func pathOf(f *pflag.FlagSet, environment func(string) string) string {
	flag := f.Lookup(ConfigFlag)
	if flag == nil {
		return ""
	}
	if flag.Changed {
		return flag.Value.String()
	}
	return environment(Variable(ConfigFlag))
}

// sourceOf returns where the value of a flag comes from, and its values in a variable or the file.
func sourceOf(f *pflag.FlagSet, flag *pflag.Flag, environment func(string) string, file []entry) (
	source string, values []string) {
	if isGiven(f, flag) {
		return FromFlag, nil
	}
	if value := environment(Variable(flag.Name)); value != "" {
		if _, repeatable := flag.Value.(pflag.SliceValue); repeatable {
			return FromVariable, strings.Fields(value)
		}
		return FromVariable, []string{value}
	}
	for _, entry := range file {
		if entry.name == flag.Name && entry.err == nil {
			return FromFile, entry.values
		}
	}
	return FromDefault, nil
}

// isGiven reports whether the command line sets a flag, by its name or by a former name.
func isGiven(f *pflag.FlagSet, flag *pflag.Flag) (given bool) {
	f.VisitAll(func(other *pflag.Flag) {
		given = given || other.Changed && other.Value == flag.Value
	})
	return given
}

func place(flag *pflag.Flag, source, path string) string {
	if source == FromVariable {
		return Variable(flag.Name)
	}
	return path + ", " + flag.Name
}

// set sets the value of a flag, as if the command line contained it.
func set(f *pflag.FlagSet, flag *pflag.Flag, values []string) error {
	if slice, repeatable := flag.Value.(pflag.SliceValue); repeatable {
		flag.Changed = true
		return slice.Replace(values)
	}
	if len(values) != 1 {
		return errors.New("must be one value, not a list")
	}
	if err := f.Set(flag.Name, values[0]); err != nil {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) {
			return errors.New(usage.WhyInvalid(invalid))
		}
		return err
	}
	return nil
}

// An entry is one setting of a configuration file.
type entry struct {
	name   string
	values []string // one for a scalar
	line   int
	err    error // the value has an invalid form
}

func (e entry) check(f *pflag.FlagSet) error {
	if e.err != nil {
		return e.err
	}
	if flag := f.Lookup(e.name); flag != nil && isSetting(flag) {
		return nil
	}
	var names []string
	f.VisitAll(func(flag *pflag.Flag) {
		if isSetting(flag) && !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	hint := ""
	if similar := domain.Similar(e.name, names); len(similar) > 0 {
		hint = ", did you mean " + similar[0] + "?"
	}
	return fmt.Errorf("no such setting%s (settings have the names of the command's flags, without --)", hint)
}

// read returns the settings in a configuration file: a YAML mapping from names of flags to
// scalars or lists of scalars. It returns none for the path "".
func read(path string) ([]entry, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, usage.Errorf("--config: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, MaxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--config %s cannot be read: %w", path, err)
	case len(text) > MaxFile:
		return nil, usage.Errorf("--config %s has more than %d bytes", path, MaxFile)
	}
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, usage.Errorf("--config %s is not valid YAML: %v", path, err)
	}
	if len(document.Content) == 0 {
		return nil, nil // an empty file
	}
	if !errors.Is(decoder.Decode(new(yaml.Node)), io.EOF) {
		return nil, usage.Errorf("--config %s must have one YAML document: remove the lines from the second --- on", path)
	}
	settings := document.Content[0]
	if settings.Kind != yaml.MappingNode {
		return nil, usage.Errorf("--config %s must be a mapping of settings, such as listen: 127.0.0.1:8080", path)
	}
	var entries []entry
	for i := 0; i < len(settings.Content); i += 2 {
		name, value := settings.Content[i], settings.Content[i+1]
		e := entry{name: name.Value, line: name.Line}
		if e.values, e.err = scalars(value); e.err == nil &&
			slices.ContainsFunc(entries, func(earlier entry) bool { return earlier.name == e.name }) {
			e.err = errors.New("the setting is given twice: remove one line")
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// scalars returns the texts of a scalar or of a list of scalars.
func scalars(node *yaml.Node) ([]string, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		if node.Tag == "!!null" {
			return nil, errors.New("the setting has no value: write a value, or remove the line")
		}
		return []string{node.Value}, nil
	case yaml.SequenceNode:
		values := []string{}
		for _, element := range node.Content {
			if element.Kind != yaml.ScalarNode {
				return nil, errors.New("the elements of a list must be texts, numbers or booleans")
			}
			values = append(values, element.Value)
		}
		return values, nil
	}
	return nil, errors.New("a setting must be a text, number, boolean or list of these")
}

func list(violations []string) string {
	if len(violations) == 1 {
		return violations[0]
	}
	return fmt.Sprintf("%d settings are invalid:\n  %s", len(violations), strings.Join(violations, "\n  "))
}
