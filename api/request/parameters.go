package request

import (
	"net/url"
	"strconv"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// ReadBody reads the JSON object of a request. No body is the empty object when that is allowed.
func ReadBody(c *Call, emptyAllowed bool) (any, error) {
	data, err := c.Conn.ReadBody(c.Request, c.MaxBody)
	if err != nil {
		return nil, err
	}
	if emptyAllowed && len(data) == 0 {
		return map[string]any{}, nil
	}
	return wire.Parse(data)
}

// Params reads the query of a request, each parameter under both spellings, and collects its
// violations. Unknown parameters are violations: a misspelled validateOnly must not create anything.
type Params struct {
	op         *Operation
	Values     url.Values // by lowerCamelCase name
	asked      map[string]bool
	Violations domain.Violations
}

func (c *Call) Params() *Params {
	p := &Params{op: c.Operation, Values: url.Values{}, asked: map[string]bool{}}
	given, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		p.Violations.Add("query", "the query cannot be read: escape its values")
	}
	for _, name := range wire.SortedKeys(given) {
		p.Values[wire.Camel(name)] = append(p.Values[wire.Camel(name)], given[name]...)
	}
	return p
}

// Text returns a parameter that may be given once.
func (p *Params) Text(name string) string {
	p.ask(name)
	values := p.Values[name]
	if len(values) > 1 {
		p.Violations.Add(name, "is given %d times: give it once", len(values))
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// Texts returns a parameter that may be repeated.
func (p *Params) Texts(name string) []string {
	p.ask(name)
	return p.Values[name]
}

// ask panics when the operation does not declare the parameter: a bug that the first test finds.
func (p *Params) ask(name string) {
	if !p.op.Declares(name) {
		panic("api: " + p.op.ID + " asks for a query parameter that it does not declare: " + name)
	}
	p.asked[name] = true
}

func (p *Params) Flag(name string) bool {
	switch value := p.Text(name); strings.ToLower(value) {
	case "", "false", "0":
		return false
	case "true", "1":
		return true
	default:
		p.Violations.Add(name, "must be true or false")
		return false
	}
}

func (p *Params) Number(name string) int {
	text := p.Text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		p.Violations.Add(name, "must be a whole number of at most 32 bits")
	}
	return int(n)
}

// Err returns the violations, after all parameters have been read.
func (p *Params) Err() error {
	known := strings.Join(wire.SortedKeys(p.asked), ", ")
	for _, name := range wire.SortedKeys(p.Values) {
		if !p.asked[name] {
			p.Violations.Add(wire.Join("", name), "is not a query parameter here; there are: %s", wire.OrNone(known))
		}
	}
	return p.Violations.Err()
}
