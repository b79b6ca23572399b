package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"anneal/examples"
	"anneal/internal/server"
)

func demoCommand() *cobra.Command {
	var keep string
	c := &cobra.Command{Use: "demo",
		Short: "Train the base model on a new task, deploy both models and compare their responses; transcribe speech",
		Long: "Starts a server in a temporary directory and runs examples/demo.sh against it: the commands of a user, " +
			"from rows to deployed models. Each command is printed before it runs.",
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if keep != "" {
				return demo(c, keep)
			}
			temp, err := os.MkdirTemp("", "anneal-demo-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(temp)
			return demo(c, temp)
		}}
	c.Flags().StringVar(&keep, "data", "", "new directory for the server's data and all files of the demo (default: "+
		"a temporary directory)")
	return c
}

// demo starts a server and runs the script examples/demo.sh against it. All files are in dir.
func demo(c *cobra.Command, dir string) error {
	began := time.Now()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	flags := server.DefaultFlags()
	flags.Data, flags.Listen = filepath.Join(dir, "server"), "127.0.0.1:0"
	if _, err := os.Stat(filepath.Join(flags.Data, "version")); err == nil {
		return fmt.Errorf("%s contains an earlier demo: choose another directory with --data, or inspect the demo "+
			"with `anneal serve --data %s`", dir, flags.Data)
	}
	if files, err := os.ReadDir(dir); err == nil && len(files) > 0 {
		return fmt.Errorf("%s is not empty: choose a new directory for the demo with --data", dir)
	}
	logger := newErrorLogger()
	ctx, stop := context.WithCancel(c.Context())
	defer stop()
	running, err := server.Start(ctx, flags, logger)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "A server with an embedded NATS server and a local worker is ready at %s\n",
		running.Context().Address)
	err = runDemoScript(ctx, dir, running.Dir().Path("context.json"))
	stop()
	if err = errors.Join(err, running.Wait(ctx)); err == nil {
		fmt.Fprintf(c.OutOrStdout(), "\nDone in %s. Next: start your own server with `make run`, and read README.md.\n",
			time.Since(began).Round(100*time.Millisecond))
	}
	return err
}

// runDemoScript runs the script in a copy of the examples, in which `anneal` is this program. The
// script prints directly to the files of this process, so that commands can redraw their progress.
// When ctx is done, runDemoScript ends all processes of the script.
func runDemoScript(ctx context.Context, dir, contextFile string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	files := filepath.Join(dir, "examples")
	if err := os.CopyFS(files, examples.Files); err != nil {
		return err
	}
	script := exec.CommandContext(ctx, "sh", filepath.Join(files, "demo.sh"))
	script.Env = append(os.Environ(), "ANNEAL="+program, "ANNEAL_CONTEXT="+contextFile)
	// The commands of the script escape their output themselves.
	script.Stdout, script.Stderr = stdout.out, stderr.out
	script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	script.Cancel = func() error { return syscall.Kill(-script.Process.Pid, syscall.SIGKILL) }
	if err := script.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("a command of the demo failed (%w): its message is printed above", err)
	}
	return nil
}
