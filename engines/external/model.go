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

// A model is a loaded model: its server and its adapters.
type model struct {
	preset preset
	server *server
	info   engines.ModelInfo
	name   string // name under which the server's API has the base model
	own    string // directory with generated files, which Close removes

	mu     sync.Mutex
	scope  *string // cache scope of all requests so far; nil before the first request
	mixed  bool    // requests have had different cache scopes
	addons map[string]*addon
}

// Info implements engines.Model.
func (m *model) Info() engines.ModelInfo { return m.info }

// contextLength returns the model's context length; 0 if the server does not report it.
func (m *model) contextLength() int {
	if m.preset.tokenize == nil {
		return 0
	}
	return m.info.ContextLength
}

// Close implements engines.Model.
func (m *model) Close() error { return errors.Join(m.server.close(), os.RemoveAll(m.own)) }

var _ engines.FailureNotifier = (*model)(nil)

// Failed implements engines.FailureNotifier: a server that has crashed too often is not restarted.
func (m *model) Failed() <-chan error { return m.server.failed }

// Complete implements engines.Model. If MaxTokens is 0, it requests one token and drops it, because
// servers require at least one.
func (m *model) Complete(ctx context.Context, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	name, release, err := m.acquire(req.Addon)
	if err != nil {
		return engines.Usage{}, err
	}
	defer release()
	if err := m.checkTokens(&req); err != nil {
		return engines.Usage{}, err
	}
	path, b, err := m.preset.bodyOf(name, m.info.ContextLength, &req)
	if err != nil {
		return engines.Usage{}, err
	}
	m.setPromptCache(b, req.CacheScope)
	if err := m.limitTokens(ctx, name, &req, b); err != nil {
		return engines.Usage{}, err
	}
	url, err := m.server.address()
	if err != nil {
		return engines.Usage{}, err
	}
	response, err := m.server.send(ctx, url, http.MethodPost, path, b)
	if err != nil {
		return engines.Usage{}, err
	}
	defer response.Body.Close()
	if err := m.emitEcho(ctx, name, &req, emit); err != nil {
		return engines.Usage{}, err
	}
	s := stream{
		req: &req, emit: emit, usage: engines.Usage{ContextLength: m.contextLength()},
		emitsPrompt: req.ReturnTokenIDs && m.preset.tokenIDs,
	}
	err = s.read(response)
	if err != nil && !s.permanent {
		err = m.server.connectionError(ctx, err)
	}
	return s.usage, err
}

// setPromptCache enables the prefix cache of a server that does not isolate cache scopes, as long
// as all requests have had the same scope.
func (m *model) setPromptCache(b body, scope string) {
	if m.preset.cacheField == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scope == nil {
		m.scope = &scope
	}
	m.mixed = m.mixed || *m.scope != scope
	b[m.preset.cacheField] = !m.mixed
}

// limitTokens lowers max_tokens to the rest of the context length, for servers that reject more. It
// requests the number of prompt tokens from the server only if the prompt could be too long: a text
// has at most as many tokens as bytes, plus those that a chat template adds.
func (m *model) limitTokens(ctx context.Context, name string, req *engines.CompletionRequest, b body) error {
	if m.preset.truncates {
		return nil
	}
	length := len(req.PromptTokens)
	if req.PromptTokens == nil || req.Chat != nil {
		const template = 1024
		data, err := json.Marshal(b)
		if err != nil {
			return err
		}
		// The tokens of images are not counted, so the server itself enforces the context length.
		req = withoutImages(req)
		if len(data)+template+req.MaxTokens <= m.info.ContextLength {
			return nil
		}
		tokens, err := m.tokenize(ctx, name, req)
		if err != nil {
			return err
		}
		length = len(tokens)
	}
	remaining := m.info.ContextLength - length
	if remaining < 1 {
		return domain.Errorf(domain.InvalidArgument,
			"prompt: has %d tokens and fills the context length of %d; shorten it", length, m.info.ContextLength)
	}
	field := "max_tokens"
	if _, native := b["n_predict"]; native {
		field = "n_predict"
	}
	b[field] = min(max(1, req.MaxTokens), remaining)
	return nil
}

// tokenize returns the tokens of a prompt: those of the request, or those that the server returns
// for the text.
func (m *model) tokenize(ctx context.Context, name string, req *engines.CompletionRequest) ([]int, error) {
	if req.Chat == nil && req.PromptTokens != nil {
		return req.PromptTokens, nil
	}
	if req.Chat != nil && m.preset.readsGGUF {
		plain, err := m.render(ctx, req)
		if err != nil {
			return nil, err
		}
		req = plain
	}
	path, b := m.preset.tokenize(name, req)
	var response struct {
		Tokens []int `json:"tokens"`
	}
	err := m.post(ctx, path, b, &response)
	return response.Tokens, err
}

// render returns a request with only a prompt: that which llama.cpp's server renders for the
// conversation in req.
func (m *model) render(ctx context.Context, req *engines.CompletionRequest) (*engines.CompletionRequest, error) {
	b := body{"messages": messages(req)}
	if len(req.Chat.Tools) > 0 {
		b["tools"] = req.Chat.Tools
	}
	var response struct {
		Prompt string `json:"prompt"`
	}
	err := m.post(ctx, "/apply-template", b, &response)
	return &engines.CompletionRequest{Prompt: response.Prompt}, err
}

// text requests the text of tokens from the server.
func (m *model) text(ctx context.Context, tokens []int) (string, error) {
	path, b := m.preset.detokenize(tokens)
	var response struct {
		Prompt  string `json:"prompt"`  // the text, in vLLM's response
		Content string `json:"content"` // the text, in the response of llama.cpp's server
	}
	err := m.post(ctx, path, b, &response)
	return response.Prompt + response.Content, err
}

func (m *model) post(ctx context.Context, path string, b body, out any) error {
	return m.server.call(ctx, http.MethodPost, path, b, out)
}

// emitEcho emits the parts of the prompt that the request wants to have returned before the
// completion: its token IDs, its text, or the end of its text.
func (m *model) emitEcho(ctx context.Context, name string, req *engines.CompletionRequest,
	emit func(engines.Chunk) error) error {
	if req.ReturnTokenIDs && !m.preset.tokenIDs {
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
	for _, part := range splitText(text) {
		if err := emit(engines.Chunk{Text: part, Echoed: true}); err != nil {
			return err
		}
	}
	return nil
}

// emitPrompt emits the tokens of a prompt in chunks of at most engines.MaxChunk tokens.
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

// splitText splits a text into parts that fit into messages, without splitting a character.
func splitText(text string) []string {
	const maxRunes = 1024
	var all []string
	for runes := []rune(text); len(runes) > 0; {
		n := min(len(runes), maxRunes)
		all = append(all, string(runes[:n]))
		runes = runes[n:]
	}
	return all
}
