// Command anneal trains, deploys and serves models on its users' own machines: `serve` is the
// control plane, `work` the agent of another machine, and the other commands are clients of a
// server.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"anneal/internal/cli"
)

// version is set by the linker, in the Makefile.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // restores the default handling of signals: a second signal kills the process
	os.Exit(cli.Run(ctx, version, os.Args[1:]))
}
