package simulated

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"anneal/domain"
	"anneal/engines"
)

type completer struct{ options Options }

// A model generates words that depend on the prompt, the seed, and the state that a simulated
// training wrote to its directories.
type model struct {
	options Options
	state   string
	slots   chan struct{}
	queue   chan struct{}
	closed  chan struct{}
	close   sync.Once
	addons  addons
}

// words is the vocabulary: a token is an index of words. The words of a completion are separated by
// spaces.
var words = strings.Fields(`
amber birch cedar delta ember fjord grove heron iris jade kelp larch maple north ochre pearl quartz river stone tidal
umber vivid willow xenon yarrow zephyr naïve café 東京 and or not`)

func (c completer) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	if err := c.options.fault(LoadModel, 0); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := &model{
		options: c.options,
		slots:   make(chan struct{}, c.options.Slots),
		queue:   make(chan struct{}, c.options.Slots+c.options.Queue),
		closed:  make(chan struct{}),
	}
	if files.ContextLength > 0 {
		m.options.ContextLength = min(m.options.ContextLength, files.ContextLength)
	}
	for _, dir := range []string{files.Dir, files.AdapterDir} {
		state, err := stateOf(dir)
		if err != nil {
			return nil, err
		}
		m.state += state
	}
	return m, nil
}

// stateOf returns the state that a simulated training wrote to a directory; "" if there is none.
func stateOf(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	if info, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("model: %w", err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("model: %s is not a directory", dir)
	}
	if data, err := os.ReadFile(filepath.Join(dir, stateFile)); err == nil {
		return string(data), nil
	}
	for _, name := range []string{"adapter_config.json", "config.json"} {
		var config map[string]json.RawMessage
		if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil && json.Unmarshal(data, &config) == nil {
			return string(config[stateField]), nil
		}
	}
	return "", nil // every directory is a valid model
}

func (m *model) Info() engines.ModelInfo {
	return engines.ModelInfo{ContextLength: m.options.ContextLength, ParameterCount: 1000, Slots: m.options.Slots}
}

func (m *model) Close() error {
	m.close.Do(func() { close(m.closed) })
	return nil
}

// Complete implements engines.Model. A prompt has one token for its beginning and one for each of
// its bytes. Complete supports chats, simple schemas, required tool calls, Echo and Seed. It
// ignores logprobs, raw output and the other sampling parameters.
func (m *model) Complete(ctx context.Context, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	if req.Reasoning.Acts() {
		return engines.Usage{}, engines.ReasoningError(nil, "has no effect, because this model does not reason: omit it")
	}
	if req.Chat != nil {
		req.Prompt, req.PromptTokens = promptOf(req.Chat), nil
	}
	usage := engines.Usage{PromptTokens: 1 + len(req.Prompt)}
	if req.PromptTokens != nil {
		usage.PromptTokens = len(req.PromptTokens)
	}
	if usage.PromptTokens >= m.options.ContextLength {
		return usage, domain.Errorf(domain.InvalidArgument,
			"prompt: has %d tokens and fills the context length of %d; shorten it",
			usage.PromptTokens, m.options.ContextLength)
	}
	if len(req.Stop) > 4 {
		return usage, domain.Errorf(domain.InvalidArgument, "stop: has %d sequences; at most 4 are allowed", len(req.Stop))
	}
	state, err := m.addons.state(m.state, req.Addon)
	if err != nil {
		return usage, err
	}
	chunks, finish, err := m.generate(state, req, m.options.ContextLength-usage.PromptTokens)
	if err != nil {
		return usage, err
	}
	release, err := m.enter(ctx)
	if err != nil {
		return usage, err
	}
	defer release()
	if req.Echo && req.PromptTokens == nil && req.Prompt != "" {
		if err := emit(engines.Chunk{Text: req.Prompt, Echoed: true}); err != nil {
			return usage, err
		}
	}
	for i, chunk := range chunks {
		if err := m.token(ctx, i+1); err != nil {
			return usage, err
		}
		usage.CompletionTokens++
		if i == len(chunks)-1 {
			chunk.Finish = finish
		}
		if err := emit(chunk); err != nil {
			return usage, err
		}
	}
	if len(chunks) == 0 {
		return usage, emit(engines.Chunk{Finish: finish})
	}
	return usage, nil
}

// promptOf renders a chat as a prompt.
func promptOf(c *engines.Chat) string {
	var text strings.Builder
	for _, m := range c.Messages {
		fmt.Fprintf(&text, "%s: %s\n", m.Role, m.Content)
	}
	return text.String()
}

// enter waits for a slot. It returns ResourceExhausted if too many requests wait.
func (m *model) enter(ctx context.Context) (release func(), err error) {
	select {
	case <-m.closed:
		return nil, errClosed()
	default:
	}
	select {
	case m.queue <- struct{}{}:
	default:
		return nil, domain.Errorf(domain.ResourceExhausted,
			"the model has %d running and queued requests: retry later", cap(m.queue))
	}
	select {
	case m.slots <- struct{}{}:
		return func() { <-m.slots; <-m.queue }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-m.closed:
		err = errClosed()
	}
	<-m.queue
	return nil, err
}

// token waits as long as the engine pretends to compute token number of a completion.
func (m *model) token(ctx context.Context, number int) error {
	if err := m.options.fault(CompleteToken, number); err != nil {
		return err
	}
	if err := wait(ctx, m.options.tokenTime(number)); err != nil {
		return err
	}
	select {
	case <-m.closed:
		return errClosed()
	default:
		return nil
	}
}

// generate returns the completion, one token in each chunk and cut before the first stop sequence,
// and its finish reason. capacity is the maximum number of tokens.
func (m *model) generate(
	state string, req engines.CompletionRequest, capacity int,
) (chunks []engines.Chunk, finish string, err error) {
	seed := m.options.Seed
	if req.Seed != nil && req.Temperature > 0 {
		seed ^= *req.Seed
	}
	source := random(seed, state, req.Prompt, fmt.Sprint(req.PromptTokens))
	constrained, err := constrainedOutput(req, source)
	if err != nil {
		return nil, "", err
	}
	length, limit, finish := 4+source.IntN(17), min(req.MaxTokens, capacity), engines.FinishStop
	if constrained != nil {
		chunks, finish = constrained.within(limit, req.Stop)
		return chunks, finish, nil
	}
	if req.IgnoreEOS || length > limit {
		length, finish = limit, engines.FinishLength
	}
	text := ""
	for i := range length {
		token := source.IntN(len(words))
		word := words[token]
		if i > 0 {
			word = " " + word
		}
		text += word
		chunks = append(chunks, engines.Chunk{Text: word, Tokens: []int{token}})
		if at := firstStop(text, req.Stop); at >= 0 {
			return trim(chunks, len(text)-at), engines.FinishStop, nil
		}
	}
	return chunks, finish, nil
}

// firstStop returns the offset of the first stop sequence in text; -1 if there is none.
func firstStop(text string, stops []string) int {
	first := -1
	for _, stop := range stops {
		if at := strings.Index(text, stop); stop != "" && at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// trim removes the last n bytes of the text from the chunks.
func trim(chunks []engines.Chunk, n int) []engines.Chunk {
	for i := len(chunks) - 1; n > 0; i-- {
		cut := min(n, len(chunks[i].Text))
		chunks[i].Text = chunks[i].Text[:len(chunks[i].Text)-cut]
		n -= cut
	}
	return chunks
}

func errClosed() error {
	return domain.Errorf(domain.Unavailable, "the model was unloaded; send the request to another replica")
}
