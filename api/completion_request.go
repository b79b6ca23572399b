package api

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"

	"anneal/api/wire"
	"anneal/domain"
)

// knownCompletion are the fields of a completion request. Unknown ones are
// ignored with a warning.
var knownCompletion = set(append([]string{"prompt", "echo", "echo_last", "images"}, sharedFields...)...)

// readCompletion checks a request's JSON and collects all that is wrong.
// data is the body that value was read from.
func readCompletion(value any, data []byte, strict bool) (*inferenceRequest, error) {
	var v domain.Violations
	f, q := readFields(&v, value, knownCompletion)
	q.prompts = f.prompts()
	f.readShared(q)
	q.keepOrder(data)
	q.settings.Echo = f.flag("echo")
	q.settings.EchoLast = int(f.whole("echo_last", 0, maxOutputTokens, 0))
	f.require(len(f.list("images", maxPrompts)) == 0, "images", "no engine here takes images: leave them out")
	return q, q.checked(v, strict, "completions")
}

// checked is nil when nothing is wrong. A strict server refuses what it does
// not know.
func (q *inferenceRequest) checked(v domain.Violations, strict bool, what string) error {
	if strict {
		for _, name := range q.unknown {
			v.Add(name, "is not a parameter of %s: leave it out", what)
		}
	}
	return v.Err()
}

// readFields takes the known fields out of a request's JSON, and reads the model.
func readFields(v *domain.Violations, value any, known map[string]bool) (*inferenceFields, *inferenceRequest) {
	q := &inferenceRequest{}
	f := &inferenceFields{values: map[string]any{}, violations: v, unknown: &q.unknown}
	object, ok := value.(map[string]any)
	v.Require(ok, "body", "must be a JSON object, not %s", wire.KindName(value))
	f.take(object, known)
	q.model = f.text("model", 512)
	f.require(!ok || q.model != "" || f.given("model") && f.values["model"] != "", "model", "is required: a model like accounts/ACCOUNT/models/ID, or a deployment like accounts/ACCOUNT/deployments/ID")
	return f, q
}

// prompts reads the four forms of a prompt: text, texts, tokens, lists of
// tokens.
func (f *inferenceFields) prompts() []prompt {
	const rule = "must be text, a list of texts, a list of token IDs, or a list of lists of token IDs"
	value, given := f.values["prompt"]
	if !given {
		f.add("prompt", "is required: it %s", rule)
		return nil
	}
	list, isList := value.([]any)
	switch text, isText := value.(string); {
	case isText:
		return []prompt{{at: "prompt", text: text}}
	case !isList:
		f.add("prompt", rule)
		return nil
	case len(list) == 0:
		return []prompt{{at: "prompt", tokens: []int{}}}
	}
	_, single := list[0].(json.Number)
	if single {
		list = []any{list}
	}
	f.require(len(list) <= maxPrompts, "prompt", "must hold at most %d prompts", maxPrompts)
	var prompts []prompt
	for i, one := range list {
		p, ok := onePrompt(one)
		if p.at = "prompt"; !single {
			p.at = fmt.Sprintf("prompt[%d]", i)
		}
		if !ok || reflect.TypeOf(one) != reflect.TypeOf(list[0]) {
			f.add("prompt", rule+"; token IDs are whole numbers from 0")
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
		n, isWhole := wire.Whole(number)
		ok = ok && isNumber && isWhole && n >= 0 && n <= math.MaxInt32
		tokens[i] = int(n)
	}
	return prompt{tokens: tokens}, ok
}
