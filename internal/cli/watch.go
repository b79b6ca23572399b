package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

const (
	watchPoll  = 100 * time.Millisecond // time between two reads of the watched resource
	watchRetry = 250 * time.Millisecond
	// watchTimeout is the maximum time to wait for a server that does not respond, because it may
	// be restarting.
	watchTimeout = time.Minute
)

// A watch reads a resource repeatedly.
type watch struct {
	*client
	cmd       *cobra.Command
	name      string
	responded bool      // an earlier request of this watch has succeeded
	since     time.Time // time of the first failure since a request succeeded; zero if the last request succeeded
}

// read returns the resource. If the server has responded before, read repeats a request that fails
// or gets a 5xx response, for at most watchTimeout.
func (w *watch) read() (map[string]any, error) {
	ctx, out := w.cmd.Context(), w.cmd.ErrOrStderr()
	for {
		var item map[string]any
		err := w.call(ctx, http.MethodGet, "/v1/"+w.name, nil, nil, &item)
		if err == nil {
			if !w.since.IsZero() {
				fmt.Fprintf(out, "connected to %s again\n", w.Address)
			}
			w.responded, w.since = true, time.Time{}
			return item, nil
		}
		var response *apiError
		final := errors.As(err, &response) && response.Status < http.StatusInternalServerError
		if final || !w.responded || ctx.Err() != nil || !w.since.IsZero() && time.Since(w.since) > watchTimeout {
			return nil, err
		}
		if w.since.IsZero() {
			w.since = time.Now()
			if onTerminal(out) {
				redraw(out, "")
			}
			fmt.Fprintf(out, "request to %s failed; retrying for a minute\n", w.Address)
		}
		if err := sleep(ctx, watchRetry); err != nil {
			return nil, err
		}
	}
}

// onInterrupt returns err. If the user has interrupted the command, it prints the text, which
// explains what continues on the server, and returns the error of the context instead.
func onInterrupt(cmd *cobra.Command, err error, format string, args ...any) error {
	if err != nil && cmd.Context().Err() != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "\n"+format+"\n", args...)
		return cmd.Context().Err() // instead of the error of the interrupted request
	}
	return err
}

// sleep waits for d, and returns nil. It returns ctx's error as soon as ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
