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

// Params holds the query parameters and the JSON body of a request, and collects the violations of
// both, so that one response lists them all. Fields and parameters have names in lowerCamelCase and
// in snake_case. Unknown parameters are violations, because a misspelled validateOnly must not
// create anything.
type Params struct {
	call       *Call
	Values     url.Values                   // values by name in lowerCamelCase
	maps       map[string]map[string]string // values of parameters of type Map by name and key
	Violations domain.Violations
	undecoded  map[string]bool // fields of the body whose values have the wrong type
	// Outputs are the values that the body gives to output-only fields, by path; they are ignored.
	Outputs map[string]any
	// Zeros are the paths of the numeric fields to which the body gives 0; see wire.Zeros.
	Zeros map[string]string
}

// Params parses the query of the request, and adds a violation for each parameter that the
// operation does not declare, or whose value has another type than the operation declares.
func (c *Call) Params() *Params {
	p := &Params{call: c, Values: url.Values{}, maps: map[string]map[string]string{}, undecoded: map[string]bool{}}
	given, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		p.Violations.Add("query", "the query cannot be parsed: percent-encode its values")
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

// readMap reads the value of one key of a parameter of type Map, which is given as NAME[KEY]=VALUE. It
// returns false for any other parameter.
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

// check adds a violation unless the operation declares the parameter called name, with the type of
// its value.
func (p *Params) check(name string) {
	declared, ok := p.call.Operation.parameter(name)
	values := p.Values[name]
	switch {
	case !ok && len(p.Violations) > domain.MaxViolations: // the list of violations is long enough
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
			"must be null, or be given as %s[KEY]=VALUE", name)
	case len(values) > 1:
		p.Violations.Add(name, "is given %d times: give it once", len(values))
	case declared.Kind == wire.Bool:
		_, valid := truth(values[0])
		p.Violations.Require(valid, name, "must be true or false, not %s", wire.Quote(values[0]))
	case declared.Kind == wire.Int && values[0] != "":
		_, err := strconv.ParseInt(values[0], 10, 32)
		p.Violations.Require(err == nil, name, "must be a whole number of at most 32 bits, not %s", wire.Quote(values[0]))
	}
}

// truth returns the value of a boolean parameter; ok is false when text is neither true nor false.
func truth(text string) (value, ok bool) {
	switch strings.ToLower(text) {
	case "", "false", "0":
		return false, true
	case "true", "1":
		return true, true
	}
	return false, false
}

// first returns the first value of a parameter of the given kind; "" when it is absent. It panics
// if the operation does not declare the parameter with this kind: that is a bug of the handler.
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

// Map returns the value of a parameter of type Map by key; empty but not nil when the value is null,
// and nil when the parameter is absent.
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

// Body reads the JSON body, and returns it as it was sent and in its normal form for the wire type
// t. With optional, a missing body means the empty object. Body adds the violations of the body,
// and returns an error only for a body that cannot be read or parsed; an error of parsing contains
// the violations so far.
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

// with returns err. If err is an InvalidArgument error and the request has violations, it instead
// returns one error with those violations and with err as a violation of field.
func (p *Params) with(field string, err error) error {
	if len(p.Violations) == 0 || domain.CodeOf(err) != domain.InvalidArgument {
		return err
	}
	p.Violations.Add(field, "%s", err.Error())
	return p.Err()
}

// ReadVerb reads the body of a custom verb into out, a pointer to the type that its operation
// declares; a missing body means the empty object. Like Body, it adds the violations of the body.
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

// Require adds a violation if ok is false. It adds none for a field whose value was not decoded,
// because that is a violation already.
func (p *Params) Require(ok bool, field, format string, args ...any) {
	p.Violations.Require(ok || p.undecoded[field], field, format, args...)
}

// AddFrom adds the violations in err, an error of a check that ran although the request has
// violations already. It leaves out repetitions, and violations of fields whose values were not
// decoded, because that check did not see the values.
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
