package grammar

import "encoding/json"

// A CallForm is how calls of functions are written: Before, the name, Between,
// the arguments as a JSON object, After. Several have Apart between them, and
// all of them lie between Begin and End.
type CallForm struct {
	Begin, Before, Between, After, Apart, End string
}

// A Function is one that may be called.
type Function struct {
	Name       string
	Parameters json.RawMessage // the schema of its arguments; nil for any
	Strict     bool            // what of it cannot be enforced is refused; else the arguments are then any object
	Field      string          // of the request, where Parameters stand
}

// Calls is the call of one of the functions, or of several where many is set.
func Calls(form CallForm, functions []Function, many bool) (*Grammar, error) {
	kit := newJSONKit()
	var ways []expr
	for _, f := range functions {
		arguments := kit.object()
		if f.Parameters != nil {
			k := newSchemaKit(kit)
			k.id = f.Name
			e, err := k.compile(f.Parameters, f.Field)
			switch {
			case err == nil:
				arguments = e
			case f.Strict:
				return nil, within(f.Field, err)
			}
		}
		ways = append(ways, seq(text(f.Name+form.Between), arguments))
	}
	one := seq(text(form.Before), alt(ways...), text(form.After))
	if many {
		one = seq(one, repeat(seq(text(form.Apart), one), 0, unbounded))
	}
	g, err := kit.build(kit.rule("root", seq(text(form.Begin), one, text(form.End))))
	return g, within("tools", err)
}
