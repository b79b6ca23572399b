package engines

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"anneal/domain"
)

// A CompletionRequest requests one completion of a prompt or of a conversation. A field that is
// zero is unset. With a seed, or with temperature 0, the completion does not depend on concurrent
// requests.
//
// An engine returns InvalidArgument with the field's JSON name for a field that it does not
// support. It may ignore Prediction and Speculation, which only speed up a completion and never
// change it.
type CompletionRequest struct {
	Addon string `json:"addon,omitempty"` // ID of a loaded adapter, see AddonLoader; "" selects the base model

	Prompt       string `json:"prompt,omitempty"`
	PromptTokens []int  `json:"promptTokens,omitempty"` // replaces Prompt when not nil
	Chat         *Chat  `json:"chat,omitempty"`         // replaces Prompt and PromptTokens when not nil
	// Images are the images of Prompt, one for each ImagePlaceholder. The images of a Chat are in its
	// Messages.
	Images []*Image `json:"images,omitempty"`

	MaxTokens int      `json:"maxTokens"`
	Stop      []string `json:"stop,omitempty"` // at most 4 texts; the completion ends before the first that occurs
	IgnoreEOS bool     `json:"ignoreEos,omitempty"`

	// Sampling applies the following fields in this order: first the tokens that Format, ToolChoice
	// and the reasoning budget forbid; then LogitBias and the penalties; then Temperature, TopK,
	// TopP, MinP and TypicalP, each on the tokens that the previous filter kept. Mirostat replaces
	// TopK, TopP, MinP and TypicalP. Temperature 0 is greedy decoding.
	Temperature float64 `json:"temperature"`
	TopK        int     `json:"topK"`               // 0 disables this filter
	TopP        float64 `json:"topP"`               // 1 or 0 disables this filter
	MinP        float64 `json:"minP,omitempty"`     // 0 to 1; 0 disables this filter
	TypicalP    float64 `json:"typicalP,omitempty"` // 1 or 0 disables this filter
	// FrequencyPenalty, -2 to 2, applies for each occurrence of a token.
	FrequencyPenalty float64 `json:"frequencyPenalty,omitempty"`
	// PresencePenalty, -2 to 2, applies once to each token that has occurred.
	PresencePenalty   float64         `json:"presencePenalty,omitempty"`
	RepetitionPenalty float64         `json:"repetitionPenalty,omitempty"` // 0.001 to 2; 1 or 0 disables the penalty
	LogitBias         map[int]float64 `json:"logitBias,omitempty"`         // -100 to 100, added to logits, by token ID
	// MirostatTarget is the target perplexity, at least 1; 0 disables Mirostat.
	MirostatTarget float64 `json:"mirostatTarget,omitempty"`
	// MirostatRate is the learning rate of Mirostat; 0 stands for 0.1.
	MirostatRate float64 `json:"mirostatRate,omitempty"`
	Seed         *uint64 `json:"seed,omitempty"`

	Logprobs    bool `json:"logprobs,omitempty"`    // return the log-probability of each token
	TopLogprobs int  `json:"topLogprobs,omitempty"` // number of most likely tokens to return for each token
	Echo        bool `json:"echo,omitempty"`        // return the prompt before the completion
	// EchoLast is the number of tokens at the end of the prompt to return before the completion.
	EchoLast       int  `json:"echoLast,omitempty"`
	ReturnTokenIDs bool `json:"returnTokenIds,omitempty"` // return the tokens of the prompt and the completion
	// RawOutput requests the prompt and the completion as text that includes special tokens.
	RawOutput bool `json:"rawOutput,omitempty"`

	Format      *ResponseFormat `json:"format,omitempty"`
	Reasoning   *Reasoning      `json:"reasoning,omitempty"`
	Prediction  string          `json:"prediction,omitempty"`  // predicted output, from OpenAI's field prediction
	Speculation string          `json:"speculation,omitempty"` // predicted output that is used if Prediction is ""
	// CacheScope isolates the prefix cache: requests of different scopes never share cached
	// prefixes.
	CacheScope string `json:"cacheScope,omitempty"`
}

// A Chat is a conversation, which the assistant is to continue.
type Chat struct {
	Messages []Message `json:"messages"`
	// Tools are JSON objects {type: "function", function: {name, description,
	// parameters}}. Engines preserve the order of the keys, because chat templates render it.
	Tools      []json.RawMessage `json:"tools,omitempty"`
	ToolChoice *ToolChoice       `json:"calls,omitempty"` // requires tool calls; nil lets the model decide
}

// A ToolChoice requires the completion to consist of tool calls. The arguments of a tool with
// strict set conform to its parameters.
type ToolChoice struct {
	Name   string `json:"name,omitempty"`   // name of the function to call; "" allows every tool
	Single bool   `json:"single,omitempty"` // require exactly one call
}

// A Message is one message of a conversation.
type Message struct {
	Role       string     `json:"role"` // system, developer, user, assistant or tool
	Content    string     `json:"content"`
	Parts      []Part     `json:"parts,omitempty"` // content if the message has images; replaces Content
	Name       string     `json:"name,omitempty"`
	Reasoning  string     `json:"reasoning,omitempty"`  // reasoning before the content of an assistant message
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`  // tool calls that an assistant message contains
	ToolCallID string     `json:"toolCallId,omitempty"` // for the role tool: ID of the call whose result this is
}

// A ToolCall is a function call by the model, or a part of one in a stream. The first part with an
// Index has the Name; the caller joins the Arguments of all parts with the same Index.
type ToolCall struct {
	Index     int    `json:"index,omitempty"` // index among the calls of the completion
	ID        string `json:"id,omitempty"`    // ID of the call; "" if the engine assigns none
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments,omitempty"` // arguments of the function: a JSON object as text
}

// Values of ResponseFormat.Type.
const (
	FormatJSON    = "json_object"
	FormatSchema  = "json_schema"
	FormatGrammar = "grammar" // grammar in GBNF, the notation of llama.cpp
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
	Effort string `json:"effort,omitempty"` // none, low, medium or high; "" leaves it to the template
	Budget int    `json:"budget,omitempty"` // maximum number of reasoning tokens of the completion; 0 sets no limit
	// History selects the reasoning of earlier turns that the prompt contains: disabled (none),
	// interleaved (that after the last user message) or preserved (all).
	History string `json:"history,omitempty"`
}

// Acts reports whether r changes the reasoning of the completion. History alone only selects the
// reasoning of earlier messages.
func (r *Reasoning) Acts() bool { return r != nil && (r.Effort != "" || r.Budget > 0) }

// TemplateReasons reports whether a chat template, given as its source, supports reasoning.
func TemplateReasons(source string) bool {
	return slices.ContainsFunc([]string{"<think>", "enable_thinking", "reasoning_effort", "thinking"},
		func(word string) bool { return strings.Contains(source, word) })
}

// ReasoningError adds a violation of the field reasoning to v, and returns the error with the
// reason NoReasoning. why is the description of the violation.
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

// A Chunk is a part of a streamed completion. With Echo or EchoLast, the first chunks contain the
// prompt and have Echoed set. Tokens and Prompt.Tokens have at most MaxChunk elements, so that a
// chunk fits into one NATS message.
type Chunk struct {
	Text      string     `json:"text"`
	Reasoning string     `json:"reasoning,omitempty"` // reasoning text, which Text does not repeat
	ToolCalls []ToolCall `json:"toolCalls,omitempty"` // tool calls, which Text does not repeat
	Echoed    bool       `json:"echoed,omitempty"`
	Tokens    []int      `json:"tokens,omitempty"`
	Logprobs  []Logprob  `json:"logprobs,omitempty"` // one element for each token, if logprobs were requested
	// Raw are the tokens of the chunk as text with special tokens, if RawOutput was requested.
	Raw string `json:"raw,omitempty"`
	// Prompt is a part of the rendered prompt, if ReturnTokenIDs or RawOutput was requested.
	Prompt *RenderedPrompt `json:"prompt,omitempty"`
	Finish string          `json:"finish,omitempty"` // why the completion ended; "" except in the last chunk
}

// A RenderedPrompt is the prompt as the model receives it, or a part of it in a stream.
type RenderedPrompt struct {
	Text   string `json:"text,omitempty"` // prompt as text with special tokens
	Tokens []int  `json:"tokens"`
	// Grammar is the GBNF grammar that constrains the completion, if RawOutput was requested. It is
	// "" if there is none, or if it is too large for a message.
	Grammar string `json:"grammar,omitempty"`
}

// A Logprob is the log-probability of a token, as a natural logarithm. A value below MinLogprob is
// replaced by MinLogprob, because JSON has no infinity.
type Logprob struct {
	Token   int     `json:"token"`
	Text    string  `json:"text"`   // text of the token, with U+FFFD for the bytes of an incomplete character
	Bytes   []byte  `json:"bytes"`  // bytes of the token, also those of an incomplete character
	Offset  int     `json:"offset"` // position of the token in the text with the echoed prompt, in characters
	Logprob float64 `json:"logprob"`
	// Unknown reports that the token is the first one of the prompt, which has no probability.
	Unknown  bool    `json:"unknown,omitempty"`
	Sampling float64 `json:"sampling"` // log-probability after penalties, temperature and filters
	// Top are the most likely tokens of the model's unfiltered distribution, in
	// descending order; only Token, Text, Bytes and Logprob are set.
	Top []Logprob `json:"top,omitempty"`
}

// MinLogprob is the smallest value of a Logprob. It also stands for the logarithm of 0.
const MinLogprob = -9999

// Usage reports the tokens and the timings of a request.
type Usage struct {
	PromptTokens     int `json:"promptTokens"`
	CompletionTokens int `json:"completionTokens"`
	CachedTokens     int `json:"cachedTokens"`
	// ReasoningTokens is the number of reasoning tokens, which CompletionTokens includes.
	ReasoningTokens int     `json:"reasoningTokens,omitempty"`
	ContextLength   int     `json:"window,omitempty"` // context length of the model in tokens; 0 if unknown
	Timings         Timings `json:"times"`
	// Speculation describes speculative decoding; nil if no tokens were drafted.
	Speculation *Speculation `json:"speculation,omitempty"`
}

// A Speculation counts the draft tokens of a completion.
type Speculation struct {
	PredictedTokens int `json:"predictedTokens,omitempty"` // number of tokens in the request's prediction
	// MatchedTokens is the number of predicted tokens that the completion contains.
	MatchedTokens int   `json:"matchedTokens,omitempty"`
	Drafted       []int `json:"guessed,omitempty"` // number of drafted tokens, by position in the draft
	Accepted      []int `json:"right,omitempty"`   // number of accepted tokens, by position in the draft
}

// Timings are the durations of the phases of a request. A duration that an engine does not measure
// is 0.
type Timings struct {
	Tokenize     time.Duration `json:"tokenize,omitempty"`
	PrefillQueue time.Duration `json:"prefillQueue,omitempty"` // time that the request waited for a free slot
	Prefill      time.Duration `json:"prefill,omitempty"`
	// Direct reports that requests never wait for the tokenizer, nor between prefill and decode.
	// These waits are then reported as zero instead of as unknown.
	Direct bool `json:"direct,omitempty"`
}
