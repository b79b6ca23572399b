package inference

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"

	"anneal/api/wire"
	"anneal/domain"
)

// completionFields is the set of the fields of a completion request.
var completionFields = set(append([]string{"prompt", "echo", "echo_last", "images"}, sharedFields...)...)

// readCompletion validates a completion request, and returns an error with all violations. value is
// the parsed JSON of the body, and data its text. If strict is true, unknown fields are violations;
// otherwise they are ignored with a warning.
func readCompletion(value any, data []byte, strict bool) (*generationRequest, error) {
	var v domain.Violations
	f, q := readFields(&v, value, completionFields)
	q.prompts = f.prompts("prompt", maxPrompts)
	f.readShared(q)
	q.keepSchemaOrder(data)
	q.settings.Echo = f.boolean("echo")
	q.settings.EchoLast = int(f.integer("echo_last", 0, maxOutputTokens, 0))
	readImages(f, q)
	if r := q.settings.Reasoning; r.Acts() {
		r.History = "" // a prompt has no earlier messages, and some engines reject the field
	} else {
		q.settings.Reasoning = nil
	}
	q.operation, q.given = "createCompletion", f.values
	return q, q.checked(v, strict, "completions")
}

// checked returns an error with the violations v; nil if there are none. If strict is true, unknown
// fields are violations too; their messages name the kind of the request, such as "chat
// completions".
func (q *generationRequest) checked(v domain.Violations, strict bool, kind string) error {
	if strict {
		for _, name := range q.unknown {
			v.Add(name, "is not a parameter of %s: remove it", kind)
		}
	}
	return v.Err()
}

// readFields returns a reader of the fields of the body value that are in known, and a request in
// which only model and unknown are set. It adds violations to v.
func readFields(v *domain.Violations, value any, known map[string]bool) (*fieldReader, *generationRequest) {
	q := &generationRequest{}
	f := &fieldReader{values: map[string]any{}, violations: v, unknown: &q.unknown, images: &q.images}
	object, ok := value.(map[string]any)
	v.Require(ok, "body", "must be a JSON object, not %s", wire.KindName(value))
	f.collect(object, known)
	q.model = f.text("model", maxModelName)
	f.require(!ok || q.model != "" || f.given("model") && f.values["model"] != "", "model",
		"is required: the name of a model, accounts/ACCOUNT/models/ID, or of a deployment, accounts/ACCOUNT/deployments/ID")
	return f, q
}

// prompts returns the prompts in the field name: a text, a list of texts, a list of token IDs, or a
// list of lists of token IDs. The field may have at most maxItems prompts.
func (f *fieldReader) prompts(name string, maxItems int) []prompt {
	const rule = "must be text, a list of texts, a list of token IDs, or a list of lists of token IDs"
	value, given := f.values[name]
	if !given {
		f.add(name, "is required: it %s", rule)
		return nil
	}
	list, isList := value.([]any)
	switch text, isText := value.(string); {
	case isText:
		return []prompt{{at: name, text: text}}
	case !isList:
		f.add(name, rule)
		return nil
	case len(list) == 0:
		return []prompt{{at: name, tokens: []int{}}}
	}
	_, single := list[0].(json.Number)
	if single {
		list = []any{list}
	}
	if len(list) > maxItems {
		f.add(name, "must have at most %d prompts, not %d: send several requests", maxItems, len(list))
		return nil
	}
	var prompts []prompt
	for i, one := range list {
		p, ok := onePrompt(one)
		if p.at = name; !single {
			p.at = fmt.Sprintf("%s[%d]", name, i)
		}
		if !ok || reflect.TypeOf(one) != reflect.TypeOf(list[0]) {
			f.add(name, rule+"; a token ID is a whole number of at least 0")
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
