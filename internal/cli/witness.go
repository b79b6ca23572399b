package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	signednote "golang.org/x/mod/sumdb/note"

	"anneal/eventlog/transparency"
	"anneal/eventlog/witness"
	"anneal/internal/usage"
)

const (
	witnessTimeout = 10 * time.Second // timeout of a request, and of requests in progress at shutdown
	witnessHeader  = 5 * time.Second
)

func witnessCommand() *cobra.Command {
	var listen, dir, name string
	var keys []string
	var logs *logFlags
	c := &cobra.Command{Use: "witness", Short: "Cosign the checkpoints of other installations' logs",
		Args:    arguments(0, 0),
		Example: "  anneal witness --log KEY --name witness.example.com --data witness",
		Long: `Serves C2SP's tlog-witness: it signs a checkpoint of a log only if the log still has all
events of the checkpoint that it signed before. So the operator of the log cannot change or remove an event
unnoticed. Run the witness on a machine to which that operator has no access. KEY is the log's public key,
which 'anneal log key' prints; start the log's server with --witness and the URL and key that the witness
prints. DATA contains the witness's key and the last checkpoint of each log: if it is lost, the witness no
longer knows what it signed.`,
		RunE: func(c *cobra.Command, _ []string) error {
			verifiers, err := verifiersOf(keys)
			if err != nil {
				return err
			}
			w, err := witness.Open(dir, name, verifiers, logs.logger(c.Context()))
			if err != nil {
				return err
			}
			listener, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			address := fmt.Sprintf("http://%s=%s", listener.Addr(), w.Key())
			fmt.Fprintf(c.OutOrStdout(), "the witness is ready; start the log's server with --witness %s\n", address)
			return serveWitness(c.Context(), listener, w)
		}}
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8090", "address for HTTP; port 0 picks a free port")
	f.StringVar(&dir, "data", "witness", "directory for the key and the checkpoints")
	f.StringVar(&name, "name", "anneal-witness",
		"name of the witness in its cosignatures, such as its domain; required at the first start")
	f.StringArrayVar(&keys, "log", nil, "public `KEY` of a log to witness, as 'anneal log key' prints it on the "+
		"log's server; repeat the flag for more logs")
	logs = configure(c, func() error {
		_, err := verifiersOf(keys)
		return err
	})
	return c
}

// verifiersOf returns the verifiers of the logs with the public keys.
func verifiersOf(keys []string) (verifiers []signednote.Verifier, err error) {
	for _, text := range keys {
		key, err := transparency.ParseKey(text)
		if err != nil {
			return nil, usage.Errorf("--log: %v", err)
		}
		verifiers = append(verifiers, key)
	}
	if len(verifiers) == 0 {
		return nil, usage.Errorf("--log is required: the public key of a log, which 'anneal log key' prints")
	}
	return verifiers, nil
}

func serveWitness(ctx context.Context, listener net.Listener, w *witness.Witness) error {
	server := &http.Server{Handler: w, ReadHeaderTimeout: witnessHeader, ReadTimeout: witnessTimeout,
		WriteTimeout: witnessTimeout}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), witnessTimeout)
		defer cancel()
		stopped <- server.Shutdown(end)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
