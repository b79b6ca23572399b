package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	logInterval = 5 * time.Second  // minimum interval of uploads of a log
	logRate     = 64 << 10         // maximum average upload rate of a growing log in bytes per second
	logTimeout  = 15 * time.Second // how long the last upload is retried after the attempt has ended
	maxLogLine  = 64 << 10         // maximum length of a line in bytes; a longer one is split
	logURLTime  = 6 * time.Hour    // age at which the log's signed URL is replaced; it is valid for 12 hours
)

// A jobLog collects the log of an attempt: the output of the trainer, the training steps and the
// progress. It uploads it as the log of the job, after the lines of the job's earlier attempts. It
// keeps the newest protocol.MaxLog bytes, and replaces the secrets of the attempt by [redacted].
// The training never waits for the log, and a failed upload is only a warning in the agent's log.
type jobLog struct {
	attempt *attempt

	mu      sync.Mutex
	lines   lineRedactor // splits the output of the trainer into lines
	kept    []byte
	changed bool // there are lines that were not uploaded
	sent    bool // an upload has begun, and may still be in progress
	held    bool // a report with the log is being sent, so no upload may begin

	// Only the goroutine of run uses the fields below.
	joined bool // kept begins with the lines of earlier attempts, if there are any
	url    string
	signed time.Time // when the coordinator signed the upload URL in the field url

	cancel context.CancelFunc
	wake   chan struct{} // receives an element when the log should be uploaded now
	closed chan struct{} // closed when the last lines were added
	done   chan struct{}
}

// newJobLog returns the log of an attempt. life is the context of the agent, at whose end uploads
// stop.
func newJobLog(t *attempt, life context.Context) *jobLog {
	l := &jobLog{attempt: t, url: t.assignment.LogURL, signed: time.Now(), wake: make(chan struct{}, 1),
		closed: make(chan struct{}), done: make(chan struct{})}
	var env map[string]string
	if e := t.assignment.Evaluator; e != nil {
		env = e.Env
	}
	l.lines.redactor = newRedactor(env, t.dir+"/", t.agent.options.Dir+"/")
	ctx, cancel := context.WithCancel(life)
	l.cancel = cancel
	t.agent.work.Go(func() { l.run(ctx) })
	return l
}

// Write adds output of the trainer to the log. It never returns an error.
func (l *jobLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines.write(p, l.add)
	return len(p), nil
}

// redact returns text without the secrets of the attempt and without paths of this machine.
func (l *jobLog) redact(text string) string { return l.lines.redact(text) }

// add adds a line without secrets to the log. Of a line with carriage returns it keeps only the
// last part, because progress bars overwrite their line.
func (l *jobLog) add(line string) {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	line = domain.Printable(strings.ToValidUTF8(line, "\uFFFD"))
	l.kept = append(append(l.kept, line...), '\n')
	if len(l.kept) > 2*protocol.MaxLog {
		l.kept = newestLines(l.kept)
	}
	l.changed = true
}

// newestLines returns the newest complete lines of a log, with at most protocol.MaxLog bytes in
// total.
func newestLines(log []byte) []byte {
	if len(log) <= protocol.MaxLog {
		return log
	}
	log = log[len(log)-protocol.MaxLog:]
	return bytes.Clone(log[bytes.IndexByte(log, '\n')+1:])
}

// logf adds a line with a message of the agent.
func (l *jobLog) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(time.Now().UTC().Format(time.RFC3339) + " " + l.redact(fmt.Sprintf(format, args...)))
}

// step adds a line with the metrics of a training step.
func (l *jobLog) step(row engines.Metrics) {
	var line strings.Builder
	fmt.Fprintf(&line, "step %d of %d, epoch %.4g, learning rate %.4g, %d tokens", row.Step, row.Steps, row.Epoch,
		row.LearningRate, row.Tokens)
	for _, name := range slices.Sorted(maps.Keys(row.Values)) {
		fmt.Fprintf(&line, ", %s %.6g", name, row.Values[name])
	}
	l.logf("%s", line.String())
}

// ended adds a line that says how the training, or storing its results, ended. Then it requests an
// upload, unless inline says that the report of the results will contain the log.
func (l *jobLog) ended(err error, inline bool) {
	l.mu.Lock()
	l.lines.end(l.add)
	l.mu.Unlock()
	why := context.Cause(l.attempt.work)
	switch {
	case err == nil:
		l.logf("the training is complete")
	case why != nil:
		l.logf("the attempt was interrupted: %v", why)
	default:
		l.logf("the attempt failed: %s", l.attempt.errorOf(err).Message)
	}
	if err == nil && inline {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// close uploads the last lines, unless the attempt is no longer assigned (unwanted), and returns
// within logTimeout. No lines may be added afterwards.
func (l *jobLog) close(unwanted bool) {
	if unwanted {
		l.cancel()
	}
	close(l.closed)
	timeout := time.NewTimer(logTimeout)
	defer timeout.Stop()
	select {
	case <-l.done:
	case <-timeout.C:
		l.attempt.log.Warn("cannot store the last lines of a job's log within the timeout: they are "+
			"lost", "timeout", logTimeout)
	}
	l.cancel()
	<-l.done
}

func (l *jobLog) run(ctx context.Context) {
	defer close(l.done)
	for last := false; !last; {
		l.mu.Lock()
		pause := time.NewTimer(uploadPause(len(l.kept)))
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-l.closed:
			last = true
		case <-l.wake:
		case <-pause.C:
		}
		pause.Stop()
		if ctx.Err() != nil {
			return
		}
		err := l.upload(ctx)
		if last && err != nil {
			err = retry(ctx, time.Now().Add(logTimeout), func() error { return l.upload(ctx) })
		}
		if err != nil && ctx.Err() == nil {
			l.attempt.log.Warn("cannot store the log of a job: trying again with the next lines", "error", err)
		}
	}
}

// uploadPause returns the pause between two uploads of a log with size bytes.
func uploadPause(size int) time.Duration {
	return max(logInterval, time.Duration(min(size, protocol.MaxLog))*time.Second/logRate)
}

// upload uploads the log if lines were added since the last upload.
func (l *jobLog) upload(ctx context.Context) error {
	l.mu.Lock()
	due := l.changed && !l.held && l.url != ""
	l.sent = l.sent || due
	l.mu.Unlock()
	if !due {
		return nil
	}
	if time.Since(l.signed) > logURLTime {
		l.signURL(ctx)
	}
	if err := l.join(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	l.kept = newestLines(l.kept)
	content := bytes.Clone(l.kept)
	l.changed = false
	l.mu.Unlock()
	err := l.attempt.agent.files.send(ctx, protocol.LogFile, bytes.NewReader(content), l.url, int64(len(content)))
	if err != nil {
		l.mu.Lock()
		l.changed = true
		l.mu.Unlock()
	}
	return err
}

// inline returns the log, so that the report of the results can contain it. It returns nil when the
// log must be uploaded: when it is too large, follows the log of earlier attempts, or was uploaded
// before, because that upload may still be in progress. A caller that gets the log must call stored
// afterwards, with whether the report stored the log.
func (l *jobLog) inline() (log []byte, stored func(bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent || l.url == "" || l.attempt.assignment.EarlierLogURL != "" || len(l.kept) > protocol.MaxInline {
		return nil, func(bool) {}
	}
	l.held = true
	log = bytes.Clone(l.kept)
	return log, func(ok bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held = false
		l.changed = l.changed && !(ok && len(l.kept) == len(log))
	}
}

// signURL requests a new signed URL for the log. When that fails, the log keeps its URL.
func (l *jobLog) signURL(ctx context.Context) {
	t := l.attempt
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	reply, err := t.sign(ctx, protocol.SignRequest{Version: protocol.Version, Job: t.assignment.Job,
		Attempt: t.assignment.Attempt, CreateTime: t.assignment.CreateTime, For: protocol.ForLog})
	if err != nil {
		t.log.Debug("cannot get a new signed URL for the log of a job: using the old one", "error", err)
		return
	}
	l.url, l.signed = reply.URLs[protocol.LogFile], time.Now()
}

// join adds the log of earlier attempts before the lines of this attempt. It does so once.
func (l *jobLog) join(ctx context.Context) error {
	if l.joined {
		return nil
	}
	earlier, err := l.earlier(ctx)
	if err != nil {
		return fmt.Errorf("read the log of the job's earlier attempts: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept, l.joined = newestLines(slices.Concat(earlier, l.kept)), true
	return nil
}

// earlier returns the log of earlier attempts. It returns nil when there is none, or when the store
// no longer has it or refuses its URL.
func (l *jobLog) earlier(ctx context.Context) ([]byte, error) {
	if l.attempt.assignment.EarlierLogURL == "" {
		return nil, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.attempt.assignment.EarlierLogURL, nil)
	if err != nil {
		return nil, domain.Errorf(domain.Internal, "the log of the job's earlier attempts has an invalid URL")
	}
	response, err := l.attempt.agent.files.client.Do(request)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		l.attempt.log.Warn("cannot read the log of the job's earlier attempts: the new log begins without "+
			"it", "status", response.Status)
		return nil, nil
	default:
		return nil, refused(protocol.LogFile, response)
	}
	log, err := io.ReadAll(io.LimitReader(response.Body, protocol.MaxLog))
	if err != nil {
		return nil, withoutURL(err)
	}
	return log, nil
}
