package api

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// Limits and defaults of a completion request (spec/interface.md 2.11 and 8).
const (
	maxPrompts       = 128
	maxChoices       = 512 // prompts times n
	maxStops         = 4
	maxStopSize      = 512 // bytes of one stop sequence
	maxUserSize      = 512
	maxOutputTokens  = 1 << 20
	defaultMaxTokens = 2048 // bounded by the window; 16, as older services have it, cuts nearly every answer short
)

// A completionRequest is what is asked for, checked and with its defaults.
type completionRequest struct {
	model     string
	prompts   []prompt
	user      string
	n         int
	stream    bool
	echo      bool
	perf      bool // metrics in the body too
	strictFit bool // context_length_exceeded_behavior "error"
	seed      *uint64
	settings  engines.CompletionRequest // all but prompt and seed
	unknown   []string
}

type prompt struct {
	at     string // its path in the request: prompt, prompt[2]
	text   string
	tokens []int // instead of text when not nil
}

// asWritten puts an engine's refusal of the prompt into the words of the
// request; other errors stay as they are.
func (p prompt) asWritten(err error) error {
	if domain.CodeOf(err) != domain.InvalidArgument {
		return err
	}
	field, rule, ok := strings.Cut(err.Error(), ": ")
	index, isTokens := strings.CutPrefix(field, "promptTokens")
	if !ok || !isTokens && field != "prompt" {
		return err
	}
	if !isTokens {
		index = ""
	}
	var v domain.Violations
	v.Add(p.at+index, "%s", rule)
	return v.Err()
}

// knownCompletion are the fields of a completion request. Unknown ones are
// ignored with a warning.
var knownCompletion = set("model", "prompt", "user", "prompt_cache_isolation_key", "raw_output", "perf_metrics_in_response", "stream",
	"stream_options", "n", "stop", "max_tokens", "max_completion_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p",
	"frequency_penalty", "presence_penalty", "repetition_penalty", "mirostat_target", "mirostat_lr", "seed", "logprobs",
	"top_logprobs", "echo", "echo_last", "ignore_eos", "context_length_exceeded_behavior", "response_format", "logit_bias",
	"speculation", "prediction", "metadata", "reasoning_effort", "reasoning_history", "thinking", "return_token_ids", "images")

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

// readCompletion checks a request's JSON and collects all that is wrong.
func readCompletion(value any, strict bool) (*completionRequest, error) {
	f := inferenceFields{values: map[string]any{}}
	object, ok := value.(map[string]any)
	f.violations.Require(ok, "body", "must be a JSON object, not %s", sortName(value))
	q := &completionRequest{unknown: f.take(object, knownCompletion)}
	if strict {
		for _, name := range q.unknown {
			f.violations.Add(name, "is not a parameter of completions: leave it out")
		}
	}
	q.model = f.text("model", 512)
	f.violations.Require(!ok || q.model != "", "model", "is required: a model like accounts/ACCOUNT/models/ID, or a deployment like accounts/ACCOUNT/deployments/ID")
	q.prompts = f.prompts()
	q.user = f.text("user", maxUserSize)
	q.n = int(f.whole("n", 1, 128, 1))
	f.violations.Require(q.n*len(q.prompts) <= maxChoices, "n", "prompts times n must be at most %d", maxChoices)
	q.stream, q.perf = f.flag("stream"), f.flag("perf_metrics_in_response")
	q.echo = f.flag("echo")
	q.seed = f.seed()
	q.strictFit = f.choice("context_length_exceeded_behavior", "truncate", "error") == "error"
	q.settings = engines.CompletionRequest{MaxTokens: f.maxTokens(), Temperature: f.number("temperature", 0, 2, 1),
		TopK: int(f.whole("top_k", 0, 100, 0)), TopP: f.number("top_p", 0, 1, 1), Stop: f.stops(), IgnoreEOS: f.flag("ignore_eos")}
	if q.settings.TopP == 0 {
		q.settings.TopP = math.SmallestNonzeroFloat32 // to an engine 0 is no limit; to the caller it is the tightest
	}
	f.text("prompt_cache_isolation_key", 512)
	f.object("metadata")
	f.object("stream_options")
	f.refuseUnsupported(q)
	return q, f.violations.Err()
}

// inferenceFields reads fields of an inference request, each under its
// snake_case name; null is as good as absent.
type inferenceFields struct {
	values     map[string]any
	violations domain.Violations
}

// take keeps the known fields, and answers the names of the others.
func (f *inferenceFields) take(object map[string]any, known map[string]bool) (unknown []string) {
	for _, key := range sortedKeys(object) {
		name := key
		if !known[name] {
			name = snake(key)
		}
		switch _, twice := f.values[name]; {
		case !known[name]:
			unknown = append(unknown, key)
		case twice:
			f.violations.Add(name, "is given in both spellings: give it once")
		case object[key] != nil:
			f.values[name] = object[key]
		}
	}
	return unknown
}

func (f *inferenceFields) text(name string, most int) string {
	value, given := f.values[name]
	text, ok := value.(string)
	f.violations.Require(!given || ok, name, "must be text, not %s", sortName(value))
	f.violations.Require(len(text) <= most, name, "must have at most %d bytes", most)
	return text
}

func (f *inferenceFields) flag(name string) bool {
	value, given := f.values[name]
	on, ok := value.(bool)
	f.violations.Require(!given || ok, name, "must be true or false, not %s", sortName(value))
	return on
}

func (f *inferenceFields) object(name string) map[string]any {
	value, given := f.values[name]
	object, ok := value.(map[string]any)
	f.violations.Require(!given || ok, name, "must be an object, not %s", sortName(value))
	return object
}

func (f *inferenceFields) choice(name string, allowed ...string) string {
	text := f.text(name, 64)
	if _, given := f.values[name]; !given {
		return ""
	}
	for _, a := range allowed {
		if a == text {
			return text
		}
	}
	f.violations.Add(name, "must be one of %s", strings.Join(allowed, ", "))
	return ""
}

func (f *inferenceFields) whole(name string, low, high, def int64) int64 {
	value, given := f.values[name]
	if !given {
		return def
	}
	number, ok := value.(json.Number)
	n, isWhole := whole(number)
	if !ok || !isWhole || n < low || n > high {
		f.violations.Add(name, "must be a whole number from %d to %d", low, high)
		return def
	}
	return n
}

func (f *inferenceFields) number(name string, low, high, def float64) float64 {
	value, given := f.values[name]
	if !given {
		return def
	}
	number, ok := value.(json.Number)
	n, err := number.Float64()
	if !ok || err != nil || n < low || n > high {
		f.violations.Add(name, "must be a number from %g to %g", low, high)
		return def
	}
	return n
}

func (f *inferenceFields) seed() *uint64 {
	if _, given := f.values["seed"]; !given {
		return nil
	}
	seed := uint64(f.whole("seed", math.MinInt64, math.MaxInt64, 0))
	return &seed
}

func (f *inferenceFields) maxTokens() int {
	_, a := f.values["max_tokens"]
	_, b := f.values["max_completion_tokens"]
	f.violations.Require(!a || !b, "max_tokens", "give either max_tokens or max_completion_tokens, not both")
	if b {
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
	f.violations.Require(len(list) <= maxStops, "stop", "must hold at most %d sequences", maxStops)
	var stops []string
	for _, one := range list {
		text, ok := one.(string)
		if !ok || text == "" || len(text) > maxStopSize {
			f.violations.Add("stop", "must be text, or a list of texts, each of 1 to %d bytes", maxStopSize)
			return nil
		}
		stops = append(stops, text)
	}
	return stops
}

// prompts reads the four forms of a prompt: text, texts, tokens, lists of
// tokens.
func (f *inferenceFields) prompts() []prompt {
	const rule = "must be text, a list of texts, a list of token IDs, or a list of lists of token IDs"
	value, given := f.values["prompt"]
	if !given {
		f.violations.Add("prompt", "is required: it %s", rule)
		return nil
	}
	list, isList := value.([]any)
	switch text, isText := value.(string); {
	case isText:
		return []prompt{{at: "prompt", text: text}}
	case !isList:
		f.violations.Add("prompt", rule)
		return nil
	case len(list) == 0:
		return []prompt{{at: "prompt", tokens: []int{}}}
	}
	_, single := list[0].(json.Number)
	if single {
		list = []any{list}
	}
	f.violations.Require(len(list) <= maxPrompts, "prompt", "must hold at most %d prompts", maxPrompts)
	var prompts []prompt
	for i, one := range list {
		p, ok := onePrompt(one)
		if p.at = "prompt"; !single {
			p.at = fmt.Sprintf("prompt[%d]", i)
		}
		if !ok || reflect.TypeOf(one) != reflect.TypeOf(list[0]) {
			f.violations.Add("prompt", rule+"; token IDs are whole numbers from 0")
			return nil
		}
		prompts = append(prompts, p)
	}
	return prompts
}

func onePrompt(value any) (prompt, bool) {
	if text, ok := value.(string); ok {
		return prompt{text: text}, true
	}
	list, ok := value.([]any)
	tokens := make([]int, len(list))
	for i, one := range list {
		number, isNumber := one.(json.Number)
		n, isWhole := whole(number)
		ok = ok && isNumber && isWhole && n >= 0 && n <= math.MaxInt32
		tokens[i] = int(n)
	}
	return prompt{tokens: tokens}, ok
}
