package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/gguf"
	"anneal/engines/external"
	"anneal/engines/sandbox"
	"anneal/engines/torch"
)

// engineFlags say with what a node trains and serves.
type engineFlags struct {
	completer, command string
	trainer            string
	speech, listening  string // what transcribes, and the command line of its server
	plain              bool   // programs run without a sandbox
	files              []string
}

const embeddedEngine = "embedded"

const torchTrainer = "torch"

var trainers = []string{embeddedEngine, torchTrainer}

func listeners() []string {
	return append([]string{domain.SpeechPocketsphinx, noSpeech}, external.Formats()...)
}

func completers() []string { return append([]string{embeddedEngine}, external.Presets()...) }

func (e *engineFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&e.completer, "engine", embeddedEngine, "what serves models on this node: "+strings.Join(completers(), ", "))
	f.StringVar(&e.command, "engine-command", "", "command line of the engine's server, with {dir} or {gguf}, {port}, {name}, {devices} and {adapter} (default: the engine's own)")
	f.StringVar(&e.trainer, "trainer", embeddedEngine, "what trains models on this node: "+strings.Join(trainers, ", "))
	f.StringVar(&e.speech, "speech", domain.SpeechPocketsphinx, "what transcribes speech on this node, where it is installed: "+strings.Join(listeners(), ", "))
	f.BoolVar(&e.plain, "engines-without-sandbox", false, "start the programs of engines (ffmpeg, PocketSphinx, servers, PyTorch) as plain processes of this user, "+
		"who may do whatever this user may: for one user's own models and files alone")
	f.StringArrayVar(&e.files, "engine-files", nil, "a `folder` that the programs of engines may read in their sandbox, beside their own; may be repeated")
	f.StringVar(&e.listening, "speech-command", "", "command line of the server that transcribes, with {dir} or {file} and {port} (default: the server's own)")
}

func (e *engineFlags) check(v *domain.Violations) {
	v.Require(e.completer == "" || slices.Contains(completers(), e.completer), "--engine", "must be one of %s", strings.Join(completers(), ", "))
	v.Require(e.trainer == "" || slices.Contains(trainers, e.trainer), "--trainer", "must be one of %s", strings.Join(trainers, ", "))
	v.Require(e.speech == "" || slices.Contains(listeners(), e.speech), "--speech", "must be one of %s", strings.Join(listeners(), ", "))
	v.Require(e.listening == "" || slices.Contains(external.Formats(), e.speech), "--speech-command", "belongs to a server that transcribes: give --speech too, one of %s", strings.Join(external.Formats(), ", "))
	v.Require(e.command == "" || cmp.Or(e.completer, embeddedEngine) != embeddedEngine, "--engine-command", "belongs to an engine with a server: give --engine too")
	for _, path := range e.files {
		_, err := os.Stat(path)
		v.Require(err == nil, "--engine-files", "%q is not there", path)
	}
	v.Require(e.completer != external.OpenAI || e.command != "", "--engine-command", "is required for a server without a preset: its command line, with {dir} and {port}")
}

// runner starts the programs of engines. What it lacks is said once, at the start.
func (e *engineFlags) runner(ctx context.Context, logger *slog.Logger) *sandbox.Runner {
	runner := sandbox.NewRunner(sandbox.RunnerOptions{Plain: e.plain, Files: e.files})
	if e.plain {
		logger.Warn("the programs of engines run WITHOUT a sandbox: a file that takes one of them over may read, change and send whatever this user may; " +
			"this is for one user's own models and files alone")
	}
	if err := runner.Check(ctx); err != nil {
		logger.Warn("the programs of engines cannot be confined here, and get no file of a tenant", "reason", err)
	}
	return runner
}

// build makes the node's engine; dir is for files of its own. What cannot be
// had is told in the log and in the engine's Why, and the node does the rest.
func (e *engineFlags) build(ctx context.Context, dir string, runner *sandbox.Runner, logger *slog.Logger) (engines.Engine, error) {
	engine := embedded.New(embedded.Options{})
	if err := e.hear(&engine, dir, runner, logger); err != nil {
		return engine, err
	}
	if e.trainer == torchTrainer {
		engine.Name += " and " + torchTrainer
		var err error
		if engine.Trainer, err = torch.New(ctx, torch.Options{Runner: runner}); err != nil {
			logger.Error("this node cannot train models", "trainer", torchTrainer, "reason", err)
			engine.Trainer, engine.Why["train"] = nil, fmt.Sprintf("%s: %v", torchTrainer, err)
		}
		engine.Methods = torch.Methods()
	}
	if cmp.Or(e.completer, embeddedEngine) == embeddedEngine {
		return engine, nil
	}
	engine.Name += " and " + e.completer
	var err error
	engine.Completer, err = external.New(external.Options{Runner: runner, Preset: e.completer, Command: e.command, Dir: filepath.Join(dir, "work"), ToGGUF: toGGUF})
	switch {
	case domain.CodeOf(err) == domain.InvalidArgument:
		return engine, usageError{errors.New("--" + err.Error())}
	case err != nil:
		logger.Error("this node cannot serve models", "engine", e.completer, "reason", err)
		engine.Completer, engine.Why["complete"] = nil, fmt.Sprintf("%s: %v", e.completer, err)
	}
	return engine, nil
}

// toGGUF writes a model that came without a GGUF file as one, with matrices of
// 16 bits.
func toGGUF(dir, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(gguf.Export(f, dir, "model", gguf.F16), f.Close())
}
