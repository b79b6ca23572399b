package cli

import (
	"cmp"
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
	var source hubSource
	c := &cobra.Command{Use: "create ID --dir DIR | --from hf://ORG/NAME",
		Short: "Create a model from Hugging Face, PEFT or speech model files, and wait for their validation",
		Args:  arguments(1, 1),
		Example: "  anneal model create tiny --dir ./tiny-llama\n  anneal model create smol --from " +
			"hf://HuggingFaceTB/SmolLM2-135M-Instruct\n  anneal model create polite --dir ./adapter " +
			"--base-model tiny\n" +
			"  anneal model create whisper --dir ./faster-whisper-small --speech-format faster-whisper",
		RunE: func(c *cobra.Command, args []string) error {
			if (dir == "") == (source.from == "") {
				return usage.Errorf("give the model's files with either --dir or --from")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var downloaded hubDownload
			if source.from != "" {
				if err := mustBeNew(c.Context(), client, args[0]); err != nil {
					return err
				}
				if downloaded, err = source.open(c, speech.Format != ""); err != nil {
					return err
				}
				dir, description = downloaded.dir, cmp.Or(description, "from "+downloaded.name)
			}
			files, err := openModelDir(c, dir, base, speech.Format)
			if err != nil {
				return err
			}
			model := map[string]any{"displayName": displayName, "description": description, "kind": files.kind,
				"public": public}
			if base != "" {
				model["baseModel"] = client.name("models", base)
			}
			if speech.Format != "" {
				model["speech"] = speech
			}
			err = client.call(c.Context(), http.MethodPost, client.path("models"), nil,
				map[string]any{"modelId": args[0], "model": model}, nil)
			if canUploadInto(c.Context(), client, "models", args[0], err) {
				fmt.Fprintf(c.ErrOrStderr(), "model %s exists without valid files: uploading into it\n", args[0])
				err = nil
			}
			if err != nil {
				return err
			}
			if err := uploadModel(c, client, args[0], files); err != nil {
				return err
			}
			return downloaded.remove()
		}}
	f := c.Flags()
	source.flags(f)
	f.StringVar(&dir, "dir", "", "directory with the model's files (safetensors, or those of a speech model)")
	f.StringVar(&base, "base-model", "", "base model of an adapter, or the model from which a full model was fine-tuned")
	bindReference(c, "base-model", "baseModel", "models")
	f.StringVar(&displayName, "display-name", "", "display name")
	f.StringVar(&description, "description", "", "description")
	f.BoolVar(&public, "public", false, "make the model public: every account can read and deploy it")
	speechFlags(f, &speech)
	return c
}

// speechFlags adds the flags for the settings of a speech model.
func speechFlags(f *pflag.FlagSet, speech *domain.SpeechSettings) {
	f.StringVar(&speech.Format, speechFormatFlag, "", "format of a speech model, which selects its engine: "+
		strings.Join([]string{domain.SpeechPocketsphinx, domain.SpeechFasterWhisper, domain.SpeechWhisperCPP,
			domain.SpeechOpenAI}, ", "))
	f.StringSliceVar(&speech.Languages, "languages", nil, "`CODES` of the languages of a speech model, such as en,de")
	f.StringToStringVar(&speech.VADModels, "vad-models", nil,
		"`MODEL=NAME` of voice activity models: the value of vad_model in requests, and its name on the transcription "+
			"server, such as silero=silero_vad")
	f.StringToStringVar(&speech.AlignmentModels, "alignment-models", nil,
		"`MODEL=NAME` of alignment models: the value of alignment_model in requests, and its name on the transcription "+
			"server, such as mms_fa=mms")
	for _, name := range []string{"vad-models", "alignment-models"} {
		f.Lookup(name).DefValue = "" // hides the empty map in the help
	}
	f.StringVar(&speech.DiarizationModel, "diarization-model", "",
		"name of a speech model's diarization model on the transcription server")
}

const speechFormatFlag = "speech-format"

// openModelDir lists and checks the files of a model in dir. If format is not "", it is the format
// of a speech model.
func openModelDir(c *cobra.Command, dir, base, format string) (modelFiles, error) {
	if format != "" {
		return readSpeechFiles(dir, format)
	}
	for _, flag := range []string{speechFormatFlag, "languages", "vad-models", "alignment-models", "diarization-model"} {
		if c.Flags().Changed(flag) {
			return modelFiles{}, usage.Errorf("--%s is only for speech models: give the format of the model with --%s",
				flag,
				speechFormatFlag)
		}
	}
	return openModelFiles(dir, base)
}

func modelUpload() *cobra.Command {
	return &cobra.Command{Use: "upload ID DIR",
		Short: "Upload files into a model that is not READY, and wait for its validation", Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var model struct {
				Speech struct{ Format string }
			}
			if err := client.call(c.Context(), http.MethodGet, "/v1/"+client.name("models", args[0]), nil, nil,
				&model); err != nil {
				return err
			}
			read := readModelFiles
			if model.Speech.Format != "" {
				read = listSpeechFiles
			}
			files, err := read(args[1])
			if err != nil {
				return err
			}
			return uploadModel(c, client, args[0], files)
		}}
}

// uploadModel uploads files into a model, waits for their validation, and prints the model.
func uploadModel(cmd *cobra.Command, c *client, id string, files modelFiles) error {
	ctx, name := cmd.Context(), c.name("models", id)
	if err := putFiles(cmd, c, name, files); err != nil {
		return withHint(err, uploadAgain(err, "model", id, "DIR"))
	}
	if err := c.call(ctx, http.MethodPost, "/v1/"+name+":validateUpload", nil, struct{}{}, nil); err != nil {
		return err
	}
	item, err := awaitUpload(ctx, c, name,
		fmt.Sprintf("upload the corrected files with `anneal model upload %s DIR`", id))
	if err != nil {
		return onInterrupt(cmd, err,
			"The files are uploaded and still being validated; `anneal model get %s` shows the result.", id)
	}
	if err := printItem(cmd, item, models.details...); err != nil {
		return err
	}
	if item["kind"] == domain.PEFTAddon {
		suggest(cmd, "addon load %s --model %s --deployment DEPLOYMENT --watch", id, id)
	} else {
		suggest(cmd, "deployment create %s --model %s --watch", id, id)
	}
	return nil
}
