package serve

import (
	"anneal/engines/embedded/chat"
	"anneal/engines/embedded/tokenizer"
)

// A voice is how conversations are put to a model, or to an addon of it.
type voice struct {
	template *chat.Template // nil when the model came without
	noChat   error          // why its template cannot be read
	dir      string         // of the model, whose tokenizer_config.json names what templates show
}

// of is the voice of what lies in a directory: by its own template, if it was
// trained by one, else this one.
func (v voice) of(dir string, tokens *tokenizer.Tokenizer) voice {
	source, err := chat.Source(dir)
	switch {
	case err != nil:
		v.template, v.noChat = nil, err
	case source != "":
		v.template, v.noChat = chat.With(source, v.dir, tokens)
	}
	return v
}

// voiceOf is that of an addon; nil is the model itself.
func (m *model) voiceOf(a *addon) voice {
	if a == nil || a.voice == nil {
		return m.voice
	}
	return *a.voice
}
