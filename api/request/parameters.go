package request

import (
	"errors"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// Params has the query parameters and the JSON body of a request, and collects the violations of
// both, so that one response lists them all. Names of fields and parameters may be in
// lowerCamelCase or snake_case. An unknown parameter is a violation, because a request with a
// misspelled validateOnly must not change anything.
type Params struct {
	call       *Call
	Values     url.Values                   // values by parameter name in lowerCamelCase
	maps       map[string]map[string]string // values of parameters of type Map, by parameter name and key
	Violations domain.Violations
	undecoded  map[string]bool // paths of the body's fields whose values have the wrong type
	// Outputs has the values that the body gives to output-only fields, by field path. They are
	// ignored.
	Outputs map[string]any
	// Zeros has the paths of the numeric fields whose value in the body is 0; see wire.Zeros.
	Zeros map[string]string
}

// Params parses the query of the request. It adds a violation for each parameter that the operation
// does not declare, and for each value that does not have the declared type.
func (c *Call) Params() *Params {
	p := &Params{call: c, Values: url.Values{}, maps: map[string]map[string]string{}, undecoded: map[string]bool{}}
	given, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		p.Violations.Add("query", "the URL's query cannot be parsed: percent-encode the values of its parameters")
	}
	for _, name := range wire.SortedKeys(given) {
		if p.readMap(name, given[name]) {
			continue
		}
		p.Values[wire.Camel(name)] = append(p.Values[wire.Camel(name)], given[name]...)
	}
	for _, name := range wire.SortedKeys(p.Values) {
		p.check(name)
	}
	p.Violations = append(p.Violations, c.invalidAsOf...)
	return p
}

// readMap stores the value of a parameter of type Map, which is written NAME[KEY]=VALUE. It returns
// false if the operation has no such Map parameter.
func (p *Params) readMap(text string, values []string) bool {
	name, rest, ok := strings.Cut(text, "[")
	key, ok2 := strings.CutSuffix(rest, "]")
	declared, known := p.call.Operation.parameter(name)
	if !ok || !ok2 || !known || declared.Kind != wire.Map {
		return false
	}
	p.Violations.Require(len(values) == 1, text, "is given %d times: give it once", len(values))
	if p.maps[name] == nil {
		p.maps[name] = map[string]string{}
	}
	p.maps[name][key] = values[0]
	return true
}

// check adds a violation if the operation does not declare the query parameter name, or its value
// does not have the declared type.
func (p *Params) check(name string) {
	declared, ok := p.call.Operation.parameter(name)
	values := p.Values[name]
	switch {
	case !ok && len(p.Violations) > domain.MaxViolations: // more violations would not be shown
	case !ok:
		var known []string
		for _, one := range p.call.Operation.Query {
			known = append(known, one.Name)
		}
		slices.Sort(known)
		p.Violations.Add(wire.Join("", name), "is not a query parameter of this operation%s",
			domain.UnknownName(name, "valid parameters: ", known))
	case declared.Kind == wire.List:
	case declared.Kind == wire.Map:
		p.Violations.Require(values[0] == "null" && len(values) == 1 && p.maps[name] == nil, name,
			"must be null, or be written %s[KEY]=VALUE", name)
	case len(values) > 1:
		p.Violations.Add(name, "is given %d times: give it once", len(values))
	case declared.Kind == wire.Bool:
		_, valid := truth(values[0])
		p.Violations.Require(valid, name, "must be true or false, not %s", wire.Quote(values[0]))
	case declared.Kind == wire.Int && values[0] != "":
		_, err := strconv.ParseInt(values[0], 10, 32)
		p.Violations.Require(err == nil, name, "must be a whole number between -2147483648 and 2147483647, not "+
			"%s", wire.Quote(values[0]))
	}
}

// truth parses a boolean parameter. ok is false if text is neither true nor false.
func truth(text string) (value, ok bool) {
	switch strings.ToLower(text) {
	case "", "false", "0":
		return false, true
	case "true", "1":
		return true, true
	}
	return false, false
}

// first returns the first value of a query parameter of the given kind; "" if it is absent. It
// panics if the operation does not declare the parameter with this kind, because that is a bug of
// the handler.
func (p *Params) first(name string, kind wire.Kind) string {
	p.mustDeclare(name, kind)
	return p.Values.Get(name)
}

func (p *Params) mustDeclare(name string, kind wire.Kind) {
	if declared, ok := p.call.Operation.parameter(name); !ok || declared.Kind != kind {
		panic("api: " + p.call.Operation.ID + " reads a query parameter that it does not declare in this type: " + name)
	}
}

// Text returns the value of a parameter of type Text; "" when it is absent.
func (p *Params) Text(name string) string { return p.first(name, wire.Text) }

// Texts returns the values of a parameter of type List.
func (p *Params) Texts(name string) []string {
	p.mustDeclare(name, wire.List)
	return p.Values[name]
}

// Map returns the entries of a parameter of type Map. It returns nil if the parameter is absent,
// and an empty map if its value is null.
func (p *Params) Map(name string) map[string]string {
	if p.first(name, wire.Map) == "null" {
		return map[string]string{}
	}
	return p.maps[name]
}

// Flag returns the value of a parameter of type Bool; false when it is absent or invalid.
func (p *Params) Flag(name string) bool {
	value, _ := truth(p.first(name, wire.Bool))
	return value
}

// Number returns the value of a parameter of type Int; 0 when it is absent or invalid.
func (p *Params) Number(name string) int {
	n, _ := strconv.ParseInt(p.first(name, wire.Int), 10, 32)
	return int(n)
}

// Err returns an error with the violations, or nil.
func (p *Params) Err() error { return p.Violations.Err() }

// Body reads the JSON body of the request. It returns the parsed body as it was sent, and the body
// in the normal form of the wire type t. If optional is true, a missing body means the empty
// object. Body adds violations for fields of the wrong type; it returns an error only if the body
// cannot be read or parsed, and that error includes the violations so far.
func (p *Params) Body(t reflect.Type, optional bool) (sent any, normal wire.Body, err error) {
	c := p.call
	data, err := c.ReadBody()
	if err != nil {
		return nil, nil, err
	}
	if sent = any(map[string]any{}); !optional || len(data) > 0 {
		if sent, err = wire.Parse(data); err != nil {
			return nil, nil, p.with("body", err)
		}
	}
	before := len(p.Violations)
	normal, p.Outputs = wire.Normalize(&p.Violations, t, sent), wire.Outputs(t, sent)
	p.Zeros = wire.Zeros(t, sent)
	for _, v := range p.Violations[before:] {
		p.undecoded[v.Field] = true
	}
	return sent, normal, nil
}

// with adds the violations so far to err, if err is an InvalidArgument error: it returns one error
// with those violations and with err as the violation of field. Otherwise it returns err.
func (p *Params) with(field string, err error) error {
	if len(p.Violations) == 0 || domain.CodeOf(err) != domain.InvalidArgument {
		return err
	}
	p.Violations.Add(field, "%s", err.Error())
	return p.Err()
}

// ReadVerb decodes the body of a custom verb into out, a pointer to the Body type of its operation.
// A missing body means the empty object. Like Body, it adds violations for fields of the wrong
// type.
func (p *Params) ReadVerb(out any) error {
	if wire.Deref(reflect.TypeOf(out)) != p.call.Operation.Body {
		panic("request: " + p.call.Operation.ID + " reads another body type than it declares")
	}
	_, normal, err := p.Body(reflect.TypeOf(out), true)
	if err != nil {
		return err
	}
	return normal.Fill(out)
}

// Require adds a violation of field if ok is false. It adds none if the field's value has the wrong
// type, because Body has added a violation for that.
func (p *Params) Require(ok bool, field, format string, args ...any) {
	p.Violations.Require(ok || p.undecoded[field], field, format, args...)
}

// AddFrom adds the violations in err, the error of a further check of the request. It leaves out
// violations that p has already, and violations of fields whose values have the wrong type, because
// the check did not see those values.
func (p *Params) AddFrom(err error) {
	var more *domain.Error
	if !errors.As(err, &more) || more.Code != domain.InvalidArgument {
		return
	}
	for _, one := range more.Violations {
		if !p.undecoded[one.Field] && !slices.Contains(p.Violations, one) {
			p.Violations = append(p.Violations, one)
		}
	}
}
