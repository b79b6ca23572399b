package inference

import (
	"anneal/api/wire"
	"anneal/engines"
)

// rules constrains the values of fields of this package's wire types: see openapi.Documentation.
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
				"description": "Type of the prediction, always content."},
			"content": contentSchema}}}}},
	"speculation": {Instead: wire.Schema{"type": "string"}},
}

// messageSchema is the schema of a message's content: a text, or a list of text and image parts.
var messageSchema = wire.Schema{"description": "Content of the message: a text, or a list of text parts and, in " +
	"messages with the role user, image parts.",
	"anyOf": []any{wire.Schema{"type": []string{"string", "null"}}, wire.Schema{"type": "array", "items": wire.Schema{
		"anyOf": []any{textPart, imagePart}}}}}

var textPart = wire.Schema{"type": "object", "required": []string{"type", "text"}, "properties": map[string]any{
	"type": wire.Schema{"type": "string", "enum": []string{"text"}, "description": "Type of the part."},
	"text": wire.Schema{"type": "string", "description": "Text of the part."}}}

var imagePart = wire.Schema{"type": "object", "required": []string{"type", "image_url"}, "properties": map[string]any{
	"type": wire.Schema{"type": "string", "enum": []string{"image_url"}, "description": "Type of the part."},
	"image_url": wire.Schema{"anyOf": []any{wire.Schema{"type": "string"},
		wire.Schema{"type": "object", "required": []string{"url"}, "properties": map[string]any{
			"url": wire.Schema{"type": "string", "description": "URL of the image: http, https or data."},
			"detail": wire.Schema{"type": "string", "enum": []string{"auto", "low", "high"},
				"description": "Resolution at which the model sees the image. Other values than auto are ignored with a " +
					"warning."}}}}}}}

// contentSchema is the schema of a text, or a list of text parts.
var contentSchema = wire.Schema{"description": "A text, or a list of text parts.",
	"anyOf": []any{wire.Schema{"type": []string{"string", "null"}}, wire.Schema{"type": "array", "items": textPart}}}

// logprobsSchema is the schema of logprobs: a boolean, or the number of alternatives.
var logprobsSchema = wire.Schema{"anyOf": []any{wire.Schema{"type": "boolean"},
	wire.Schema{"type": "integer", "minimum": 0, "maximum": 5}}}

var tokenSchema = wire.Schema{"type": "integer", "minimum": 0}

// promptSchema is the schema of a prompt: a text, texts, token IDs, or lists of token IDs.
var promptSchema = wire.Schema{"anyOf": []any{
	wire.Schema{"type": "string"},
	wire.Schema{"type": "array", "maxItems": maxPrompts, "items": wire.Schema{"type": "string"}},
	wire.Schema{"type": "array", "items": tokenSchema},
	wire.Schema{"type": "array", "maxItems": maxPrompts, "items": wire.Schema{"type": "array", "items": tokenSchema}},
}}

// inputSchema is promptSchema without empty values.
var inputSchema = wire.Schema{"anyOf": []any{
	wire.Schema{"type": "string", "minLength": 1},
	wire.Schema{"type": "array", "minItems": 1, "maxItems": maxInputs,
		"items": wire.Schema{"type": "string", "minLength": 1}},
	wire.Schema{"type": "array", "minItems": 1, "items": tokenSchema},
	wire.Schema{"type": "array", "minItems": 1, "maxItems": maxInputs,
		"items": wire.Schema{"type": "array", "minItems": 1, "items": tokenSchema}},
}}

// vectorSchema is the schema of an embedding: a list of numbers, or their Base64 encoding.
var vectorSchema = wire.Schema{"anyOf": []any{
	wire.Schema{"type": "array", "items": wire.Schema{"type": "number"}},
	wire.Schema{"type": "string", "contentEncoding": "base64"}}}

var stopText = wire.Schema{"type": "string", "maxLength": maxStopSize}

// stopSchema is the schema of stop: a stop sequence, or a list of stop sequences.
var stopSchema = wire.Schema{"anyOf": []any{stopText,
	wire.Schema{"type": "array", "maxItems": maxStops, "items": stopText}}}

var toolChoiceSchema = wire.Schema{
	"anyOf": []any{wire.Schema{"type": "string", "enum": []string{"auto", "none", "required"}},
		wire.Schema{"type": "object", "required": []string{"type", "function"}, "properties": map[string]any{
			"type": wire.Schema{"type": "string", "enum": []string{"function"}, "description": "Type of the tool."},
			"function": wire.Schema{"type": "object", "required": []string{"name"},
				"description": "Function that the model must call.", "properties": map[string]any{
					"name": wire.Schema{"type": "string", "description": "Name of a function in tools."}}}}}}}

// typeTexts describes the types of this package in the API reference.
var typeTexts = map[string]string{
	"ChatAnswer": "Message of the assistant that the model generated.",
	"ChatBody": "Body of a chat completion request. The server ignores unknown fields, and names them in the header " +
		"anneal-warning. A field that the model's engine does not support is rejected.",
	"ChatChoice":        "One generated message of a chat completion.",
	"ChatChoiceDelta":   "What an event of a stream adds to a choice.",
	"ChatChunk":         "One event of a streamed chat completion.",
	"ChatCompletion":    "Response to a chat completion request.",
	"ChatDelta":         "What an event of a stream adds to the assistant's message.",
	"ChatFunction":      "Function that the model can call.",
	"ChatFunctionCall":  "Name and arguments of a function call.",
	"ChatFunctionDelta": "What an event of a stream adds to a function call.",
	"ChatMessage":       "One message of a conversation.",
	"ChatTool":          "Tool that the model can call.",
	"ChatToolCall":      "Tool call that the model generated.",
	"ChatToolCallDelta": "What an event of a stream adds to a tool call. The first event of the call has id, type " +
		"and name; concatenate the arguments of all events.",
	"Choice":             "One completion of a prompt or, in a stream, the part of it that the event adds.",
	"Completion":         "Response to a completion request, or one event of a streamed completion.",
	"CompletionDetails":  "Breakdown of completion_tokens: how many are reasoning. Absent if none are.",
	"CompletionLogprobs": "Log-probabilities of a completion. Each list has one element for each token.",
	"CompletionBody": "Body of a completion request. The server ignores unknown fields, and names them in the header " +
		"anneal-warning. A field that the model's engine does not support is rejected.",
	"ContentLogprobs": "Log-probabilities of a chat message.",
	"EmbeddingBody": "Body of an embedding request. The server ignores unknown fields, and names them in the header " +
		"anneal-warning.",
	"EmbeddingList":      "Response to an embedding request: one embedding for each input, in the order of the inputs.",
	"Embedding":          "Embedding of one input.",
	"EmbeddingUsage":     "Number of tokens of all inputs.",
	"InferenceModel":     "Model that inference requests can name.",
	"InferenceModelList": "READY models that the caller may use, and aliases. Models that a deployment serves come first.",
	"RawOutput":          "Prompt and completion as the model receives and generates them, with special tokens as text.",
	"TokenChoice":        "Token that the model could have generated at this position, with its log-probability.",
	"TokenLogprob":       "Token with its log-probability, a natural logarithm.",
	"Usage":              "Numbers of prompt and completion tokens. The tokens of a prompt count once, whatever n is.",
	"UsageDetails":       "Breakdown of prompt_tokens: how many were found in the prefix cache.",
}
