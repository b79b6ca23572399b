// Command anneal trains, deploys and serves models on machines that its users
// own: `serve` is the control plane, `work` an agent on another machine, and
// the other commands are a user's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker; see the Makefile.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // who interrupts again does not wait for an orderly end
	os.Exit(run(ctx, os.Args[1:]))
}

// run carries out one command line. It answers 0, 1 when the command failed,
// 2 when it was not understood, and 130 when it was interrupted.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	typed, err := root.ExecuteContextC(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "anneal: %v\n", err)
		return 2
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		fmt.Fprintln(stderr, "anneal: interrupted")
		return 130
	}
	fmt.Fprintf(stderr, "anneal: %s\n", inCommands(typed, err.Error()))
	return 1
}

// A usageError is a command line that was not understood.
type usageError struct{ error }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "anneal",
		Short:         "Train, deploy and serve models on machines of your own",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          onlyCommands,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { // before anything is done that could not be told
			_, err := asJSON(c)
			return err
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
	})
	root.PersistentFlags().String("context", "", "file with address and key (default: $ANNEAL_CONTEXT, data/context.json, then the user's configuration folder)")
	root.PersistentFlags().String("ca", "", "authorities to trust beside the system's, in PEM (default: caFile of the context file)")
	root.PersistentFlags().StringP("output", "o", "table", "how to print: table or json")
	inGroup(root, forOperators, "On servers and workers:", serveCommand(), workCommand(), nodeCommand(), accountCommand(), quotaCommand(), logCommand(), demoCommand())
	inGroup(root, forUsers, "For users:", datasetCommand(), modelCommand(), sftCommand(), dpoCommand(), rftCommand(), rlorCommand(), evaluatorCommand(),
		deploymentCommand(), addonCommand(), shapeCommand(), completeCommand(), chatCommand(), transcribeCommand(), eventsCommand(), keyCommand(), secretCommand())
	inGroup(root, forShells, "Also:")
	root.SetHelpCommand(helpCommand())
	root.SetCompletionCommandGroupID(forShells)
	root.SetUsageTemplate(usageTemplate)
	inOrder(root)
	return root
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: onlyCommands, RunE: func(c *cobra.Command, _ []string) error {
		return c.Help()
	}}
	c.AddCommand(commands...)
	return c
}

// onlyCommands refuses what is no command of a group.
func onlyCommands(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	c.SuggestionsMinimumDistance = 2 // letters that may be wrong
	if close := c.SuggestionsFor(args[0]); len(close) > 0 {
		hint = fmt.Sprintf(", did you mean %s?", close[0])
	}
	return usageError{fmt.Errorf("unknown command %q%s (see %s --help)", args[0], hint, c.CommandPath())}
}

// arguments demands from low to high arguments, named in the usage line.
func arguments(low, high int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < low || len(args) > high {
			return usageError{fmt.Errorf("usage: %s", c.UseLine())}
		}
		for i, arg := range args {
			if strings.TrimSpace(arg) == "" {
				return usageError{fmt.Errorf("argument %d is empty; usage: %s", i+1, c.UseLine())}
			}
		}
		return nil
	}
}
