package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/datadir"
	"anneal/internal/server"
	"anneal/internal/settings"
)

// doctorTimeout is the maximum time for each request of the doctor.
const doctorTimeout = 5 * time.Second

func doctorCommand() *cobra.Command {
	var flags server.Flags
	c := &cobra.Command{Use: "doctor", Args: arguments(0, 0),
		Short:   "Check an installation, and say what to do (run on the server's machine)",
		Example: "  anneal doctor --config anneal.yaml",
		Long: `Checks the data directory and its keys, the disk and its syncs, the clock, limits, certificates, the
sandbox and the engines, for a server with the given flags, which are those of 'anneal serve'. If the server
runs, it also checks whether the server is ready and whether its nodes have its version. It changes nothing,
and does not read the log: 'anneal log verify' does. It fails if a check fails; warnings do not count.`,
		RunE: func(c *cobra.Command, _ []string) error {
			findings := diagnose(c.Context(), c, flags)
			problems := 0
			for _, one := range findings {
				if one.Result == server.CheckFailed {
					problems++
				}
			}
			if inJSON, _ := wantsJSON(c); !inJSON {
				printFindings(c.OutOrStdout(), findings)
			} else if err := printJSON(c.OutOrStdout(), findings); err != nil {
				return err
			}
			if problems > 0 {
				return fmt.Errorf("%d of %d checks failed", problems, len(findings))
			}
			return nil
		}}
	addServerFlags(c, &flags)
	return c
}

// printFindings prints two lines for a finding with an advice, and one for the others.
func printFindings(w io.Writer, findings []server.Finding) {
	for _, one := range findings {
		fmt.Fprintf(w, "%-8s %-17s %s\n", one.Result, one.Check, one.Detail)
		if one.Advice != "" {
			fmt.Fprintf(w, "%-8s %-17s %s\n", "", "", "what to do: "+one.Advice)
		}
	}
}

// addServerFlags adds the flags of `anneal serve` and --config to a command that examines a server.
func addServerFlags(c *cobra.Command, flags *server.Flags) {
	flags.Add(c.Flags())
	c.Flags().SetOutput(stderr) // print warnings about deprecated flags to stderr
	c.Flags().String(settings.ConfigFlag, "", "configuration `FILE` of the server")
	new(logFlags).add(c.Flags()) // they may be in the server's configuration
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if _, err := settings.Apply(c.LocalFlags(), os.Getenv); err != nil {
			return err
		}
		return flags.Check()
	}
}

// diagnose returns the findings about the server with the flags, and about the running server.
func diagnose(ctx context.Context, c *cobra.Command, flags server.Flags) []server.Finding {
	findings := server.Diagnose(ctx, flags)
	return append(findings, checkRunning(ctx, c, datadir.Dir(flags.Data))...)
}

// checkRunning returns the findings about the server that runs with the data directory.
func checkRunning(ctx context.Context, c *cobra.Command, dir datadir.Dir) []server.Finding {
	running := server.Finding{Check: "server", Result: server.CheckSkipped, Detail: "no server runs with " + string(dir)}
	nodes := server.Finding{Check: "nodes", Result: server.CheckSkipped, Detail: running.Detail}
	file, err := datadir.ReadContext(dir.Path("operator.json"))
	if err != nil {
		return []server.Finding{running, nodes}
	}
	operator, err := clientOf(c, file)
	if err != nil {
		running.Result, running.Detail = server.CheckFailed, err.Error()
		return []server.Finding{running, nodes}
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	if operator.call(ctx, http.MethodGet, "/healthz", nil, nil, nil) != nil {
		running.Detail = "no server responds at " + operator.Address
		nodes.Detail = running.Detail
		return []server.Finding{running, nodes}
	}
	running.Result, running.Detail = server.CheckOK, "the server at "+operator.Address+" is ready to read and to write"
	for _, path := range []string{"/readyz", "/readyz/write"} {
		if err := operator.call(ctx, http.MethodGet, path, nil, nil, nil); err != nil {
			running.Result, running.Detail = server.CheckFailed, path+": "+err.Error()
			running.Advice = "read the log of the server: it says what is missing"
			break
		}
	}
	return []server.Finding{running, checkNodes(ctx, c, operator, nodes)}
}

// checkNodes reports nodes that are lost, or whose version differs from that of this program.
func checkNodes(ctx context.Context, c *cobra.Command, operator *client, nodes server.Finding) server.Finding {
	items, err := operator.list(ctx, operator.path("nodes"), "nodes", nil)
	if err != nil {
		nodes.Result, nodes.Detail = server.CheckFailed, err.Error()
		return nodes
	}
	var lost, others []string
	for _, node := range items {
		name := id(cell(node, "name"))
		if cell(node, "state") == "LOST" {
			lost = append(lost, name)
		}
		if version := cell(node, "version"); version != "-" && version != c.Root().Version {
			others = append(others, name+" ("+version+")")
		}
	}
	switch {
	case len(lost) > 0:
		nodes.Result, nodes.Detail = server.CheckWarning, "lost: "+strings.Join(lost, ", ")
		nodes.Advice = "check the agent and the network of these nodes, or delete them with anneal node delete"
	case len(others) > 0:
		nodes.Result = server.CheckWarning
		nodes.Detail = "this program has version " + c.Root().Version + ", other nodes: " + strings.Join(others, ", ")
		nodes.Advice = "update the agents: servers first, then nodes"
	default:
		nodes.Result, nodes.Detail = server.CheckOK, fmt.Sprintf("%d nodes, none of them lost", len(items))
	}
	return nodes
}
