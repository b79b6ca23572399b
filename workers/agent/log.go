package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	logInterval  = 5 * time.Second  // between two uploads of a job's log
	logTimeout   = 15 * time.Second // of the last upload, which the end of the attempt waits for
	maxLogLine   = 64 << 10         // bytes after which a line is divided
	minRedaction = 4                // bytes; shorter values of secrets occur in any text
)

// A jobLog collects what the trainer of an attempt writes, the steps of the training and the progress
// of the attempt, and stores them as the log of the job. It keeps the newest protocol.MaxLog bytes. It
// replaces the secrets that the attempt has. Training never waits for the log, and a log that cannot
// be stored is only logged.
type jobLog struct {
	attempt *attempt
	secrets *strings.Replacer
	longest int // length of the longest secret

	mu      sync.Mutex
	partial []byte // of the trainer's last line, until it ends
	kept    []byte
	changed bool // since the last upload
	joined  bool // kept begins with the log of earlier attempts, if there is one

	cancel context.CancelFunc
	closed chan struct{} // closed when the last upload is due
	done   chan struct{}
}

func newJobLog(t *attempt) *jobLog {
	l := &jobLog{attempt: t, closed: make(chan struct{}), done: make(chan struct{})}
	var env map[string]string
	if e := t.assignment.Evaluator; e != nil {
		env = e.Env
	}
	l.secrets, l.longest = redactor(env, t.dir+"/", t.agent.options.Dir+"/")
	ctx, cancel := context.WithCancel(t.life)
	l.cancel = cancel
	t.agent.work.Go(func() { l.run(ctx) })
	return l
}

// redactor returns a replacer of the secrets in env, and of their lines, and the length of the longest.
// It also removes the paths of this machine.
func redactor(env map[string]string, paths ...string) (_ *strings.Replacer, longest int) {
	var secrets []string
	for _, value := range env {
		secrets = append(secrets, value)
		for line := range strings.Lines(value) {
			secrets = append(secrets, strings.TrimSpace(line))
		}
	}
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	var pairs []string
	for _, secret := range secrets {
		if len(secret) >= minRedaction {
			pairs, longest = append(pairs, secret, "[redacted]"), max(longest, len(secret))
		}
	}
	for _, path := range paths {
		pairs = append(pairs, path, "")
	}
	return strings.NewReplacer(pairs...), longest
}

// Write adds output of the trainer. It never returns an error.
func (l *jobLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		end := bytes.IndexByte(l.partial, '\n')
		if end < 0 {
			break
		}
		l.add(string(l.partial[:end]))
		l.partial = l.partial[end+1:]
	}
	if len(l.partial) > maxLogLine { // a secret may continue in the next bytes, so as many remain
		text := l.secrets.Replace(string(l.partial))
		cut := max(len(text)-l.longest, 0)
		l.add(text[:cut])
		l.partial = []byte(text[cut:])
	}
	return len(p), nil
}

// add adds a line. A carriage return begins the line again, as progress bars do.
func (l *jobLog) add(line string) {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	line = domain.Printable(strings.ToValidUTF8(l.secrets.Replace(line), "\uFFFD"))
	l.kept = append(append(l.kept, line...), '\n')
	if len(l.kept) > 2*protocol.MaxLog {
		l.kept = newestLines(l.kept)
	}
	l.changed = true
}

// newestLines returns the newest lines that have at most protocol.MaxLog bytes.
func newestLines(log []byte) []byte {
	if len(log) <= protocol.MaxLog {
		return log
	}
	log = log[len(log)-protocol.MaxLog:]
	return bytes.Clone(log[bytes.IndexByte(log, '\n')+1:])
}

// say adds a line of the agent.
func (l *jobLog) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(time.Now().UTC().Format(time.RFC3339) + " " + fmt.Sprintf(format, args...))
}

// step adds a line with the metrics of a step.
func (l *jobLog) step(row engines.Metrics) {
	var line strings.Builder
	fmt.Fprintf(&line, "step %d of %d, epoch %.4g, learning rate %.4g, %d tokens", row.Step, row.Steps, row.Epoch,
		row.LearningRate, row.Tokens)
	for _, name := range slices.Sorted(maps.Keys(row.Values)) {
		fmt.Fprintf(&line, ", %s %.6g", name, row.Values[name])
	}
	l.say("%s", line.String())
}

// close uploads the rest. No line follows.
func (l *jobLog) close() {
	l.mu.Lock()
	if len(l.partial) > 0 {
		l.add(string(l.partial))
		l.partial = nil
	}
	l.mu.Unlock()
	close(l.closed)
	select {
	case <-l.done:
	case <-time.After(logTimeout):
		l.attempt.log.Warn("end of the job's log not stored", "timeout", logTimeout)
	}
	l.cancel()
	<-l.done
}

func (l *jobLog) run(ctx context.Context) {
	defer close(l.done)
	ticker := time.NewTicker(logInterval)
	defer ticker.Stop()
	for last := false; !last; {
		select {
		case <-ctx.Done():
			return
		case <-l.closed:
			last = true
		case <-ticker.C:
		}
		if err := l.upload(ctx); err != nil && ctx.Err() == nil {
			l.attempt.log.Warn("job's log not stored", "error", err)
			if domain.CodeOf(err) == domain.InvalidArgument {
				return // the control plane keeps no logs
			}
		}
	}
}

// upload stores the log if it has changed since the last upload.
func (l *jobLog) upload(ctx context.Context) error {
	l.mu.Lock()
	changed := l.changed
	l.mu.Unlock()
	if !changed {
		return nil
	}
	t := l.attempt
	urls, err := t.sign(ctx, protocol.SignRequest{Version: protocol.Version, Job: t.assignment.Job,
		Attempt: t.assignment.Attempt, CreateTime: t.assignment.CreateTime, For: protocol.ForLog})
	if err != nil {
		return err
	}
	if err := l.join(ctx, urls[protocol.EarlierLog]); err != nil {
		return err
	}
	l.mu.Lock()
	l.kept = newestLines(l.kept)
	content := bytes.Clone(l.kept)
	l.changed = false
	l.mu.Unlock()
	path := filepath.Join(t.dir, protocol.LogFile)
	err = errors.Join(os.MkdirAll(t.dir, 0o700), os.WriteFile(path, content, 0o600))
	if err == nil {
		err = t.agent.files.put(ctx, protocol.LogFile, path, urls[protocol.LogFile], int64(len(content)))
	}
	if err != nil {
		l.mu.Lock()
		l.changed = true
		l.mu.Unlock()
	}
	return diskError(err)
}

// join puts the log of earlier attempts, which is at the URL, before the lines of this attempt. It
// does this once: from then on the stored log is that of this attempt.
func (l *jobLog) join(ctx context.Context, url string) error {
	l.mu.Lock()
	joined := l.joined
	l.mu.Unlock()
	if joined {
		return nil
	}
	var earlier []byte
	if url != "" {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return domain.Errorf(domain.Internal, "the log of earlier attempts has an invalid URL")
		}
		response, err := l.attempt.agent.files.client.Do(request)
		if err != nil {
			return fmt.Errorf("log of earlier attempts: %w", withoutURL(err))
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return refused(protocol.LogFile, response)
		}
		if earlier, err = io.ReadAll(io.LimitReader(response.Body, protocol.MaxLog)); err != nil {
			return fmt.Errorf("log of earlier attempts: %w", withoutURL(err))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept, l.joined = newestLines(slices.Concat(earlier, l.kept)), true
	return nil
}

// ended adds how the attempt ended.
func (l *jobLog) ended(err error) {
	why := context.Cause(l.attempt.work)
	switch {
	case err == nil:
		l.say("the training ended")
	case why != nil:
		l.say("the attempt is interrupted: %v", why)
	default:
		l.say("the attempt failed: %s", l.attempt.errorOf(err).Message)
	}
}
