package inference

import "anneal/api/wire"

// Descriptions of fields that a request and its response have in common.
const (
	instructionsText = "System message that precedes the input."
	truncationText   = "Always disabled: an input that exceeds the context length is rejected."
	storeText        = "Always false, because responses are not stored. A request with true is rejected."
	backgroundText   = "Always false, because no response can be retrieved later. A request with true is rejected."
	effortText       = "Reasoning effort: none, low, medium or high; null if the request does not set it."
	formatText       = "Format that constrains the text: type is text, json_object or json_schema. json_schema has a " +
		"schema, in whose order the properties are generated."
)

// responseTexts describes the fields of the Responses API in the API reference.
var responseTexts = map[string]string{
	"ResponseBody.input": "Input of the model: a text, or a list of items, which are messages, function calls, " +
		"results of function calls, and " +
		"reasoning. The parts of a message are texts and, in messages with the role user, images (input_image, with " +
		"image_url). Files, audio and references to stored items are rejected.",
	"ResponseBody.instructions": instructionsText,
	"Response.instructions":     instructionsText,
	"max_output_tokens": "Maximum number of tokens of the output, including reasoning. Default: 2048, or fewer if the " +
		"context length leaves fewer after the input.",
	"ResponseBody.temperature": "Sampling temperature; 0 is greedy decoding. Default: 1.",
	"ResponseBody.tools":       "Functions that the model can call. Other types of tools are rejected.",
	"ResponseBody.tool_choice": "Which tool the model calls: auto; none, which leaves the tools out of the prompt; " +
		"required, which makes the model call a tool; or the function to call, {\"type\": \"function\", \"name\": …}.",
	"ResponseBody.top_logprobs":   "Number of most likely tokens to return at the position of each token.",
	"ResponseBody.stream_options": "Options of the stream. The only one is include_obfuscation, which has no effect.",
	"ResponseBody.text":           "Format and verbosity of the generated text.",
	"ResponseBody.reasoning":      "Settings of the reasoning of models that support it.",
	"ResponseBody.user":           "ID of the end user. Newer clients send safety_identifier instead.",
	"ResponseBody.metadata":       "Key-value pairs of the client, which the response repeats.",
	"max_tool_calls":              "Maximum number of calls of built-in tools.",
	"ResponseBody.include":        "What else the response contains: message.output_text.logprobs adds log-probabilities.",
	"ResponseBody.truncation":     truncationText,
	"Response.truncation":         truncationText,
	"ResponseBody.store":          storeText,
	"Response.store":              storeText,
	"ResponseBody.background":     backgroundText,
	"Response.background":         backgroundText,
	"previous_response_id":        "Not supported, because responses are not stored: send the earlier items in input.",
	"ResponseBody.conversation":   "Not supported, because responses are not stored: send the items in input.",
	"ResponseBody.prompt":         "Not supported, because prompts are not stored: send instructions and input.",
	"prompt_cache_key": "Scope of the prefix cache: requests with different keys share no cached prompts. Requests with " +
		"the same key go to the same replica.",
	"safety_identifier": "ID of the end user. If the deployment has enableSessionAffinity, requests of " +
		"the same end user go to the same replica.",
	"service_tier":            "Service tier of the request. In responses, it is always default.",
	"ResponseTool.name":       "Name of the function.",
	"ResponseTool.parameters": "Parameters of the function, as a JSON Schema.",
	"ResponseTool.strict": "Whether the arguments must follow the schema in parameters even if the model " +
		"itself decides to call the function. The arguments of required calls always follow the schema.",
	"ResponseTool.description":        "Description of the function, which the model reads.",
	"ResponseText.format":             formatText,
	"ResponseTextSetting.format":      formatText,
	"ResponseText.verbosity":          "Desired length of the generated text: low, medium or high. It has no effect.",
	"ResponseTextSetting.verbosity":   "Always medium, because models have no such setting.",
	"ResponseEffort.effort":           effortText,
	"ResponseReasoning.effort":        effortText,
	"ResponseEffort.summary":          "Summary of the reasoning: auto, concise or detailed.",
	"ResponseEffort.generate_summary": "Deprecated name of summary.",
	"ResponseReasoning.summary":       "Always null, because the server does not summarize reasoning.",
	"ResponseItem.summary":            "Always empty, because the server does not summarize reasoning.",

	"Response.id":           "ID of the response.",
	"Response.tools":        "Tools of the request.",
	"Response.tool_choice":  "Field tool_choice of the request.",
	"Response.text":         "Field text of the request.",
	"Response.reasoning":    "Field reasoning of the request.",
	"Response.metadata":     "Field metadata of the request.",
	"Response.user":         "Field user of the request.",
	"Response.temperature":  "Sampling temperature of the request.",
	"Response.top_logprobs": "Field top_logprobs of the request.",
	"Response.usage":        "Numbers of input and output tokens; null until the response has ended.",
	"created_at":            "Time at which the response was created, in Unix seconds.",
	"completed_at": "Time at which the response was completed, in Unix seconds; null unless the status " +
		"is completed.",
	"Response.status": "State of the response: in_progress, completed, incomplete (it reached " +
		"max_output_tokens) or failed.",
	"ResponseItem.status":      "State of the item: in_progress, completed or incomplete.",
	"Response.error":           "Error because of which the response failed; null otherwise.",
	"incomplete_details":       "Why the response is incomplete; null unless the status is incomplete.",
	"IncompleteDetails.reason": "Always max_output_tokens.",
	"Response.output": "Items that the model generated, in this order: reasoning, a message and function " +
		"calls.",
	"input_tokens":               "Number of tokens of the input, including instructions and tools.",
	"input_tokens_details":       "Breakdown of input_tokens: how many were found in the prefix cache.",
	"output_tokens":              "Number of tokens of the output, including reasoning.",
	"output_tokens_details":      "Breakdown of output_tokens: how many are reasoning.",
	"ResponseUsage.total_tokens": "Sum of input_tokens and output_tokens.",

	"ResponseError.code":       "Machine-readable reason of the error.",
	"ResponseError.message":    "Message that says what failed and what to do.",
	"ResponseItem.id":          "ID of the output item.",
	"ResponseItem.type":        "Type of the item: reasoning, message or function_call.",
	"ResponseItem.role":        "Author of a message, always assistant.",
	"ResponseItem.content":     "Parts of a message item or of a reasoning item.",
	"call_id":                  "ID of the function call; the item function_call_output with its result repeats the ID.",
	"ResponseItem.name":        "Name of the function.",
	"ResponsePart.type":        "Type of the part: output_text or reasoning_text.",
	"ResponsePart.text":        "Text of the part.",
	"ResponsePart.annotations": "Always empty, because the server adds no annotations.",
	"ResponsePart.logprobs":    "Log-probabilities of the part's tokens, if include requests them.",
	"ResponseEvent.type":       "Type of the event, such as response.output_text.delta.",
	"sequence_number":          "Sequence number of the event in the stream, from 0.",
	"ResponseEvent.response":   "Response with what was generated so far.",
	"output_index":             "Index of the event's item in the field output of the response.",
	"item_id":                  "ID of the output item.",
	"content_index":            "Index of the event's part in the field content of the item.",
	"ResponseEvent.item":       "Item with what was generated so far, or the complete item.",
	"ResponseEvent.part":       "Part with what was generated so far, or the complete part.",
	"ResponseEvent.delta":      "What the event adds to the text or to the arguments.",
	"ResponseEvent.text":       "Complete text of the part.",
	"ResponseEvent.name":       "Name of the function.",
	"ResponseEvent.logprobs":   "Log-probabilities of the event's tokens, if include requests them.",
	"ResponseTool.type":        "Type of the tool, always function.",

	"ResponseOutputDetails.reasoning_tokens": "Number of reasoning tokens; output_tokens includes them.",
}

var responseTypeTexts = map[string]string{
	"IncompleteDetails": "Why a response is incomplete.",
	"Response":          "Response to a request; in an event of a stream, with what was generated so far.",
	"ResponseBody": "Body of a request to the Responses API. The server ignores unknown fields, and names them in " +
		"the header anneal-warning.",
	"ResponseEffort":        "Settings of the model's reasoning.",
	"ResponseError":         "Error of a failed response.",
	"ResponseEvent":         "One event of a streamed response. Which fields it has depends on its type.",
	"ResponseInputDetails":  "Breakdown of input_tokens: how many were found in the prefix cache.",
	"ResponseItem":          "Item of the output: reasoning, a message or a function call.",
	"ResponseOutputDetails": "Breakdown of output_tokens: how many are reasoning.",
	"ResponsePart":          "Part of a message item or of a reasoning item.",
	"ResponseReasoning":     "Settings of the model's reasoning, as the request gave them.",
	"ResponseText":          "Settings of the generated text: format and verbosity.",
	"ResponseTextSetting":   "Settings of the generated text, as the request gave them.",
	"ResponseTool":          "Function that the model can call.",
	"ResponseUsage":         "Numbers of input and output tokens of a response.",
}

// responseRules constrains the values of fields of the Responses API.
var responseRules = map[string]wire.Rule{
	"ResponseBody.model":             {MaxLength: maxModelName},
	"ResponseBody.input":             {Instead: responseInputSchema},
	"ResponseBody.user":              {MaxLength: maxUserSize},
	"ResponseBody.safety_identifier": {MaxLength: maxUserSize},
	"ResponseBody.prompt_cache_key":  {MaxLength: maxIsolationKey},
	"ResponseBody.max_output_tokens": wire.Between(1, maxOutputTokens),
	"ResponseBody.max_tool_calls":    wire.Between(1, maxOutputTokens),
	"ResponseBody.top_logprobs":      wire.Between(0, maxResponseLogprobs),
	"ResponseBody.tools":             {MaxItems: maxTools},
	"ResponseBody.include":           {MaxItems: len(includable)},
	"ResponseBody.truncation":        wire.OneOf("disabled"),
	"ResponseBody.tool_choice":       {Instead: responseChoiceSchema},
	"ResponseTool.type":              wire.OneOf("function"),
	"ResponseTool.description":       {MaxLength: maxToolText},
	"ResponseText.format":            {},
	"ResponseTextSetting.format":     {},
	"ResponseText.verbosity":         wire.OneOf("low", "medium", "high"),
	"ResponseEffort.effort":          wire.OneOf("none", "low", "medium", "high"),
	"ResponseEffort.summary":         wire.OneOf("auto", "concise", "detailed"),
	"generate_summary":               wire.OneOf("auto", "concise", "detailed"),
	"Response.object":                wire.OneOf("response"),
	"Response.status":                wire.OneOf(statusInProgress, statusCompleted, statusIncomplete, statusFailed),
	"Response.top_p":                 {},
	"Response.temperature":           {},
	"Response.top_logprobs":          {},
	"Response.prompt_cache_key":      {},
	"ResponseItem.type":              wire.OneOf(itemReasoning, itemMessage, itemCall),
	"ResponseItem.status":            wire.OneOf(statusInProgress, statusCompleted, statusIncomplete),
	"ResponseItem.role":              wire.OneOf("assistant"),
	"ResponsePart.type":              wire.OneOf("output_text", "reasoning_text"),
}

// responseInputSchema is the schema of input: a text, or a list of items.
var responseInputSchema = wire.Schema{"anyOf": []any{wire.Schema{"type": "string"},
	wire.Schema{"type": "array", "minItems": 1, "maxItems": maxMessages, "items": wire.Schema{"type": "object"}}}}

var responseChoiceSchema = wire.Schema{
	"anyOf": []any{wire.Schema{"type": "string", "enum": []string{"auto", "none", "required"}},
		wire.Schema{"type": "object", "required": []string{"type", "name"}, "properties": map[string]any{
			"type": wire.Schema{"type": "string", "enum": []string{"function"}, "description": "Type of the tool."},
			"name": wire.Schema{"type": "string", "description": "Name of a function in tools."}}}}}
