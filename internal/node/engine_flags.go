package node

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"anneal/domain"
	"anneal/engines/external"
	"anneal/engines/torch"
)

// EngineFlags select the engines with which a node trains, completes and transcribes.
type EngineFlags struct {
	Speech string // name of the transcription engine, or NoSpeech

	completer, command string
	trainer            string
	gangAddress        string // IP address at which the training processes of other nodes connect; "" for none
	speechCommand      string
	unconfined         bool // whether the programs of engines run without a sandbox
	files              []string
}

const (
	embeddedEngine = "embedded"
	torchTrainer   = "torch"

	// NoSpeech is the value of --speech that disables transcription.
	NoSpeech = "none"
)

var trainers = []string{embeddedEngine, torchTrainer}

// completers returns the possible values of --engine.
func completers() []string { return append([]string{embeddedEngine}, external.Presets()...) }

// transcribers returns the possible values of --speech.
func transcribers() []string {
	return append([]string{domain.SpeechPocketsphinx, NoSpeech}, external.Formats()...)
}

// Add adds the flags to a command.
func (e *EngineFlags) Add(f *pflag.FlagSet) {
	f.StringVar(&e.completer, "engine", embeddedEngine, "inference engine of this node: "+strings.Join(completers(), ", "))
	f.StringVar(&e.command, "engine-command", "",
		"command line of the inference server, with the placeholders {dir} or {gguf}, "+
			"{port}, {name}, {devices} and {adapter} (default: the command line of --engine)")
	f.StringVar(&e.trainer, "trainer", embeddedEngine, "training engine of this node: "+strings.Join(trainers, ", "))
	f.StringVar(&e.gangAddress, "gang-address", "",
		"IP address of this machine at which PyTorch on other nodes connects to train a job on several nodes, without "+
			"encryption: only in a network that you trust; without it, --trainer torch trains no such job")
	f.StringVar(&e.Speech, "speech", domain.SpeechPocketsphinx, "transcription engine of this node, if installed: "+
		strings.Join(transcribers(), ", "))
	f.BoolVar(&e.unconfined, "engines-without-sandbox", false,
		"run the programs of engines (ffmpeg, PocketSphinx, servers, PyTorch) "+
			"without a sandbox, with all permissions of this user: only for models and files that you trust")
	f.StringArrayVar(&e.files, "engine-files", nil,
		"`DIR` that the programs of engines may also read in their sandbox; repeatable")
	f.StringVar(&e.speechCommand, "speech-command", "",
		"command line of the transcription server, with the placeholders {dir} or {file} "+
			"and {port} (default: the command line of --speech)")
}

// usesDevices reports whether an engine of the node computes on accelerators. The embedded engines
// and PocketSphinx compute on CPUs.
func (e *EngineFlags) usesDevices() bool {
	return cmp.Or(e.completer, embeddedEngine) != embeddedEngine || e.trainer == torchTrainer ||
		slices.Contains(external.Formats(), e.Speech)
}

// check adds the violations of the flags to v.
func (e *EngineFlags) check(v *domain.Violations) {
	v.Require(e.completer == "" || slices.Contains(completers(), e.completer),
		"--engine", "%s", domain.OneOfRule(e.completer, completers()))
	v.Require(e.trainer == "" || slices.Contains(trainers, e.trainer),
		"--trainer", "%s", domain.OneOfRule(e.trainer, trainers))
	if e.gangAddress != "" {
		_, err := torch.InterfaceOf(e.gangAddress)
		v.Require(e.trainer == torchTrainer, "--gang-address", "requires --trainer torch")
		v.Require(err == nil, "--gang-address", "%v", err)
	}
	v.Require(e.Speech == "" || slices.Contains(transcribers(), e.Speech),
		"--speech", "%s", domain.OneOfRule(e.Speech, transcribers()))
	v.Require(e.speechCommand == "" || slices.Contains(external.Formats(), e.Speech),
		"--speech-command", "requires --speech with one of %s", strings.Join(external.Formats(), ", "))
	v.Require(e.command == "" || cmp.Or(e.completer, embeddedEngine) != embeddedEngine,
		"--engine-command", "requires --engine with an engine that runs a server")
	for _, path := range e.files {
		_, err := os.Stat(path)
		v.Require(err == nil, "--engine-files", "%q does not exist", path)
	}
	v.Require(e.completer != external.OpenAI || e.command != "",
		"--engine-command", "is required for --engine openai: a command line with {dir} and {port}")
}
