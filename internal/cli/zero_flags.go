package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/internal/usage"
)

// aboveZero names the numeric flags in which 0 is no value: it only stands for the default of a flag
// that is not given. A command refuses such a 0, which would do something else than it says. A key is
// the name of a flag, or of a command and its flag.
var aboveZero = []string{"epochs", "nodes", "last", "since", "step", "max", "accelerator-count", "hold-out",
	"min-speakers", "max-speakers", "from", "to", "nats-replicas", "max-connections", "max-connections-per-address"}

// rejectZeros returns a usage error if a flag that must be above 0 is given as 0.
func rejectZeros(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		isText := f.Value.Type() == "string" // such as --from of events, which checks its value
		if err != nil || isText || !slices.Contains(aboveZero, f.Name) || strings.TrimSuffix(f.Value.String(), "s") != "0" {
			return
		}
		standsFor := ""
		if _, after, ok := strings.Cut(f.Usage, "(default: "); ok {
			standsFor = ": " + strings.TrimSuffix(after, ")")
		} else if f.DefValue != "0" {
			standsFor = ", " + f.DefValue
		}
		err = usage.Errorf("--%s must be above 0, not 0; leave the flag out for the default%s", f.Name, standsFor)
	})
	return err
}
