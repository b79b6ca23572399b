package serve

import (
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/tokenizer"
)

// A chatFormat describes how the conversations of a model or an adapter are rendered.
type chatFormat struct {
	template *chat.Template // nil if there is no valid chat template
	parseErr error          // why the chat template cannot be loaded; nil if it is loaded or missing
	dir      string         // directory of the model, whose tokenizer_config.json has the special tokens
}

// forDir returns the chat format of the model or adapter in dir: with the template in dir or, if
// there is none, that of f.
func (f chatFormat) forDir(dir string, tokens *tokenizer.Tokenizer) chatFormat {
	source, err := chat.Source(dir)
	switch {
	case err != nil:
		f.template, f.parseErr = nil, err
	case source != "":
		f.template, f.parseErr = chat.With(source, f.dir, tokens)
	}
	return f
}

// chatFormatOf returns the chat format of the adapter a, or of the base model if a is nil.
func (m *model) chatFormatOf(a *addon) chatFormat {
	if a == nil || a.chat == nil {
		return m.chat
	}
	return *a.chat
}
