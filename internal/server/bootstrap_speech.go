package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"anneal/domain"
	"anneal/engines/sphinx"
	"anneal/internal/node"
)

// SpeechAliases are by default aliases of a deployment of PocketSphinx's model, which scales to
// zero without requests. The deployment and the model belong to the account system.
var (
	speechModelName      = domain.NewName(domain.System, domain.Models.Collection, "pocketsphinx-en-us")
	speechDeploymentName = domain.NewName(domain.System, domain.Deployments.Collection, "speech")
	SpeechAliases        = []string{"speech-v3", "speech-v3-turbo"}
)

// speechFiles are the files of PocketSphinx's model that transcription needs, by path in its
// directory.
var speechFiles = []string{"en-us.lm.bin", "cmudict-en-us.dict", "en-us/feat.params", "en-us/mdef", "en-us/means",
	"en-us/noisedict",
	"en-us/sendump", "en-us/transition_matrices", "en-us/variances"}

// SpeechInstalled returns nil if PocketSphinx is installed, so that SpeechAliases work by default.
// Otherwise the error states what is missing.
func SpeechInstalled() error {
	_, err := sphinx.New(sphinx.Options{})
	if err == nil {
		_, err = os.Stat(filepath.Join(sphinx.DebianModel, speechFiles[0]))
	}
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition,
			"%s are unavailable: run `apt install pocketsphinx pocketsphinx-en-us ffmpeg` on the server's machine, and "+
				"restart the server",
			SpeechAliases[0]+" and "+SpeechAliases[1])
	}
	return nil
}

// ensureSpeech makes SpeechAliases aliases of a deployment of PocketSphinx's model, if PocketSphinx
// is installed on this machine and the operator has not assigned the aliases to another deployment.
// It never changes an existing deployment or model.
func (s *Server) ensureSpeech(ctx context.Context) error {
	if s.flags.Node.Engine.Speech == node.NoSpeech {
		return nil
	}
	if err := SpeechInstalled(); err != nil {
		s.logger.Info(err.Error())
		return nil
	}
	free := slices.Clone(SpeechAliases)
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
	return bootstrapDo(ctx, s, domain.Deployments, speechDeploymentName,
		domain.CreateDeployment{Operator: true, CreatedBy: "bootstrap", DeploymentSpec: domain.DeploymentSpec{
			DisplayName: "Speech", BaseModel: string(speechModelName), Aliases: free, SpeechFormat: domain.SpeechPocketsphinx}})
}

// ensureSpeechModel stores PocketSphinx's model as a public model, which every node can download.
func (s *Server) ensureSpeechModel(ctx context.Context) error {
	if _, there := s.world.View().Models.Get(speechModelName); there {
		return nil
	}
	dir := newModelDir(domain.System)
	for _, name := range speechFiles {
		f, err := os.Open(filepath.Join(sphinx.DebianModel, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		_, err = s.blobs.Put(ctx, dir+name, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	files, err := s.blobs.Files(ctx, dir)
	if err != nil {
		return err
	}
	return bootstrapDo(ctx, s, domain.Models, speechModelName, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: "PocketSphinx, American English", Kind: domain.SpeechModel, Public: true,
			Speech: &domain.SpeechSettings{Format: domain.SpeechPocketsphinx, Languages: []string{"en"}}},
		Files: files, CreatedBy: "bootstrap"})
}
