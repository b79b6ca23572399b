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

// Formats lists the formats of speech models that servers listen with.
func Formats() []string {
	return []string{domain.SpeechFasterWhisper, domain.SpeechWhisperCPP, domain.SpeechOpenAI}
}

type transcriber struct {
	options  Options
	dialect  dialect
	template template
}

// NewTranscriber makes a transcriber whose preset is a format of speech models.
// It fails as New does.
func NewTranscriber(o Options) (engines.Transcriber, error) {
	kind, known := dialects[o.Preset]
	if !known {
		return nil, domain.Errorf(domain.InvalidArgument, "speech engine: %q is not known: use one of %s", o.Preset, strings.Join(Formats(), ", "))
	}
	o, words, err := prepared(o, kind.preset)
	if err != nil {
		return nil, err
	}
	return transcriber{o, kind, words}, nil
}

// LoadSpeech implements engines.Transcriber: it starts a server and waits until
// that is healthy.
func (t transcriber) LoadSpeech(ctx context.Context, files engines.SpeechFiles) (engines.SpeechModel, error) {
	if err := t.check(files.Settings); err != nil {
		return nil, err
	}
	own, err := os.MkdirTemp(t.options.Dir, "anneal-speech-*")
	if err != nil {
		return nil, err
	}
	l := &listener{dialect: t.dialect, settings: files.Settings, own: own, turns: make(chan struct{}, t.dialect.slots)}
	if err := t.open(ctx, l, files); err != nil {
		_ = os.RemoveAll(own) // the first error is told
		return nil, err
	}
	return l, nil
}

func (t transcriber) open(ctx context.Context, l *listener, files engines.SpeechFiles) (err error) {
	at := place{dir: files.Dir, devices: files.Devices}
	if t.template.says(wordFile) {
		if at.file, err = speechFile(files.Dir); err != nil {
			return err
		}
	}
	if t.dialect.vadFile {
		for _, name := range files.Settings.VADModels {
			at.vad = filepath.Join(files.Dir, name)
		}
	}
	if t.dialect.hub {
		if at.env, err = hub(l.own, files.Dir); err != nil {
			return err
		}
	}
	nothing := func(context.Context, string) error { return nil }
	l.server = &server{options: t.options, preset: t.dialect.preset, template: t.template, place: at, own: l.own, again: nothing}
	return l.server.open(ctx)
}

// check refuses settings that the server of a format has no use for.
func (t transcriber) check(s domain.SpeechSettings) error {
	var v domain.Violations
	if t.dialect.vadFile {
		v.Require(len(s.VADModels) <= 1, "speech.vadModels", "must name at most one: whisper.cpp's server is started with it")
		for _, file := range s.VADModels {
			v.Require(filepath.IsLocal(file), "speech.vadModels", "must name a file of the model's folder")
		}
		v.Require(len(s.AlignmentModels) == 0, "speech.alignmentModels", "whisper.cpp's server has no such models")
	}
	v.Require(s.DiarizationModel == "" || t.dialect.diarization != "", "speech.diarizationModel", "this server does not tell speakers apart: leave it out")
	return v.Err()
}

// speechFile is the one file of weights in a folder.
func speechFile(dir string) (string, error) {
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
		return "", domain.Errorf(domain.FailedPrecondition, "the model's folder has %d files that end in .bin, .gguf or .ggml, and one is needed (names with vad do not count)", len(found))
	}
	return found[0], nil
}

// hubName is what a model is called whose server looks for it in a cache of the
// Hugging Face hub.
const hubName = "anneal/model"

// hub lays a model's folder out as such a cache, by a link, and answers the
// variables that name it.
func hub(own, dir string) (env []string, err error) {
	const revision = "0000000000000000000000000000000000000001"
	at := filepath.Join(own, "models--"+strings.ReplaceAll(hubName, "/", "--"))
	for _, folder := range []string{"refs", "blobs", filepath.Join("snapshots", revision)} {
		if err := os.MkdirAll(filepath.Join(at, folder), 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(at, "refs", "main"), []byte(revision), 0o600); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := os.Symlink(filepath.Join(dir, file.Name()), filepath.Join(at, "snapshots", revision, file.Name())); err != nil {
			return nil, err
		}
	}
	return []string{"HF_HUB_CACHE=" + own}, nil
}

// A listener is one server that listens.
type listener struct {
	dialect  dialect
	settings domain.SpeechSettings
	server   *server
	own      string        // folder that ends with it
	turns    chan struct{} // of requests to the server
}

// Info implements engines.Listener.
func (l *listener) Info() engines.SpeechModelInfo {
	return engines.SpeechModelInfo{Slots: cap(l.turns), Languages: l.settings.Languages}
}

// Close implements engines.Listener.
func (l *listener) Close() error { return errors.Join(l.server.close(), os.RemoveAll(l.own)) }

var _ engines.FailureNotifier = (*listener)(nil)

// Failed implements engines.FailureNotifier.
func (l *listener) Failed() <-chan error { return l.server.failed }

// Check implements engines.Listener.
func (l *listener) Check(o engines.TranscriptionOptions) error {
	var v domain.Violations
	v.Require(o.Language == "" || len(l.settings.Languages) == 0 || slices.Contains(l.settings.Languages, o.Language), "language",
		"%q is none that the model knows (%s): leave it out, or use another model", o.Language, strings.Join(l.settings.Languages, ", "))
	named := func(field, name string, names map[string]string) {
		has := "has none"
		if len(names) > 0 {
			has = "has " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")
		}
		v.Require(name == "" || names[name] != "", field, "the model has no %s; it %s: leave it out, or name it in the model's speech settings", name, has)
	}
	named("vad_model", o.VAD, l.settings.VADModels)
	named("alignment_model", o.Alignment, l.settings.AlignmentModels)
	v.Require(!o.Diarize || l.settings.DiarizationModel != "", "diarize",
		"the model's speech settings name no model that tells speakers apart: leave it out, or use another model")
	v.Require(!o.Diarize || o.MinSpeakers <= 1, "min_speakers", "the model's server cannot be told: leave it out")
	v.Require(!o.Diarize || o.MaxSpeakers == 0, "max_speakers", "the model's server cannot be told: leave it out")
	v.Require(!o.Translate || !o.Words && !o.Diarize || l.dialect.translation == "", "timestamp_granularities",
		"the model's server tells no times of words of what it translates: ask for segments, or for transcribe")
	if l.dialect.climbs {
		v.Require(climb(o.Temperature) >= 0, "temperature", "must be one number, or rise in equal steps to 1.0: whisper.cpp's server knows no other lists")
	}
	return v.Err()
}
