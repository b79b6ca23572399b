package inference

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// Limits and default values of inference requests.
const (
	maxPrompts        = 128
	maxChoices        = 512 // maximum of the number of prompts times n
	maxStops          = 4
	maxStopSize       = 512 // maximum size of a stop sequence, in bytes
	maxUserSize       = 512
	maxIsolationKey   = 512
	maxModelName      = 512
	maxOutputTokens   = 1 << 20
	maxBiases         = 1024
	maxPerplexity     = 1e6
	minThinkingBudget = 1024 // minimum of thinking.budget_tokens, in tokens
	// tokens of a completion without max_tokens, or fewer if the context length leaves fewer; with
	// OpenAI's default of 16, most completions would be truncated
	DefaultMaxTokens = 2048
)

// A generationRequest is a valid request for completions, a chat completion, a response or
// embeddings. Absent fields have their default values.
type generationRequest struct {
	model          string
	prompts        []prompt
	user           string
	metadata       map[string]any // field metadata, which the usage record repeats
	isolation      string
	n              int
	stream         bool
	usageChunk     bool // the stream ends with the usage (stream_options.include_usage)
	metricsInBody  bool // the body has performance metrics (perf_metrics_in_response)
	rejectOverflow bool // context_length_exceeded_behavior is "error", and the request sets max_tokens
	singleToolCall bool // the model makes at most one tool call (parallel_tool_calls is false)
	// name of the field from which settings.Reasoning was read: reasoning_effort or thinking
	reasoningField string
	legacyLogprobs bool // logprobs is a number: the alternatives of a token include the sampled token
	seed           *uint64
	settings       engines.CompletionRequest // request to the engine, except prompt, chat and seed
	response       *responseSettings         // settings of a request to the Responses API; nil for other requests
	// number of elements of each embedding; 0 means as many as the model's vector has
	dimensions int
	unknown    []string
	images     []*requestImage
	operation  string         // ID of the operation in inert.Table
	given      map[string]any // fields of the body as they were sent
}

// A requestReader validates the body of a request, and returns an error with all violations. value
// is the parsed JSON of the body, and data its text. If strict is true, unknown fields are
// violations.
type requestReader func(value any, data []byte, strict bool) (*generationRequest, error)

// readRequest reads the body of the request, and validates it with read.
func (c *call) readRequest(read requestReader) (*generationRequest, error) {
	value, data, err := c.readBody()
	if err != nil {
		return nil, err
	}
	q, err := read(value, data, c.Strict)
	c.Conn.ReleaseBody()
	return q, err
}

// readBody returns the parsed JSON of the request's body, and its text. It returns an error if the
// caller's account is suspended.
func (c *call) readBody() (value any, data []byte, err error) {
	if err := c.RequireActive(c.Account); err != nil {
		return nil, nil, err
	}
	if data, err = c.ReadBody(); err != nil {
		return nil, nil, err
	}
	if value, err = wire.Parse(data); err != nil {
		return nil, nil, err
	}
	if object, ok := value.(map[string]any); ok && c.Direct != "" && (object["model"] == nil || object["model"] == "") {
		object["model"] = string(c.Direct) // the request's host name identifies the deployment
	}
	return value, data, nil
}

// A prompt is a text, a list of token IDs, or a conversation.
type prompt struct {
	at     string // path of the prompt's field in the request, such as prompt, prompt[2] or messages
	text   string
	tokens []int         // token IDs of the prompt; nil if text or chat is used
	chat   *engines.Chat // conversation; nil if text or tokens is used
}

// requestFields maps those fields of engines.CompletionRequest that have another name in requests
// to that name. The names of the other fields are their Go names in snake_case.
var requestFields = map[string]string{"mirostatRate": "mirostat_lr", "format": "response_format",
	"cacheScope": "prompt_cache_isolation_key"}

// responseNames maps fields of engines.CompletionRequest to their names in the Responses API.
var responseNames = map[string]string{"format": "text.format", "maxTokens": "max_output_tokens",
	"cacheScope": "prompt_cache_key"}

// translateError replaces the engine's field names by those of the request in err, if err is an
// InvalidArgument error about the prompt p. It returns other errors unchanged.
func (q *generationRequest) translateError(p prompt, err error) error {
	var invalid *domain.Error
	if !errors.As(err, &invalid) || invalid.Code != domain.InvalidArgument {
		return err
	}
	violations := invalid.Violations
	if len(violations) == 0 {
		field, rule, ok := strings.Cut(invalid.Message, ": ")
		if !ok || strings.Contains(field, " ") {
			return err
		}
		violations = []domain.Violation{{Field: field, Description: rule}}
	}
	var v domain.Violations
	for _, one := range violations {
		if at := q.imagePath(p, one.Field); at != "" {
			v.Add(at, "%s", one.Description)
			continue
		}
		name, rest, _ := strings.Cut(one.Field, "[")
		if rest != "" {
			rest = "[" + rest
		}
		switch other, ok := requestFields[name]; {
		case q.response != nil && responseNames[name] != "":
			name = responseNames[name]
		case ok:
			name = other
		case name == "reasoning":
			name = q.reasoningField
		case name == "messages":
			name = p.at
		case name == "prompt" || name == "promptTokens" || name == "input":
			name = p.at
		default:
			name = wire.Snake(name)
		}
		v.Add(name+rest, "%s", one.Description)
	}
	return v.Err()
}

// sharedFields lists the fields that completion and chat completion requests have in common.
var sharedFields = []string{"model", "user", "prompt_cache_isolation_key", "raw_output", "perf_metrics_in_response",
	"stream", "stream_options", "n", "stop", "max_tokens", "max_completion_tokens", "temperature", "top_k", "top_p",
	"min_p",
	"typical_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "mirostat_target", "mirostat_lr",
	"seed", "logprobs", "top_logprobs", "ignore_eos", "context_length_exceeded_behavior", "response_format", "logit_bias",
	"speculation", "prediction", "metadata", "reasoning_effort", "reasoning_history", "thinking", "return_token_ids"}

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

// readShared reads the sharedFields, except model, into q. It needs q.prompts, because their number
// limits n.
func (f *fieldReader) readShared(q *generationRequest) {
	q.user, q.isolation = f.text("user", maxUserSize), f.text("prompt_cache_isolation_key", maxIsolationKey)
	q.n = int(f.integer("n", 1, 128, 1))
	choices := q.n * len(q.prompts)
	f.require(choices <= maxChoices, "n",
		"the number of prompts × n must be at most %d, not %d: lower n, or send fewer prompts", maxChoices, choices)
	q.stream, q.metricsInBody = f.boolean("stream"), f.boolean("perf_metrics_in_response")
	options := f.nested("stream_options", f.object("stream_options"), set("include_usage"))
	q.usageChunk = options.boolean("include_usage")
	q.rejectOverflow = f.enum("context_length_exceeded_behavior", "truncate", "error") == "error" &&
		// if max_tokens is absent, its default is lowered to what the context length leaves
		(f.given("max_tokens") || f.given("max_completion_tokens"))
	q.metadata = readMetadata(f)
	if f.given("seed") {
		seed := uint64(f.integer("seed", math.MinInt64, math.MaxInt64, 0))
		q.seed = &seed
	}
	s := &q.settings
	s.MaxTokens, s.Stop, s.IgnoreEOS = f.maxTokens(), f.stops(), f.boolean("ignore_eos")
	f.readSampling(s)
	s.ReturnTokenIDs, s.RawOutput = f.boolean("return_token_ids"), f.boolean("raw_output")
	f.readLogprobs(q)
	s.Format = f.format()
	s.Reasoning, q.reasoningField = f.reasoning(), "reasoning_effort"
	if f.given("thinking") {
		q.reasoningField = "thinking"
	}
	s.Speculation, s.Prediction = f.text("speculation", 64<<10), f.prediction()
}

// readMetadata returns the field metadata, whose values may be texts, numbers or booleans.
func readMetadata(f *fieldReader) map[string]any {
	object := f.object("metadata")
	f.require(len(object) <= metering.MaxMetadata, "metadata", "must have at most %d entries, not %d: send fewer",
		metering.MaxMetadata, len(object))
	if size, err := metering.MetadataSize(object); err != nil || size > metering.MaxMetadataSize {
		f.add("metadata", "must have at most %s as JSON text, not %d bytes: shorten the values, or store them elsewhere and "+
			"send an ID of them in metadata", request.ByteSize(metering.MaxMetadataSize), size)
	}
	for i, key := range wire.SortedKeys(object) {
		if i >= metering.MaxMetadata {
			break
		}
		f.require(key != "" && utf8.RuneCountInString(key) <= metering.MaxMetadataKey, "metadata",
			"has the key %s: keys must have 1 to %d characters", wire.Quote(key), metering.MaxMetadataKey)
		at := wire.Join("metadata", key)
		switch value := object[key].(type) {
		case bool:
		case json.Number:
			metadataValue(f, at, value.String())
		case string:
			metadataValue(f, at, value)
		default:
			f.add(at, "must be text, a number, or true or false, not %s", wire.KindName(value))
		}
	}
	return object
}

// metadataValue adds a violation if a value of metadata is too long.
func metadataValue(f *fieldReader, name, text string) {
	n := utf8.RuneCountInString(text)
	f.require(n <= metering.MaxMetadataValue, name, "must have at most %d characters, not %d: shorten it",
		metering.MaxMetadataValue, n)
}

// readSampling reads the sampling parameters into s. Engines take 0 as unset; where 0 is the
// strictest value of a parameter, readSampling sets a small positive number instead.
func (f *fieldReader) readSampling(s *engines.CompletionRequest) {
	orSmallest := func(n, smallest float64) float64 {
		if n == 0 {
			return smallest
		}
		return n
	}
	s.Temperature, s.TopK = f.number("temperature", 0, 2, 1), int(f.integer("top_k", 0, 100, 0))
	s.TopP = orSmallest(f.number("top_p", 0, 1, 1), math.SmallestNonzeroFloat32)
	s.MinP = f.number("min_p", 0, 1, 0)
	s.TypicalP = orSmallest(f.number("typical_p", 0, 1, 1), math.SmallestNonzeroFloat32)
	s.FrequencyPenalty, s.PresencePenalty = f.number("frequency_penalty", -2, 2, 0), f.number("presence_penalty", -2, 2, 0)
	s.RepetitionPenalty = orSmallest(f.number("repetition_penalty", 0, 2, 1), 0.001)
	if f.given("mirostat_target") {
		s.MirostatTarget = f.number("mirostat_target", 1, maxPerplexity, 1)
	}
	if rate := f.number("mirostat_lr", 0, 1, 0.1); s.MirostatTarget > 0 {
		s.MirostatRate = orSmallest(rate, math.SmallestNonzeroFloat32)
	}
	s.LogitBias = f.biases()
}

func (f *fieldReader) biases() map[int]float64 {
	const rule = "must map token IDs, such as \"50256\", to numbers from -100 to 100"
	object := f.object("logit_bias")
	f.require(len(object) <= maxBiases, "logit_bias", "must have at most %d entries, not %d: send fewer", maxBiases,
		len(object))
	biases := map[int]float64{}
	for _, key := range wire.SortedKeys(object) {
		token, err := strconv.ParseUint(key, 10, 31)
		number, ok := object[key].(json.Number)
		bias, notNumber := number.Float64()
		if err != nil || !ok || notNumber != nil || math.Abs(bias) > 100 {
			f.add("logit_bias", rule)
			return nil
		}
		biases[int(token)] = bias
	}
	if len(biases) == 0 {
		return nil
	}
	return biases
}

// readLogprobs reads the fields logprobs and top_logprobs. logprobs is a boolean or, as in OpenAI's
// completions, the number of alternatives.
func (f *fieldReader) readLogprobs(q *generationRequest) {
	s, top := &q.settings, f.integer("top_logprobs", 0, 5, -1)
	switch v := f.values["logprobs"].(type) {
	case nil:
	case bool:
		s.Logprobs = v
	case json.Number:
		s.Logprobs, q.legacyLogprobs = true, true
		s.TopLogprobs = int(f.integer("logprobs", 0, 5, 0))
	default:
		f.add("logprobs", "must be true, false, or a whole number from 0 to 5")
		return
	}
	f.require(top <= 0 || s.Logprobs, "top_logprobs", "requires logprobs: set it to true")
	if top >= 0 && s.Logprobs {
		s.TopLogprobs = int(top)
	}
}

func (f *fieldReader) maxTokens() int {
	f.require(!f.given("max_tokens") || !f.given("max_completion_tokens"), "max_tokens",
		"give either max_tokens or max_completion_tokens, not both")
	if f.given("max_completion_tokens") {
		return int(f.integer("max_completion_tokens", 0, maxOutputTokens, DefaultMaxTokens))
	}
	return int(f.integer("max_tokens", 0, maxOutputTokens, DefaultMaxTokens))
}

func (f *fieldReader) stops() []string {
	value, given := f.values["stop"]
	if !given {
		return nil
	}
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	f.require(len(list) <= maxStops, "stop", "must have at most %d sequences, not %d: send fewer", maxStops, len(list))
	var stops []string
	for _, one := range list {
		text, ok := one.(string)
		if !ok || text == "" || len(text) > maxStopSize {
			f.add("stop", "must be a text of 1 to %d bytes, or a list of such texts, not %s", maxStopSize, sizeOf(one))
			return nil
		}
		stops = append(stops, text)
	}
	return stops
}

// sizeOf describes a value for a violation: the length of a text in bytes, or the kind of any other
// JSON value.
func sizeOf(value any) string {
	if text, ok := value.(string); ok {
		return fmt.Sprintf("text of %d bytes", len(text))
	}
	return wire.KindName(value)
}

// format returns the field response_format; nil if it is absent. The schema is a JSON object or its
// text. It may be in schema, in json_schema or, as clients of OpenAI send it, in
// json_schema.schema. Some clients send a schema with the type json_object.
func (f *fieldReader) format() *engines.ResponseFormat {
	if f.object("response_format") == nil {
		return nil
	}
	in := f.nested("response_format", f.object("response_format"), set("type", "schema", "json_schema", "grammar"))
	one := &engines.ResponseFormat{Type: in.enum("type", "text", engines.FormatJSON, engines.FormatSchema,
		engines.FormatGrammar)}
	in.require(in.given("type"), "type", "is required: text, json_object, json_schema or grammar")
	one.Grammar = in.text("grammar", 256<<10)
	for _, name := range []string{"schema", "json_schema"} {
		if in.given(name) {
			one.Schema = in.schema(name)
		}
	}
	schema := in.given("schema") || in.given("json_schema")
	in.require(!in.given("schema") || !in.given("json_schema"), "schema",
		"cannot be combined with json_schema: give one of them")
	in.require(one.Type != engines.FormatSchema || schema, "json_schema", "is required: a JSON Schema")
	in.require(!schema || one.Type != "text" && one.Type != engines.FormatGrammar, "schema",
		"requires the type json_schema or json_object, not %s: leave the schema out, or set type to json_schema", one.Type)
	in.require(one.Type != engines.FormatGrammar || one.Grammar != "", "grammar", "is required: a grammar in GBNF")
	in.require(!in.given("grammar") || one.Type == engines.FormatGrammar, "grammar",
		"requires the type grammar: set type to grammar, or leave the grammar out")
	// a schema constrains the text even if the type is json_object
	if schema && one.Type == engines.FormatJSON {
		one.Type = engines.FormatSchema
	}
	if one.Type == "text" {
		return nil
	}
	return one
}

func (f *fieldReader) schema(name string) json.RawMessage {
	value := f.values[name]
	if text, ok := value.(string); ok {
		parsed, err := wire.Parse([]byte(text))
		f.require(err == nil, name, "must be a JSON object, or its JSON text")
		value = parsed
	}
	object, ok := value.(map[string]any)
	if inner, wrapped := object["schema"].(map[string]any); wrapped && object["type"] == nil {
		object = inner
	}
	f.require(ok || value == nil, name, "must be a JSON object, or its JSON text")
	data, err := json.Marshal(object)
	if err != nil || !ok {
		return nil // a violation of this field was added above
	}
	return data
}

// reasoning returns the settings in the fields reasoning_effort, thinking and reasoning_history;
// nil if all are absent.
func (f *fieldReader) reasoning() *engines.Reasoning {
	r := engines.Reasoning{History: f.enum("reasoning_history", "disabled", "interleaved", "preserved")}
	f.require(!f.given("reasoning_effort") || !f.given("thinking"), "thinking",
		"give either reasoning_effort or thinking, not both")
	rule := fmt.Sprintf("must be low, medium, high, none, true, false, or a whole number of tokens from 1 to %d",
		maxOutputTokens)
	efforts := []string{"none", "low", "medium", "high"}
	switch v := f.values["reasoning_effort"].(type) {
	case nil:
	case bool:
		r.Effort = map[bool]string{true: "medium", false: "none"}[v]
	case json.Number:
		n, ok := wire.Whole(v)
		f.require(ok && n > 0 && n <= maxOutputTokens, "reasoning_effort", "%s", rule)
		r.Effort, r.Budget = "medium", int(n)
	case string:
		f.require(slices.Contains(efforts, v), "reasoning_effort", "%s", rule)
		r.Effort = v
	default:
		f.add("reasoning_effort", "%s", rule)
	}
	if f.object("thinking") != nil {
		in := f.nested("thinking", f.object("thinking"), set("type", "budget_tokens"))
		kind := in.enum("type", "enabled", "disabled")
		in.require(in.given("type"), "type", "is required: enabled or disabled")
		r.Budget = int(in.integer("budget_tokens", minThinkingBudget, maxOutputTokens, 0))
		r.Effort = map[string]string{"enabled": "medium", "disabled": "none"}[kind]
	}
	if r == (engines.Reasoning{}) {
		return nil
	}
	return &r
}

// prediction returns the text of the field prediction, which is a text or an object with content.
func (f *fieldReader) prediction() string {
	if text, ok := f.values["prediction"].(string); ok {
		return text
	}
	if f.object("prediction") == nil {
		return ""
	}
	in := f.nested("prediction", f.object("prediction"), set("type", "content"))
	in.enum("type", "content")
	return in.content("content")
}
