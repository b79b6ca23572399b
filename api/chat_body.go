package api

// ChatBody is what a chat completion may be asked with. Names are in
// snake_case; lowerCamelCase is understood as well.
type ChatBody struct {
	Messages          []ChatMessage `json:"messages"`
	Tools             []ChatTool    `json:"tools,omitempty"`
	ToolChoice        any           `json:"tool_choice,omitempty"` // auto, none, required, or a function by its name
	ParallelToolCalls bool          `json:"parallel_tool_calls,omitempty"`
	GenerationBody
}

// ChatMessage is one turn of a conversation.
type ChatMessage struct {
	Role       string         `json:"role"`
	Content    any            `json:"content,omitempty"` // text, or a list of parts {type: "text", text}
	Name       string         `json:"name,omitempty"`
	Reasoning  string         `json:"reasoning_content,omitempty"`
	Refusal    string         `json:"refusal,omitempty"`
	ToolCalls  []ChatToolCall `json:"tool_calls,omitempty"`   // of the assistant
	ToolCallID string         `json:"tool_call_id,omitempty"` // of a tool: the call that it answers
}

// ChatTool is a function that the model may call.
type ChatTool struct {
	Type     string       `json:"type"`
	Function ChatFunction `json:"function"`
}

// ChatFunction describes a function.
type ChatFunction struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitempty"`
	Parameters  map[string]any `json:"parameters,omitempty"` // a JSON schema
	Strict      bool           `json:"strict,omitempty"`
}
