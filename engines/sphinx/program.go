package sphinx

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// A program is a PocketSphinx process, which reads the names of utterances and writes the words of
// each. It is reused, because it takes longer to start than to transcribe a sentence. It is not
// safe for concurrent use.
type program struct {
	dir        string // directory of the model, which error messages must not contain
	process    *sandbox.Process
	requests   *os.File // pipe to the process, for the names of utterances
	responses  *os.File
	lines      *bufio.Scanner
	sound      *os.File // file without a name, with the samples of the next utterance
	utterances int      // number of utterances transcribed so far
	stop       func()   // kills PocketSphinx's process group
}

// arguments returns PocketSphinx's command line: it reads requests from descriptor 3 and writes
// responses to 4. It keeps silence, because the times of words would otherwise be wrong.
func arguments(path, dir string) []string {
	return []string{
		path, "-hmm", filepath.Join(dir, acoustic), "-lm", filepath.Join(dir, language),
		"-dict", filepath.Join(dir, dictionary),
		"-adcin", "yes", "-remove_silence", "no", "-cepdir", "/dev", "-cepext", "", "-build_outdirs", "no",
		"-ctl", "/dev/fd/3", "-ctm", "/dev/fd/4", "-hyp", "/dev/fd/4",
	}
}

// startProgram starts a process, which reads samples from descriptor 5.
func (m *speechModel) startProgram() (*program, error) {
	p := &program{dir: m.dir}
	var files []*os.File
	fail := func(err error) (*program, error) {
		p.close()
		for _, file := range files {
			_ = file.Close() // the earlier error is returned instead
		}
		return nil, err
	}
	requests, requestsIn, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	p.requests, files = requestsIn, append(files, requests)
	responses, responsesIn, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	p.responses, files = responses, append(files, responsesIn)
	if p.sound, err = unlinkedFile(m.options.Dir); err != nil {
		return fail(err)
	}
	program := sandbox.Program{
		Args: m.args, Env: process.Environment(nil), Files: []*os.File{requests, responsesIn, p.sound},
		Limits: limits, Trusted: m.trusted,
	}
	if m.dir != "" {
		program.Read = []string{m.dir}
	}
	p.process, err = m.options.Runner.Start(program)
	if err != nil {
		return fail(err)
	}
	for _, file := range files {
		_ = file.Close() // the process has its own descriptors
	}
	p.lines = bufio.NewScanner(responses)
	p.lines.Split(process.ScanWholeLines)
	p.stop = sync.OnceFunc(func() { p.process.Stop(context.Background(), 0) })
	return p, nil
}

// limits are several times what Debian's model needs, 115 MiB.
var limits = sandbox.Limits{Memory: 2 << 30, FileBytes: 1 << 20, Processes: 16, Files: 64}

// unlinkedFile returns a temporary file without a name, which is deleted when its last descriptor
// is closed.
func unlinkedFile(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "anneal-sound-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close() // the earlier error is returned instead
		return nil, err
	}
	return file, nil
}

func (p *program) close() {
	if p.process != nil {
		p.stop()
	}
	for _, file := range []*os.File{p.requests, p.responses, p.sound} {
		if file != nil {
			_ = file.Close()
		}
	}
}

// utteranceTimeout is the maximum time to transcribe an utterance.
const utteranceTimeout = 10 * time.Minute

// exitTimeout is the maximum time for a process to exit after it has closed its pipes.
const exitTimeout = 2 * time.Second

// errEnded is the error of a process that has closed its pipes, usually because it exited.
var errEnded = errors.New("the process exited")

// transcribe returns the words of an utterance. After an error, the program cannot be used any
// more.
func (p *program) transcribe(ctx context.Context, pcm []byte) ([]engines.Word, error) {
	unwatch := context.AfterFunc(ctx, p.stop)
	// Cannot fail, because pipes support deadlines.
	_ = p.responses.SetReadDeadline(time.Now().Add(utteranceTimeout))
	words, err := p.request(pcm)
	if !unwatch() {
		return nil, ctx.Err()
	}
	switch {
	case err == nil:
		return words, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("the transcription of an utterance took longer than %s", utteranceTimeout)
	}
	if errors.Is(err, errEnded) { // wait for the exit status of the process, which lastError reports
		ending := time.NewTimer(exitTimeout)
		defer ending.Stop()
		select {
		case <-p.process.Done():
		case <-ending.C:
		}
	}
	p.stop()
	return nil, fmt.Errorf("%w%s", err, p.lastError())
}

// request sends an utterance to the process, and returns its words. It then sends an empty
// utterance, because only the response to that shows that the first response is complete.
func (p *program) request(pcm []byte) (words []engines.Word, err error) {
	if err := p.sound.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := p.sound.WriteAt(pcm, 0); err != nil {
		return nil, err
	}
	p.utterances++
	name, mark := fmt.Sprintf("u%d", p.utterances), fmt.Sprintf("m%d", p.utterances)
	if _, err := fmt.Fprintf(p.requests, "fd/5 0 -1 %s\nnull 0 -1 %s\n", name, mark); err != nil {
		return nil, errEnded
	}
	for p.lines.Scan() {
		line := p.lines.Text()
		if strings.Contains(line, "("+mark+" ") {
			return words, nil
		}
		if rest, of := strings.CutPrefix(line, name+" 1 "); of {
			word, err := wordOf(rest)
			if err != nil {
				return nil, err
			}
			words = append(words, word)
		}
	}
	if err := p.lines.Err(); err != nil {
		return nil, err
	}
	return nil, errEnded
}

// lastError returns the exit error of the process and the last error that it logged, in a form to
// append to a message.
func (p *program) lastError() string {
	<-p.process.Done()
	last := ""
	for line := range strings.Lines(p.process.LastOutput()) {
		for _, kind := range []string{"ERROR: ", "FATAL: ", "FATAL_ERROR: "} {
			if at := strings.Index(line, kind); at >= 0 {
				last = strings.TrimSpace(line[at:])
			}
		}
	}
	if ended := p.process.ExitError(); ended != nil {
		last = strings.TrimSuffix(ended.Error()+": "+last, ": ")
	}
	if last == "" {
		return ""
	}
	return ": " + strings.ReplaceAll(last, p.dir+string(filepath.Separator), "")
}
