package api

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

// Limits and defaults of inference requests (spec/interface.md 2.11 and 8).
const (
	maxPrompts       = 128
	maxChoices       = 512 // prompts times n
	maxStops         = 4
	maxStopSize      = 512 // bytes of one stop sequence
	maxUserSize      = 512
	maxOutputTokens  = 1 << 20
	maxBiases        = 1024
	maxPerplexity    = 1e6
	leastBudget      = 1024 // tokens of thinking
	defaultMaxTokens = 2048 // bounded by the window; 16, as older services have it, cuts nearly every answer short
)

// An inferenceRequest is what a completion or a chat completion asks for,
// checked and with its defaults.
type inferenceRequest struct {
	model      string
	prompts    []prompt
	user       string
	isolation  string
	n          int
	stream     bool
	closeUsage bool // stream_options.include_usage
	perf       bool // metrics in the body too
	strictFit  bool // context_length_exceeded_behavior "error", of a max_tokens that was asked for
	oneCall    bool // parallel_tool_calls false
	legacyTop  bool // logprobs was a number: the sampled token is among the alternatives
	seed       *uint64
	settings   engines.CompletionRequest // all but prompt, chat and seed
	unknown    []string
}

// question reads what a model is asked, by the rules of its operation, unless
// the account is suspended.
func (c *call) question(read func(value any, data []byte, strict bool) (*inferenceRequest, error)) (*inferenceRequest, error) {
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	data, err := c.Conn.ReadBody(c.Request, c.server.Limits.Body)
	if err != nil {
		return nil, err
	}
	value, err := wire.Parse(data)
	if err != nil {
		return nil, err
	}
	if object, ok := value.(map[string]any); ok && c.Direct != "" && (object["model"] == nil || object["model"] == "") {
		object["model"] = string(c.Direct) // the host name says which
	}
	q, err := read(value, data, c.server.Strict)
	c.Conn.ReleaseBody()
	return q, err
}

// A prompt is one of a request: text, tokens or a conversation.
type prompt struct {
	at     string // its path in the request: prompt, prompt[2], messages
	text   string
	tokens []int         // instead of text when not nil
	chat   *engines.Chat // instead of either when not nil
}

// requestNames are how fields of an engine's request are called in requests,
// where that is another word than its own in snake_case.
var requestNames = map[string]string{"mirostatRate": "mirostat_lr", "format": "response_format", "reasoning": "reasoning_effort", "cacheScope": "prompt_cache_isolation_key"}

// asWritten puts an engine's refusal into the words of the request; other
// errors stay as they are.
func (p prompt) asWritten(err error) error {
	var fault *domain.Error
	if !errors.As(err, &fault) || fault.Code != domain.InvalidArgument {
		return err
	}
	said := fault.Violations
	if len(said) == 0 {
		field, rule, ok := strings.Cut(fault.Message, ": ")
		if !ok || strings.Contains(field, " ") {
			return err
		}
		said = []domain.Violation{{Field: field, Description: rule}}
	}
	var v domain.Violations
	for _, one := range said {
		name, rest, _ := strings.Cut(one.Field, "[")
		if rest != "" {
			rest = "[" + rest
		}
		switch other, ok := requestNames[name]; {
		case ok:
			name = other
		case name == "prompt" || name == "promptTokens":
			name = p.at
		default:
			name = wire.Snake(name)
		}
		v.Add(name+rest, "%s", one.Description)
	}
	return v.Err()
}

// sharedFields are those that completions and chat completions have in common.
var sharedFields = []string{"model", "user", "prompt_cache_isolation_key", "raw_output", "perf_metrics_in_response", "stream",
	"stream_options", "n", "stop", "max_tokens", "max_completion_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p",
	"frequency_penalty", "presence_penalty", "repetition_penalty", "mirostat_target", "mirostat_lr", "seed", "logprobs",
	"top_logprobs", "ignore_eos", "context_length_exceeded_behavior", "response_format", "logit_bias",
	"speculation", "prediction", "metadata", "reasoning_effort", "reasoning_history", "thinking", "return_token_ids"}

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

// readShared reads the fields in common, but for the model; the prompts must be
// read before.
func (f *inferenceFields) readShared(q *inferenceRequest) {
	q.user, q.isolation = f.text("user", maxUserSize), f.text("prompt_cache_isolation_key", 512)
	q.n = int(f.whole("n", 1, 128, 1))
	f.require(q.n*len(q.prompts) <= maxChoices, "n", "prompts times n must be at most %d", maxChoices)
	q.stream, q.perf = f.flag("stream"), f.flag("perf_metrics_in_response")
	options := f.within("stream_options", f.object("stream_options"), set("include_usage"))
	q.closeUsage = options.flag("include_usage")
	q.strictFit = f.choice("context_length_exceeded_behavior", "truncate", "error") == "error" &&
		(f.given("max_tokens") || f.given("max_completion_tokens")) // nobody asked for the default, which yields to the window
	f.object("metadata")
	if f.given("seed") {
		seed := uint64(f.whole("seed", math.MinInt64, math.MaxInt64, 0))
		q.seed = &seed
	}
	s := &q.settings
	s.MaxTokens, s.Stop, s.IgnoreEOS = f.maxTokens(), f.stops(), f.flag("ignore_eos")
	f.readSampling(s)
	s.ReturnTokenIDs, s.RawOutput = f.flag("return_token_ids"), f.flag("raw_output")
	f.readLogprobs(q)
	s.Format = f.format()
	s.Reasoning = f.reasoning()
	s.Speculation, s.Prediction = f.text("speculation", 64<<10), f.prediction()
}

// readSampling reads how tokens are drawn. To an engine 0 is not asked for; to
// the caller of some fields it is the tightest that there is.
func (f *inferenceFields) readSampling(s *engines.CompletionRequest) {
	tight := func(n, least float64) float64 {
		if n == 0 {
			return least
		}
		return n
	}
	s.Temperature, s.TopK = f.number("temperature", 0, 2, 1), int(f.whole("top_k", 0, 100, 0))
	s.TopP = tight(f.number("top_p", 0, 1, 1), math.SmallestNonzeroFloat32)
	s.MinP = f.number("min_p", 0, 1, 0)
	s.TypicalP = tight(f.number("typical_p", 0, 1, 1), math.SmallestNonzeroFloat32)
	s.FrequencyPenalty, s.PresencePenalty = f.number("frequency_penalty", -2, 2, 0), f.number("presence_penalty", -2, 2, 0)
	s.RepetitionPenalty = tight(f.number("repetition_penalty", 0, 2, 1), 0.001)
	if f.given("mirostat_target") {
		s.MirostatTarget = f.number("mirostat_target", 1, maxPerplexity, 1)
	}
	if rate := f.number("mirostat_lr", 0, 1, 0.1); s.MirostatTarget > 0 {
		s.MirostatRate = tight(rate, math.SmallestNonzeroFloat32)
	}
	s.LogitBias = f.biases()
}

func (f *inferenceFields) biases() map[int]float64 {
	const rule = "must map token IDs, such as \"50256\", to numbers from -100 to 100"
	object := f.object("logit_bias")
	f.require(len(object) <= maxBiases, "logit_bias", "must have at most %d entries", maxBiases)
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

// readLogprobs reads logprobs, which is a boolean or, in its older form, how
// many alternatives are told, and top_logprobs.
func (f *inferenceFields) readLogprobs(q *inferenceRequest) {
	s, top := &q.settings, f.whole("top_logprobs", 0, 5, -1)
	switch v := f.values["logprobs"].(type) {
	case nil:
	case bool:
		s.Logprobs = v
	case json.Number:
		s.Logprobs, q.legacyTop = true, true
		s.TopLogprobs = int(f.whole("logprobs", 0, 5, 0))
	default:
		f.add("logprobs", "must be true, false, or a whole number from 0 to 5")
		return
	}
	f.require(top <= 0 || s.Logprobs, "top_logprobs", "needs logprobs: set it to true as well")
	if top >= 0 && s.Logprobs {
		s.TopLogprobs = int(top)
	}
}

func (f *inferenceFields) maxTokens() int {
	f.require(!f.given("max_tokens") || !f.given("max_completion_tokens"), "max_tokens", "give either max_tokens or max_completion_tokens, not both")
	if f.given("max_completion_tokens") {
		return int(f.whole("max_completion_tokens", 0, maxOutputTokens, defaultMaxTokens))
	}
	return int(f.whole("max_tokens", 0, maxOutputTokens, defaultMaxTokens))
}

func (f *inferenceFields) stops() []string {
	value, given := f.values["stop"]
	if !given {
		return nil
	}
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	f.require(len(list) <= maxStops, "stop", "must hold at most %d sequences", maxStops)
	var stops []string
	for _, one := range list {
		text, ok := one.(string)
		if !ok || text == "" || len(text) > maxStopSize {
			f.add("stop", "must be text, or a list of texts, each of 1 to %d bytes", maxStopSize)
			return nil
		}
		stops = append(stops, text)
	}
	return stops
}

// format reads response_format; a schema is an object or a text that holds one,
// by itself or as schema in json_schema, as clients of other services send it,
// some of them with the type json_object.
func (f *inferenceFields) format() *engines.ResponseFormat {
	if f.object("response_format") == nil {
		return nil
	}
	in := f.within("response_format", f.object("response_format"), set("type", "schema", "json_schema", "grammar"))
	one := &engines.ResponseFormat{Type: in.choice("type", "text", engines.FormatJSON, engines.FormatSchema, engines.FormatGrammar)}
	in.require(in.given("type"), "type", "is required: text, json_object, json_schema or grammar")
	one.Grammar = in.text("grammar", 256<<10)
	for _, name := range []string{"schema", "json_schema"} {
		if in.given(name) {
			one.Schema = in.schema(name)
		}
	}
	schema := in.given("schema") || in.given("json_schema")
	in.require(!in.given("schema") || !in.given("json_schema"), "schema", "stands beside json_schema, which is the same: give one of them")
	in.require(one.Type != engines.FormatSchema || schema, "json_schema", "is required: a JSON schema")
	in.require(!schema || one.Type != "text" && one.Type != engines.FormatGrammar, "schema", "says nothing of the type %s: leave it out, or choose json_schema", one.Type)
	in.require(one.Type != engines.FormatGrammar || one.Grammar != "", "grammar", "is required: a grammar in GBNF")
	in.require(!in.given("grammar") || one.Type == engines.FormatGrammar, "grammar", "is for the type grammar: choose that, or leave it out")
	if schema && one.Type == engines.FormatJSON { // an object, and one that conforms
		one.Type = engines.FormatSchema
	}
	if one.Type == "text" {
		return nil
	}
	return one
}

func (f *inferenceFields) schema(name string) json.RawMessage {
	value := f.values[name]
	if text, ok := value.(string); ok {
		parsed, err := wire.Parse([]byte(text))
		f.require(err == nil, name, "must be a JSON object, or a text that holds one")
		value = parsed
	}
	object, ok := value.(map[string]any)
	if inner, wrapped := object["schema"].(map[string]any); wrapped && object["type"] == nil {
		object = inner
	}
	f.require(ok || value == nil, name, "must be a JSON object, or a text that holds one")
	data, err := json.Marshal(object)
	if err != nil || !ok {
		return nil // said above
	}
	return data
}

// reasoning reads reasoning_effort, thinking and reasoning_history; nil when
// none of them is given.
func (f *inferenceFields) reasoning() *engines.Reasoning {
	r := engines.Reasoning{History: f.choice("reasoning_history", "disabled", "interleaved", "preserved")}
	f.require(!f.given("reasoning_effort") || !f.given("thinking"), "thinking", "give either reasoning_effort or thinking, not both")
	const rule = "must be low, medium, high, none, true, false, or a positive whole number of tokens"
	efforts := []string{"none", "low", "medium", "high"}
	switch v := f.values["reasoning_effort"].(type) {
	case nil:
	case bool:
		r.Effort = map[bool]string{true: "medium", false: "none"}[v]
	case json.Number:
		n, ok := wire.Whole(v)
		f.require(ok && n > 0 && n <= maxOutputTokens, "reasoning_effort", rule)
		r.Effort, r.Budget = "medium", int(n)
	case string:
		f.require(slices.Contains(efforts, v), "reasoning_effort", rule)
		r.Effort = v
	default:
		f.add("reasoning_effort", rule)
	}
	if f.object("thinking") != nil {
		in := f.within("thinking", f.object("thinking"), set("type", "budget_tokens"))
		kind := in.choice("type", "enabled", "disabled")
		in.require(in.given("type"), "type", "is required: enabled or disabled")
		r.Budget = int(in.whole("budget_tokens", leastBudget, maxOutputTokens, 0))
		r.Effort = map[string]string{"enabled": "medium", "disabled": "none"}[kind]
	}
	if r == (engines.Reasoning{}) {
		return nil
	}
	return &r
}

// prediction reads the object of the specification, or a bare text.
func (f *inferenceFields) prediction() string {
	if text, ok := f.values["prediction"].(string); ok {
		return text
	}
	if f.object("prediction") == nil {
		return ""
	}
	in := f.within("prediction", f.object("prediction"), set("type", "content"))
	in.choice("type", "content")
	return in.content("content")
}
