// Package sphinx transcribes English on CPUs with CMU PocketSphinx. Its processes run as long as
// the model is loaded.
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

// Options configure the transcriber. A field that is zero has its default.
type Options struct {
	Runner *sandbox.Runner // starts PocketSphinx

	Dir   string // directory for temporary audio files; default: the system's
	Slots int    // maximum number of concurrent processes; default: one for each core, at most maxSlots
}

// DebianModel is the directory of the model in Debian's package pocketsphinx-en-us.
const DebianModel = "/usr/share/pocketsphinx/model/en-us"

// maxSlots is the maximum of Options.Slots. The memory of a speech replica suffices for this number
// of processes, which need 115 MiB each.
const maxSlots = 4

const (
	batch   = "pocketsphinx_batch"
	install = "install it and its model with `apt install pocketsphinx pocketsphinx-en-us`"
)

type transcriber struct {
	options Options
	program string
}

// New returns a transcriber. It returns an error if PocketSphinx is not installed.
func New(o Options) (engines.Transcriber, error) {
	program, err := process.Find(batch, install)
	if err != nil {
		return nil, err
	}
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	o.Slots = cmp.Or(o.Slots, min(runtime.GOMAXPROCS(0), maxSlots))
	return transcriber{o, program}, nil
}

// Files of a model, in the layout of pocketsphinx-en-us.
const (
	acoustic   = "en-us"
	language   = "en-us.lm.bin"
	dictionary = "cmudict-en-us.dict"
	english    = "en"
)

// LoadSpeech implements engines.Transcriber. It starts a process to check that the model can be
// loaded. Further processes are started when they are needed.
func (t transcriber) LoadSpeech(ctx context.Context, files engines.SpeechFiles) (engines.SpeechModel, error) {
	if err := check(files); err != nil {
		return nil, err
	}
	if err := t.options.Runner.Check(ctx); err != nil && !files.Trusted {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"PocketSphinx loads uploaded speech models only in a sandbox: %v", err)
	}
	fillers, err := knownFillers(filepath.Join(files.Dir, dictionary))
	if err != nil {
		return nil, err
	}
	m := &speechModel{
		options: t.options, args: arguments(t.program, files.Dir), dir: files.Dir, trusted: files.Trusted,
		fillers: fillers, free: make(chan *program, t.options.Slots),
	}
	m.life, m.end = context.WithCancel(context.WithoutCancel(ctx))
	for range t.options.Slots - 1 {
		m.free <- nil
	}
	first, err := m.startProgram()
	if err != nil {
		return nil, err
	}
	if _, err := first.transcribe(ctx, nil); err != nil {
		first.close()
		m.end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, domain.Errorf(domain.FailedPrecondition, "PocketSphinx cannot load the model: %v", err)
	}
	m.free <- first
	return m, nil
}

// check returns an error for a directory without an English model of PocketSphinx, and for settings
// that PocketSphinx does not support.
func check(files engines.SpeechFiles) error {
	var v domain.Violations
	for _, path := range []string{
		filepath.Join(acoustic, "mdef"), filepath.Join(acoustic, "means"), filepath.Join(acoustic, "feat.params"),
		language, dictionary,
	} {
		info, err := os.Stat(filepath.Join(files.Dir, path))
		v.Require(err == nil && info.Mode().IsRegular(), path,
			"is missing: a model of format %s has the layout of Debian's pocketsphinx-en-us", domain.SpeechPocketsphinx)
	}
	for _, code := range files.Settings.Languages {
		v.Require(code == english, "speech.languages", "%q is not supported: PocketSphinx transcribes English", code)
	}
	s := files.Settings
	v.Require(len(s.VADModels) == 0, "speech.vadModels", "is not supported by PocketSphinx: leave it out")
	v.Require(len(s.AlignmentModels) == 0, "speech.alignmentModels", "is not supported by PocketSphinx: leave it out")
	v.Require(s.DiarizationModel == "", "speech.diarizationModel", "is not supported by PocketSphinx: leave it out")
	return v.Err()
}

// allFillers are hesitations, which are transcribed only if the prompt contains one.
var allFillers = []string{"ah", "eh", "er", "hm", "hmm", "mhm", "mm", "uh", "um"}

// knownFillers returns the fillers that a dictionary contains.
func knownFillers(path string) (found []string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if word, _, _ := strings.Cut(lines.Text(), " "); slices.Contains(allFillers, word) {
			found = append(found, word)
		}
	}
	return found, lines.Err()
}
