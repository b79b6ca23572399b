// Package cli has the commands of the program anneal. Most are clients of a server's API; the
// others run a server or an agent, or read the data directory of a server.
package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// Exit codes of the program.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// Run executes a command line and returns its exit code.
func Run(ctx context.Context, version string, args []string) int {
	root := NewRoot(version)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	var wrong usage.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "anneal: %v\n", err)
		return exitUsage
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return exitInterrupted // print no error, because the user has interrupted the command
	}
	fmt.Fprintf(stderr, "anneal: %s\n", describe(command, err))
	return exitFailed
}

// NewRoot returns the command `anneal` with all its subcommands. Agents report version to the
// server.
func NewRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:           "anneal",
		Short:         "Train, deploy and serve models on your own machines",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          onlyCommands,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		// Checks the flags of every command before it runs.
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if _, err := wantsJSON(c); err != nil {
				return err
			}
			return rejectNotPositive(c)
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.String("context", "", "context `FILE` with the server's address and an API key "+
		"(default: $ANNEAL_API_KEY and $ANNEAL_URL, $ANNEAL_CONTEXT, data/context.json, then anneal/context.json in the "+
		"user's configuration directory)")
	f.String("ca", "", "PEM `FILE` of certificate authorities to trust in addition to the system's (default: caFile of "+
		"the context file)")
	f.StringP("output", "o", "table", "output format: table or json")
	addGroup(root, groupOperator, "Servers and nodes:",
		serveCommand(), workCommand(), serverCommand(), nodeCommand(), accountCommand(), quotaCommand(),
		acceleratorsCommand(), logCommand(), worldCommand(), replayCommand(), simulateCommand(), backupCommand(),
		restoreCommand(), configCommand(), doctorCommand(), topCommand(), supportBundleCommand(), witnessCommand(),
		installCommand(), uninstallCommand(), demoCommand())
	addGroup(root, groupUser, "Resources and inference:",
		datasetCommand(), modelCommand(), sftCommand(), dpoCommand(), rftCommand(), rlorCommand(), evaluatorCommand(),
		deploymentCommand(), addonCommand(), shapeCommand(), completeCommand(), chatCommand(), evalCommand(),
		batchCommand(), transcribeCommand(), eventsCommand(), auditCommand(), subscriptionCommand(), blameCommand(),
		diffCommand(), whyCommand(), usageCommand(),
		keyCommand(), secretCommand())
	addGroup(root, groupOther, "Other:", loginCommand(), logoutCommand(), whoamiCommand(), versionCommand(),
		manCommand())
	root.SetHelpCommand(helpCommand())
	root.SetCompletionCommandGroupID(groupOther)
	root.SetUsageTemplate(usageTemplate)
	keepFlagOrder(root)
	addCompletions(root)
	return root
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: onlyCommands, RunE: func(c *cobra.Command, _ []string) error {
		return c.Help()
	}}
	c.AddCommand(commands...)
	return c
}

// maxTypos is the maximum number of wrong letters in a command or flag for which a similar one is
// suggested.
const maxTypos = 2

// onlyCommands returns a usage error for the arguments of a group, which has only subcommands.
func onlyCommands(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if similar := similarCommand(c, args[0]); similar != "" {
		hint = fmt.Sprintf(", did you mean %s?", similar)
	}
	return usage.Errorf("unknown command %q%s (see %s --help)", args[0], hint, c.CommandPath())
}
