package domain

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// Formats of speech models, by the engine that runs them.
const (
	SpeechPocketsphinx  = "pocketsphinx"   // CMU Sphinx: acoustic model, language model and dictionary
	SpeechFasterWhisper = "faster-whisper" // CTranslate2, for faster-whisper and servers based on it
	SpeechWhisperCPP    = "whisper.cpp"    // one file in the format GGML or GGUF
	SpeechOpenAI        = "openai"         // any files that an OpenAI-compatible server loads
	SpeechSimulated     = "simulated"      // any files, for the simulated engine of tests
)

// SpeechFormats lists the formats, in the order in which messages list them.
var SpeechFormats = []string{SpeechPocketsphinx, SpeechFasterWhisper, SpeechWhisperCPP, SpeechOpenAI, SpeechSimulated}

// SpeechEngine returns the entry in NodeSpec.Engines of a node that can run speech models of a
// format.
func SpeechEngine(format string) string { return "transcribe:" + format }

// Names by which a transcription request can select auxiliary models: for voice activity detection
// (VAD), and to align words with the audio.
var (
	VADModels       = []string{"silero", "speechx-pyannet"}
	AlignmentModels = []string{"mms_fa", "tdnn_ffn"}
)

// SpeechLanguages lists the language codes that a transcription request can have.
var SpeechLanguages = strings.Fields(
	"en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi " +
		"ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd " +
		"gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue zh-hant zh-hans")

// SpeechSettings configure transcription with a speech model. VADModels and AlignmentModels map the
// names of auxiliary models in requests to their names on the server that runs the model. An
// auxiliary model that is not mapped is unavailable.
type SpeechSettings struct {
	Format           string            `json:"format"`
	Languages        []string          `json:"languages,omitempty"` // supported language codes; empty if unknown
	VADModels        map[string]string `json:"vadModels,omitempty"`
	AlignmentModels  map[string]string `json:"alignmentModels,omitempty"`
	DiarizationModel string            `json:"diarizationModel,omitempty"` // name of the model that distinguishes speakers
}

// format returns the format of a speech model; "" for other models.
func (s *SpeechSettings) format() string {
	if s == nil {
		return ""
	}
	return s.Format
}

// speechMemoryMiB is the memory of a replica that transcribes: CMU Sphinx uses about 100 MiB for
// each recording. The memory of accelerators is not included.
const speechMemoryMiB = 512

const (
	maxSpeechNames = 200 // maximum bytes of an auxiliary model's name
	maxLanguages   = 200
)

func (s *SpeechSettings) check(v *Violations) {
	v.Require(s.Format != "", "speech.format", "is required: one of %s", join(SpeechFormats))
	oneOf(v, "speech.format", s.Format, SpeechFormats...)
	v.Require(len(s.Languages) <= maxLanguages, "speech.languages", "must have at most %d entries", maxLanguages)
	for _, code := range s.Languages[:min(len(s.Languages), maxLanguages)] {
		v.Require(slices.Contains(SpeechLanguages, code), "speech.languages", "%q is not a supported language code", code)
	}
	checkNames(v, "speech.vadModels", s.VADModels, VADModels)
	checkNames(v, "speech.alignmentModels", s.AlignmentModels, AlignmentModels)
	v.Require(len(s.DiarizationModel) <= maxSpeechNames, "speech.diarizationModel", "must have at most %d bytes",
		maxSpeechNames)
}

// checkNames adds violations of field to v for keys of names that are not in known, and for values
// that are empty or too long.
func checkNames(v *Violations, field string, names map[string]string, known []string) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		v.Require(slices.Contains(known, name), field, "%q is not a supported model: choose from %s%s", name, join(known),
			DidYouMean(name, known))
		v.Require(names[name] != "" && len(names[name]) <= maxSpeechNames, field,
			"%q must map to a name of 1 to %d bytes, which the model server knows", name, maxSpeechNames)
	}
}

// SpeechFormat returns the format of a speech model; "" for other models.
func (s ModelSpec) SpeechFormat() string { return s.Speech.format() }

// checkSpeech adds a violation to v for each setting in the spec of a speech model's deployment
// that is only for models that generate text.
func (s DeploymentSpec) checkSpeech(v *Violations) {
	if s.SpeechFormat == "" {
		return
	}
	for _, one := range []struct {
		field string
		set   bool
	}{
		{"precision", !unspecified(s.Precision)}, {"enableAddons", s.EnableAddons}, {"draftModel", s.Drafter() != ""},
		{"draftTokenCount", s.DraftTokenCount != 0}, {"ngramSpeculationLength", s.NgramSpeculationLength != 0},
		{"enableMtp", s.EnableMTP},
		{"maxContextLength", s.MaxContextLength != 0}, {"enableHotLoad", s.EnableHotLoad},
		{"enableHotReloadLatestAddon", s.EnableHotReloadLatestAddon},
		{"autoTune", s.AutoTune != nil && s.AutoTune.LongPrompt}, {"deploymentShape", s.DeploymentShape != ""},
	} {
		v.Require(!one.set, one.field,
			"is for models that generate text, but the baseModel transcribes speech: leave it out")
	}
}

// CheckFiles returns a violation for each file that a speech model of this format must have and
// files lacks. It does not check the formats openai and simulated.
func (s *SpeechSettings) CheckFiles(files Files) Violations {
	var v Violations
	switch s.Format {
	case SpeechPocketsphinx:
		for _, name := range []string{"en-us/mdef", "en-us/means", "en-us/feat.params", "en-us.lm.bin",
			"cmudict-en-us.dict"} {
			v.Require(files.Sizes[name] > 0, name,
				"is missing: a model of this format has the files of the package pocketsphinx-en-us; "+
					"PUT files in directories to the URLs of :getUploadEndpoint")
		}
	case SpeechFasterWhisper:
		for _, name := range []string{"model.bin", "config.json"} {
			v.Require(files.Sizes[name] > 0, name,
				"is missing: a model of this format is the output of ct2-transformers-converter")
		}
	case SpeechWhisperCPP:
		weights := 0
		for name := range files.Sizes {
			if slices.Contains([]string{".bin", ".gguf", ".ggml"}, path.Ext(name)) && !strings.Contains(name, "vad") &&
				!strings.Contains(name, "/") {
				weights++
			}
		}
		v.Require(weights == 1, "file",
			"%d files end in .bin, .gguf or .ggml, but a model of this format is one such file (files with vad in their "+
				"name, and files in directories, do not count)", weights)
	}
	return v
}
