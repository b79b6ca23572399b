// Package sphinx listens with CMU PocketSphinx: English on a processor, by
// programs of its own that run as long as the model is loaded.
package sphinx

import (
	"bufio"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// Options say how models listen. A zero field takes its default.
type Options struct {
	Runner *sandbox.Runner // starts PocketSphinx

	Dir   string // for sound that is listened to; default the system's temporary folder
	Slots int    // programs that listen at once; default one for each processor, and no more than mostSlots
}

// DebianModel is where the package pocketsphinx-en-us puts its model.
const DebianModel = "/usr/share/pocketsphinx/model/en-us"

// mostSlots programs of 115 MiB each fit into what a replica that listens is
// given.
const mostSlots = 4

const (
	batch   = "pocketsphinx_batch"
	install = "`apt install pocketsphinx pocketsphinx-en-us` installs it with a model"
)

type transcriber struct {
	options Options
	program string
}

// New makes a transcriber. It fails, saying what to do, when PocketSphinx is
// not installed.
func New(o Options) (engines.Transcriber, error) {
	program, err := process.Find(batch, install)
	if err != nil {
		return nil, err
	}
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	o.Slots = cmp.Or(o.Slots, min(runtime.GOMAXPROCS(0), mostSlots))
	return transcriber{o, program}, nil
}

// The parts of a model, as pocketsphinx-en-us has them.
const (
	acoustic   = "en-us"
	language   = "en-us.lm.bin"
	dictionary = "cmudict-en-us.dict"
	english    = "en"
)

// LoadSpeech implements engines.Transcriber. It starts one program, which shows
// that the model can be read; the others start when they are needed.
func (t transcriber) LoadSpeech(ctx context.Context, files engines.SpeechFiles) (engines.SpeechModel, error) {
	if err := check(files); err != nil {
		return nil, err
	}
	if err := t.options.Runner.Check(ctx); err != nil && !files.Trusted {
		return nil, domain.Errorf(domain.FailedPrecondition, "PocketSphinx loads speech models that were uploaded only in a sandbox: %v", err)
	}
	hesitations, err := known(filepath.Join(files.Dir, dictionary))
	if err != nil {
		return nil, err
	}
	l := &listener{
		options: t.options, args: arguments(t.program, files.Dir), dir: files.Dir, trusted: files.Trusted, hesitations: hesitations, free: make(chan *program, t.options.Slots),
	}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	for range t.options.Slots - 1 {
		l.free <- nil
	}
	first, err := l.start()
	if err != nil {
		return nil, err
	}
	if _, err := first.listen(ctx, nil); err != nil {
		first.close()
		l.end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, domain.Errorf(domain.FailedPrecondition, "PocketSphinx cannot load the model: %v", err)
	}
	l.free <- first
	return l, nil
}

// check refuses what is no model of PocketSphinx, or none of English.
func check(files engines.SpeechFiles) error {
	var v domain.Violations
	for _, path := range []string{filepath.Join(acoustic, "mdef"), filepath.Join(acoustic, "means"), filepath.Join(acoustic, "feat.params"), language, dictionary} {
		info, err := os.Stat(filepath.Join(files.Dir, path))
		v.Require(err == nil && info.Mode().IsRegular(), path, "is missing: a model of format %s has the layout of Debian's pocketsphinx-en-us", domain.SpeechPocketsphinx)
	}
	for _, code := range files.Settings.Languages {
		v.Require(code == english, "speech.languages", "%q is not possible: PocketSphinx listens to English here", code)
	}
	s := files.Settings
	v.Require(len(s.VADModels) == 0, "speech.vadModels", "PocketSphinx has no such models")
	v.Require(len(s.AlignmentModels) == 0, "speech.alignmentModels", "PocketSphinx has no such models")
	v.Require(s.DiarizationModel == "", "speech.diarizationModel", "PocketSphinx does not tell speakers apart")
	return v.Err()
}

// sounds are words that are no words. They are heard when a prompt has one.
var sounds = []string{"ah", "eh", "er", "hm", "hmm", "mhm", "mm", "uh", "um"}

// known are those of a dictionary.
func known(path string) (found []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if word, _, _ := strings.Cut(lines.Text(), " "); slices.Contains(sounds, word) {
			found = append(found, word)
		}
	}
	return found, lines.Err()
}
