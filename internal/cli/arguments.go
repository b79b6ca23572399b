package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// arguments returns a check for cobra that the command line has from min to max arguments. Its
// errors show the usage line.
func arguments(min, max int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < min:
			return missingArguments(c, argumentNames(c)[len(args):min])
		case len(args) > max:
			return usage.Errorf("unexpected argument %.64q; usage: %s", args[max], c.UseLine())
		}
		for i, arg := range args {
			if strings.TrimSpace(arg) == "" {
				return usage.Errorf("argument %d is empty; usage: %s", i+1, c.UseLine())
			}
		}
		return nil
	}
}

// missingArguments returns the error of a command line that lacks the arguments with these names.
// The error contains the first example of the command, if it has one.
func missingArguments(c *cobra.Command, names []string) error {
	are, example := " is", ""
	if len(names) > 1 {
		are = " are"
	}
	if line, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n"); line != "" {
		example = "; for example: " + line
	}
	return usage.Errorf("%s%s missing; usage: %s%s", strings.Join(names, " and "), are, c.UseLine(), example)
}
