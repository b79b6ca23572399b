package inference

// ChatBody is the body of a chat completion request. Field names are in snake_case; lowerCamelCase
// is accepted as well.
type ChatBody struct {
	Messages []ChatMessage `json:"messages"`
	Tools    []ChatTool    `json:"tools,omitempty"`
	// ToolChoice is auto, none, required, or a function.
	ToolChoice        any  `json:"tool_choice,omitempty"`
	ParallelToolCalls bool `json:"parallel_tool_calls,omitempty"`
	GenerationBody
}

// ChatMessage is one message of a conversation.
type ChatMessage struct {
	Role       string         `json:"role"`
	Content    any            `json:"content,omitempty"` // text, or a list of texts and images
	Name       string         `json:"name,omitempty"`
	Reasoning  string         `json:"reasoning_content,omitempty"`
	Refusal    string         `json:"refusal,omitempty"`
	ToolCalls  []ChatToolCall `json:"tool_calls,omitempty"`   // only in an assistant message
	ToolCallID string         `json:"tool_call_id,omitempty"` // in a tool message, ID of the call that it answers
}

// ChatTool is a tool that the model may call.
type ChatTool struct {
	Type     string       `json:"type"`
	Function ChatFunction `json:"function"`
}

// ChatFunction describes the function of a tool.
type ChatFunction struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parameters  map[string]any `json:"parameters,omitempty"` // a JSON Schema
	Strict      bool           `json:"strict,omitempty"`
}
