package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/external"
	"anneal/engines/sandbox"
	"anneal/engines/sphinx"
)

// What the names of the interface's speech models are bound to out of the box:
// the model that comes with PocketSphinx, and a deployment of it that sleeps
// while nobody asks. Both are the operator's.
var (
	speechModelName      = domain.NewName(domain.System, domain.Models.Collection, "pocketsphinx-en-us")
	speechDeploymentName = domain.NewName(domain.System, domain.Deployments.Collection, "speech")
	speechAliases        = []string{"speech-v3", "speech-v3-turbo"}
)

const noSpeech = "none"

// speechFiles are those of PocketSphinx's model that listening takes.
var speechFiles = []string{"en-us.lm.bin", "cmudict-en-us.dict", "en-us/feat.params", "en-us/mdef", "en-us/means", "en-us/noisedict",
	"en-us/sendump", "en-us/transition_matrices", "en-us/variances"}

// hear adds to a node's engine what listens: PocketSphinx where it is
// installed, and the server that was chosen, if one was. What cannot be had is
// told in the engine's Why.
func (e *engineFlags) hear(engine *engines.Engine, dir string, runner *sandbox.Runner, logger *slog.Logger) error {
	if e.speech == noSpeech {
		return nil
	}
	work := filepath.Join(dir, "work")
	engine.Transcribers = map[string]engines.Transcriber{}
	listener, err := sphinx.New(sphinx.Options{Runner: runner, Dir: work})
	if err == nil {
		engine.Transcribers[domain.SpeechPocketsphinx] = listener
	} else {
		logger.Info("this node does not transcribe speech with PocketSphinx", "reason", err)
		engine.Why[domain.SpeechAbility(domain.SpeechPocketsphinx)] = err.Error()
	}
	if !slices.Contains(external.Formats(), e.speech) {
		return nil
	}
	listener, err = external.NewTranscriber(external.Options{Runner: runner, Preset: e.speech, Command: e.listening, Dir: work})
	switch {
	case domain.CodeOf(err) == domain.InvalidArgument:
		return usageError{fmt.Errorf("--speech-command: %w", err)}
	case err != nil:
		logger.Error("this node cannot transcribe speech", "engine", e.speech, "reason", err)
		engine.Why[domain.SpeechAbility(e.speech)] = fmt.Sprintf("%s: %v", e.speech, err)
	default:
		engine.Transcribers[e.speech] = listener
	}
	return nil
}

// speechInstalled says why the speech models of the interface cannot be had out
// of the box; nil when they can.
func speechInstalled() error {
	_, err := sphinx.New(sphinx.Options{})
	if err == nil {
		_, err = os.Stat(filepath.Join(sphinx.DebianModel, speechFiles[0]))
	}
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition, "%s answer nobody yet: `apt install pocketsphinx pocketsphinx-en-us ffmpeg` on the server's machine, and start the server again",
			speechAliases[0]+" and "+speechAliases[1])
	}
	return nil
}

// ensureSpeech binds the names of the interface's speech models to the embedded
// engine, where it is installed beside the control plane and the operator has
// not bound them to another. What the operator has changed since stays.
func (s *server) ensureSpeech(ctx context.Context) error {
	if s.flags.node.engine.speech == noSpeech {
		return nil
	}
	if err := speechInstalled(); err != nil {
		s.logger.Info(err.Error())
		return nil
	}
	free := slices.Clone(speechAliases)
	for row := range s.world.View().Deployments.All() {
		if row.Name == speechDeploymentName {
			return nil
		}
		if row.State.Live() {
			free = slices.DeleteFunc(free, func(alias string) bool { return slices.Contains(row.State.Aliases, alias) })
		}
	}
	if len(free) == 0 {
		return nil
	}
	if err := s.ensureSpeechModel(ctx); err != nil {
		return err
	}
	return bootstrapDo(ctx, s, domain.Deployments, speechDeploymentName, domain.CreateDeployment{Operator: true, CreatedBy: "bootstrap", DeploymentSpec: domain.DeploymentSpec{
		DisplayName: "Speech", BaseModel: string(speechModelName), Aliases: free, SpeechFormat: domain.SpeechPocketsphinx}})
}

// ensureSpeechModel stores PocketSphinx's model where every node can fetch it.
func (s *server) ensureSpeechModel(ctx context.Context) error {
	if _, there := s.world.View().Models.Get(speechModelName); there {
		return nil
	}
	folder := newModelFolder(domain.System)
	for _, name := range speechFiles {
		f, err := os.Open(filepath.Join(sphinx.DebianModel, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		_, err = s.blobs.Put(ctx, folder+name, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	files, err := s.blobs.Files(ctx, folder)
	if err != nil {
		return err
	}
	return bootstrapDo(ctx, s, domain.Models, speechModelName, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: "PocketSphinx, American English", Kind: domain.SpeechModel, Public: true,
			Speech: &domain.SpeechSettings{Format: domain.SpeechPocketsphinx, Languages: []string{"en"}}},
		Files: files, CreatedBy: "bootstrap"})
}
