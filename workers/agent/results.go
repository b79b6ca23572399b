package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// deliver stores the results of the training and reports them. Small results that the trainer has
// in memory are sent in the report. All others are uploaded, and also small ones when the
// coordinator does not store files in reports.
func (t *attempt) deliver(result engines.TrainResult) error {
	if result.Files != nil {
		outcome, err := deliverInline(t, result)
		if err != nil || outcome == protocol.Accepted {
			return err
		}
		result.Dir = filepath.Join(t.dir, "work", "inline")
		if err := writeFiles(result.Dir, result.Files); err != nil {
			return diskError(err)
		}
	}
	t.enter(protocol.Writing)
	if err := t.writeMetrics(result.Dir); err != nil {
		return err
	}
	if _, err := t.report(t.life, protocol.Report{Kind: protocol.ReportWriting}); err != nil {
		return err
	}
	for try := 1; ; try++ {
		sizes, sums, err := t.store(t.life, protocol.ForResults, 0, result.Dir)
		if err != nil {
			return fmt.Errorf("store the results: %w", err)
		}
		reply, err := sendResults(t, protocol.Report{
			Kind: protocol.ReportCompleted, Sizes: sizes, Sums: sums, Result: resultOf(result),
		})
		if err != nil || reply.Outcome != protocol.Incomplete {
			return err
		}
		if try == maxStores {
			return domain.Errorf(domain.Unavailable, "the results were uploaded %d times, but the file store lacked files "+
				"of them each time: check the store",
				try)
		}
	}
}

func resultOf(result engines.TrainResult) *protocol.Result {
	return &protocol.Result{Adapter: result.Adapter, StoppedEarly: result.StoppedEarly, Reason: result.Reason}
}

// deliverInline sends a report that contains the result files and the log of the job. The outcome
// is Incomplete when the files are too large for a report, or when the coordinator is of a version
// that ignores files in reports; the files must then be uploaded.
func deliverInline(t *attempt, result engines.TrainResult) (outcome string, err error) {
	if _, ok := result.Files[metricsFile]; !ok {
		if result.Files[metricsFile], err = encodeMetrics(t); err != nil {
			return "", err
		}
	}
	if len(result.Files) > protocol.MaxFiles || sizeOf(result.Files) > protocol.MaxInline {
		return protocol.Incomplete, nil
	}
	report := protocol.Report{Kind: protocol.ReportCompleted, Files: result.Files, Sizes: map[string]int64{},
		Sums: map[string]string{}, Result: resultOf(result)}
	for name, content := range result.Files {
		sum := sha256.Sum256(content)
		report.Sizes[name], report.Sums[name] = int64(len(content)), hex.EncodeToString(sum[:])
	}
	var stored func(bool)
	report.Log, stored = t.joblog.inline()
	reply, err := sendResults(t, report)
	stored(err == nil && reply.LogStored)
	return reply.Outcome, err
}

// sendResults sends the report of the attempt's results.
func sendResults(t *attempt, report protocol.Report) (protocol.ReportReply, error) {
	ctx, cancel := replyContext(t.life)
	defer cancel()
	return t.send(ctx, report)
}

// replyTimeout is how long an attempt that is no longer assigned waits for the reply to the report
// of its results.
const replyTimeout = 3 * time.Second

// replyContext returns a context for the report of an attempt's results. It ends replyTimeout after
// life, the context of the attempt: a job whose results are recorded is no longer assigned, and the
// agent may learn that before it gets the reply. Without the reply, it would upload the log again,
// with a line that says that the attempt was interrupted.
func replyContext(life context.Context) (ctx context.Context, cancel func()) {
	ctx, end := context.WithCancel(context.WithoutCancel(life))
	stop := context.AfterFunc(life, func() {
		timer := time.NewTimer(replyTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			end()
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); end() }
}

func sizeOf(files map[string][]byte) (total int) {
	for _, content := range files {
		total += len(content)
	}
	return total
}

// writeFiles writes files below the directory dir, which it creates.
func writeFiles(dir string, files map[string][]byte) error {
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
