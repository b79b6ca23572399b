package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/internal/usage"
)

// aboveZero are the names of the numeric flags whose value must be above 0. In the help, 0 only stands
// for the default of such a flag, so a command rejects an explicit 0, which would mean something else.
var aboveZero = []string{"epochs", "nodes", "last", "since", "step", "max", "accelerator-count", "hold-out",
	"min-speakers", "max-speakers", "from", "to", "nats-replicas", "max-connections", "max-connections-per-address",
	"replicas", "cache-blocks", "speed", "gateways", "announce-delay", "max-latency", "min-samples"}

// rejectNotPositive returns a usage error if a flag of aboveZero is given a value of 0 or less.
func rejectNotPositive(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		isText := f.Value.Type() == "string" // a text, such as --from of `anneal events`, is checked by its command
		value := f.Value.String()
		if value == "0s" { // zero as the value of a flag of type duration
			value = "0"
		}
		if err != nil || isText || !slices.Contains(aboveZero, f.Name) ||
			value != "0" && !strings.HasPrefix(value, "-") {
			return
		}
		standard := ""
		if _, after, ok := strings.Cut(f.Usage, "(default: "); ok {
			standard = ": " + strings.TrimSuffix(after, ")")
		} else if f.DefValue != "0" {
			standard = ", " + f.DefValue
		}
		err = usage.Errorf("--%s must be above 0, not %s; leave the flag out for the default%s", f.Name,
			value, standard)
	})
	return err
}
