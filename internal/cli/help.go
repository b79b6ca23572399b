package cli

import (
	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// Commands and flags are shown in the order in which they were added, flags in sections.
func init() {
	cobra.EnableCommandSorting = false
	cobra.AddTemplateFunc("sections", usage.Sections)
}

const (
	groupUser     = "user"
	groupOperator = "server"
	groupOther    = "shell"
)

// addGroup adds commands below a title.
func addGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, c := range commands {
		c.GroupID = id
		root.AddCommand(c)
	}
}

// keepFlagOrder disables the sorting of the flags of a command and of those below it.
func keepFlagOrder(c *cobra.Command) {
	c.Flags().SortFlags, c.PersistentFlags().SortFlags = false, false
	for _, child := range c.Commands() {
		keepFlagOrder(child)
	}
}

// helpCommand returns the command help, which shows what --help shows, and rejects unknown
// commands.
func helpCommand() *cobra.Command {
	return &cobra.Command{Use: "help [COMMAND...]", Short: "Show the help of a command", GroupID: groupOther,
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err == nil {
				err = onlyCommands(found, rest)
			}
			if err != nil {
				return err
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		}}
}

// usageTemplate is the part of the help below a command's description.
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .Aliases}}

Aliases:
  {{range .Aliases}}{{.}}{{end}}{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}{{end}}
{{- if .HasAvailableSubCommands}}{{$commands := .Commands}}
{{- if not .Groups}}

Commands:{{range $commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- range $group := .Groups}}

{{.Title}}{{range $commands}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}
{{- range sections .LocalFlags}}

{{.Title}}:
{{.Flags.FlagUsages | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableInheritedFlags}}

Common flags:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableSubCommands}}

Run {{.CommandPath}} COMMAND --help for details.{{end}}
`
