package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/domain"
	"anneal/internal/usage"
)

// flagError returns the usage error for err, cobra's error of an invalid or unknown flag. For an
// unknown flag it suggests the most similar flag. If c is a group of commands, an argument before
// the flag is a misspelt command, which the error names instead.
func flagError(c *cobra.Command, err error) error {
	if args := c.Flags().Args(); c.HasSubCommands() && len(args) > 0 {
		return onlyCommands(c, args)
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return usage.Errorf("--%s: %s (see %s --help)", invalid.GetFlag().Name, usage.WhyInvalid(invalid), c.CommandPath())
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && strings.ContainsAny(unknown.GetSpecifiedShortnames(), "0123456789") {
		return usage.Errorf("argument -%s must not be negative; usage: %s",
			unknown.GetSpecifiedShortnames(), c.UseLine())
	}
	if !errors.As(err, &unknown) || !strings.HasPrefix(err.Error(), "unknown flag: --") {
		return usage.Errorf("%w (see %s --help)", err, c.CommandPath())
	}
	name, hint := unknown.GetSpecifiedName(), ""
	if similar := similarFlag(c, name); similar != "" {
		hint = fmt.Sprintf(": did you mean --%s?", similar)
	} else if _, arguments, _ := strings.Cut(c.Use, " "); arguments != "" {
		hint = "; usage: " + c.UseLine()
	}
	return usage.Errorf("unknown flag --%s%s (see %s --help)", name, hint, c.CommandPath())
}

// similarFlag returns the visible flag of c that is most similar to name; "" if none is similar. A
// similar flag begins with name, ends with "-" and name, or differs from name by at most maxTypos
// letters and by at most a third of the letters of name.
func similarFlag(c *cobra.Command, name string) (similar string) {
	limit := min(maxTypos, len(name)/3)
	smallest := maxTypos + 1
	c.Flags().VisitAll(func(f *pflag.Flag) {
		distance := domain.EditDistance(name, f.Name)
		isPart := len(name) > maxTypos && strings.HasPrefix(f.Name, name) || strings.HasSuffix(f.Name, "-"+name)
		if distance > limit && !isPart {
			return
		}
		if distance = min(distance, maxTypos); !f.Hidden && distance < smallest {
			similar, smallest = f.Name, distance
		}
	})
	return similar
}

// similarCommand returns the visible command of the group c whose name or alias is most similar to
// name; "" if none is similar. A similar command begins with name, or differs from it by at most
// maxTypos letters.
func similarCommand(c *cobra.Command, name string) (similar string) {
	smallest := maxTypos + 1
	for _, child := range c.Commands() {
		if !child.IsAvailableCommand() {
			continue
		}
		for _, known := range append([]string{child.Name()}, child.Aliases...) {
			distance := domain.EditDistance(name, known)
			if strings.HasPrefix(known, name) { // prefer a command that begins with name
				distance = min(distance, maxTypos-1)
			}
			// of equally similar commands, prefer one with the first letter of name
			sameLetter := similar != "" && distance == smallest && known[0] == name[0] && similar[0] != name[0]
			if distance < len(name) && (distance < smallest || sameLetter) {
				similar, smallest = child.Name(), distance
			}
		}
	}
	return similar
}
