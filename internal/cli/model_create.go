package cli

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/domain"
	"anneal/internal/usage"
)

func modelCreate() *cobra.Command {
	var dir, base, displayName, description string
	var public bool
	var speech domain.SpeechSettings
	c := &cobra.Command{Use: "create ID --dir FOLDER", Short: "Create a model from a folder of Hugging Face, PEFT or a speech model, and wait until it is checked", Args: arguments(1, 1),
		Example: "  anneal model create tiny --dir ./tiny-llama\n  anneal model create polite --dir ./adapter --base-model tiny\n" +
			"  anneal model create whisper --dir ./faster-whisper-small --speech-format faster-whisper",
		RunE: func(c *cobra.Command, args []string) error {
			if dir == "" {
				return required("dir")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			folder, err := openFolder(c, dir, base, speech.Format)
			if err != nil {
				return err
			}
			model := map[string]any{"displayName": displayName, "description": description, "kind": folder.kind, "public": public}
			if base != "" {
				model["baseModel"] = client.name("models", base)
			}
			if speech.Format != "" {
				model["speech"] = speech
			}
			err = client.call(c.Context(), http.MethodPost, client.path("models"), nil, map[string]any{"modelId": args[0], "model": model}, nil)
			if client.unfinished(c.Context(), "models", args[0], err) {
				fmt.Fprintf(c.ErrOrStderr(), "model %s is there and has no valid files yet: uploading into it\n", args[0])
				err = nil
			}
			if err != nil {
				return err
			}
			return client.sendModel(c, args[0], folder)
		}}
	f := c.Flags()
	f.StringVar(&dir, "dir", "", "folder with the model's files (safetensors, or those of a speech model)")
	f.StringVar(&base, "base-model", "", "model that an adapter is for; of another model, what it was tuned from")
	f.StringVar(&displayName, "display-name", "", "a name for people")
	f.StringVar(&description, "description", "", "what it is good for")
	f.BoolVar(&public, "public", false, "let every account read and deploy it")
	speechFlags(f, &speech)
	return c
}

// speechFlags say how a speech model is listened with.
func speechFlags(f *pflag.FlagSet, speech *domain.SpeechSettings) {
	f.StringVar(&speech.Format, speechFormatFlag, "", "makes it a speech model, and says what listens with it: "+
		strings.Join([]string{domain.SpeechPocketsphinx, domain.SpeechFasterWhisper, domain.SpeechWhisperCPP, domain.SpeechOpenAI}, ", "))
	f.StringSliceVar(&speech.Languages, "languages", nil, "of a speech model: `CODES` of the languages that it knows, such as en,de")
	f.StringToStringVar(&speech.VADModels, "vad-models", nil, "of a speech model: `MODEL=NAME` for each that finds where somebody speaks and what its server calls it, such as silero=silero_vad")
	f.StringToStringVar(&speech.AlignmentModels, "alignment-models", nil, "of a speech model: `MODEL=NAME` for each that finds where words are and what its server calls it, such as mms_fa=mms")
	for _, name := range []string{"vad-models", "alignment-models"} {
		f.Lookup(name).DefValue = "" // an empty map is no default to show
	}
	f.StringVar(&speech.DiarizationModel, "diarization-model", "", "of a speech model: what its server calls the model that tells speakers apart")
}

const speechFormatFlag = "speech-format"

// openFolder reads what a model is made of; with a format it is one of speech.
func openFolder(c *cobra.Command, dir, base, format string) (modelFiles, error) {
	if format != "" {
		return readSpeechFiles(dir, format)
	}
	for _, flag := range []string{speechFormatFlag, "languages", "vad-models", "alignment-models", "diarization-model"} {
		if c.Flags().Changed(flag) {
			return modelFiles{}, usage.Errorf("--%s is for speech models: say what listens with it by --%s", flag, speechFormatFlag)
		}
	}
	return openModelFiles(dir, base)
}

func modelUpload() *cobra.Command {
	return &cobra.Command{Use: "upload ID FOLDER", Short: "Upload files into a model that is not READY, and wait until it is checked", Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var model struct {
				Speech struct{ Format string }
			}
			if err := client.call(c.Context(), http.MethodGet, "/v1/"+client.name("models", args[0]), nil, nil, &model); err != nil {
				return err
			}
			read := readModelFiles
			if model.Speech.Format != "" {
				read = listSpeechFiles
			}
			folder, err := read(args[1])
			if err != nil {
				return err
			}
			return client.sendModel(c, args[0], folder)
		}}
}

// sendModel uploads the files of a folder and waits for the verdict on them.
func (c *client) sendModel(cmd *cobra.Command, id string, folder modelFiles) error {
	ctx, name := cmd.Context(), c.name("models", id)
	if err := c.putFiles(cmd, name, folder); err != nil {
		return err
	}
	if err := c.call(ctx, http.MethodPost, "/v1/"+name+":validateUpload", nil, struct{}{}, nil); err != nil {
		return err
	}
	item, err := c.awaitUpload(ctx, name)
	if err != nil {
		return leaving(cmd, err, "The files are there and are still being checked; `anneal model get %s` shows what came of it.", id)
	}
	return printItem(cmd, item, models.details...)
}
