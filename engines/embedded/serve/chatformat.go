package serve

import (
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/tokenizer"
)

// A chatFormat is how conversations are rendered for a model or an addon.
type chatFormat struct {
	template *chat.Template // nil if the model has none
	parseErr error          // why its template cannot be parsed
	dir      string         // the model's directory, whose tokenizer_config.json defines the special tokens
}

// forDir is the chat format of a model or adapter in dir: its own template, if it has one,
// otherwise f's.
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

// chatFormatOf is the chat format of an addon, nil for the base model.
func (m *model) chatFormatOf(a *addon) chatFormat {
	if a == nil || a.chat == nil {
		return m.chat
	}
	return *a.chat
}
