package cli

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// restartTime is how long a watch asks a server on that answered before and
// does not now: it may be starting again.
const restartTime = time.Minute

// A watched resource is read again and again, until it is what was waited for.
type watched struct {
	*client
	cmd      *cobra.Command
	name     string
	answered bool      // the server did, once
	silent   time.Time // since when it has not
}

// read is the resource now, or when the server answers again.
func (w *watched) read() (map[string]any, error) {
	ctx, out := w.cmd.Context(), w.cmd.ErrOrStderr()
	for {
		var item map[string]any
		err := w.call(ctx, http.MethodGet, "/v1/"+w.name, nil, nil, &item)
		if err == nil {
			w.answered, w.silent = true, time.Time{}
			return item, nil
		}
		var refused *apiError
		decided := errors.As(err, &refused) && refused.Status < 500
		if decided || !w.answered || ctx.Err() != nil || !w.silent.IsZero() && time.Since(w.silent) > restartTime {
			return nil, err
		}
		if w.silent.IsZero() {
			w.silent = time.Now()
			if onTerminal(out) {
				redraw(out, "")
			}
			fmt.Fprintf(out, "%s does not respond, retrying for a minute\n", w.Address)
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
