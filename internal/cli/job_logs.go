package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// followInterval is the time between two reads of the log with --follow.
const followInterval = 2 * time.Second

func (k jobKind) logsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{Use: "logs ID", Short: "Show a job's log: its progress and what its trainer wrote",
		Args:    arguments(1, 1),
		Example: "  anneal " + k.command + " logs tuned\n  anneal " + k.command + " logs tuned --follow",
		RunE: func(c *cobra.Command, args []string) error {
			inJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			if inJSON && follow {
				return usage.Errorf("--follow prints lines, not JSON: leave out -o json")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			name := client.name(k.name, args[0])
			if follow {
				return followLog(c, client, name)
			}
			log, err := readLog(c.Context(), client, name)
			if err != nil {
				return err
			}
			if inJSON {
				return printJSON(c.OutOrStdout(), map[string]string{"log": string(log)})
			}
			_, err = c.OutOrStdout().Write(log)
			return err
		}}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "show further lines until the job "+k.ends())
	return c
}

// readLog downloads the log of a job.
func readLog(ctx context.Context, client *client, name string) ([]byte, error) {
	var endpoint struct {
		SignedURL string `json:"signedUrl"`
	}
	if err := client.call(ctx, http.MethodGet, "/v1/"+name+":getTrainerLogsEndpoint", nil, nil, &endpoint); err != nil {
		return nil, err
	}
	res, err := client.openURL(ctx, endpoint.SignedURL)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}

// followLog prints the log of a job, and then its new lines until the job ends. It waits for a log
// that does not exist yet. It reads the log once more after the end of the job, because the last
// lines can arrive shortly after it.
func followLog(c *cobra.Command, client *client, name string) error {
	var shown []byte
	for last := true; ; {
		var job map[string]any // state of the job, read before the log: a job that has ended writes no lines after it
		if err := client.call(c.Context(), http.MethodGet, "/v1/"+name, nil, nil, &job); err != nil {
			return err
		}
		log, err := readLog(c.Context(), client, name)
		last = last && ended(job)
		if err != nil && (!isNoLog(err) || last) {
			return err
		}
		if _, err := c.OutOrStdout().Write(newLines(shown, log)); err != nil {
			return err
		}
		if shown = log; last {
			return nil
		}
		last = ended(job)
		select {
		case <-time.After(followInterval):
		case <-c.Context().Done():
			return c.Context().Err()
		}
	}
}

// isNoLog reports whether err is the API's error for a job without a log.
func isNoLog(err error) bool {
	var failure *apiError
	return errors.As(err, &failure) && failure.Reason == "NO_LOGS"
}

// ended reports whether a job has ended or is paused, or waits for a step (IDLE): it then writes no
// lines to its log.
func ended(job map[string]any) bool {
	switch jobState(job) {
	case "COMPLETED", "EARLY_STOPPED", "IDLE", "FAILED", "CANCELLED", "EXPIRED", "PAUSED":
		return true
	}
	return false
}

// newLines returns the lines of log that follow the lines in shown, which is the content of the log
// at the previous read. The server may have removed the first lines of the log since then.
func newLines(shown, log []byte) []byte {
	const tail = 4096 // number of bytes at the end of shown that are searched in log
	end := shown[max(0, len(shown)-tail):]
	if len(end) == 0 {
		return log
	}
	if rest, found := bytes.CutPrefix(log, shown); found {
		return rest
	}
	if at := bytes.LastIndex(log, end); at >= 0 {
		return log[at+len(end):]
	}
	return log
}
