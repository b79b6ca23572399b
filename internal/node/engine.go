package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/gguf"
	"anneal/engines/external"
	"anneal/engines/sandbox"
	"anneal/engines/sphinx"
	"anneal/engines/torch"
	"anneal/internal/usage"
)

// runner returns the runner of the engines' programs. It logs a warning if it runs them without a
// sandbox, or if the sandbox does not work on this machine.
func (e *EngineFlags) runner(ctx context.Context, logger *slog.Logger) *sandbox.Runner {
	runner := sandbox.NewRunner(sandbox.RunnerOptions{Plain: e.unconfined, Files: e.files})
	if e.unconfined {
		logger.Warn("the programs of engines run WITHOUT a sandbox: a model or file that exploits a program gets " +
			"all permissions of this user; use only models and files that you trust")
	}
	if err := runner.Check(ctx); err != nil {
		logger.Warn("sandboxes do not work on this machine, so this node starts no engine that runs as a program of "+
			"its own", "reason", err)
	}
	return runner
}

// Missing returns which capabilities the engines that the flags select lack on this machine, with
// the reasons. It returns an error for invalid flags. dir is a directory for temporary files.
func (e *EngineFlags) Missing(ctx context.Context, dir string, logger *slog.Logger) (map[string]string, error) {
	engine, err := e.build(ctx, dir, e.runner(ctx, logger), logger)
	return engine.Missing, err
}

// build returns the engine of a node, whose files are in dir. If a capability such as training is
// not available, build logs the reason and stores it in the engine's Missing; the node offers the
// other capabilities.
func (e *EngineFlags) build(ctx context.Context, dir string, runner *sandbox.Runner,
	logger *slog.Logger) (engines.Engine, error) {
	engine := embedded.New(embedded.Options{})
	if err := e.addTranscribers(&engine, dir, runner, logger); err != nil {
		return engine, err
	}
	if e.trainer == torchTrainer {
		engine.Name += " and " + torchTrainer
		var err error
		options := torch.Options{Runner: runner, GangAddress: e.gangAddress}
		engine.Gang = ""
		if e.gangAddress != "" {
			engine.Gang = domain.TorchGangAbility
		}
		if engine.Trainer, err = torch.New(ctx, options); err != nil {
			logger.Error("this node cannot train models", "trainer", torchTrainer, "reason", err)
			engine.Trainer, engine.Missing["train"] = nil, fmt.Sprintf("%s: %v", torchTrainer, err)
		} else {
			engine.Programs = append(engine.Programs, torchTrainer)
		}
		engine.Methods = torch.Methods()
	}
	engine.SharesDevices = true // the embedded engine uses no memory of accelerators
	if cmp.Or(e.completer, embeddedEngine) == embeddedEngine {
		return engine, nil
	}
	engine.Name += " and " + e.completer
	engine.SharesDevices = external.SharesDevices(e.completer, e.command)
	var err error
	engine.Completer, err = external.New(external.Options{Runner: runner, Preset: e.completer, Command: e.command,
		Dir: filepath.Join(dir, "work"), ToGGUF: exportGGUF})
	switch {
	case domain.CodeOf(err) == domain.InvalidArgument:
		return engine, usage.Errorf("--%w", err)
	case err != nil:
		logger.Error("the model server cannot be used, so this node will not get replicas", "engine",
			e.completer, "reason", err)
		engine.Completer, engine.Missing["complete"] = nil, fmt.Sprintf("%s: %v", e.completer, err)
	default:
		engine.Programs = append(engine.Programs, e.completer)
	}
	return engine, nil
}

// addTranscribers adds transcription engines: PocketSphinx if it is installed, and the server of
// --speech.
func (e *EngineFlags) addTranscribers(engine *engines.Engine, dir string, runner *sandbox.Runner,
	logger *slog.Logger) error {
	if e.Speech == NoSpeech {
		return nil
	}
	work := filepath.Join(dir, "work")
	engine.Transcribers = map[string]engines.Transcriber{}
	transcriber, err := sphinx.New(sphinx.Options{Runner: runner, Dir: work})
	if err == nil {
		engine.Transcribers[domain.SpeechPocketsphinx] = transcriber
	} else {
		logger.Info("this node does not transcribe speech with PocketSphinx", "reason", err)
		engine.Missing[domain.SpeechEngine(domain.SpeechPocketsphinx)] = err.Error()
	}
	if !slices.Contains(external.Formats(), e.Speech) {
		return nil
	}
	transcriber, err = external.NewTranscriber(external.Options{Runner: runner, Preset: e.Speech, Command: e.speechCommand,
		Dir: work})
	switch {
	case domain.CodeOf(err) == domain.InvalidArgument:
		return usage.Errorf("--speech-command: %w", err)
	case err != nil:
		logger.Error("this node cannot transcribe speech", "engine", e.Speech, "reason", err)
		engine.Missing[domain.SpeechEngine(e.Speech)] = fmt.Sprintf("%s: %v", e.Speech, err)
	default:
		engine.Transcribers[e.Speech] = transcriber
	}
	return nil
}

// exportGGUF converts the model in dir, which has no GGUF file, to a GGUF file with 16-bit
// matrices.
func exportGGUF(dir, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = gguf.Export(context.Background(), f, dir, gguf.Options{Name: "model", Type: gguf.F16})
	return errors.Join(err, f.Close())
}
