package api

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// readBody reads a request's JSON object of at most limit bytes. No body at
// all is the empty object when that is allowed.
func readBody(r *http.Request, limit int64, emptyAllowed bool) (any, error) {
	data, err := exchangeOf(r).hold(r, limit)
	if err != nil {
		return nil, err
	}
	if emptyAllowed && len(data) == 0 {
		return map[string]any{}, nil
	}
	return wire.Parse(data)
}

// params reads a request's query, each parameter under both spellings, and
// collects what is wrong with it. Parameters that nothing asked for are
// refused too: a misspelt validateOnly must not create anything.
type params struct {
	op         *operation
	values     url.Values // by lowerCamelCase name
	asked      map[string]bool
	violations domain.Violations
}

func (c *call) params() *params {
	p := &params{op: c.op, values: url.Values{}, asked: map[string]bool{}}
	given, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		p.violations.Add("query", "the query cannot be read: escape its values")
	}
	for _, name := range wire.SortedKeys(given) {
		p.values[wire.Camel(name)] = append(p.values[wire.Camel(name)], given[name]...)
	}
	return p
}

// text is a parameter that may be given once.
func (p *params) text(name string) string {
	p.ask(name)
	values := p.values[name]
	if len(values) > 1 {
		p.violations.Add(name, "is given %d times: give it once", len(values))
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// texts is a parameter that may be repeated.
func (p *params) texts(name string) []string {
	p.ask(name)
	return p.values[name]
}

// ask panics when the operation does not declare the parameter: a fault of the
// program, found by the first test that touches it.
func (p *params) ask(name string) {
	if !p.op.declares(name) {
		panic("api: " + p.op.id + " asks for a query parameter that it does not declare: " + name)
	}
	p.asked[name] = true
}

func (p *params) flag(name string) bool {
	switch value := p.text(name); strings.ToLower(value) {
	case "", "false", "0":
		return false
	case "true", "1":
		return true
	default:
		p.violations.Add(name, "must be true or false")
		return false
	}
}

func (p *params) number(name string) int {
	text := p.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		p.violations.Add(name, "must be a whole number of at most 32 bits")
	}
	return int(n)
}

// err is what is wrong with the query, once everything has been asked for.
func (p *params) err() error {
	known := strings.Join(wire.SortedKeys(p.asked), ", ")
	for _, name := range wire.SortedKeys(p.values) {
		if !p.asked[name] {
			p.violations.Add(wire.Join("", name), "is not a query parameter here; there are: %s", wire.OrNone(known))
		}
	}
	return p.violations.Err()
}
