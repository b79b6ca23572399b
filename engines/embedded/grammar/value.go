package grammar

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// A value is a JSON value with its path in the document. The members of an object keep their order.
type value struct {
	id      int
	at      string // path as a JSON pointer in a URL fragment, which begins with #
	kind    string // object, array, string, number, boolean or null
	members []member
	items   []*value
	text    string // content of a string, or digits of a number
	on      bool
}

type member struct {
	name string
	*value
}

// get returns the member of an object with a name; nil if there is none.
func (v *value) get(name string) *value {
	for _, m := range v.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// A document is a parser of a JSON document.
type document struct {
	dec   *json.Decoder
	count int
}

// readDocument parses a document with one JSON value.
func readDocument(source []byte) (*value, error) {
	if len(source) > maxSource {
		return nil, invalid("the schema has %d bytes; give at most %d", len(source), maxSource)
	}
	d := &document{dec: json.NewDecoder(bytes.NewReader(source))}
	d.dec.UseNumber()
	v, err := d.read("#", 0)
	if err != nil {
		return nil, err
	}
	if d.dec.More() {
		return nil, invalid("the schema has trailing data after its JSON value: give one value")
	}
	return v, nil
}

func (d *document) read(at string, depth int) (*value, error) {
	if depth > maxNesting {
		return nil, invalid("%s is nested more than %d deep: use $ref and $defs", at, maxNesting)
	}
	token, err := d.dec.Token()
	if err != nil {
		return nil, invalid("the schema is not JSON: %v", err)
	}
	d.count++
	v := &value{id: d.count, at: at}
	switch t := token.(type) {
	case nil:
		v.kind = "null"
	case bool:
		v.kind, v.on = "boolean", t
	case string:
		v.kind, v.text = "string", t
	case json.Number:
		v.kind, v.text = "number", t.String()
	case json.Delim:
		v.kind = "array"
		if t == '{' {
			v.kind = "object"
		}
		if err := d.inside(v, depth); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (d *document) inside(v *value, depth int) error {
	names := map[string]bool{}
	for d.dec.More() {
		at, name := strconv.Itoa(len(v.items)), ""
		if v.kind == "object" {
			token, err := d.dec.Token()
			if err != nil {
				return invalid("the schema is not JSON: %v", err)
			}
			name, _ = token.(string)
			if names[name] {
				return invalid("%s has the key %q twice: remove one of them", v.at, name)
			}
			names[name] = true
			at = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		}
		one, err := d.read(v.at+"/"+at, depth+1)
		if err != nil {
			return err
		}
		if v.kind == "object" {
			v.members = append(v.members, member{name, one})
		} else {
			v.items = append(v.items, one)
		}
	}
	if _, err := d.dec.Token(); err != nil {
		return invalid("the schema is not JSON: %v", err)
	}
	return nil
}

// written formats a value as compact JSON.
func (v *value) written() string {
	var b strings.Builder
	v.write(&b)
	return b.String()
}

func (v *value) write(b *strings.Builder) {
	switch v.kind {
	case "null":
		b.WriteString("null")
	case "boolean":
		b.WriteString(strconv.FormatBool(v.on))
	case "number":
		b.WriteString(v.text)
	case "string":
		b.WriteString(quoted(v.text))
	case "array":
		for i, one := range v.items {
			b.WriteByte("[,"[min(i, 1)])
			one.write(b)
		}
		b.WriteString("[]"[min(len(v.items), 1):])
	case "object":
		for i, m := range v.members {
			b.WriteByte("{,"[min(i, 1)])
			b.WriteString(quoted(m.name))
			b.WriteByte(':')
			m.write(b)
		}
		b.WriteString("{}"[min(len(v.members), 1):])
	}
}

// quoted formats s as a JSON string with only the escapes that JSON requires.
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		b.WriteString(escaped(r))
	}
	b.WriteByte('"')
	return b.String()
}

// escaped formats a character for a JSON string.
func escaped(r rune) string {
	switch r {
	case '"', '\\':
		return `\` + string(r)
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if r < 0x20 {
		return `\u00` + string("0123456789abcdef"[r>>4]) + string("0123456789abcdef"[r&15])
	}
	return string(r)
}
