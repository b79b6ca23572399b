package domain

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// Formats of speech models: who can listen with them.
const (
	SpeechPocketsphinx  = "pocketsphinx"   // CMU Sphinx: acoustic model, language model and dictionary
	SpeechFasterWhisper = "faster-whisper" // CTranslate2, for faster-whisper and the servers around it
	SpeechWhisperCPP    = "whisper.cpp"    // one file of GGML or GGUF
	SpeechOpenAI        = "openai"         // whatever a server reads that speaks OpenAI's operations
	SpeechSimulated     = "simulated"      // for tests: it takes any files
)

// SpeechFormats in the order in which they are named.
var SpeechFormats = []string{SpeechPocketsphinx, SpeechFasterWhisper, SpeechWhisperCPP, SpeechOpenAI, SpeechSimulated}

// SpeechAbility is what a node must be able to do to listen with a format.
func SpeechAbility(format string) string { return "transcribe:" + format }

// Names of models that take part in listening (interface.md 2.13).
var (
	VADModels       = []string{"silero", "speechx-pyannet"}
	AlignmentModels = []string{"mms_fa", "tdnn_ffn"}
)

// SpeechLanguages are the codes that can be asked for (interface.md 2.13).
var SpeechLanguages = strings.Fields("en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi " +
	"ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd " +
	"gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue zh-hant zh-hans")

// SpeechSettings say how a speech model is listened with. What a server of
// others calls the models that take part is named by their names here; one that
// is not named it does not have.
type SpeechSettings struct {
	Format           string            `json:"format"`
	Languages        []string          `json:"languages,omitempty"` // codes that it knows; none is not known
	VADModels        map[string]string `json:"vadModels,omitempty"`
	AlignmentModels  map[string]string `json:"alignmentModels,omitempty"`
	DiarizationModel string            `json:"diarizationModel,omitempty"` // that distinguishes speakers
}

// format is that of a speech model; "" of any other.
func (s *SpeechSettings) format() string {
	if s == nil {
		return ""
	}
	return s.Format
}

// speechMemoryMiB is what a replica that listens takes: CMU Sphinx holds about
// 100 MiB for each recording that it listens to. What a model holds on an
// accelerator is not counted in it.
const speechMemoryMiB = 512

const (
	maxSpeechNames = 200 // bytes of a name that a server has for a model
	maxLanguages   = 200
)

func (s *SpeechSettings) check(v *Violations) {
	v.Require(s.Format != "", "speech.format", "is required: one of %s", join(SpeechFormats))
	oneOf(v, "speech.format", s.Format, SpeechFormats...)
	v.Require(len(s.Languages) <= maxLanguages, "speech.languages", "must be at most %d", maxLanguages)
	for _, code := range s.Languages[:min(len(s.Languages), maxLanguages)] {
		v.Require(slices.Contains(SpeechLanguages, code), "speech.languages", "%q is no language that can be asked for", code)
	}
	checkNames(v, "speech.vadModels", s.VADModels, VADModels)
	checkNames(v, "speech.alignmentModels", s.AlignmentModels, AlignmentModels)
	v.Require(len(s.DiarizationModel) <= maxSpeechNames, "speech.diarizationModel", "must have at most %d bytes", maxSpeechNames)
}

// checkNames requires that keys are known, and that each has a value.
func checkNames(v *Violations, field string, names map[string]string, known []string) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		v.Require(slices.Contains(known, name), field, "%q is no model that can be asked for: only %s", name, join(known))
		v.Require(names[name] != "" && len(names[name]) <= maxSpeechNames, field, "%q needs a name of 1 to %d bytes that the server knows", name, maxSpeechNames)
	}
}

// SpeechFormat is the format of a speech model; "" of any other.
func (s ModelSpec) SpeechFormat() string { return s.Speech.format() }

// checkListening refuses what only a model that answers with text can have.
func (s DeploymentSpec) checkListening(v *Violations) {
	if s.SpeechFormat == "" {
		return
	}
	for _, one := range []struct {
		field string
		set   bool
	}{
		{"precision", !unspecified(s.Precision)}, {"enableAddons", s.EnableAddons}, {"draftModel", s.Drafter() != ""},
		{"draftTokenCount", s.DraftTokenCount != 0}, {"ngramSpeculationLength", s.NgramSpeculationLength != 0}, {"enableMtp", s.EnableMTP},
		{"maxContextLength", s.MaxContextLength != 0}, {"enableHotLoad", s.EnableHotLoad}, {"enableHotReloadLatestAddon", s.EnableHotReloadLatestAddon},
		{"autoTune", s.AutoTune != nil && s.AutoTune.LongPrompt}, {"deploymentShape", s.DeploymentShape != ""},
	} {
		v.Require(!one.set, one.field, "is for models that answer with text, and the baseModel transcribes speech: leave it out")
	}
}

// CheckFiles names what files of a speech model are missing for its format. What
// a server of others reads nobody knows but that server.
func (s *SpeechSettings) CheckFiles(files Files) Violations {
	var v Violations
	switch s.Format {
	case SpeechPocketsphinx:
		for _, name := range []string{"en-us/mdef", "en-us/means", "en-us/feat.params", "en-us.lm.bin", "cmudict-en-us.dict"} {
			v.Require(files.Sizes[name] > 0, name, "is missing: a model of this format lies as the package pocketsphinx-en-us has it; "+
				"files in folders are PUT to the URLs of :getUploadEndpoint")
		}
	case SpeechFasterWhisper:
		for _, name := range []string{"model.bin", "config.json"} {
			v.Require(files.Sizes[name] > 0, name, "is missing: a model of this format is what ct2-transformers-converter writes")
		}
	case SpeechWhisperCPP:
		weights := 0
		for name := range files.Sizes {
			if slices.Contains([]string{".bin", ".gguf", ".ggml"}, path.Ext(name)) && !strings.Contains(name, "vad") && !strings.Contains(name, "/") {
				weights++
			}
		}
		v.Require(weights == 1, "file", "there are %d that end in .bin, .gguf or .ggml, and a model of this format is one (names with vad, and files in folders, do not count)", weights)
	}
	return v
}
