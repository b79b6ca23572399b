package engines

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"anneal/domain"
)

// A CompletionRequest asks for one completion of a prompt or of a conversation. A zero field is
// unset. With a seed, or with temperature 0, the completion does not depend on concurrent
// requests.
//
// An engine returns InvalidArgument with the field's JSON name for a field that it does not
// support. It may ignore Prediction and Speculation: they are hints that never change the
// completion.
type CompletionRequest struct {
	Addon string `json:"addon,omitempty"` // ID of a loaded addon, see AddonLoader; "" is the base model

	Prompt       string `json:"prompt,omitempty"`
	PromptTokens []int  `json:"promptTokens,omitempty"` // replaces Prompt when not nil
	Chat         *Chat  `json:"chat,omitempty"`         // replaces Prompt and PromptTokens when not nil
	// Images are the images of Prompt, one for each ImagePlaceholder. The images of a Chat are in its
	// Messages.
	Images []*Image `json:"images,omitempty"`

	MaxTokens int      `json:"maxTokens"`
	Stop      []string `json:"stop,omitempty"` // at most 4 sequences; excluded from the text
	IgnoreEOS bool     `json:"ignoreEos,omitempty"`

	// Sampling applies these fields in order: the masks of Format, ToolChoice and the reasoning
	// budget; LogitBias and the penalties; Temperature, TopK, TopP, MinP and TypicalP, each on
	// what the previous filter kept. Mirostat replaces TopK, TopP, MinP and TypicalP.
	// Temperature 0 is greedy decoding.
	Temperature       float64         `json:"temperature"`
	TopK              int             `json:"topK"`                        // 0 disables this filter
	TopP              float64         `json:"topP"`                        // 1 or 0 disables this filter
	MinP              float64         `json:"minP,omitempty"`              // 0 to 1; 0 disables this filter
	TypicalP          float64         `json:"typicalP,omitempty"`          // 1 or 0 disables this filter
	FrequencyPenalty  float64         `json:"frequencyPenalty,omitempty"`  // -2 to 2, for each occurrence of a token
	PresencePenalty   float64         `json:"presencePenalty,omitempty"`   // -2 to 2, once for each token that occurred
	RepetitionPenalty float64         `json:"repetitionPenalty,omitempty"` // 0.001 to 2; 1 or 0 disables the penalty
	LogitBias         map[int]float64 `json:"logitBias,omitempty"`         // token ID → bias from -100 to 100
	MirostatTarget    float64         `json:"mirostatTarget,omitempty"`    // perplexity, at least 1; 0 disables Mirostat
	MirostatRate      float64         `json:"mirostatRate,omitempty"`      // learning rate of Mirostat; 0 is 0.1
	Seed              *uint64         `json:"seed,omitempty"`

	Logprobs       bool `json:"logprobs,omitempty"`       // return the log-probability of each token
	TopLogprobs    int  `json:"topLogprobs,omitempty"`    // alternatives returned with each token
	Echo           bool `json:"echo,omitempty"`           // prepend the prompt to the completion
	EchoLast       int  `json:"echoLast,omitempty"`       // number of the prompt's last tokens to prepend
	ReturnTokenIDs bool `json:"returnTokenIds,omitempty"` // return the tokens of the prompt and the completion
	// return the prompt and the completion with special tokens as text
	RawOutput bool `json:"rawOutput,omitempty"`

	Format      *ResponseFormat `json:"format,omitempty"`
	Reasoning   *Reasoning      `json:"reasoning,omitempty"`
	Prediction  string          `json:"prediction,omitempty"`  // predicted output, from OpenAI's field prediction
	Speculation string          `json:"speculation,omitempty"` // predicted output that is used if Prediction is empty
	// CacheScope isolates the prefix cache: requests of different scopes never
	// share cached prompts.
	CacheScope string `json:"cacheScope,omitempty"`
}

// A Chat is a conversation to be continued by the assistant.
type Chat struct {
	Messages []Message `json:"messages"`
	// Tools are JSON objects {type: "function", function: {name, description,
	// parameters}}. Engines preserve the order of the keys, because chat templates render it.
	Tools      []json.RawMessage `json:"tools,omitempty"`
	ToolChoice *ToolChoice       `json:"calls,omitempty"` // nil lets the model choose
}

// ToolChoice requires the completion to consist of tool calls. The arguments of a
// strict tool conform to its parameters.
type ToolChoice struct {
	Name   string `json:"name,omitempty"`   // name of the required function; "" allows every tool
	Single bool   `json:"single,omitempty"` // require exactly one call
}

// A Message is one message of a conversation.
type Message struct {
	Role       string     `json:"role"` // system, developer, user, assistant or tool
	Content    string     `json:"content"`
	Parts      []Part     `json:"parts,omitempty"` // replaces Content if not empty: the message has an image
	Name       string     `json:"name,omitempty"`
	Reasoning  string     `json:"reasoning,omitempty"`  // reasoning before the content of an assistant message
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`  // calls by an assistant message
	ToolCallID string     `json:"toolCallId,omitempty"` // ID of the call whose result a tool message holds
}

// A ToolCall is a function call by the model, or a delta of a call. The first delta of an Index
// carries Name; the caller concatenates the Arguments of all deltas of that Index.
type ToolCall struct {
	Index     int    `json:"index,omitempty"` // position among the completion's calls
	ID        string `json:"id,omitempty"`    // "" if the engine assigns none
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments,omitempty"` // a JSON object
}

// Values of ResponseFormat.Type.
const (
	FormatJSON    = "json_object"
	FormatSchema  = "json_schema"
	FormatGrammar = "grammar" // GBNF
)

// A ResponseFormat constrains the text of a completion.
type ResponseFormat struct {
	Type    string          `json:"type"`
	Schema  json.RawMessage `json:"schema,omitempty"`  // JSON Schema, for FormatSchema
	Grammar string          `json:"grammar,omitempty"` // GBNF source, for FormatGrammar
}

// Reasoning controls the model's reasoning before its answer. For a request without Reasoning,
// the model's chat template decides.
type Reasoning struct {
	Effort  string `json:"effort,omitempty"`  // none, low, medium or high
	Budget  int    `json:"budget,omitempty"`  // maximum number of reasoning tokens; 0 is no limit
	History string `json:"history,omitempty"` // reasoning of earlier turns: disabled, interleaved or preserved
}

// Acts reports whether r sets how a model reasons. History alone only selects the reasoning of
// earlier messages.
func (r *Reasoning) Acts() bool { return r != nil && (r.Effort != "" || r.Budget > 0) }

// TemplateReasons reports whether a chat template, given as its source, supports reasoning.
func TemplateReasons(source string) bool {
	return slices.ContainsFunc([]string{"<think>", "enable_thinking", "reasoning_effort", "thinking"},
		func(word string) bool { return strings.Contains(source, word) })
}

// ReasoningError adds a violation of the field reasoning to v and returns the error with the reason
// NoReasoning. why completes a sentence that begins with the name of the field.
func ReasoningError(v domain.Violations, why string) error {
	v.Add("reasoning", "%s", why)
	var invalid *domain.Error
	if err := v.Err(); !errors.As(err, &invalid) {
		return err
	}
	return &domain.Error{Code: domain.InvalidArgument, Reason: NoReasoning, Message: invalid.Message,
		Violations: invalid.Violations}
}

// Values of Chunk.Finish.
const (
	FinishStop      = "stop"
	FinishLength    = "length"
	FinishToolCalls = "tool_calls"
)

// MaxChunk is the maximum number of tokens in one Chunk.
const MaxChunk = 128

// A Chunk is one part of a streamed completion. With Echo or EchoLast, the prompt's chunks come
// first and have Echoed set. Neither Tokens nor Prompt.Tokens exceeds MaxChunk, so that a chunk
// fits into one NATS message.
type Chunk struct {
	Text      string     `json:"text"`
	Reasoning string     `json:"reasoning,omitempty"` // reasoning text, not repeated in Text
	ToolCalls []ToolCall `json:"toolCalls,omitempty"` // tool calls, not repeated in Text
	Echoed    bool       `json:"echoed,omitempty"`
	Tokens    []int      `json:"tokens,omitempty"`
	Logprobs  []Logprob  `json:"logprobs,omitempty"` // one for each of Tokens, if requested
	Raw       string     `json:"raw,omitempty"`      // Tokens as text with special tokens, if RawOutput was requested
	// a part of the prompt, if ReturnTokenIDs or RawOutput was requested
	Prompt *RenderedPrompt `json:"prompt,omitempty"`
	Finish string          `json:"finish,omitempty"` // set on the last chunk only
}

// A RenderedPrompt is the prompt as the model received it.
type RenderedPrompt struct {
	Text   string `json:"text,omitempty"` // the prompt, with special tokens as text
	Tokens []int  `json:"tokens"`
	// Grammar is the grammar in GBNF that constrains the completion, if RawOutput was requested; "" if
	// there is no such grammar, or if it is too large for a message.
	Grammar string `json:"grammar,omitempty"`
}

// A Logprob is the log-probability of one token, a natural logarithm. Values
// below MinLogprob are replaced with it, since JSON has no infinity.
type Logprob struct {
	Token    int     `json:"token"`
	Text     string  `json:"text"`   // text of the token, with U+FFFD for the bytes of an incomplete character
	Bytes    []byte  `json:"bytes"`  // bytes of the token, without the replacement
	Offset   int     `json:"offset"` // position in characters, from the start of the text including the echoed prompt
	Logprob  float64 `json:"logprob"`
	Unknown  bool    `json:"unknown,omitempty"` // set for the prompt's first token, which has no probability
	Sampling float64 `json:"sampling"`          // log-probability after penalties, temperature and filters
	// Top are the most likely tokens of the model's unfiltered distribution, in
	// descending order; only Token, Text, Bytes and Logprob are set.
	Top []Logprob `json:"top,omitempty"`
}

// MinLogprob is the smallest value of a Logprob; it also represents the logarithm of 0.
const MinLogprob = -9999

// Usage reports the tokens and the timings of a request.
type Usage struct {
	PromptTokens     int     `json:"promptTokens"`
	CompletionTokens int     `json:"completionTokens"`
	CachedTokens     int     `json:"cachedTokens"`
	ReasoningTokens  int     `json:"reasoningTokens,omitempty"` // included in CompletionTokens
	ContextLength    int     `json:"window,omitempty"`          // context length; 0 is unknown
	Timings          Timings `json:"times"`
	// Speculation is nil if no tokens were drafted.
	Speculation *Speculation `json:"speculation,omitempty"`
}

// Speculation counts the draft tokens of a completion.
type Speculation struct {
	PredictedTokens int   `json:"predictedTokens,omitempty"` // number of tokens in the request's prediction
	MatchedTokens   int   `json:"matchedTokens,omitempty"`   // predicted tokens that the completion accepted
	Drafted         []int `json:"guessed,omitempty"`         // number of drafted tokens, by position in the draft
	Accepted        []int `json:"right,omitempty"`           // number of accepted tokens, by position in the draft
}

// Timings are the timings of a request; an engine leaves 0 what it does not measure.
type Timings struct {
	Tokenize     time.Duration `json:"tokenize,omitempty"`
	PrefillQueue time.Duration `json:"prefillQueue,omitempty"` // time spent waiting for a slot
	Prefill      time.Duration `json:"prefill,omitempty"`
	// Direct reports that requests wait neither for the tokenizer nor between prefill and
	// decode, so that these waits are reported as zero instead of as unknown.
	Direct bool `json:"direct,omitempty"`
}
