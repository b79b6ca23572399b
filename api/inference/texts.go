package inference

import (
	"fmt"

	"anneal/api/request"
	"anneal/engines"
	"anneal/eventlog/metering"
)

const rawOutputText = "Prompt and completion with special tokens as text; present if the request has raw_output."

// fieldTexts describes the fields of this package's wire types in the API reference.
var fieldTexts = map[string]string{
	// fields of completions
	"model": "Name of a model (accounts/ACCOUNT/models/ID), of a deployment (accounts/ACCOUNT/deployments/ID), or of " +
		"both with # between them.",
	"prompt": "Prompt to complete: a text, a list of texts, a list of token IDs, or a list of lists of token IDs.",
	"user": "ID of the end user, which the usage record of the request contains. If the deployment has " +
		"enableSessionAffinity, requests of the same end user go to the same replica.",
	"prompt_cache_isolation_key": "Scope of the prefix cache: requests with different keys share no cached prompts. " +
		"Requests with the same isolation key go to the same replica, unless the deployment has enableSessionAffinity " +
		"and the request has a user: then requests of the same user do.",
	"raw_output":               "Whether the response contains raw_output.",
	"perf_metrics_in_response": "Whether the body of the response also has the performance metrics that its headers have.",
	"stream":                   "Whether the response is a stream of server-sent events.",
	"stream_options": "Options of the stream. With include_usage, the last event of a chat completion " +
		"stream has the usage and no choices, and in all other events usage is null. Other streams always have the usage " +
		"in the last event.",
	"n": "Number of completions to generate for each prompt.",
	"stop": "Up to 4 stop sequences. Generation ends before the first stop sequence, which the completion does not " +
		"contain.",
	"ChatBody.temperature":       "Sampling temperature; 0 is greedy decoding.",
	"CompletionBody.temperature": "Sampling temperature; 0 is greedy decoding.",
	"max_tokens": "Maximum number of tokens of a completion. Default: 2048, or fewer if the context length leaves " +
		"fewer after the prompt.",
	"max_completion_tokens": "Same as max_tokens. A request can have only one of the two.",
	"top_k":                 "Number of most likely tokens to sample from; 0 disables the filter.",
	"top_p": "Nucleus sampling: the model samples from the most likely tokens whose probabilities add " +
		"up to top_p.",
	"min_p": "The model samples from the tokens whose probability is at least min_p times that of the " +
		"most likely token; 0 disables the filter.",
	"typical_p": "Locally typical sampling: the model samples from the tokens whose information content " +
		"is closest to the entropy and whose probabilities add up to typical_p; 1 disables the filter.",
	"frequency_penalty": "Penalty that is subtracted from a token's logit for each time that the token was generated.",
	"presence_penalty":  "Penalty that is subtracted from a token's logit once if the token was generated.",
	"repetition_penalty": "Penalty for tokens that occur in the prompt or the completion: their positive logits " +
		"are divided by it, and their negative logits are multiplied by it. 1 disables the penalty.",
	"mirostat_target": "Target perplexity of mirostat 2.0 sampling, which replaces top_k, top_p, min_p and " +
		"typical_p.",
	"mirostat_lr": "Learning rate of mirostat sampling. Default: 0.1.",
	"seed":        "Seed of the random sampling: the same request with the same seed gets the same completion.",
	"logprobs": "Whether the response has the log-probability of each token. If it is a number, the " +
		"response also has that many of the most likely tokens at each position.",
	"Choice.logprobs": "Log-probabilities of the tokens; null unless the request has logprobs.",
	"top_logprobs":    "Number of most likely tokens to return at the position of each token. Requires logprobs.",
	"echo":            "Whether the text of each choice begins with the prompt.",
	"echo_last":       "Number of tokens at the end of the prompt with which the text of each choice begins.",
	"ignore_eos":      "Whether generation continues after the end-of-sequence token.",
	"context_length_exceeded_behavior": "What happens if the prompt and the request's max_tokens together exceed the " +
		"context length: truncate lowers max_tokens, and error rejects the request.",
	"response_format": "Format that constrains the completion. type is text; json_object, with an optional schema; " +
		"json_schema, with a schema: properties are generated in its order, and unsupported keywords are rejected; or " +
		"grammar, with a grammar in GBNF.",
	"logit_bias":  "Map of token IDs to values from -100 to 100, which are added to the tokens' logits.",
	"speculation": "Same as prediction. If a request has both, prediction takes precedence.",
	"prediction": "Text that the completion probably repeats in large part, such as a file to edit. Matching text is " +
		"generated faster. The prediction never changes the completion.",
	"metadata": "Key-value pairs of the client for the usage record: at most 16 texts, numbers and booleans, with " +
		"keys of at most 64 and texts of at most 512 characters. Together they may have at most " +
		"" + request.ByteSize(metering.MaxMetadataSize) +
		" as JSON text.",
	"reasoning_effort": "Reasoning effort of models that support reasoning: low, medium, high, none, a boolean, or " +
		"the maximum number of reasoning tokens. It cannot be combined with thinking.",
	"reasoning_history": "Which reasoning_content of earlier messages the prompt contains: all (preserved, the " +
		"default), only that after the last user message (interleaved), or none (disabled).",
	"thinking": "Reasoning of models that support it: type is enabled or disabled, and budget_tokens is the " +
		"maximum number of reasoning tokens. It cannot be combined with reasoning_effort.",
	"return_token_ids": "Whether the response has the token IDs of the prompt and the completion.",
	"images": fmt.Sprintf("Images of the prompt, at most %d, as http or https URLs or data: URLs. The prompt must "+
		"be one text, with the placeholder %s where each image belongs.", engines.MaxImages, engines.ImagePlaceholder),
	"object":  "Type of the JSON object, such as text_completion.",
	"id":      "ID of the response.",
	"created": "Time at which the object was created, in Unix seconds.",
	"choices": "Completions. Completion i of prompt p has the index p × n + i, counted from 0.",
	"usage": "Numbers of prompt and completion tokens; null in all events of a stream except the " +
		"last.",
	"perf_metrics": "Performance metrics by name, with times in seconds; present if the request has " +
		"perf_metrics_in_response.",
	"index": "Index in the list, from 0.",
	"text":  "Generated text.",
	"finish_reason": "Why generation ended: stop, length (max_tokens), or tool_calls. In a stream it is " +
		"null in all events except the last one of each choice.",
	"prompt_tokens":         "Number of prompt tokens.",
	"completion_tokens":     "Number of tokens of all completions.",
	"total_tokens":          "Sum of prompt_tokens and completion_tokens.",
	"prompt_tokens_details": "Breakdown of prompt_tokens: how many were found in the prefix cache.",
	"cached_tokens":         "Number of prompt tokens found in the prefix cache.",
	"owned_by":              "Account that owns the model.",
	"context_length":        "Context length of the model, in tokens.",
	"deployed": "Whether a request that names only this model reaches a deployment: one of the " +
		"caller's account, or one that the operator has bound to an alias.",
	"InferenceModel.deployment": "Deployment to which the operator has bound the alias; present if the entry is an alias.",

	// fields of embeddings
	"EmbeddingBody.input": "Inputs to embed: a text, a list of at most 2048 texts, a list of token IDs, or a " +
		"list of lists of token IDs. Empty inputs are rejected.",
	"EmbeddingBody.dimensions": "Number of elements of each embedding. By default, it is that of the model's vectors. " +
		"If it is smaller, the embedding is the beginning of the model's vector, scaled to length 1.",
	"encoding_format": "Encoding of each embedding: float, a list of numbers; or base64, the numbers as little-endian " +
		"32-bit IEEE 754. " +
		"Default: float.",
	"EmbeddingBody.user":           "ID of the end user, as in completions.",
	"EmbeddingList.data":           "Embeddings, one for each input.",
	"Embedding.index":              "Index of the input, from 0.",
	"Embedding.embedding":          "Embedding of the input: a list of numbers, or their Base64 encoding.",
	"EmbeddingList.usage":          "Number of tokens of the inputs.",
	"EmbeddingUsage.prompt_tokens": "Number of tokens of all inputs.",
	"EmbeddingUsage.total_tokens":  "Same as prompt_tokens.",

	// fields of chat completions and log-probabilities
	"messages": "Messages of the conversation, from which the model's chat template renders the prompt.",
	"tools":    "Functions that the model can call, if its chat template supports tools.",
	"tool_choice": "Which tool the model calls: auto; none, which leaves the tools out of the prompt; " +
		"required, which makes the model call a tool; or the function to call, {\"type\": \"function\", \"function\": " +
		"{\"name\": …}}.",
	"parallel_tool_calls": "Whether a message can have several tool calls. Default: true.",
	"ChatMessage.content": "Content of the message: a text, or a list of text parts and, in messages with the " +
		"role user, image parts.",
	"ChatMessage.name":         "Name of the author, to distinguish authors with the same role.",
	"ChatFunction.description": "Description of the function, which the model reads.",
	"content":                  "Text that the event adds to the message.",
	"ChatAnswer.content":       "Text of the message; null if the message consists of tool calls.",
	"ContentLogprobs.content":  "Log-probabilities of the tokens.",
	"reasoning_content":        "Reasoning that the model generated before the message.",
	"refusal":                  "Always null, because the field content contains refusals too.",
	"ChatMessage.refusal":      "Refusal of an earlier response. The server ignores the field.",
	"tool_calls":               "Tool calls that the model generated.",
	"tool_call_id": "In a message with the role tool, the ID of the tool call whose result the " +
		"message is.",
	"function":                     "Function of the tool, or name and arguments of the function call.",
	"ChatFunction.name":            "Name of the function.",
	"ChatFunctionCall.name":        "Name of the function.",
	"ChatFunctionDelta.name":       "Name of the function.",
	"ChatFunction.parameters":      "Parameters of the function, as a JSON Schema.",
	"ChatFunction.strict":          "Whether the arguments of calls must follow the schema in parameters.",
	"arguments":                    "Arguments of the function call: the text of a JSON object.",
	"ChatBody.n":                   "Number of completions to generate.",
	"delta":                        "What the event adds to the assistant's message.",
	"ChatMessage.role":             "Author of the message: system, developer, user, assistant or tool.",
	"ChatAnswer.role":              "Author of the message, always assistant.",
	"ChatDelta.role":               "Author of the message, assistant; only in the first event of a choice.",
	"ChatChoice.message":           "Message of the assistant.",
	"ChatChoice.logprobs":          "Log-probabilities of the tokens; null unless the request has logprobs.",
	"ChatChoiceDelta.logprobs":     "Log-probabilities of the tokens; null unless the request has logprobs.",
	"ChatToolCall.id":              "ID of the tool call. The message with its result repeats it in tool_call_id.",
	"ChatToolCallDelta.id":         "ID of the tool call. The message with its result repeats it in tool_call_id.",
	"prompt_token_ids":             "Token IDs of the prompt; present if the request has return_token_ids.",
	"token_ids":                    "Token IDs of the completion; present if the request has return_token_ids.",
	"CompletionLogprobs.token_ids": "IDs of the tokens in the vocabulary of the model.",
	"completion_tokens_details":    "Breakdown of completion_tokens: how many are reasoning.",
	"reasoning_tokens":             "Number of reasoning tokens; completion_tokens includes them.",
	"CompletionLogprobs.tokens": "Texts of the tokens. A token that is not valid UTF-8 by itself is written " +
		"bytes:\\xHH…, with its bytes in hexadecimal digits.",
	"token_logprobs": "Log-probability of each token in the model's distribution before any filter; " +
		"null for the first token of the prompt.",
	"CompletionLogprobs.top_logprobs": "Log-probabilities of the most likely tokens at each position, by the text of " +
		"the token.",
	"TokenLogprob.top_logprobs": "Most likely tokens at the position of this token.",
	"text_offset":               "Number of characters of the choice's text before the token.",
	"completion":                "Completion with special tokens as text.",
	"completion_logprobs": "Log-probabilities of the completion's tokens; null unless the request has " +
		"logprobs.",
	"completion_token_ids": "Token IDs of the completion.",
	"grammar": "Grammar (GBNF) that constrained the completion: the one in response_format, " +
		"or the one into which the server compiled a JSON schema or the required tool calls. Null if there was none, or " +
		"if it has more than 32 KiB.",
	"RawOutput.images": "Always empty, because engines that accept images return no raw_output.",
	"prompt_fragments": "Parts of the prompt, with special tokens as text.",
	"bytes":            "Bytes of the token.",
	"logprob": "Log-probability in the model's distribution before any filter; null for the " +
		"first token of the prompt.",
	"sampling_logprob": "Log-probability in the distribution after penalties, temperature and filters; " +
		"null for the first token of the prompt.",
	"TokenChoice.token":       "Text of the token.",
	"TokenLogprob.token":      "Text of the token.",
	"token_id":                "ID of the token in the vocabulary of the model.",
	"InferenceModelList.data": "Models that inference requests can name.",

	"InferenceModel.id":          "Name by which inference requests refer to the model.",
	"Choice.raw_output":          rawOutputText,
	"ChatChoice.raw_output":      rawOutputText,
	"ChatChoiceDelta.raw_output": rawOutputText,
	"ChatToolCallDelta.type":     "Type of the tool call, always function.",
	"ChatToolCall.type":          "Type of the tool call, always function.",
	"ChatTool.type":              "Type of the tool, always function.",
}
