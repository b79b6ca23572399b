package inference

import "anneal/api/wire"

// Descriptions shared by a request field and the response field that repeats it.
const (
	instructionsText = "System message before the input."
	truncationText   = "disabled: an input that exceeds the context length is rejected."
	storeText        = "Always false, because responses are not stored. A request with true is rejected."
	backgroundText   = "Always false. A request with true is rejected."
	effortText       = "Reasoning effort: none, low, medium or high; null if not requested."
	formatText       = "Format that constrains the text: type is text, json_object or json_schema, the latter with a " +
		"schema, " +
		"whose properties are generated in the schema's order."
)

// responseTexts describe the fields of responses.
var responseTexts = map[string]string{
	"ResponseBody.input": "A text, or a list of items: messages, function calls, results of function calls, and " +
		"reasoning. Parts of messages are texts and, in messages of the role user, images (input_image, with image_url). " +
		"Files and audio are rejected, and so are references to stored items.",
	"ResponseBody.instructions": instructionsText,
	"Response.instructions":     instructionsText,
	"max_output_tokens": "Maximum number of tokens of the output, including reasoning. Default: 2048, or fewer if the " +
		"context length leaves fewer after the input.",
	"ResponseBody.temperature": "Sampling temperature; 0 is greedy decoding. Default: 1.",
	"ResponseBody.tools":       "Functions that the model can call. Other types of tools are rejected.",
	"ResponseBody.tool_choice": "auto; none, which leaves the tools out of the prompt; required, which makes the model " +
		"call a tool; or the function to call, {\"type\": \"function\", \"name\": …}.",
	"ResponseBody.top_logprobs": "Number of most likely alternatives to return with each token.",
	"ResponseBody.stream_options": "Options of the stream: include_obfuscation. It has no effect, because events have " +
		"no padding.",
	"ResponseBody.text":         "Format of the text.",
	"ResponseBody.reasoning":    "Reasoning of models that support it.",
	"ResponseBody.user":         "ID of the end user. Newer clients send safety_identifier instead.",
	"ResponseBody.metadata":     "Values for the client's own use, which the response repeats.",
	"max_tool_calls":            "Maximum number of calls of built-in tools.",
	"ResponseBody.include":      "Additional output: message.output_text.logprobs.",
	"ResponseBody.truncation":   truncationText,
	"Response.truncation":       truncationText,
	"ResponseBody.store":        storeText,
	"Response.store":            storeText,
	"ResponseBody.background":   backgroundText,
	"Response.background":       backgroundText,
	"previous_response_id":      "Not supported, because responses are not stored: send the earlier items in input.",
	"ResponseBody.conversation": "Not supported, because responses are not stored: send the items in input.",
	"ResponseBody.prompt":       "Not supported, because prompts are not stored: send instructions and input.",
	"prompt_cache_key": "Scope of the prefix cache: requests with different keys share no cached prompts. Requests with " +
		"the same key go to the same replica.",
	"safety_identifier": "ID of the end user. If the deployment has enableSessionAffinity, requests of the same user go " +
		"to the same replica.",
	"service_tier":            "Service tier; always default in responses.",
	"ResponseTool.name":       "Name of the function.",
	"ResponseTool.parameters": "Parameters of the function, as a JSON Schema.",
	"ResponseTool.strict": "Whether the arguments must follow the schema of the parameters even if the model decides " +
		"itself whether to call the function. The arguments of required calls always follow it.",
	"ResponseTool.description":        "Description of the function for the model.",
	"ResponseText.format":             formatText,
	"ResponseTextSetting.format":      formatText,
	"ResponseText.verbosity":          "Length of the text: low, medium or high.",
	"ResponseTextSetting.verbosity":   "Always medium.",
	"ResponseEffort.effort":           effortText,
	"ResponseReasoning.effort":        effortText,
	"ResponseEffort.summary":          "Summary of the reasoning: auto, concise or detailed.",
	"ResponseEffort.generate_summary": "Earlier name of summary.",
	"ResponseReasoning.summary":       "Always null, because the server does not summarize reasoning.",
	"ResponseItem.summary":            "Always empty, because the server does not summarize reasoning.",

	"Response.id":                "ID of the response.",
	"Response.tools":             "The request's tools.",
	"Response.tool_choice":       "The request's tool_choice.",
	"Response.text":              "The request's text.",
	"Response.reasoning":         "The request's reasoning.",
	"Response.metadata":          "The request's metadata.",
	"Response.user":              "The request's user.",
	"Response.temperature":       "Sampling temperature.",
	"Response.top_logprobs":      "The request's top_logprobs.",
	"Response.usage":             "Numbers of tokens; null until the response has ended.",
	"created_at":                 "Time of creation, in Unix seconds.",
	"completed_at":               "Time of completion, in Unix seconds; null unless the status is completed.",
	"Response.status":            "in_progress, completed, incomplete (max_output_tokens) or failed.",
	"ResponseItem.status":        "in_progress, completed or incomplete.",
	"Response.error":             "Error of a failed response; null otherwise.",
	"incomplete_details":         "Why the response is incomplete; null otherwise.",
	"IncompleteDetails.reason":   "Always max_output_tokens.",
	"Response.output":            "Items in the order of generation: reasoning, a message and function calls.",
	"input_tokens":               "Number of tokens of the input.",
	"input_tokens_details":       "Details of input_tokens.",
	"output_tokens":              "Number of tokens of the output, including reasoning.",
	"output_tokens_details":      "Details of output_tokens.",
	"ResponseUsage.total_tokens": "Sum of input_tokens and output_tokens.",

	"ResponseError.code":       "Reason of the error, for programs.",
	"ResponseError.message":    "What is wrong, and what to do.",
	"ResponseItem.id":          "ID of the item.",
	"ResponseItem.type":        "reasoning, message or function_call.",
	"ResponseItem.role":        "assistant, for a message.",
	"ResponseItem.content":     "Parts of a message or of reasoning.",
	"call_id":                  "ID of the function call, for function_call_output.",
	"ResponseItem.name":        "Name of the function.",
	"ResponsePart.type":        "output_text or reasoning_text.",
	"ResponsePart.text":        "Text of the part.",
	"ResponsePart.annotations": "Always empty.",
	"ResponsePart.logprobs":    "Log-probabilities of the tokens, if requested.",
	"ResponseEvent.type":       "Type of the event, such as response.output_text.delta.",
	"sequence_number":          "Number of the event, from 0.",
	"ResponseEvent.response":   "The response so far.",
	"output_index":             "Index of the item in output.",
	"item_id":                  "ID of the item.",
	"content_index":            "Index of the part in content.",
	"ResponseEvent.item":       "The item so far, or the complete item.",
	"ResponseEvent.part":       "The part so far, or the complete part.",
	"ResponseEvent.delta":      "What the event adds to the text or to the arguments.",
	"ResponseEvent.text":       "The complete text.",
	"ResponseEvent.name":       "Name of the function.",
	"ResponseEvent.logprobs":   "Log-probabilities of the tokens of the event, if requested.",
	"ResponseTool.type":        "Type of the tool: function.",

	"ResponseOutputDetails.reasoning_tokens": "Number of reasoning tokens, which output_tokens includes.",
}

var responseTypeTexts = map[string]string{
	"IncompleteDetails": "Why a response is incomplete.",
	"Response":          "Response to a request, or its current state in an event of a stream.",
	"ResponseBody": "Body of a request for a response. Unknown fields are ignored, and named in the header " +
		"anneal-warning.",
	"ResponseEffort":        "Settings of the model's reasoning.",
	"ResponseError":         "Error of a failed response.",
	"ResponseEvent":         "One event of a streamed response. Which fields it has depends on its type.",
	"ResponseInputDetails":  "Details of input_tokens.",
	"ResponseItem":          "Item of the output: reasoning, a message or a function call.",
	"ResponseOutputDetails": "Details of output_tokens.",
	"ResponsePart":          "Part of a message or of reasoning.",
	"ResponseReasoning":     "Settings of reasoning.",
	"ResponseText":          "Format and verbosity of the text.",
	"ResponseTextSetting":   "Settings of the text.",
	"ResponseTool":          "Function that the model can call.",
	"ResponseUsage":         "Numbers of tokens.",
}

// responseRules constrain the fields of responses.
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

// responseInputSchema is a text, or a list of items.
var responseInputSchema = wire.Schema{"anyOf": []any{wire.Schema{"type": "string"},
	wire.Schema{"type": "array", "minItems": 1, "maxItems": maxMessages, "items": wire.Schema{"type": "object"}}}}

var responseChoiceSchema = wire.Schema{
	"anyOf": []any{wire.Schema{"type": "string", "enum": []string{"auto", "none", "required"}},
		wire.Schema{"type": "object", "required": []string{"type", "name"}, "properties": map[string]any{
			"type": wire.Schema{"type": "string", "enum": []string{"function"}, "description": "Type of the tool."},
			"name": wire.Schema{"type": "string", "description": "Name of a function in tools."}}}}}
