package inference

// ResponseBody is the body of a request to the Responses API. Field names are in snake_case; the
// server accepts lowerCamelCase too.
type ResponseBody struct {
	Model             string          `json:"model"`
	Input             any             `json:"input"` // a text, or a list of items
	Instructions      string          `json:"instructions,omitempty"`
	MaxOutputTokens   int             `json:"max_output_tokens,omitempty"`
	Temperature       float64         `json:"temperature,omitempty"`
	TopP              float64         `json:"top_p,omitempty"`
	TopLogprobs       int             `json:"top_logprobs,omitempty"`
	Stream            bool            `json:"stream,omitempty"`
	StreamOptions     map[string]any  `json:"stream_options,omitempty"`
	Tools             []ResponseTool  `json:"tools,omitempty"`
	ToolChoice        any             `json:"tool_choice,omitempty"`
	ParallelToolCalls bool            `json:"parallel_tool_calls,omitempty"`
	MaxToolCalls      int             `json:"max_tool_calls,omitempty"`
	Text              *ResponseText   `json:"text,omitempty"`
	Reasoning         *ResponseEffort `json:"reasoning,omitempty"`
	Include           []string        `json:"include,omitempty"`
	Truncation        string          `json:"truncation,omitempty"`
	Store             bool            `json:"store,omitempty"`
	Background        bool            `json:"background,omitempty"`
	PreviousResponse  string          `json:"previous_response_id,omitempty"`
	Conversation      any             `json:"conversation,omitempty"`
	Prompt            any             `json:"prompt,omitempty"`
	PromptCacheKey    string          `json:"prompt_cache_key,omitempty"`
	SafetyIdentifier  string          `json:"safety_identifier,omitempty"`
	ServiceTier       string          `json:"service_tier,omitempty"`
	User              string          `json:"user,omitempty"`
	Metadata          map[string]any  `json:"metadata,omitempty"`
}

// ResponseTool is a function that the model can call.
type ResponseTool struct {
	Type        string         `json:"type"`
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parameters  map[string]any `json:"parameters,omitempty"` // a JSON Schema
	Strict      bool           `json:"strict,omitempty"`
}

// ResponseText has the format and the verbosity of the generated text.
type ResponseText struct {
	Format    map[string]any `json:"format,omitempty"`
	Verbosity string         `json:"verbosity,omitempty"`
}

// ResponseEffort has the settings of the model's reasoning.
type ResponseEffort struct {
	Effort          string `json:"effort,omitempty"`
	Summary         string `json:"summary,omitempty"`
	GenerateSummary string `json:"generate_summary,omitempty"`
}

// Response is a response of the Responses API. An event of a stream contains the Response with what
// was generated so far.
type Response struct {
	ID                string              `json:"id"`
	Object            string              `json:"object"`
	CreatedAt         int64               `json:"created_at"`   // Unix seconds
	CompletedAt       *int64              `json:"completed_at"` // Unix seconds
	Status            string              `json:"status"`
	Background        bool                `json:"background"`
	Error             *ResponseError      `json:"error"`
	IncompleteDetails *IncompleteDetails  `json:"incomplete_details"`
	Instructions      *string             `json:"instructions"`
	MaxOutputTokens   *int                `json:"max_output_tokens"`
	MaxToolCalls      *int                `json:"max_tool_calls"`
	Model             string              `json:"model"`
	Output            []ResponseItem      `json:"output"`
	ParallelToolCalls bool                `json:"parallel_tool_calls"`
	PreviousResponse  *string             `json:"previous_response_id"`
	PromptCacheKey    *string             `json:"prompt_cache_key"`
	Reasoning         ResponseReasoning   `json:"reasoning"`
	SafetyIdentifier  *string             `json:"safety_identifier"`
	ServiceTier       string              `json:"service_tier"`
	Store             bool                `json:"store"`
	Temperature       float64             `json:"temperature"`
	Text              ResponseTextSetting `json:"text"`
	ToolChoice        any                 `json:"tool_choice"`
	Tools             []any               `json:"tools"`
	TopLogprobs       int                 `json:"top_logprobs"`
	TopP              float64             `json:"top_p"`
	Truncation        string              `json:"truncation"`
	Usage             *ResponseUsage      `json:"usage"`
	User              *string             `json:"user"`
	Metadata          map[string]any      `json:"metadata"`
}

// ResponseError is the error of a failed response.
type ResponseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// IncompleteDetails states why a response ended before it was complete.
type IncompleteDetails struct {
	Reason string `json:"reason"`
}

// ResponseReasoning repeats the request's settings of reasoning.
type ResponseReasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

// ResponseTextSetting repeats the request's settings of the text.
type ResponseTextSetting struct {
	Format    any    `json:"format"`
	Verbosity string `json:"verbosity"`
}

// ResponseUsage counts the tokens of a response.
type ResponseUsage struct {
	InputTokens   int                   `json:"input_tokens"`
	InputDetails  ResponseInputDetails  `json:"input_tokens_details"`
	OutputTokens  int                   `json:"output_tokens"`
	OutputDetails ResponseOutputDetails `json:"output_tokens_details"`
	TotalTokens   int                   `json:"total_tokens"`
}

// ResponseInputDetails states how many input tokens were found in the prefix cache.
type ResponseInputDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// ResponseOutputDetails states how many output tokens are reasoning.
type ResponseOutputDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// ResponseItem is one item of the output: reasoning, a message or a function call.
type ResponseItem struct {
	ID        string         `json:"id"`
	Type      string         `json:"type"`
	Status    string         `json:"status"`
	Role      string         `json:"role,omitempty"`
	Summary   []ResponsePart `json:"summary,omitzero"`
	Content   []ResponsePart `json:"content,omitzero"`
	CallID    string         `json:"call_id,omitempty"`
	Name      string         `json:"name,omitempty"`
	Arguments *string        `json:"arguments,omitempty"`
}

// ResponsePart is a part of a message item or of a reasoning item.
type ResponsePart struct {
	Type        string         `json:"type"`
	Text        string         `json:"text"`
	Annotations []any          `json:"annotations,omitzero"`
	Logprobs    []TokenLogprob `json:"logprobs,omitzero"`
}

// ResponseEvent is one event of a streamed response.
type ResponseEvent struct {
	Type         string         `json:"type"`
	Sequence     int            `json:"sequence_number"`
	Response     *Response      `json:"response,omitempty"`
	OutputIndex  *int           `json:"output_index,omitempty"`
	ItemID       string         `json:"item_id,omitempty"`
	ContentIndex *int           `json:"content_index,omitempty"`
	Item         *ResponseItem  `json:"item,omitempty"`
	Part         *ResponsePart  `json:"part,omitempty"`
	Delta        *string        `json:"delta,omitempty"`
	Text         *string        `json:"text,omitempty"`
	Name         string         `json:"name,omitempty"`
	Arguments    *string        `json:"arguments,omitempty"`
	Logprobs     []TokenLogprob `json:"logprobs,omitzero"`
}
