// Package external makes models answer by servers that are programs of their
// own, such as vLLM and llama.cpp's: each loaded model is one such program on
// this node, which is asked through its OpenAI-style interface.
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

// Options say which servers are started. A zero field takes its default.
type Options struct {
	Preset  string // VLLM, LlamaCpp or OpenAI; of a transcriber one of Formats
	Command string // its command line, see Template; default the preset's
	Dir     string // for files of its own; default the system's temporary folder
	Env     []string
	Runner  *sandbox.Runner // starts servers

	// A server that dies is started again after RestartDelay, which doubles each time,
	// until it has died Deaths times within Steady of its start each.
	RestartDelay time.Duration // default 1 s
	MaxCrashes   int           // default 5
	StableAfter  time.Duration // default 10 min

	GracePeriod time.Duration // a server has to end when it is asked to; default 10 s
	// ToGGUF writes a model's Hugging Face directory as a GGUF file, for
	// servers that read no other; nil where nothing can.
	ToGGUF func(dir, file string) error

	port func() (int, error) // where a server is to listen; nil is freePort
}

// Presets.
const (
	VLLM     = "vllm"
	LlamaCpp = "llama.cpp"
	OpenAI   = "openai" // any server with OpenAI's interface and no more; needs a Command
)

// Presets lists the servers that are known.
func Presets() []string { return []string{VLLM, LlamaCpp, OpenAI} }

type completer struct {
	options  Options
	preset   preset
	template template
}

// New makes a completer. It fails, saying what to do, when the preset or the
// command is wrong, or when the server's program is not installed.
func New(o Options) (engines.Completer, error) {
	kind, known := presets[o.Preset]
	if !known {
		return nil, domain.Errorf(domain.InvalidArgument, "engine: %q is not known: use one of %s", o.Preset, strings.Join(Presets(), ", "))
	}
	o, words, err := prepared(o, kind)
	if err != nil {
		return nil, err
	}
	return completer{o, kind, words}, nil
}

// prepared gives options their defaults, and finds the server's program.
func prepared(o Options, kind preset) (Options, template, error) {
	o.Command = cmp.Or(o.Command, kind.command)
	if o.Command == "" {
		return o, nil, domain.Errorf(domain.InvalidArgument, "engine-command: is required for a server without a preset: its command line, with {dir} and {port}")
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

// Load implements engines.Completer: it starts a server and waits until that is
// healthy.
func (c completer) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	own, err := os.MkdirTemp(c.options.Dir, "anneal-model-*")
	if err != nil {
		return nil, err
	}
	m := &model{preset: c.preset, own: own, addons: map[string]*addon{}}
	if err := c.open(ctx, m, files); err != nil {
		_ = os.RemoveAll(own) // the first error is told
		return nil, err
	}
	if c.preset.hotAddons {
		return loader{m}, nil
	}
	return m, nil
}

func (c completer) open(ctx context.Context, m *model, files engines.ModelFiles) error {
	at := place{dir: files.Dir, adapter: files.AdapterDir, devices: files.Devices}
	if m.answers = baseName; files.AdapterDir != "" {
		m.answers = cmp.Or(c.preset.adapterName, baseName)
	}
	if err := c.files(&at, m.own); err != nil {
		return err
	}
	if err := c.template.check(at); err != nil {
		return err
	}
	m.server = &server{options: c.options, preset: c.preset, template: c.template, place: at, own: m.own, again: m.restore}
	if err := m.server.open(ctx); err != nil {
		return err
	}
	info, err := c.preset.describe(ctx, m.server)
	if err != nil {
		_ = m.server.close() // the first error is told
		return err
	}
	m.info = info
	if files.ContextLength > 0 && files.ContextLength < info.ContextLength && c.preset.tokenize != nil {
		m.info.ContextLength, m.preset.fits = files.ContextLength, false
	}
	return nil
}
