package external

import (
	"strconv"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// A template is a command line, word by word, in which stand
//
//	{dir}      the model's Hugging Face directory
//	{gguf}     its GGUF file
//	{file}     the file of a speech model
//	{port}     where the server must listen, on 127.0.0.1
//	{name}     what the model must be called
//	{devices}  how many accelerators the replica has; 1 where it takes none
//	{adapter}  alone: the words that give the server a LoRA adapter, if there is one
//	{vad}      alone: the words that give it the voice-activity model of a speech model, if there is one
type template []string

// A place is what a command line is made for.
type place struct {
	dir, gguf, adapter string // adapter: what the server reads of it
	file, vad          string // of a speech model
	env                []string
	port               int
	devices            []engines.Device
}

// baseName is what servers call the model that they are started with.
const baseName = "model"

const (
	wordAdapter = "{adapter}"
	wordGGUF    = "{gguf}"
	wordFile    = "{file}"
	wordVAD     = "{vad}"
)

// parse cuts a command line into words, as a shell does: quotes hold words
// together, a backslash outside of single quotes takes the next character as it
// is. Nothing is expanded.
func parse(line string) (template, error) {
	var words template
	var word strings.Builder
	begun, quote := false, rune(0)
	escaped := false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, begun = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case strings.ContainsRune(" \t\r\n", r):
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if quote != 0 || escaped {
		return nil, domain.Errorf(domain.InvalidArgument, "engine-command: a quote or a backslash at the end is left open")
	}
	if begun {
		words = append(words, word.String())
	}
	if len(words) == 0 || words[0] == "" {
		return nil, domain.Errorf(domain.InvalidArgument, "engine-command: is empty: give the server's command line, with {dir} and {port}")
	}
	if !words.says("{port}") {
		return nil, domain.Errorf(domain.InvalidArgument, "engine-command: must say {port}, where the server is to listen on 127.0.0.1")
	}
	return words, nil
}

// says tells whether a word stands in the template.
func (t template) says(word string) bool {
	for _, w := range t {
		if strings.Contains(w, word) {
			return true
		}
	}
	return false
}

// check refuses an adapter that the command line has no place for.
func (t template) check(at place) error {
	if at.adapter != "" && !t.says(wordAdapter) {
		return domain.Errorf(domain.FailedPrecondition, "the command line of the node's engine has no {adapter}: it cannot serve a model with an adapter")
	}
	return nil
}

// expand is the command line for a place.
func (t template) expand(at place, adapter func(string) []string) []string {
	fill := strings.NewReplacer("{dir}", at.dir, wordGGUF, at.gguf, wordFile, at.file, "{port}", strconv.Itoa(at.port), "{name}", baseName, "{devices}", strconv.Itoa(max(1, len(at.devices))))
	var args []string
	for _, word := range t {
		switch {
		case word == wordVAD:
			if at.vad != "" {
				args = append(args, "--vad-model", at.vad)
			}
		case word != wordAdapter:
			args = append(args, fill.Replace(word))
		case at.adapter != "":
			args = append(args, adapter(at.adapter)...)
		}
	}
	return args
}
