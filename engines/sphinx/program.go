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

// A program is PocketSphinx at work: it is told the names of utterances, and
// writes what it hears in each. Starting it takes longer than listening to a
// sentence, so it stays for the next ones. Not safe for concurrent use.
type program struct {
	dir     string // of the model, which is nobody's business
	process *sandbox.Process
	orders  *os.File // names of utterances to listen to
	answers *os.File
	lines   *bufio.Scanner
	sound   *os.File // that the next utterance is read from; it has no name any more
	heard   int      // utterances
	stop    func()   // ends the process and all it started
}

// arguments have the program take orders from its descriptor 3 and answer to 4.
// Silence stays in the sound, or the times of words would leave it out.
func arguments(path, dir string) []string {
	return []string{
		path, "-hmm", filepath.Join(dir, acoustic), "-lm", filepath.Join(dir, language), "-dict", filepath.Join(dir, dictionary),
		"-adcin", "yes", "-remove_silence", "no", "-cepdir", "/dev", "-cepext", "", "-build_outdirs", "no",
		"-ctl", "/dev/fd/3", "-ctm", "/dev/fd/4", "-hyp", "/dev/fd/4",
	}
}

// start starts a program, which reads its sound from descriptor 5.
func (l *listener) start() (*program, error) {
	p := &program{dir: l.dir}
	var files []*os.File
	fail := func(err error) (*program, error) {
		p.close()
		for _, file := range files {
			_ = file.Close() // the first error is told
		}
		return nil, err
	}
	orders, ordersIn, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	p.orders, files = ordersIn, append(files, orders)
	answers, answersIn, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	p.answers, files = answers, append(files, answersIn)
	if p.sound, err = nameless(l.options.Dir); err != nil {
		return fail(err)
	}
	program := sandbox.Program{Args: l.args, Env: process.Environment(nil), Files: []*os.File{orders, answersIn, p.sound}, Limits: limits, Trusted: l.trusted}
	if l.dir != "" {
		program.Read = []string{l.dir}
	}
	p.process, err = l.options.Runner.Start(program)
	if err != nil {
		return fail(err)
	}
	for _, file := range files {
		_ = file.Close() // the program has its own
	}
	p.lines = bufio.NewScanner(answers)
	p.lines.Split(process.ScanWholeLines)
	p.stop = sync.OnceFunc(func() { p.process.Stop(context.Background(), 0) })
	return p, nil
}

// limits are several times what Debian's model takes: 115 MiB.
var limits = sandbox.Limits{Memory: 2 << 30, FileBytes: 1 << 20, Processes: 16, Files: 64}

// nameless is a file that goes when nobody has it open any more.
func nameless(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "anneal-sound-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close() // the first error is told
		return nil, err
	}
	return file, nil
}

func (p *program) close() {
	if p.process != nil {
		p.stop()
	}
	for _, file := range []*os.File{p.orders, p.answers, p.sound} {
		if file != nil {
			_ = file.Close() // nothing is written that counts
		}
	}
}

// listenLimit is how long one utterance may take.
const listenLimit = 10 * time.Minute

// endLimit is how long a program that closed its pipes may take to end.
const endLimit = 2 * time.Second

// errEnded is that the program ended by itself.
var errEnded = errors.New("it ended")

// listen hears an utterance. The program is of no use after an error.
func (p *program) listen(ctx context.Context, pcm []byte) ([]engines.Word, error) {
	unwatch := context.AfterFunc(ctx, p.stop)
	_ = p.answers.SetReadDeadline(time.Now().Add(listenLimit)) // a pipe has deadlines
	words, err := p.utter(pcm)
	if !unwatch() {
		return nil, ctx.Err()
	}
	switch {
	case err == nil:
		return words, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("it took longer than %s", listenLimit)
	}
	if errors.Is(err, errEnded) { // how it ended by itself is why
		ending := time.NewTimer(endLimit)
		defer ending.Stop()
		select {
		case <-p.process.Done():
		case <-ending.C:
		}
	}
	p.stop()
	return nil, fmt.Errorf("%w%s", err, p.lastWords())
}

// utter orders the sound, and then one of no length, whose answer shows that
// the one before is complete.
func (p *program) utter(pcm []byte) (words []engines.Word, err error) {
	if err := p.sound.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := p.sound.WriteAt(pcm, 0); err != nil {
		return nil, err
	}
	p.heard++
	name, mark := fmt.Sprintf("u%d", p.heard), fmt.Sprintf("m%d", p.heard)
	if _, err := fmt.Fprintf(p.orders, "fd/5 0 -1 %s\nnull 0 -1 %s\n", name, mark); err != nil {
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

// lastWords is the last complaint of the program, as the end of a sentence.
func (p *program) lastWords() string {
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
