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
	watchPoll    = 100 * time.Millisecond // between two reads of a resource that is waited for
	watchRetry   = 250 * time.Millisecond
	watchTimeout = time.Minute // for a server that stops responding during a watch: it may be restarting
)

// watch reads a resource repeatedly.
type watch struct {
	*client
	cmd       *cobra.Command
	name      string
	responded bool      // the server responded once
	since     time.Time // since when it does not respond
}

// read returns the resource. It waits for a server that responded before to respond again.
func (w *watch) read() (map[string]any, error) {
	ctx, out := w.cmd.Context(), w.cmd.ErrOrStderr()
	for {
		var item map[string]any
		err := w.call(ctx, http.MethodGet, "/v1/"+w.name, nil, nil, &item)
		if err == nil {
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
			fmt.Fprintf(out, "%s does not respond, retrying for a minute\n", w.Address)
		}
		if err := sleep(ctx, watchRetry); err != nil {
			return nil, err
		}
	}
}

// onInterrupt prints what continues after a command is interrupted, and returns the error of the
// interruption, or else err.
func onInterrupt(cmd *cobra.Command, err error, format string, args ...any) error {
	if err != nil && cmd.Context().Err() != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "\n"+format+"\n", args...)
		return cmd.Context().Err() // whatever the interrupted request returned
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
