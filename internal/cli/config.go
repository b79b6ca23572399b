package cli

import (
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/settings"
	"anneal/internal/usage"
)

// configurable are the commands that run for a long time, and whose flags environment variables and
// a configuration file can set.
var configurable = map[string]func() *cobra.Command{
	"serve": serveCommand, "work": workCommand, "witness": witnessCommand,
}

// configure adds the flags --config, --log-format and --log-level to a command, and makes variables
// and the configuration file set its flags before it runs. check returns an error if the flags are
// invalid.
func configure(c *cobra.Command, check func() error) *logFlags {
	logs := &logFlags{}
	f := c.Flags()
	usage.AddSection(f, "Configuration and logs", logs.add)
	f.String(settings.ConfigFlag, "", "YAML `FILE` that sets flags by their names without --, such as listen: "+
		"127.0.0.1:8080; flags of the command line and variables such as $ANNEAL_LISTEN take precedence")
	usage.SetSection(f, "Configuration and logs", settings.ConfigFlag)
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		_, err := settings.Apply(c.LocalFlags(), os.Getenv)
		if err != nil {
			return err
		}
		if err := logs.check(); err != nil {
			return err
		}
		return check()
	}
	return logs
}

func configCommand() *cobra.Command {
	return group("config", "Check the configuration of a server or an agent", configCheck())
}

func configCheck() *cobra.Command {
	names := slices.Sorted(maps.Keys(configurable))
	c := &cobra.Command{Use: "check COMMAND [--config FILE]",
		Short:   "Check the settings that a command would start with, and print them with their sources",
		Args:    arguments(1, 1),
		Example: "  anneal config check serve --config anneal.yaml",
		Long: `COMMAND is serve, work or witness. Prints each setting that differs from its default, with its value and where
it comes from: the file, or a variable such as ANNEAL_LISTEN for --listen. It fails if a setting is unknown
or invalid, and starts nothing.`,
		ValidArgs: names,
		RunE: func(c *cobra.Command, args []string) error {
			create := configurable[args[0]]
			if create == nil {
				return usage.Errorf("COMMAND %q %s", args[0], domain.OneOfRule(args[0], names))
			}
			checked := create()
			if path, _ := c.Flags().GetString(settings.ConfigFlag); path != "" {
				if err := checked.Flags().Set(settings.ConfigFlag, path); err != nil {
					return err
				}
			}
			all, err := settings.Apply(checked.LocalFlags(), os.Getenv)
			if err != nil {
				return err
			}
			if err := checked.PreRunE(checked, nil); err != nil {
				return err
			}
			var items []map[string]any
			for _, one := range all {
				if one.Source != settings.FromDefault {
					items = append(items, map[string]any{"setting": one.Flag, "value": one.Value, "source": one.Source})
				}
			}
			return printItems(c, noRows{"all settings have their defaults", "name a file with --config, or set variables such " +
				"as " + settings.Variable("listen")},
				items, column{"SETTING", "setting"}, column{"VALUE", "value"}, column{"SOURCE", "source"})
		}}
	c.Flags().String(settings.ConfigFlag, "", "YAML `FILE` with settings (default: $"+
		settings.Variable(settings.ConfigFlag)+")")
	return c
}
