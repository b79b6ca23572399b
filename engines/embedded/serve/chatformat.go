package serve

import (
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/tokenizer"
)

// A chatFormat describes how conversations are rendered for a model or an addon.
type chatFormat struct {
	template *chat.Template // nil if the model has no template
	parseErr error          // parse error of the model's template
	dir      string         // the model's directory, whose tokenizer_config.json defines the special tokens
}

// forDir returns the chat format of a model or adapter in dir. It has the template of dir, or
// the template of f if dir has none.
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

// chatFormatOf returns the chat format of addon a, or of the base model if a is nil.
func (m *model) chatFormatOf(a *addon) chatFormat {
	if a == nil || a.chat == nil {
		return m.chat
	}
	return *a.chat
}
