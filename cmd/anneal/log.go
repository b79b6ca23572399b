package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"anneal/eventlog"
	"anneal/projections"
)

func logCommand() *cobra.Command {
	return group("log", "The log of all events, for the operator on the server's machine", logVerify(), logRepair(), logRotateKey(), logCredentials())
}

func logCredentials() *cobra.Command {
	return &cobra.Command{Use: "credentials", Short: "Make the passwords and keys of a NATS cluster, as the environment of its servers and of serve", Args: arguments(0, 0),
		Example: "  anneal log credentials > .env",
		RunE: func(c *cobra.Command, _ []string) error {
			seed, public, err := eventlog.NewIssuer()
			if err != nil {
				return err
			}
			lines := [][2]string{{"ANNEAL_NATS_ISSUER_SEED", seed}, {"ANNEAL_NATS_ISSUER", public}, {"ANNEAL_NATS_PASSWORD", rand.Text()}, {"ANNEAL_NATS_READER_PASSWORD", rand.Text()}}
			object := map[string]string{}
			for _, line := range lines {
				note(c, "%s=%s", line[0], line[1])
				object[line[0]] = line[1]
			}
			if inJSON, err := asJSON(c); err != nil || !inJSON {
				return err
			}
			return printJSON(c.OutOrStdout(), object)
		}}
}

func logVerify() *cobra.Command {
	var data string
	c := &cobra.Command{Use: "verify", Short: "Prove that what the server shows is what its log says", Args: arguments(0, 0),
		Long: "Reads every event from the first one, and compares what comes of them, collection by collection,\nwith what the server shows or, when it is stopped, with its newest snapshot.\n" +
			"The embedded server's files are read too: every checksum, the running hash of all events against the\nhigh-water mark, and each event against the readers' copy. An altered, missing or swapped event is\nnamed by its position.",
		RunE: func(c *cobra.Command, _ []string) error {
			dir := folder(data)
			if data == "" {
				dir = folder(filepath.Dir(contextPath(c)))
			}
			report, err := verify(c.Context(), dir)
			if err != nil {
				return err
			}
			inJSON, err := asJSON(c)
			if err != nil {
				return err
			}
			if inJSON {
				err = printJSON(c.OutOrStdout(), report)
			} else {
				report.print(c.OutOrStdout())
			}
			if err == nil && report.Log != nil && !report.Log.Whole() {
				return fmt.Errorf("the log is damaged: stop the server, and run 'anneal log repair --data %s'", dir)
			}
			if err == nil && !report.Equal {
				err = errors.New("the log and what is shown differ: keep the folder as it is and report this")
			}
			return err
		}}
	c.Flags().StringVar(&data, "data", "", "the server's folder (default: that of the context file)")
	return c
}

// A verification compares the log, folded anew, with what is served.
type verification struct {
	Against string             `json:"against"` // "running server" or "snapshot"
	Equal   bool               `json:"equal"`
	Seconds float64            `json:"seconds"`
	Folded  projections.Digest `json:"folded"`
	Served  projections.Digest `json:"served"`

	Log *eventlog.FileReport `json:"log,omitempty"` // of the embedded server's files
}

func (v verification) print(w io.Writer) {
	if v.Log != nil {
		printFileReport(w, *v.Log)
	}
	if v.Against == "" {
		if v.Log != nil && v.Log.Whole() {
			fmt.Fprintln(w, "there is no snapshot to compare with: start the server, and stop it with SIGTERM")
		}
		return
	}
	verdict := "equal"
	if !v.Equal {
		verdict = "DIFFERENT"
	}
	fmt.Fprintf(w, "%d events read in %.2f s; %s at position %d: %s\n", v.Folded.Position, v.Seconds, v.Against, v.Served.Position, verdict)
	var collections []string
	for name := range v.Folded.Tables {
		collections = append(collections, name)
	}
	slices.Sort(collections)
	for _, name := range collections {
		folded, served := v.Folded.Tables[name], v.Served.Tables[name]
		mark := "="
		if folded != served {
			mark = "≠"
		}
		fmt.Fprintf(w, "  %-28s %6d rows  %.16s %s %.16s\n", name, folded.Rows, folded.SHA256, mark, served.SHA256)
	}
}

// verify looks at a running server through its mirror and its API, and at a
// stopped one through its files.
func verify(ctx context.Context, dir folder) (verification, error) {
	if _, err := os.Stat(dir.path("version")); err != nil {
		return verification{}, fmt.Errorf("%s is not a server's folder: give --data DIR", dir)
	}
	release, locked := eventlog.LockDir(string(dir))
	if locked == nil {
		defer release()
	}
	var files *eventlog.FileReport
	if _, err := os.Stat(dir.path("nats")); err == nil || markThere(dir) {
		found, err := eventlog.VerifyFiles(dir.path("nats"), "")
		if err != nil {
			return verification{}, err
		}
		if files = &found; !found.Whole() {
			return verification{Log: files}, nil
		}
	}
	var report verification
	var err error
	if locked == nil {
		report, err = verifyStopped(ctx, dir)
	} else if file, readErr := readContext(dir.path("operator.json")); readErr == nil {
		operator := &client{contextFile: file}
		if err := operator.secured(""); err != nil {
			return verification{}, err
		}
		report, err = verifyRunning(ctx, operator)
	} else {
		err = locked
	}
	report.Log = files
	return report, err
}

func verifyRunning(ctx context.Context, operator *client) (verification, error) {
	var served projections.Digest
	if err := operator.call(ctx, http.MethodGet, "/v1/system/digest", nil, nil, &served); err != nil {
		return verification{}, err
	}
	options, err := operator.natsOptions()
	if err != nil {
		return verification{}, err
	}
	conn, err := nats.Connect(operator.NATSURL, options...)
	if err != nil {
		return verification{}, fmt.Errorf("the log cannot be read at %s: %w", operator.NATSURL, err)
	}
	defer conn.Close()
	log, err := eventlog.OpenReader(ctx, conn)
	if err != nil {
		return verification{}, err
	}
	if err := awaitMirror(ctx, log, served.Position); err != nil {
		return verification{}, err
	}
	return compare(ctx, log, "running server", served)
}

// mirrorTime is how far the readers' mirror may be behind: after a start it
// fetches what it does not have.
const mirrorTime = 30 * time.Second

// awaitMirror returns once the mirror holds a position.
func awaitMirror(ctx context.Context, log eventlog.Log, position uint64) error {
	ctx, cancel := context.WithTimeout(ctx, mirrorTime)
	defer cancel()
	for {
		last, err := log.Last(ctx)
		if err != nil || last.Position >= position {
			return err
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("the readers' mirror is at position %d of %d: try again later", last.Position, position)
		}
	}
}

func verifyStopped(ctx context.Context, dir folder) (verification, error) {
	server, err := eventlog.StartServer(eventlog.ServerOptions{Dir: dir.path("nats"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return verification{}, err
	}
	defer server.Close()
	world, err := projections.Load(dir.path("snapshots"))
	if err != nil {
		return verification{}, err
	}
	if world == nil || world.Position() == 0 {
		return verification{Equal: true}, nil
	}
	served, err := world.View().Digest()
	if err != nil {
		return verification{}, err
	}
	return compare(ctx, server.Log(), "snapshot", served)
}

func compare(ctx context.Context, log eventlog.Log, against string, served projections.Digest) (verification, error) {
	began := time.Now()
	folded, err := projections.Verify(ctx, log, served.Position)
	if err != nil {
		return verification{}, err
	}
	return verification{Against: against, Equal: folded.SHA256 == served.SHA256 && folded.EventID == served.EventID,
		Seconds: time.Since(began).Seconds(), Folded: folded, Served: served}, nil
}
