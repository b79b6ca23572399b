package inference

import (
	"anneal/api/wire"
	"anneal/engines"
)

// rules constrain the fields of this package's wire types: see openapi.Documentation.
var rules = map[string]wire.Rule{
	"Completion.object":        wire.OneOf("text_completion"),
	"ChatCompletion.object":    wire.OneOf("chat.completion"),
	"ChatChunk.object":         wire.OneOf("chat.completion.chunk"),
	"ChatMessage.role":         wire.OneOf("system", "developer", "user", "assistant", "tool"),
	"ChatAnswer.role":          wire.OneOf("assistant"),
	"ChatDelta.role":           wire.OneOf("assistant"),
	"ChatMessage.content":      {Instead: messageSchema},
	"ChatMessage.refusal":      {Instead: wire.Schema{"type": []string{"string", "null"}}},
	"ChatMessage.name":         {MaxLength: maxName},
	"ChatFunction.description": {MaxLength: maxToolText},
	"ChatBody.messages":        {MaxItems: maxMessages},
	"ChatBody.tools":           {MaxItems: maxTools},
	"ChatBody.tool_choice":     {Instead: toolChoiceSchema},
	"ChatBody.model":           {MaxLength: maxModelName},
	"ChatBody.stop":            {Instead: stopSchema},
	"ChatBody.user":            {MaxLength: maxUserSize},
	"ChatBody.logprobs":        {Instead: logprobsSchema},
	"ChatTool.type":            wire.OneOf("function"),
	"ChatToolCall.type":        wire.OneOf("function"),
	"CompletionLogprobs.token_logprobs": {Instead: wire.Schema{"type": "array",
		"items": wire.Schema{"type": []string{"number", "null"}}}},
	"CompletionLogprobs.top_logprobs": {Instead: wire.Schema{"type": "array",
		"items": wire.Schema{"type": []string{"object", "null"},
			"additionalProperties": wire.Schema{"type": "number"}}}},
	"TokenLogprob.top_logprobs": {},
	"mirostat_target":           wire.Between(1, maxPerplexity),
	"mirostat_lr":               wire.Between(0, 1),
	"InferenceModel.object":     wire.OneOf("model"),
	"InferenceModelList.object": wire.OneOf("list"),

	"EmbeddingBody.model":              {MaxLength: maxModelName},
	"EmbeddingBody.input":              {Instead: inputSchema},
	"EmbeddingBody.dimensions":         wire.Between(1, maxDimensions),
	"EmbeddingBody.encoding_format":    wire.OneOf("float", "base64"),
	"EmbeddingBody.user":               {MaxLength: maxUserSize},
	"EmbeddingList.object":             wire.OneOf("list"),
	"Embedding.object":                 wire.OneOf("embedding"),
	"Embedding.embedding":              {Instead: vectorSchema},
	"CompletionBody.model":             {MaxLength: maxModelName},
	"CompletionBody.prompt":            {Instead: promptSchema},
	"CompletionBody.images":            {MaxItems: engines.MaxImages},
	"CompletionBody.stop":              {Instead: stopSchema},
	"CompletionBody.user":              {MaxLength: maxUserSize},
	"prompt_cache_isolation_key":       {MaxLength: maxIsolationKey},
	"n":                                wire.Between(1, 128),
	"max_tokens":                       wire.Between(0, maxOutputTokens),
	"max_completion_tokens":            wire.Between(0, maxOutputTokens),
	"temperature":                      wire.Between(0, 2),
	"top_k":                            wire.Between(0, 100),
	"top_p":                            wire.Between(0, 1),
	"min_p":                            wire.Between(0, 1),
	"typical_p":                        wire.Between(0, 1),
	"frequency_penalty":                wire.Between(-2, 2),
	"presence_penalty":                 wire.Between(-2, 2),
	"repetition_penalty":               wire.Between(0, 2),
	"CompletionBody.logprobs":          {Instead: logprobsSchema},
	"top_logprobs":                     wire.Between(0, 5),
	"echo_last":                        wire.Between(0, maxOutputTokens),
	"context_length_exceeded_behavior": wire.OneOf("truncate", "error"),
	"reasoning_effort": {Instead: wire.Schema{
		"anyOf": []any{wire.Schema{"type": "string", "enum": []string{"none", "low", "medium", "high"}},
			wire.Schema{"type": "boolean"}, wire.Schema{"type": "integer", "minimum": 1}}}},
	"reasoning_history": wire.OneOf("disabled", "interleaved", "preserved"),
	"prediction": {Instead: wire.Schema{"anyOf": []any{wire.Schema{"type": "string"},
		wire.Schema{"type": "object", "properties": map[string]any{
			"type": wire.Schema{"type": "string", "enum": []string{"content"},
				"description": "Type of the prediction."},
			"content": contentSchema}}}}},
	"speculation": {Instead: wire.Schema{"type": "string"}},
}

// messageSchema is a text, or a list of text parts and image parts.
var messageSchema = wire.Schema{"description": "A text, or a list of parts: texts, and in messages of the role user " +
	"images as http or https URLs or data: URLs.",
	"anyOf": []any{wire.Schema{"type": []string{"string", "null"}}, wire.Schema{"type": "array", "items": wire.Schema{
		"anyOf": []any{textPart, imagePart}}}}}

var textPart = wire.Schema{"type": "object", "required": []string{"type", "text"}, "properties": map[string]any{
	"type": wire.Schema{"type": "string", "enum": []string{"text"}, "description": "Type of the part."},
	"text": wire.Schema{"type": "string", "description": "Text of the part."}}}

var imagePart = wire.Schema{"type": "object", "required": []string{"type", "image_url"}, "properties": map[string]any{
	"type": wire.Schema{"type": "string", "enum": []string{"image_url"}, "description": "Type of the part."},
	"image_url": wire.Schema{"anyOf": []any{wire.Schema{"type": "string"},
		wire.Schema{"type": "object", "required": []string{"url"}, "properties": map[string]any{
			"url": wire.Schema{"type": "string", "description": "http or https URL, or data: URL, of the image."},
			"detail": wire.Schema{"type": "string", "enum": []string{"auto", "low", "high"},
				"description": "Ignored with a warning unless it is auto."}}}}}}}

// contentSchema is a text, or a list of text parts.
var contentSchema = wire.Schema{"description": "A text, or a list of text parts.",
	"anyOf": []any{wire.Schema{"type": []string{"string", "null"}}, wire.Schema{"type": "array", "items": textPart}}}

// logprobsSchema is a boolean, or the number of alternatives.
var logprobsSchema = wire.Schema{"anyOf": []any{wire.Schema{"type": "boolean"},
	wire.Schema{"type": "integer", "minimum": 0, "maximum": 5}}}

var tokenSchema = wire.Schema{"type": "integer", "minimum": 0}

// promptSchema is a text, texts, token IDs, or lists of token IDs.
var promptSchema = wire.Schema{"anyOf": []any{
	wire.Schema{"type": "string"},
	wire.Schema{"type": "array", "maxItems": maxPrompts, "items": wire.Schema{"type": "string"}},
	wire.Schema{"type": "array", "items": tokenSchema},
	wire.Schema{"type": "array", "maxItems": maxPrompts, "items": wire.Schema{"type": "array", "items": tokenSchema}},
}}

// inputSchema is a text, texts, token IDs, or lists of token IDs, none of them empty.
var inputSchema = wire.Schema{"anyOf": []any{
	wire.Schema{"type": "string", "minLength": 1},
	wire.Schema{"type": "array", "minItems": 1, "maxItems": maxInputs,
		"items": wire.Schema{"type": "string", "minLength": 1}},
	wire.Schema{"type": "array", "minItems": 1, "items": tokenSchema},
	wire.Schema{"type": "array", "minItems": 1, "maxItems": maxInputs,
		"items": wire.Schema{"type": "array", "minItems": 1, "items": tokenSchema}},
}}

// vectorSchema is a list of numbers, or the Base64 form of numbers.
var vectorSchema = wire.Schema{"anyOf": []any{
	wire.Schema{"type": "array", "items": wire.Schema{"type": "number"}},
	wire.Schema{"type": "string", "contentEncoding": "base64"}}}

var stopText = wire.Schema{"type": "string", "maxLength": maxStopSize}

// stopSchema is a stop sequence, or a list of stop sequences.
var stopSchema = wire.Schema{"anyOf": []any{stopText,
	wire.Schema{"type": "array", "maxItems": maxStops, "items": stopText}}}

var toolChoiceSchema = wire.Schema{
	"anyOf": []any{wire.Schema{"type": "string", "enum": []string{"auto", "none", "required"}},
		wire.Schema{"type": "object", "required": []string{"type", "function"}, "properties": map[string]any{
			"type": wire.Schema{"type": "string", "enum": []string{"function"}, "description": "Type of the tool."},
			"function": wire.Schema{"type": "object", "required": []string{"name"},
				"description": "Function that the model must call.", "properties": map[string]any{
					"name": wire.Schema{"type": "string", "description": "Name of a function in tools."}}}}}}}

// typeTexts describe the types of this package.
var typeTexts = map[string]string{
	"ChatAnswer": "Message of the assistant.",
	"ChatBody": "Body of a chat completion request. Unknown fields are ignored, and named in the header " +
		"anneal-warning. A field that the model's engine does not support is rejected.",
	"ChatChoice":         "One completion of the conversation.",
	"ChatChoiceDelta":    "What an event adds to a choice.",
	"ChatChunk":          "One event of a streamed chat completion.",
	"ChatCompletion":     "Response to a chat completion request.",
	"ChatDelta":          "What an event adds to the assistant's message.",
	"ChatFunction":       "Function of a tool.",
	"ChatFunctionCall":   "Name and arguments of a function call.",
	"ChatFunctionDelta":  "Part of a function call.",
	"ChatMessage":        "One message of a conversation.",
	"ChatTool":           "Tool that the model can call.",
	"ChatToolCall":       "Call of a tool by the model.",
	"ChatToolCallDelta":  "Part of a tool call. The first part has id, type and name; arguments are concatenated.",
	"Choice":             "One completion of a prompt, or in a stream a part of the completion.",
	"Completion":         "Response to a completion request, or one event of a streamed completion.",
	"CompletionDetails":  "Details of completion_tokens; present if the model reasoned.",
	"CompletionLogprobs": "Log-probabilities of tokens. Each list has one element for each token.",
	"CompletionBody": "Body of a completion request. Unknown fields are ignored, and named in the header " +
		"anneal-warning. A field that the model's engine does not support is rejected.",
	"ContentLogprobs": "Log-probabilities of a message's tokens.",
	"EmbeddingBody": "Body of an embedding request. Unknown fields are ignored, and named in the header " +
		"anneal-warning.",
	"EmbeddingList":      "Response to an embedding request: one embedding for each input, in the order of the inputs.",
	"Embedding":          "Embedding of one input.",
	"EmbeddingUsage":     "Numbers of tokens of all inputs.",
	"InferenceModel":     "Entry of a list of models.",
	"InferenceModelList": "READY models that the caller may use. Deployed models come first.",
	"RawOutput":          "Prompt and completion with special tokens as text.",
	"TokenChoice":        "Alternative at the position of a token.",
	"TokenLogprob":       "Log-probability of one token, as a natural logarithm.",
	"Usage":              "Numbers of tokens. The tokens of a prompt count once, for any number of completions.",
	"UsageDetails":       "Details of prompt_tokens.",
}
