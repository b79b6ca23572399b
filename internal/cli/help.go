package cli

import (
	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// Help shows commands and flags in the order in which they were added.
func init() {
	cobra.EnableCommandSorting = false
	cobra.AddTemplateFunc("sections", usage.Sections)
}

const (
	groupUser     = "user"
	groupOperator = "server"
	groupOther    = "shell"
)

// addGroup adds commands to root, which the help shows below title.
func addGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, c := range commands {
		c.GroupID = id
		root.AddCommand(c)
	}
}

// keepFlagOrder disables the sorting of flags in the help of a command and of all commands below
// it.
func keepFlagOrder(c *cobra.Command) {
	c.Flags().SortFlags, c.PersistentFlags().SortFlags = false, false
	for _, child := range c.Commands() {
		keepFlagOrder(child)
	}
}

// helpCommand returns the command `help`, which shows the same text as --help, and returns an error
// for an unknown command.
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

// usageTemplate is the template of the part of the help after the description of a command.
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
