// Package external serves models with inference servers such as vLLM and
// llama.cpp's: each loaded model is one server process on this node, called
// through its OpenAI-compatible API.
package external

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// Options configure the servers. A field that is zero has its default.
type Options struct {
	Preset  string // VLLM, LlamaCpp or OpenAI; for a transcriber, one of Formats
	Command string // command line of the server, see template; default: that of the preset
	Dir     string // directory for temporary files; default: the system's
	Env     []string
	Runner  *sandbox.Runner // starts the servers, each in a sandbox

	RestartDelay time.Duration // time from a crash to the restart, doubled by each consecutive crash; default 1 s
	MaxCrashes   int           // number of consecutive crashes after which a server is not restarted; default 5
	StableAfter  time.Duration // running time after which earlier crashes no longer count; default 10 min

	GracePeriod time.Duration // time between SIGTERM and SIGKILL; default 10 s
	// ToGGUF converts the model in a Hugging Face directory to a GGUF file, for servers that read
	// only GGUF. If it is nil, a model for such a server must have a GGUF file.
	ToGGUF func(dir, file string) error

	port func() (int, error) // returns the port for the server; nil stands for freePort
}

// Values of Options.Preset for a completer.
const (
	VLLM     = "vllm"
	LlamaCpp = "llama.cpp"
	OpenAI   = "openai" // any server with OpenAI's API; requires a Command
)

// Presets returns the names of the presets.
func Presets() []string { return []string{VLLM, LlamaCpp, OpenAI} }

type completer struct {
	options  Options
	preset   preset
	template template
}

// New returns a completer. It returns an error if the preset or the command is invalid, if the
// server's program is not installed, or if o.Runner cannot start programs on this machine.
func New(o Options) (engines.Completer, error) {
	kind, known := presets[o.Preset]
	if !known {
		return nil, domain.Errorf(domain.InvalidArgument, "engine: unknown preset %q: use one of %s", o.Preset,
			strings.Join(Presets(), ", "))
	}
	o, words, err := prepared(o, kind)
	if err != nil {
		return nil, err
	}
	return completer{o, kind, words}, nil
}

// prepared returns the options with their defaults, and the parsed command line. It returns an
// error if the command is invalid, if the server's program is not installed, or if o.Runner cannot
// start programs on this machine.
func prepared(o Options, kind preset) (Options, template, error) {
	o.Command = cmp.Or(o.Command, kind.command)
	if o.Command == "" {
		return o, nil, domain.Errorf(domain.InvalidArgument,
			"engine-command: is required for the engine openai: the server's command line, with {dir} and {port}")
	}
	words, err := parse(o.Command)
	if err != nil {
		return o, nil, err
	}
	if _, err := process.Find(words[0], kind.install); err != nil {
		return o, nil, err
	}
	if err := o.Runner.Check(context.Background()); err != nil {
		return o, nil, err
	}
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	o.RestartDelay, o.MaxCrashes = cmp.Or(o.RestartDelay, time.Second), cmp.Or(o.MaxCrashes, 5)
	o.StableAfter, o.GracePeriod = cmp.Or(o.StableAfter, 10*time.Minute), cmp.Or(o.GracePeriod, 10*time.Second)
	return o, words, nil
}

// Load implements engines.Completer. It starts a server, and waits until it is healthy.
func (c completer) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	own, err := os.MkdirTemp(c.options.Dir, "anneal-model-*")
	if err != nil {
		return nil, err
	}
	m := &model{preset: c.preset, own: own, addons: map[string]*addon{}}
	m.preset.noReasoning = lacksReasoning(files.Dir)
	if err := c.open(ctx, m, files); err != nil {
		_ = os.RemoveAll(own) // the earlier error is returned instead
		return nil, err
	}
	if c.preset.hotAddons {
		return loader{m}, nil
	}
	return m, nil
}

func argumentsOf(files engines.ModelFiles) arguments {
	return arguments{dir: files.Dir, adapter: files.AdapterDir, devices: files.Devices,
		share:       files.DeviceShare,
		longPrompts: files.LongPrompts, draft: files.DraftDir, speculation: files.Speculation}
}

func (c completer) open(ctx context.Context, m *model, files engines.ModelFiles) error {
	at := argumentsOf(files)
	if c.preset.readsGGUF {
		at.embeddings = embeddingOptions(files.Dir)
	}
	if m.name = baseName; files.AdapterDir != "" {
		m.name = cmp.Or(c.preset.adapterName, baseName)
	}
	if at.draft != "" && c.preset.drafts == nil {
		return domain.Errorf(domain.FailedPrecondition, "draftModel: the node's engine %s does not support draft models: "+
			"clear draftModel, or deploy to nodes with another engine", c.options.Preset)
	}
	if at.share > 0 && !c.preset.sharesDevices(c.template) {
		return domain.Errorf(domain.FailedPrecondition, "acceleratorShare: the node's engine %s does not limit the memory "+
			"of a model to a share of a device: clear acceleratorShare, or deploy to nodes with another engine",
			c.options.Preset)
	}
	if err := c.findFiles(&at, m.own); err != nil {
		return err
	}
	if err := c.template.check(at); err != nil {
		return err
	}
	m.server = &server{
		options: c.options, preset: c.preset, template: c.template, args: at, own: m.own, onRestart: m.restore,
	}
	if err := m.server.open(ctx); err != nil {
		return err
	}
	info, err := c.preset.describe(ctx, m.server)
	if err != nil {
		_ = m.server.close() // the earlier error is returned instead
		return err
	}
	m.info = info
	if c.preset.vision != nil {
		if err := c.preset.vision(ctx, m.server, &m.preset); err != nil {
			_ = m.server.close() // the earlier error is returned instead
			return err
		}
	}
	if files.ContextLength > 0 && files.ContextLength < info.ContextLength && c.preset.tokenize != nil {
		m.info.ContextLength, m.preset.truncates = files.ContextLength, false
	}
	return nil
}
