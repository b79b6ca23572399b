package inference

import (
	"fmt"

	"anneal/api/request"
	"anneal/engines"
	"anneal/eventlog/metering"
)

const rawOutputText = "Prompt and completion with special tokens as text, if requested."

// fieldTexts describe the fields of this package's wire types.
var fieldTexts = map[string]string{
	// completions
	"model": "Name of the model, accounts/ACCOUNT/models/ID, of a deployment, accounts/ACCOUNT/deployments/ID, or " +
		"of both with # between them.",
	"prompt": "Prompt to complete: a text, a list of texts, a list of token IDs, or a list of such lists.",
	"user": "ID of the end user, which the usage record of the request contains. If the deployment has " +
		"enableSessionAffinity, requests of the same user go to the same replica.",
	"prompt_cache_isolation_key": "Scope of the prefix cache: requests with different keys share no cached prompts. " +
		"Requests with the same isolation key go to the same replica, unless the deployment has " +
		"enableSessionAffinity and the request has a user, who then selects the replica.",
	"raw_output":               "Whether the response contains raw_output.",
	"perf_metrics_in_response": "Whether the body of the response repeats the performance metrics of its headers.",
	"stream":                   "Whether the response is a stream of server-sent events.",
	"stream_options": "With include_usage, the last event of a chat completion stream has the usage and no choices, " +
		"and in all other events usage is null. Streams of completions always have the usage in the last event.",
	"n": "Number of completions for each prompt.",
	"stop": "Up to 4 stop sequences. Generation ends before the first stop sequence, which the completion does not " +
		"contain.",
	"ChatBody.temperature":       "Sampling temperature; 0 is greedy decoding.",
	"CompletionBody.temperature": "Sampling temperature; 0 is greedy decoding.",
	"max_tokens": "Maximum number of tokens of a completion. Default: 2048, or fewer if the context length leaves " +
		"fewer after the prompt.",
	"max_completion_tokens": "Alias of max_tokens. A request can have only one of them.",
	"top_k":                 "Number of most likely tokens to sample from; 0 disables the filter.",
	"top_p":                 "Samples from the most likely tokens whose probabilities add up to top_p (nucleus sampling).",
	"min_p": "Samples from tokens whose probability is at least min_p times the probability of the most likely token; " +
		"0 disables the filter.",
	"typical_p": "Samples from the tokens whose information content is closest to the entropy, and whose " +
		"probabilities add up to typical_p (locally typical sampling); 1 disables the filter.",
	"frequency_penalty": "Subtracted from a token's logit for each time it was generated.",
	"presence_penalty":  "Subtracted from a token's logit if it was generated.",
	"repetition_penalty": "Factor by which positive logits of tokens in the prompt and the completion are divided, " +
		"and negative logits are multiplied; 1 disables the penalty.",
	"mirostat_target": "Target perplexity of mirostat 2.0 sampling, which replaces top_k, top_p, min_p and typical_p.",
	"mirostat_lr":     "Learning rate of mirostat. Default: 0.1.",
	"seed":            "Seed of the sampling: the same request with the same seed has the same completion.",
	"logprobs": "Whether to return the log-probability of each token. As a number, also how many alternatives to " +
		"return with each token.",
	"Choice.logprobs": "Log-probabilities of the tokens; null if not requested.",
	"top_logprobs":    "Number of most likely alternatives to return with each token. Requires logprobs.",
	"echo":            "Whether the text begins with the prompt.",
	"echo_last":       "Number of the prompt's last tokens with which the text begins.",
	"ignore_eos":      "Whether to continue after the end-of-sequence token.",
	"context_length_exceeded_behavior": "What happens if the prompt and the request's max_tokens together exceed the " +
		"context length: truncate lowers max_tokens, and error rejects the request.",
	"response_format": "Format that constrains the completion. type is text; json_object, with an optional schema; " +
		"json_schema, whose properties are generated in the schema's order, and whose unsupported keywords are rejected; " +
		"or grammar (GBNF).",
	"logit_bias":  "Map of token IDs to values from -100 to 100, which are added to the tokens' logits.",
	"speculation": "Alias of prediction, which takes precedence.",
	"prediction": "Predicted output. Parts of the completion that match the prediction are generated faster. The " +
		"prediction never changes the completion.",
	"metadata": "Values for the client's own use: at most 16 texts, numbers and booleans, with keys of at most 64 " +
		"and texts of at most 512 characters, and together at most " + request.ByteSize(metering.MaxMetadataSize) +
		" as JSON. The usage record of the request contains them.",
	"reasoning_effort": "Reasoning effort of models that support it: low, medium, high, none, a boolean, or the maximum " +
		"number of reasoning tokens. Cannot be combined with thinking.",
	"reasoning_history": "Which reasoning of earlier messages the prompt contains.",
	"thinking": "Reasoning of models that support it: type is enabled or disabled, and budget_tokens the maximum number " +
		"of reasoning tokens. Cannot be combined with reasoning_effort.",
	"return_token_ids": "Whether to return the token IDs of the prompt and the completion.",
	"images": fmt.Sprintf("Images of the prompt, at most %d, as http or https URLs or data: URLs. The prompt must "+
		"be one text, with the placeholder %s where each image belongs.", engines.MaxImages, engines.ImagePlaceholder),
	"object":       "Type of the object.",
	"id":           "ID of the response.",
	"created":      "Time of creation, in Unix seconds.",
	"choices":      "Completions. Sample i of prompt p has the index p × n + i.",
	"usage":        "Numbers of tokens; null in all events of a stream but the last.",
	"perf_metrics": "Performance metrics by name, if requested, with times in seconds.",
	"index":        "Index, from 0.",
	"text":         "Generated text.",
	"finish_reason": "Why generation ended: stop, length (max_tokens), or tool_calls. It is null in all events of a " +
		"stream but the last one of each choice.",
	"prompt_tokens":         "Number of prompt tokens.",
	"completion_tokens":     "Number of tokens of all completions.",
	"total_tokens":          "Sum of prompt_tokens and completion_tokens.",
	"prompt_tokens_details": "Details of prompt_tokens.",
	"cached_tokens":         "Number of prompt tokens found in the prefix cache.",
	"owned_by":              "Account that owns the model.",
	"context_length":        "Context length of the model, in tokens.",
	"deployed": "Whether a request that names only this model reaches a deployment of the caller's account, or a " +
		"deployment that the operator has bound to an alias.",
	"InferenceModel.deployment": "For an alias, the deployment to which the operator has bound the alias.",

	// embeddings
	"EmbeddingBody.input": "Texts to embed: a text, a list of at most 2048 texts, a list of token IDs, or a list of " +
		"such lists. " +
		"Empty inputs are rejected.",
	"EmbeddingBody.dimensions": "Number of elements of each embedding. Default: the model's. An embedding with fewer " +
		"elements is the " +
		"beginning of the model's, scaled to length 1.",
	"encoding_format": "float, a list of numbers, or base64: the numbers as little-endian IEEE 754 of 32 bits. " +
		"Default: float.",
	"EmbeddingBody.user":           "ID of the end user, as for completions.",
	"EmbeddingList.data":           "Embeddings, one for each input.",
	"Embedding.index":              "Index of the input, from 0.",
	"Embedding.embedding":          "Elements of the embedding.",
	"EmbeddingList.usage":          "Numbers of tokens.",
	"EmbeddingUsage.prompt_tokens": "Number of tokens of all inputs.",
	"EmbeddingUsage.total_tokens":  "The same as prompt_tokens.",

	// chat completions and log-probabilities
	"messages": "Messages of the conversation, from which the model's chat template renders the prompt.",
	"tools":    "Functions that the model can call, if its chat template supports tools.",
	"tool_choice": "auto; none, which leaves the tools out of the prompt; required, which makes the model call a " +
		"tool; or the function to call, {\"type\": \"function\", \"function\": {\"name\": …}}.",
	"parallel_tool_calls":      "Whether a message can have several tool calls. Default: true.",
	"ChatMessage.content":      "Text of the message, or a list of parts: texts and, from the user, images.",
	"ChatMessage.name":         "Name of the author, which tells authors with the same role apart.",
	"ChatFunction.description": "Description of the function for the model.",
	"content":                  "Text of the message.",
	"ChatAnswer.content":       "Text of the message; null if the message consists of tool calls.",
	"ContentLogprobs.content":  "Log-probabilities of the tokens.",
	"reasoning_content":        "Reasoning of the model before the message.",
	"refusal":                  "Always null: refusals are part of content.",
	"ChatMessage.refusal":      "Refusal of an earlier response. The server ignores the field.",
	"tool_calls":               "Tool calls of the model.",
	"tool_call_id": "In a message with the role tool, the ID of the tool call whose result the " +
		"message is.",
	"function":                     "Function of the tool, or call of the function.",
	"ChatFunction.name":            "Name of the function.",
	"ChatFunctionCall.name":        "Name of the function.",
	"ChatFunctionDelta.name":       "Name of the function.",
	"ChatFunction.parameters":      "Parameters of the function, as a JSON Schema.",
	"ChatFunction.strict":          "Whether the arguments of calls follow the parameters.",
	"arguments":                    "Arguments of the call: a JSON object as text.",
	"ChatBody.n":                   "Number of completions.",
	"delta":                        "What the event adds to the message.",
	"ChatMessage.role":             "Author of the message: system, developer, user, assistant or tool.",
	"ChatAnswer.role":              "Author of the message: assistant.",
	"ChatDelta.role":               "Author of the message, in the first event of a choice.",
	"ChatChoice.message":           "Message of the assistant.",
	"ChatChoice.logprobs":          "Log-probabilities of the tokens; null if not requested.",
	"ChatChoiceDelta.logprobs":     "Log-probabilities of the tokens; null if not requested.",
	"ChatToolCall.id":              "ID of the call, for tool_call_id.",
	"ChatToolCallDelta.id":         "ID of the call, for tool_call_id.",
	"prompt_token_ids":             "Token IDs of the prompt, if requested.",
	"token_ids":                    "Token IDs of the completion, if requested.",
	"CompletionLogprobs.token_ids": "Token IDs.",
	"completion_tokens_details":    "Details of completion_tokens.",
	"reasoning_tokens":             "Number of reasoning tokens, which completion_tokens includes.",
	"CompletionLogprobs.tokens":    "Texts of the tokens; bytes:\\xHH… for a token that is not valid UTF-8 by itself.",
	"token_logprobs": "Log-probability of each token in the model's unfiltered distribution; null for the first token " +
		"of the prompt.",
	"CompletionLogprobs.top_logprobs": "Log-probabilities of the most likely tokens at each position, by text.",
	"TokenLogprob.top_logprobs":       "Most likely tokens at this position.",
	"text_offset":                     "Number of characters of the choice's text before the token.",
	"completion":                      "Completion with special tokens as text.",
	"completion_logprobs":             "Log-probabilities of the completion's tokens; null if not requested.",
	"completion_token_ids":            "Token IDs of the completion.",
	"grammar": "Grammar in GBNF that constrained the completion: that of response_format, or the one " +
		"that its JSON schema or the required tool calls compile to. Null without one, and above 32 KiB.",
	"RawOutput.images": "Always empty: engines that accept images return no raw_output.",
	"prompt_fragments": "Prompt with special tokens as text, in parts.",
	"bytes":            "Bytes of the token.",
	"logprob": "Log-probability in the model's unfiltered distribution; null for the first token of the " +
		"prompt.",
	"sampling_logprob": "Log-probability after penalties, temperature and filters; null for the first token of " +
		"the prompt.",
	"TokenChoice.token":       "Text of the token.",
	"TokenLogprob.token":      "Text of the token.",
	"token_id":                "Token ID.",
	"InferenceModelList.data": "Models.",

	"InferenceModel.id":          "Name of the model, as requests give it.",
	"Choice.raw_output":          rawOutputText,
	"ChatChoice.raw_output":      rawOutputText,
	"ChatChoiceDelta.raw_output": rawOutputText,
	"ChatToolCallDelta.type":     "Type of the call: function.",
	"ChatToolCall.type":          "Type of the call: function.",
	"ChatTool.type":              "Type of the tool: function.",
}
