package inference

// ChatBody is the body of a chat completion request. Field names are in snake_case; the server
// accepts lowerCamelCase too.
type ChatBody struct {
	Messages []ChatMessage `json:"messages"`
	Tools    []ChatTool    `json:"tools,omitempty"`
	// ToolChoice is auto, none, required, or the function to call.
	ToolChoice        any  `json:"tool_choice,omitempty"`
	ParallelToolCalls bool `json:"parallel_tool_calls,omitempty"`
	GenerationBody
}

// ChatMessage is one message of a conversation.
type ChatMessage struct {
	Role      string         `json:"role"`
	Content   any            `json:"content,omitempty"` // text, or a list of texts and images
	Name      string         `json:"name,omitempty"`
	Reasoning string         `json:"reasoning_content,omitempty"`
	Refusal   string         `json:"refusal,omitempty"`
	ToolCalls []ChatToolCall `json:"tool_calls,omitempty"` // only in an assistant message
	// in a message with the role tool, the ID of the tool call whose result it is
	ToolCallID string `json:"tool_call_id,omitempty"`
}

// ChatTool is a tool that the model can call.
type ChatTool struct {
	Type     string       `json:"type"`
	Function ChatFunction `json:"function"`
}

// ChatFunction describes a function that the model can call.
type ChatFunction struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parameters  map[string]any `json:"parameters,omitempty"` // a JSON Schema
	Strict      bool           `json:"strict,omitempty"`
}
