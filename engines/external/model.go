package external

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

// A model is one server, and what was given to it.
type model struct {
	preset  preset
	server  *server
	info    engines.ModelInfo
	answers string // what the server calls the model itself
	own     string // folder that ends with the model

	mu     sync.Mutex
	scope  *string // of all requests so far; nil before the first
	mixed  bool    // there were several
	addons map[string]*addon
}

// Info implements engines.Model.
func (m *model) Info() engines.ModelInfo { return m.info }

// window is 0 of a server that does not tell its own.
func (m *model) window() int {
	if m.preset.tokenize == nil {
		return 0
	}
	return m.info.ContextLength
}

// Close implements engines.Model.
func (m *model) Close() error { return errors.Join(m.server.close(), os.RemoveAll(m.own)) }

// Callers find what a model can do beyond engines.Model by type assertion.
var _ engines.FailureNotifier = (*model)(nil)

// Failed implements engines.FailureNotifier: a server that dies too often is not
// started any more.
func (m *model) Failed() <-chan error { return m.server.failed }

// Complete implements engines.Model. Servers refuse to generate nothing: of an
// answer without tokens the one that has to be asked for is dropped.
func (m *model) Complete(ctx context.Context, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
	name, leave, err := m.named(req.Addon)
	if err != nil {
		return engines.Usage{}, err
	}
	defer leave()
	path, b, err := m.preset.bodyOf(name, m.info.ContextLength, &req)
	if err != nil {
		return engines.Usage{}, err
	}
	m.share(b, req.CacheScope)
	if err := m.fit(ctx, name, &req, b); err != nil {
		return engines.Usage{}, err
	}
	url, err := m.server.at()
	if err != nil {
		return engines.Usage{}, err
	}
	response, err := m.server.send(ctx, url, http.MethodPost, path, b)
	if err != nil {
		return engines.Usage{}, err
	}
	defer response.Body.Close()
	if err := m.repeat(ctx, name, &req, emit); err != nil {
		return engines.Usage{}, err
	}
	a := answer{req: &req, emit: emit, usage: engines.Usage{ContextLength: m.window()}, tellPrompt: req.ReturnTokenIDs && m.preset.names}
	err = a.read(response)
	if err != nil && !a.refused {
		err = m.server.broken(ctx, err)
	}
	return a.usage, err
}

// share lets a server reuse what it has read for earlier requests, as long as
// all were of one scope, unless it keeps scopes apart by itself.
func (m *model) share(b body, scope string) {
	if m.preset.reuse == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scope == nil {
		m.scope = &scope
	}
	m.mixed = m.mixed || *m.scope != scope
	b[m.preset.reuse] = !m.mixed
}

// fit lowers max_tokens to what the window leaves, for servers that refuse more.
// It asks how long the prompt is only when that may matter: no text has more
// tokens than bytes, but for what a chat template adds.
func (m *model) fit(ctx context.Context, name string, req *engines.CompletionRequest, b body) error {
	if m.preset.fits {
		return nil
	}
	length := len(req.PromptTokens)
	if req.PromptTokens == nil || req.Chat != nil {
		const template = 1024
		data, err := json.Marshal(b)
		if err != nil {
			return err
		}
		if len(data)+template+req.MaxTokens <= m.info.ContextLength {
			return nil
		}
		tokens, err := m.tokenize(ctx, name, req)
		if err != nil {
			return err
		}
		length = len(tokens)
	}
	room := m.info.ContextLength - length
	if room < 1 {
		return domain.Errorf(domain.InvalidArgument, "prompt: has %d tokens and fills the window of %d; shorten it", length, m.info.ContextLength)
	}
	b["max_tokens"] = min(max(1, req.MaxTokens), room)
	return nil
}

// tokenize asks the server what tokens a prompt has.
func (m *model) tokenize(ctx context.Context, name string, req *engines.CompletionRequest) ([]int, error) {
	if req.Chat == nil && req.PromptTokens != nil {
		return req.PromptTokens, nil
	}
	if req.Chat != nil && m.preset.readsGGUF {
		plain, err := m.spoken(ctx, req)
		if err != nil {
			return nil, err
		}
		req = plain
	}
	path, b := m.preset.tokenize(name, req)
	var told struct {
		Tokens []int `json:"tokens"`
	}
	return told.Tokens, m.decode(ctx, path, b, &told)
}

// spoken is a conversation as the prompt that llama.cpp's server makes of it.
func (m *model) spoken(ctx context.Context, req *engines.CompletionRequest) (*engines.CompletionRequest, error) {
	b := body{"messages": messages(req)}
	if len(req.Chat.Tools) > 0 {
		b["tools"] = req.Chat.Tools
	}
	var told struct {
		Prompt string `json:"prompt"`
	}
	err := m.decode(ctx, "/apply-template", b, &told)
	return &engines.CompletionRequest{Prompt: told.Prompt}, err
}

// text asks the server what tokens say.
func (m *model) text(ctx context.Context, tokens []int) (string, error) {
	path, b := m.preset.untoken(tokens)
	var told struct {
		Prompt  string `json:"prompt"`  // vLLM's
		Content string `json:"content"` // llama.cpp's
	}
	err := m.decode(ctx, path, b, &told)
	return told.Prompt + told.Content, err
}

func (m *model) decode(ctx context.Context, path string, b body, out any) error {
	return m.server.ask(ctx, http.MethodPost, path, b, out)
}

// repeat emits what of the prompt is to come before the answer.
func (m *model) repeat(ctx context.Context, name string, req *engines.CompletionRequest, emit func(engines.Chunk) error) error {
	if req.ReturnTokenIDs && !m.preset.names {
		tokens, err := m.tokenize(ctx, name, req)
		if err != nil {
			return err
		}
		if err := emitPrompt(tokens, emit); err != nil {
			return err
		}
	}
	if !req.Echo && req.EchoLast == 0 {
		return nil
	}
	text := req.Prompt
	if req.PromptTokens != nil || req.EchoLast > 0 {
		tokens, err := m.tokenize(ctx, name, req)
		if err != nil {
			return err
		}
		if req.EchoLast > 0 {
			tokens = tokens[max(0, len(tokens)-req.EchoLast):]
		}
		if text, err = m.text(ctx, tokens); err != nil {
			return err
		}
	}
	for _, piece := range pieces(text) {
		if err := emit(engines.Chunk{Text: piece, Echoed: true}); err != nil {
			return err
		}
	}
	return nil
}

// emitPrompt tells the tokens of a prompt, in pieces that fit into messages.
func emitPrompt(tokens []int, emit func(engines.Chunk) error) error {
	for len(tokens) > 0 {
		n := min(len(tokens), engines.MaxChunk)
		if err := emit(engines.Chunk{Prompt: &engines.RenderedPrompt{Tokens: tokens[:n:n]}}); err != nil {
			return err
		}
		tokens = tokens[n:]
	}
	return nil
}

// pieces cuts a text between characters, so that each fits into a message.
func pieces(text string) []string {
	const most = 1024 // characters
	var all []string
	for runes := []rune(text); len(runes) > 0; {
		n := min(len(runes), most)
		all = append(all, string(runes[:n]))
		runes = runes[n:]
	}
	return all
}
