package engines

import (
	"encoding/json"
	"time"
)

// A CompletionRequest asks for one completion of a prompt or of a conversation.
// A zero field is unset. With a seed, or with temperature 0, the completion does
// not depend on concurrent requests.
//
// An engine rejects a field that it does not support with InvalidArgument and
// the field's JSON name. It may ignore Prediction and Speculation: they are
// hints that never change the completion.
type CompletionRequest struct {
	Addon string `json:"addon,omitempty"` // ID of a loaded addon, see AddonLoader; "" is the base model

	Prompt       string `json:"prompt,omitempty"`
	PromptTokens []int  `json:"promptTokens,omitempty"` // replaces Prompt when not nil
	Chat         *Chat  `json:"chat,omitempty"`         // replaces both when not nil

	MaxTokens int      `json:"maxTokens"`
	Stop      []string `json:"stop,omitempty"` // at most 4 sequences; excluded from the text
	IgnoreEOS bool     `json:"ignoreEos,omitempty"`

	// Sampling applies these in order: the masks of Format, ToolChoice and the
	// reasoning budget; LogitBias and the penalties; Temperature, TopK, TopP,
	// MinP and TypicalP, each on what the previous filter kept. Mirostat replaces
	// the last four. Temperature 0 is greedy decoding.
	Temperature       float64         `json:"temperature"`
	TopK              int             `json:"topK"`                        // 0 disables it
	TopP              float64         `json:"topP"`                        // 1 or 0 disables it
	MinP              float64         `json:"minP,omitempty"`              // 0 to 1
	TypicalP          float64         `json:"typicalP,omitempty"`          // 1 or 0 disables it
	FrequencyPenalty  float64         `json:"frequencyPenalty,omitempty"`  // -2 to 2, for each time a token was generated
	PresencePenalty   float64         `json:"presencePenalty,omitempty"`   // -2 to 2, once for a generated token
	RepetitionPenalty float64         `json:"repetitionPenalty,omitempty"` // 0.001 to 2; 1 or 0 disables it
	LogitBias         map[int]float64 `json:"logitBias,omitempty"`         // token → -100 to 100
	MirostatTarget    float64         `json:"mirostatTarget,omitempty"`    // target perplexity, at least 1; 0 disables it
	MirostatRate      float64         `json:"mirostatRate,omitempty"`      // learning rate; 0 is 0.1
	Seed              *uint64         `json:"seed,omitempty"`

	Logprobs       bool `json:"logprobs,omitempty"`       // return the log-probability of each token
	TopLogprobs    int  `json:"topLogprobs,omitempty"`    // alternatives returned with each token
	Echo           bool `json:"echo,omitempty"`           // prepend the prompt to the completion
	EchoLast       int  `json:"echoLast,omitempty"`       // prepend that many of the prompt's last tokens
	ReturnTokenIDs bool `json:"returnTokenIds,omitempty"` // of the prompt and the completion
	RawOutput      bool `json:"rawOutput,omitempty"`      // prompt and completion with special tokens as text

	Format      *ResponseFormat `json:"format,omitempty"`
	Reasoning   *Reasoning      `json:"reasoning,omitempty"`
	Prediction  string          `json:"prediction,omitempty"`  // predicted output, OpenAI's field
	Speculation string          `json:"speculation,omitempty"` // predicted output where Prediction is empty
	// CacheScope isolates the prefix cache: requests of different scopes never
	// share cached prompts.
	CacheScope string `json:"cacheScope,omitempty"`
}

// A Chat is a conversation to be continued by the assistant.
type Chat struct {
	Messages []Message `json:"messages"`
	// Tools are JSON objects {type: "function", function: {name, description,
	// parameters}}. The order of their keys is kept, since chat templates render it.
	Tools      []json.RawMessage `json:"tools,omitempty"`
	ToolChoice *ToolChoice       `json:"calls,omitempty"` // nil lets the model choose
}

// ToolChoice requires the completion to consist of tool calls. The arguments of a
// strict tool conform to its parameters.
type ToolChoice struct {
	Name   string `json:"name,omitempty"`   // of the function; "" is any of the tools
	Single bool   `json:"single,omitempty"` // exactly one call
}

// A Message is one message of a conversation.
type Message struct {
	Role       string     `json:"role"` // system, developer, user, assistant or tool
	Content    string     `json:"content"`
	Name       string     `json:"name,omitempty"`
	Reasoning  string     `json:"reasoning,omitempty"`  // of an assistant message
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`  // of an assistant message
	ToolCallID string     `json:"toolCallId,omitempty"` // of a tool message: the call whose result it is
}

// A ToolCall is a function call by the model, or a delta of one: the first
// delta of an Index carries Name, and the Arguments of all are concatenated.
type ToolCall struct {
	Index     int    `json:"index,omitempty"` // among the completion's calls
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
	Schema  json.RawMessage `json:"schema,omitempty"`  // of FormatSchema
	Grammar string          `json:"grammar,omitempty"` // of FormatGrammar
}

// Reasoning controls the model's reasoning before its answer. Without it, the
// model's chat template decides.
type Reasoning struct {
	Effort  string `json:"effort,omitempty"`  // none, low, medium or high
	Budget  int    `json:"budget,omitempty"`  // maximum number of reasoning tokens; 0 is no limit
	History string `json:"history,omitempty"` // reasoning of earlier turns: disabled, interleaved or preserved
}

// Values of Chunk.Finish.
const (
	FinishStop      = "stop"
	FinishLength    = "length"
	FinishToolCalls = "tool_calls"
)

// MaxChunk is the maximum number of tokens in one Chunk.
const MaxChunk = 128

// A Chunk is one part of a streamed completion. With Echo or EchoLast, the
// prompt's chunks come first and have Echoed set. Neither Tokens nor
// Prompt.Tokens exceeds MaxChunk, so that a chunk fits into one message.
type Chunk struct {
	Text      string          `json:"text"`
	Reasoning string          `json:"reasoning,omitempty"` // not contained in Text
	ToolCalls []ToolCall      `json:"toolCalls,omitempty"` // not contained in Text
	Echoed    bool            `json:"echoed,omitempty"`
	Tokens    []int           `json:"tokens,omitempty"`
	Logprobs  []Logprob       `json:"logprobs,omitempty"` // of each of Tokens, if requested
	Raw       string          `json:"raw,omitempty"`      // Tokens as text with special tokens, if RawOutput was requested
	Prompt    *RenderedPrompt `json:"prompt,omitempty"`   // a part of it, if ReturnTokenIDs or RawOutput was requested
	Finish    string          `json:"finish,omitempty"`   // on the last chunk only
}

// A RenderedPrompt is the prompt as the model received it.
type RenderedPrompt struct {
	Text   string `json:"text,omitempty"` // with special tokens as text
	Tokens []int  `json:"tokens"`
}

// A Logprob is the log-probability of one token, a natural logarithm. Values
// below MinLogprob are replaced with it, since JSON has no infinity.
type Logprob struct {
	Token    int     `json:"token"`
	Text     string  `json:"text"`   // with U+FFFD for the bytes of an incomplete character
	Bytes    []byte  `json:"bytes"`  // of Text before that replacement
	Offset   int     `json:"offset"` // in characters, from the start of the text including the echoed prompt
	Logprob  float64 `json:"logprob"`
	Unknown  bool    `json:"unknown,omitempty"` // the prompt's first token, which has no probability
	Sampling float64 `json:"sampling"`          // log-probability after penalties, temperature and filters
	// Top are the most likely tokens of the model's unfiltered distribution, in
	// descending order; only Token, Text, Bytes and Logprob are set.
	Top []Logprob `json:"top,omitempty"`
}

// MinLogprob replaces the logarithm of 0.
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
	PredictedTokens int   `json:"predictedTokens,omitempty"` // in the request's prediction
	MatchedTokens   int   `json:"matchedTokens,omitempty"`   // predicted tokens that the completion accepted
	Drafted         []int `json:"guessed,omitempty"`         // tokens drafted, by position in the draft
	Accepted        []int `json:"right,omitempty"`           // tokens accepted, by position in the draft
}

// Timings are the timings of a request; an engine leaves 0 what it does not measure.
type Timings struct {
	Tokenize     time.Duration `json:"tokenize,omitempty"`
	PrefillQueue time.Duration `json:"prefillQueue,omitempty"` // waiting for a slot
	Prefill      time.Duration `json:"prefill,omitempty"`
	// Direct reports that requests do not queue for the tokenizer, nor between
	// prefill and decode: these waits are reported as zero, not as unknown.
	Direct bool `json:"direct,omitempty"`
}
