package inference

// CompletionBody is the body of a completion request. Field names are in snake_case; the server
// accepts lowerCamelCase too.
type CompletionBody struct {
	// a text, a list of texts, a list of token IDs, or a list of lists of token IDs
	Prompt   any      `json:"prompt"`
	Echo     bool     `json:"echo,omitempty"`
	EchoLast int      `json:"echo_last,omitempty"`
	Images   []string `json:"images,omitempty"`
	GenerationBody
}

// GenerationBody has the fields that completion and chat completion requests have in common.
type GenerationBody struct {
	Model             string         `json:"model"`
	User              string         `json:"user,omitempty"`
	CacheIsolation    string         `json:"prompt_cache_isolation_key,omitempty"`
	RawOutput         bool           `json:"raw_output,omitempty"`
	PerfMetrics       bool           `json:"perf_metrics_in_response,omitempty"`
	Stream            bool           `json:"stream,omitempty"`
	StreamOptions     map[string]any `json:"stream_options,omitempty"`
	N                 int            `json:"n,omitempty"`
	Stop              any            `json:"stop,omitempty"` // a text, or a list of texts
	MaxTokens         int            `json:"max_tokens,omitempty"`
	MaxCompletion     int            `json:"max_completion_tokens,omitempty"`
	Temperature       float64        `json:"temperature,omitempty"`
	TopK              int            `json:"top_k,omitempty"`
	TopP              float64        `json:"top_p,omitempty"`
	MinP              float64        `json:"min_p,omitempty"`
	TypicalP          float64        `json:"typical_p,omitempty"`
	FrequencyPenalty  float64        `json:"frequency_penalty,omitempty"`
	PresencePenalty   float64        `json:"presence_penalty,omitempty"`
	RepetitionPenalty float64        `json:"repetition_penalty,omitempty"`
	MirostatTarget    float64        `json:"mirostat_target,omitempty"`
	MirostatLR        float64        `json:"mirostat_lr,omitempty"`
	Seed              int64          `json:"seed,omitempty"`
	// a boolean, or the number of alternatives to return for each token
	Logprobs         any            `json:"logprobs,omitempty"`
	TopLogprobs      int            `json:"top_logprobs,omitempty"`
	IgnoreEOS        bool           `json:"ignore_eos,omitempty"`
	WhenTooLong      string         `json:"context_length_exceeded_behavior,omitempty"`
	ResponseFormat   map[string]any `json:"response_format,omitempty"`
	LogitBias        map[string]any `json:"logit_bias,omitempty"`
	Speculation      any            `json:"speculation,omitempty"`
	Prediction       any            `json:"prediction,omitempty"`
	Metadata         map[string]any `json:"metadata,omitempty"`
	ReasoningEffort  any            `json:"reasoning_effort,omitempty"`
	ReasoningHistory string         `json:"reasoning_history,omitempty"`
	Thinking         map[string]any `json:"thinking,omitempty"`
	ReturnTokenIDs   bool           `json:"return_token_ids,omitempty"`
}
