package domain

import (
	"maps"
	"reflect"
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
	DiarizationModel string            `json:"diarizationModel,omitempty"` // that tells speakers apart
}

// Equal tells whether two settings say the same; nil only equals nil.
func (s *SpeechSettings) Equal(other *SpeechSettings) bool { return reflect.DeepEqual(s, other) }

const (
	maxSpeechNames = 200 // bytes of a name that a server has for a model
	maxLanguages   = 200
)

func (s SpeechSettings) check(v *Violations) {
	v.Require(s.Format != "", "speech.format", "is required: one of %s", join(SpeechFormats))
	oneOf(v, "speech.format", s.Format, SpeechFormats...)
	v.Require(len(s.Languages) <= maxLanguages, "speech.languages", "must be at most %d", maxLanguages)
	for _, code := range s.Languages[:min(len(s.Languages), maxLanguages)] {
		v.Require(slices.Contains(SpeechLanguages, code), "speech.languages", "%q is no language that can be asked for", code)
	}
	s.checkNames(v, "speech.vadModels", s.VADModels, VADModels)
	s.checkNames(v, "speech.alignmentModels", s.AlignmentModels, AlignmentModels)
	v.Require(len(s.DiarizationModel) <= maxSpeechNames, "speech.diarizationModel", "must have at most %d bytes", maxSpeechNames)
}

// checkNames requires that keys are known, and that each has a value.
func (s SpeechSettings) checkNames(v *Violations, field string, names map[string]string, known []string) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		v.Require(slices.Contains(known, name), field, "%q is no model that can be asked for: only %s", name, join(known))
		v.Require(names[name] != "" && len(names[name]) <= maxSpeechNames, field, "%q needs a name of 1 to %d bytes that the server knows", name, maxSpeechNames)
	}
}
