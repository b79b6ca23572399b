package external

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// A template is a server's command line as a list of words, which can contain these placeholders:
//
//	{dir}      the model's Hugging Face directory
//	{gguf}     the model's GGUF file
//	{file}     the file of a speech model
//	{port}     the port to listen on, on 127.0.0.1
//	{name}     the model's name in the server's API
//	{devices}  the number of the replica's accelerators, at least 1
//	{share}    the part of its accelerator that the replica may use, such as 0.250; 1.000 for whole devices
//	{adapter}  the options of the LoRA adapter, if there is one; must be a separate word
//	{embeddings} the options of an embedding model, if it is one; must be a separate word
//	{projector} the options of the multimodal projector, if there is one; must be a separate word
//	{vad}      the options of the voice activity model, if there is one; must be a separate word
type template []string

// arguments are the values of the placeholders of a template, and the environment and the options
// with which a server starts.
type arguments struct {
	dir, gguf, adapter string   // directory of the adapter, or its file for servers that read GGUF
	file, vad          string   // file of a speech model, and that of its voice activity model
	embeddings         []string // options for an embedding model
	projector          string   // file of the multimodal projector
	env                []string
	port               int
	devices            []engines.Device
	// share is the part of the device's memory that the server may use, in thousandths: see
	// engines.ModelFiles.DeviceShare.
	share       int
	longPrompts bool
	draft       string // directory of the draft model, or its GGUF file for servers that read GGUF
	speculation engines.SpeculationMode
}

// baseName is the name under which a server's API has the base model.
const baseName = "model"

const (
	wordAdapter = "{adapter}"
	wordGGUF    = "{gguf}"
	wordFile    = "{file}"
	wordVAD     = "{vad}"
	wordShare   = "{share}"

	wordEmbeddings = "{embeddings}"
	wordProjector  = "{projector}"
)

// parse splits a command line into words as a shell does, with quotes, and with backslashes outside
// of single quotes. It expands no variables and no patterns. It returns an error if the command
// line is empty, has an open quote, ends with a backslash, or lacks {port}.
func parse(line string) (template, error) {
	var words template
	var word strings.Builder
	started, quote := false, rune(0)
	escaped := false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, started = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, started = r, true
		case strings.ContainsRune(" \t\r\n", r):
			if started {
				words = append(words, word.String())
				word.Reset()
				started = false
			}
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if quote != 0 || escaped {
		return nil, domain.Errorf(domain.InvalidArgument,
			"engine-command: has an open quote, or ends with a backslash: correct the command line")
	}
	if started {
		words = append(words, word.String())
	}
	if len(words) == 0 || words[0] == "" {
		return nil, domain.Errorf(domain.InvalidArgument,
			"engine-command: is empty: give the server's command line, with {dir} and {port}")
	}
	if !words.contains("{port}") {
		return nil, domain.Errorf(domain.InvalidArgument,
			"engine-command: must contain {port}, the port of 127.0.0.1 on which the server must listen")
	}
	return words, nil
}

// contains reports whether the template contains a placeholder.
func (t template) contains(word string) bool {
	for _, w := range t {
		if strings.Contains(w, word) {
			return true
		}
	}
	return false
}

// check returns an error if args has an adapter but the template lacks {adapter}.
func (t template) check(args arguments) error {
	if args.adapter != "" && !t.contains(wordAdapter) {
		return domain.Errorf(domain.FailedPrecondition,
			"the command line of the node's engine has no {adapter}, so it cannot serve a model with an adapter: deploy "+
				"the model to nodes with another engine, or have the operator add {adapter} to --engine-command")
	}
	return nil
}

// commandLine returns the command line of a server: the words of t with the values of the
// placeholders, and the options for args.
func (p *preset) commandLine(t template, args arguments) []string {
	line := t.expand(args, p.adapter)
	if args.longPrompts {
		line = append(line, p.longPrompts...)
	}
	if args.share > 0 && p.shares != nil && !t.contains(wordShare) {
		line = append(line, p.shares(fraction(args.share))...)
	}
	if p.drafts != nil {
		line = append(line, p.drafts(args)...)
	}
	return line
}

// expand returns the words of the template with the values of the placeholders. adapter returns the
// options that load an adapter.
func (t template) expand(args arguments, adapter func(string) []string) []string {
	fill := strings.NewReplacer("{dir}", args.dir, wordGGUF, args.gguf, wordFile, args.file,
		"{port}", strconv.Itoa(args.port), "{name}", baseName, "{devices}", strconv.Itoa(max(1, len(args.devices))),
		wordShare, fraction(cmp.Or(args.share, domain.WholeDevice)))
	var line []string
	for _, word := range t {
		switch {
		case word == wordVAD:
			if args.vad != "" {
				line = append(line, "--vad-model", args.vad)
			}
		case word == wordEmbeddings:
			line = append(line, args.embeddings...)
		case word == wordProjector:
			if args.projector != "" {
				line = append(line, "--mmproj", args.projector)
			}
		case word != wordAdapter:
			line = append(line, fill.Replace(word))
		case args.adapter != "":
			line = append(line, adapter(args.adapter)...)
		}
	}
	return line
}

// fraction formats thousandths as a decimal fraction, such as 0.250.
func fraction(milli int) string {
	return fmt.Sprintf("%d.%03d", milli/domain.WholeDevice, milli%domain.WholeDevice)
}

// memoryOption is vLLM's option for the part of the device's memory that the server may use.
const memoryOption = "--gpu-memory-utilization"

// SharesDevices reports whether a server of the preset name, started with command or, if command is
// "", with the default command line, limits its memory to a share of a device: the command line has
// {share}, or the preset adds an option that the command line lacks.
func SharesDevices(name, command string) bool {
	p := presets[name]
	return p.sharesDevices(template{cmp.Or(command, p.command)})
}

func (p *preset) sharesDevices(t template) bool {
	return t.contains(wordShare) || p.shares != nil && !t.contains(memoryOption)
}
