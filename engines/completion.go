package engines

import (
	"encoding/json"
	"time"
)

// A CompletionRequest asks for one continuation of one prompt, or for the next
// turn of one conversation. A field that is zero is not asked for. With a seed,
// or with temperature 0, the answer never depends on load.
//
// An engine answers InvalidArgument, with the field's name as it is written
// here in JSON, to what it cannot honour; Prediction and Speculation alone are
// hints, which may be passed over since they never change an answer.
type CompletionRequest struct {
	Addon string `json:"addon,omitempty"` // the loaded addon that answers, see AddonLoader; "" is the model itself

	Prompt       string `json:"prompt,omitempty"`
	PromptTokens []int  `json:"promptTokens,omitempty"` // used when not nil
	Chat         *Chat  `json:"chat,omitempty"`         // used instead of either when not nil

	MaxTokens int      `json:"maxTokens"`
	Stop      []string `json:"stop,omitempty"` // at most 4; never part of the text
	IgnoreEOS bool     `json:"ignoreEos,omitempty"`

	// How a token is drawn from the model's distribution: Format, Calls and the
	// budget of Reasoning leave out what may not follow, then LogitBias and the
	// penalties on the logits, then Temperature, TopK, TopP, MinP and TypicalP,
	// each on what the one before left. Mirostat takes the place of the last
	// four. Temperature 0 takes the likeliest token.
	Temperature       float64         `json:"temperature"`
	TopK              int             `json:"topK"`                        // 0 is no limit
	TopP              float64         `json:"topP"`                        // 1 (or 0) is no limit
	MinP              float64         `json:"minP,omitempty"`              // 0 to 1
	TypicalP          float64         `json:"typicalP,omitempty"`          // 1 (or 0) is no limit
	FrequencyPenalty  float64         `json:"frequencyPenalty,omitempty"`  // -2 to 2, a time that a token was generated
	PresencePenalty   float64         `json:"presencePenalty,omitempty"`   // -2 to 2, once for a token that was generated
	RepetitionPenalty float64         `json:"repetitionPenalty,omitempty"` // 0.001 to 2; 1 (or 0) is none
	LogitBias         map[int]float64 `json:"logitBias,omitempty"`         // token → -100 to 100
	MirostatTarget    float64         `json:"mirostatTarget,omitempty"`    // perplexity from 1; 0 is no mirostat
	MirostatRate      float64         `json:"mirostatRate,omitempty"`      // learning rate; 0 is 0.1
	Seed              *uint64         `json:"seed,omitempty"`

	Logprobs       bool `json:"logprobs,omitempty"`       // of each token
	TopLogprobs    int  `json:"topLogprobs,omitempty"`    // likeliest tokens told beside each
	Echo           bool `json:"echo,omitempty"`           // the answer begins with the prompt
	EchoLast       int  `json:"echoLast,omitempty"`       // … with its last tokens; at most all of them
	ReturnTokenIDs bool `json:"returnTokenIds,omitempty"` // the prompt's too
	RawOutput      bool `json:"rawOutput,omitempty"`      // what the model saw and wrote, special tokens spelt

	Format      *Format    `json:"format,omitempty"`
	Reasoning   *Reasoning `json:"reasoning,omitempty"`
	Prediction  string     `json:"prediction,omitempty"`  // what the answer may be like
	Speculation string     `json:"speculation,omitempty"` // the same, where there is no Prediction
	// CacheScope bounds the reuse of prompts that were read before: requests of
	// different scopes never share any.
	CacheScope string `json:"cacheScope,omitempty"`
}

// A Chat is a conversation whose next turn is the assistant's.
type Chat struct {
	Messages []Message `json:"messages"`
	// Tools are JSON objects {type: "function", function: {name, description,
	// parameters}}, their keys in the caller's order, which templates show.
	Tools []json.RawMessage `json:"tools,omitempty"`
	Calls *Calls            `json:"calls,omitempty"` // that the answer must be; nil leaves it to the model
}

// Calls says that an answer must be calls of functions. Arguments of a tool
// that is strict conform to its parameters.
type Calls struct {
	Name   string `json:"name,omitempty"`   // of the function; "" is any of the tools
	Single bool   `json:"single,omitempty"` // one call and no more
}

// A Message is one turn of a conversation.
type Message struct {
	Role       string     `json:"role"` // system, developer, user, assistant or tool
	Content    string     `json:"content"`
	Name       string     `json:"name,omitempty"`
	Reasoning  string     `json:"reasoning,omitempty"`  // of an assistant's turn
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`  // of an assistant's turn
	ToolCallID string     `json:"toolCallId,omitempty"` // of a tool's turn: the call that it answers
}

// A ToolCall is a function that the model wants called, or a piece of one: the
// first piece of an Index carries Name, and Arguments are joined.
type ToolCall struct {
	Index     int    `json:"index,omitempty"` // in the answer
	ID        string `json:"id,omitempty"`    // empty in answers of engines that give none
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments,omitempty"` // a JSON object
}

// Formats that an answer can be held to.
const (
	FormatJSON    = "json_object"
	FormatSchema  = "json_schema"
	FormatGrammar = "grammar" // GBNF
)

// A Format is what an answer must conform to.
type Format struct {
	Type    string          `json:"type"`
	Schema  json.RawMessage `json:"schema,omitempty"`  // of FormatSchema
	Grammar string          `json:"grammar,omitempty"` // of FormatGrammar
}

// Reasoning says how much a model thinks before it answers. The model's own
// template decides when there is none.
type Reasoning struct {
	Effort  string `json:"effort,omitempty"`  // none, low, medium or high
	Budget  int    `json:"budget,omitempty"`  // most tokens of it; 0 is no bound
	History string `json:"history,omitempty"` // what earlier turns show of it: disabled, interleaved or preserved
}

// Reasons why a generation ended.
const (
	FinishStop      = "stop"
	FinishLength    = "length"
	FinishToolCalls = "tool_calls" // the model wants tools called
)

// MaxChunk is the most tokens in one Chunk.
const MaxChunk = 128

// A Chunk is one piece of an answer. With Echo or EchoLast the prompt's pieces
// come first; their Echoed is set. None has more than MaxChunk tokens, of the
// prompt's either, so that it fits into a message.
type Chunk struct {
	Text      string     `json:"text"`
	Reasoning string     `json:"reasoning,omitempty"` // beside Text, never part of it
	ToolCalls []ToolCall `json:"toolCalls,omitempty"` // beside Text, never part of it
	Echoed    bool       `json:"echoed,omitempty"`
	Tokens    []int      `json:"tokens,omitempty"`   // those that the piece was made of
	Logprobs  []Logprob  `json:"logprobs,omitempty"` // of each of Tokens, when they were asked for
	Raw       string     `json:"raw,omitempty"`      // Tokens as text, special ones spelt, when RawOutput was asked for
	Prompt    *Prompt    `json:"prompt,omitempty"`   // pieces of it, when ReturnTokenIDs or RawOutput was asked for
	Finish    string     `json:"finish,omitempty"`   // set on the last piece only
}

// A Prompt is what the model was given to continue.
type Prompt struct {
	Text   string `json:"text,omitempty"` // special tokens spelt
	Tokens []int  `json:"tokens"`
}

// A Logprob says how likely a token was. Probabilities are natural logarithms;
// one under the least that a number here can say is LeastLogprob.
type Logprob struct {
	Token    int     `json:"token"`
	Text     string  `json:"text"`   // special tokens spelt; bytes of a broken character give U+FFFD
	Bytes    []byte  `json:"bytes"`  // those of Text, before what is broken was replaced
	Offset   int     `json:"offset"` // characters of the answer's text, with what is echoed, that come before it
	Logprob  float64 `json:"logprob"`
	Unknown  bool    `json:"unknown,omitempty"` // nothing came before it: it has no probability
	Sampling float64 `json:"sampling"`          // in the distribution that it was drawn from
	// Top are the likeliest tokens of the model's own distribution, the
	// likeliest first; only Token, Text, Bytes and Logprob are set.
	Top []Logprob `json:"top,omitempty"`
}

// LeastLogprob stands for the logarithm of 0.
const LeastLogprob = -9999

// Usage counts tokens, and says where the time went.
type Usage struct {
	PromptTokens     int   `json:"promptTokens"`
	CompletionTokens int   `json:"completionTokens"`
	CachedTokens     int   `json:"cachedTokens"`
	ReasoningTokens  int   `json:"reasoningTokens,omitempty"` // of CompletionTokens
	Window           int   `json:"window,omitempty"`          // most tokens that prompt and answer may have together; 0 is not known
	Times            Times `json:"times"`
	// Speculation is nil where nothing was guessed.
	Speculation *Speculation `json:"speculation,omitempty"`
}

// Speculation says what became of the guesses that an answer was generated with.
type Speculation struct {
	PredictedTokens int   `json:"predictedTokens,omitempty"` // of the request's prediction
	MatchedTokens   int   `json:"matchedTokens,omitempty"`   // of them that the answer took over without drawing each by itself
	Guessed         []int `json:"guessed,omitempty"`         // how often a token was guessed, by its place in the guess
	Right           []int `json:"right,omitempty"`           // … and was right
}

// Times are where an answer's time went; an engine leaves 0 what it does not
// measure.
type Times struct {
	Tokenize     time.Duration `json:"tokenize,omitempty"`     // making tokens of the prompt
	PrefillQueue time.Duration `json:"prefillQueue,omitempty"` // waiting for a slot
	Prefill      time.Duration `json:"prefill,omitempty"`      // reading the prompt
	// Direct says that nothing waits for the tokenizer, nor between its prompt
	// and its first step of generation: those waits are measured as none.
	Direct bool `json:"direct,omitempty"`
}
