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
	watchPoll    = 100 * time.Millisecond // between two reads of the watched resource
	watchRetry   = 250 * time.Millisecond
	watchTimeout = time.Minute // maximum wait for a server that stops responding, because it may be restarting
)

// watch reads a resource repeatedly.
type watch struct {
	*client
	cmd       *cobra.Command
	name      string
	responded bool      // a request has succeeded
	since     time.Time // time at which requests began to fail; zero while they succeed
}

// read returns the resource. If the server has responded before, read retries requests that fail or
// get a 5xx response, for watchTimeout.
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
			fmt.Fprintf(out, "request to %s failed, retrying for a minute\n", w.Address)
		}
		if err := sleep(ctx, watchRetry); err != nil {
			return nil, err
		}
	}
}

// onInterrupt returns err. If the command was interrupted, it prints the formatted text, which
// explains what continues, and returns the error of the context instead.
func onInterrupt(cmd *cobra.Command, err error, format string, args ...any) error {
	if err != nil && cmd.Context().Err() != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "\n"+format+"\n", args...)
		return cmd.Context().Err() // replaces the error of the interrupted request
	}
	return err
}

// sleep returns after d, or when ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
