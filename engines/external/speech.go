package external

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// Formats returns the formats of speech models for which there is a preset.
func Formats() []string {
	return []string{domain.SpeechFasterWhisper, domain.SpeechWhisperCPP, domain.SpeechOpenAI}
}

type transcriber struct {
	options  Options
	dialect  dialect
	template template
}

// NewTranscriber returns a transcriber for speech models of the format o.Preset. It returns an
// error if the preset or the command is invalid, if the server's program is not installed, or if
// o.Runner cannot start programs on this machine.
func NewTranscriber(o Options) (engines.Transcriber, error) {
	kind, known := dialects[o.Preset]
	if !known {
		return nil, domain.Errorf(domain.InvalidArgument, "speech engine: unknown preset %q: use one of %s", o.Preset,
			strings.Join(Formats(), ", "))
	}
	o, words, err := prepared(o, kind.preset)
	if err != nil {
		return nil, err
	}
	return transcriber{o, kind, words}, nil
}

// LoadSpeech implements engines.Transcriber. It starts a server, and waits until it is healthy.
func (t transcriber) LoadSpeech(ctx context.Context, files engines.SpeechFiles) (engines.SpeechModel, error) {
	if err := t.check(files.Settings); err != nil {
		return nil, err
	}
	own, err := os.MkdirTemp(t.options.Dir, "anneal-speech-*")
	if err != nil {
		return nil, err
	}
	m := &speechModel{
		dialect: t.dialect, settings: files.Settings, own: own, slots: make(chan struct{}, t.dialect.slots),
	}
	if err := t.open(ctx, m, files); err != nil {
		_ = os.RemoveAll(own) // the earlier error is returned instead
		return nil, err
	}
	return m, nil
}

func (t transcriber) open(ctx context.Context, m *speechModel, files engines.SpeechFiles) (err error) {
	args := arguments{dir: files.Dir, devices: files.Devices}
	if t.template.contains(wordFile) {
		if args.file, err = findWeights(files.Dir); err != nil {
			return err
		}
	}
	if t.dialect.vadFile {
		for _, name := range files.Settings.VADModels {
			args.vad = filepath.Join(files.Dir, name)
		}
	}
	if t.dialect.hub {
		if args.env, err = writeHubCache(m.own, files.Dir); err != nil {
			return err
		}
	}
	m.server = &server{
		options: t.options, preset: t.dialect.preset, template: t.template, args: args, own: m.own,
		onRestart: func(context.Context, string) error { return nil },
	}
	return m.server.open(ctx)
}

// check returns an error if the server does not support the settings of a speech model.
func (t transcriber) check(s domain.SpeechSettings) error {
	var v domain.Violations
	if t.dialect.vadFile {
		v.Require(len(s.VADModels) <= 1, "speech.vadModels",
			"must name at most one model: whisper.cpp's server loads only one")
		for _, file := range s.VADModels {
			v.Require(filepath.IsLocal(file), "speech.vadModels", "must name a file of the model's directory, not %q", file)
		}
		v.Require(len(s.AlignmentModels) == 0, "speech.alignmentModels",
			"whisper.cpp's server does not support alignment models: leave them out")
	}
	v.Require(s.DiarizationModel == "" || t.dialect.diarization != "", "speech.diarizationModel",
		"is not supported by the model server: leave it out")
	return v.Err()
}

// findWeights returns the file with weights in a directory. It returns an error unless there is
// exactly one.
func findWeights(dir string) (string, error) {
	var found []string
	for _, pattern := range []string{"*.bin", "*.gguf", "*.ggml"} {
		matches, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		found = append(found, matches...)
	}
	found = slices.DeleteFunc(found, func(path string) bool { return strings.Contains(filepath.Base(path), "vad") })
	if len(found) != 1 {
		return "", domain.Errorf(domain.FailedPrecondition,
			"the model's directory has %d files that end in .bin, .gguf or .ggml (not counting names with vad): it must "+
				"have exactly one", len(found))
	}
	return found[0], nil
}

// hubName is the name of the model's repository in the Hugging Face cache of a server.
const hubName = "anneal/model"

// writeHubCache creates a Hugging Face cache with links to the model's files in dir, and returns
// the environment variables that select the cache. The cache is below own, the directory for the
// files of the loaded model.
func writeHubCache(own, dir string) (env []string, err error) {
	const revision = "0000000000000000000000000000000000000001"
	repo := filepath.Join(own, "models--"+strings.ReplaceAll(hubName, "/", "--"))
	for _, name := range []string{"refs", "blobs", filepath.Join("snapshots", revision)} {
		if err := os.MkdirAll(filepath.Join(repo, name), 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(repo, "refs", "main"), []byte(revision), 0o600); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		link := filepath.Join(repo, "snapshots", revision, file.Name())
		if err := os.Symlink(filepath.Join(dir, file.Name()), link); err != nil {
			return nil, err
		}
	}
	return []string{"HF_HUB_CACHE=" + own}, nil
}

// A speechModel is a loaded speech model: its server and its settings.
type speechModel struct {
	dialect  dialect
	settings domain.SpeechSettings
	server   *server
	own      string        // directory with generated files, which Close removes
	slots    chan struct{} // semaphore for the concurrent requests to the server
}

// Info implements engines.SpeechModel.
func (m *speechModel) Info() engines.SpeechModelInfo {
	return engines.SpeechModelInfo{Slots: cap(m.slots), Languages: m.settings.Languages}
}

// Close implements engines.SpeechModel.
func (m *speechModel) Close() error { return errors.Join(m.server.close(), os.RemoveAll(m.own)) }

var _ engines.FailureNotifier = (*speechModel)(nil)

// Failed implements engines.FailureNotifier.
func (m *speechModel) Failed() <-chan error { return m.server.failed }

// Check implements engines.SpeechModel.
func (m *speechModel) Check(o engines.TranscriptionOptions) error {
	var v domain.Violations
	languages := m.settings.Languages
	v.Require(o.Language == "" || len(languages) == 0 || slices.Contains(languages, o.Language), "language",
		"the model does not support %q, only %s: leave it out, or use another model", o.Language,
		strings.Join(languages, ", "))
	checkName := func(field, name string, names map[string]string) {
		supported := "none"
		if len(names) > 0 {
			supported = strings.Join(slices.Sorted(maps.Keys(names)), ", ")
		}
		v.Require(name == "" || names[name] != "", field,
			"%s is not in the model's speech settings, which list %s: leave this field out, or add %s to the settings",
			name, supported, name)
	}
	checkName("vad_model", o.VAD, m.settings.VADModels)
	checkName("alignment_model", o.Alignment, m.settings.AlignmentModels)
	v.Require(!o.Diarize || m.settings.DiarizationModel != "", "diarize",
		"the model's speech settings have no diarizationModel: leave diarize out, or use another model")
	v.Require(!o.Diarize || o.MinSpeakers <= 1, "min_speakers", "is not supported by the model server: leave it out")
	v.Require(!o.Diarize || o.MaxSpeakers == 0, "max_speakers", "is not supported by the model server: leave it out")
	v.Require(!o.Translate || !o.Words && !o.Diarize || m.dialect.translation == "", "timestamp_granularities",
		"the model server returns no word timestamps for translations, but word and diarize need them: leave both out, or "+
			"use the task transcribe")
	if m.dialect.increments {
		v.Require(increment(o.Temperature) >= 0, "temperature",
			"must be one number, or rise in equal steps to 1.0: whisper.cpp's server supports no other lists")
	}
	return v.Err()
}
