package cli

import (
	"github.com/spf13/cobra"
)

// Commands and flags are shown in the order in which they were added, which is
// that of their use.
func init() { cobra.EnableCommandSorting = false }

const (
	groupUser     = "user"
	groupOperator = "server"
	groupOther    = "shell"
)

// inGroup adds commands below a title.
func addGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, c := range commands {
		c.GroupID = id
		root.AddCommand(c)
	}
}

// inOrder has the flags of a command and of those below it shown in the order in
// which they were added.
func keepFlagOrder(c *cobra.Command) {
	c.Flags().SortFlags, c.PersistentFlags().SortFlags = false, false
	for _, child := range c.Commands() {
		keepFlagOrder(child)
	}
}

// helpCommand shows what --help shows; what is no command is refused.
func helpCommand() *cobra.Command {
	return &cobra.Command{Use: "help [COMMAND...]", Short: "Show what a command is for", GroupID: groupOther, RunE: func(c *cobra.Command, args []string) error {
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

// usageTemplate is what --help shows below a command's purpose.
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .Aliases}}

Also called:
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
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableInheritedFlags}}

Common flags:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableSubCommands}}

{{.CommandPath}} COMMAND --help says more of each.{{end}}
`
