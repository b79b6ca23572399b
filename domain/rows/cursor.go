package rows

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// A cursor iterates over a JSON text and returns nested values as slices of the text, without
// copying. A cursor can be reused for another text.
type cursor struct {
	text    []byte
	source  bytes.Buffer
	decoder jsontext.Decoder
	name    []byte // buffer for the unescaped name of a member
	err     error  // first error of the decoder, after which the cursor returns no values
}

// lenient are the decoder options to accept what encoding/json accepts, such as an unpaired
// surrogate, which is decoded as U+FFFD. The reader refuses invalid UTF-8 itself before decoding,
// and cursor.members finds duplicate names.
var lenient = []jsontext.Options{jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)}

func (c *cursor) reset(text []byte) {
	c.text, c.err = text, nil
	c.source = *bytes.NewBuffer(text)
	c.decoder.Reset(&c.source, lenient...)
}

// enter reads the opening bracket of the list or object at the cursor.
func (c *cursor) enter() { c.token() }

func (c *cursor) token() {
	if _, err := c.decoder.ReadToken(); err != nil && c.err == nil {
		c.err = err
	}
}

// end reports whether only whitespace is left of the text, and no error occurred.
func (c *cursor) end() bool {
	return c.err == nil && len(bytes.Trim(c.text[c.decoder.InputOffset():], " \t\r\n")) == 0
}

// more reports whether the list or object that the cursor has entered has more elements. If it has
// none, more reads its closing bracket.
func (c *cursor) more() bool {
	if c.err != nil {
		return false
	}
	switch kind := c.decoder.PeekKind(); kind {
	case ']', '}', jsontext.KindInvalid:
		c.token()
		return false
	}
	return true
}

// list reports whether the value at the cursor is a list.
func (c *cursor) list() bool { return c.decoder.PeekKind() == jsontext.KindBeginArray }

// null reports whether the value at the cursor is null.
func (c *cursor) null() bool { return c.decoder.PeekKind() == jsontext.KindNull }

// object reports whether the value at the cursor is an object.
func (c *cursor) object() bool { return c.decoder.PeekKind() == jsontext.KindBeginObject }

// value reads the value at the cursor and returns its text; nil after an error.
func (c *cursor) value() []byte {
	value, err := c.decoder.ReadValue()
	if err != nil {
		if c.err == nil {
			c.err = err
		}
		return nil
	}
	end := int(c.decoder.InputOffset())
	return c.text[end-len(value) : end : end]
}

// key reads the name of the next member of an object and returns it. The returned slice is valid
// until the next call of key.
func (c *cursor) key() []byte {
	key := c.value()
	if len(key) == 0 || bytes.IndexByte(key, '\\') >= 0 {
		c.name, _ = jsontext.AppendUnquote(c.name[:0], key)
		return c.name
	}
	return key[1 : len(key)-1]
}

// members reads the object at the cursor, and stores the value of its member names[i] in values[i];
// nil if the member is absent or null. If a name occurs more than once, members stores the first
// value and returns the name as duplicate. If first is not nil, members calls first to read the
// value of names[0] instead of storing it.
func (c *cursor) members(names []string, values [][]byte, first func()) (duplicate string) {
	clear(values)
	seen := 0
	for c.enter(); c.more(); {
		i := indexOf(names, c.key())
		again := i >= 0 && seen&(1<<i) != 0
		if i == 0 && first != nil && !again {
			first()
			seen |= 1
			continue
		}
		value := c.value()
		if i < 0 {
			continue
		}
		if again {
			duplicate = names[i]
			continue
		}
		seen |= 1 << i
		values[i] = value
		if isNull(value) {
			values[i] = nil
		}
	}
	return duplicate
}

func indexOf(names []string, name []byte) int {
	for i := range names {
		if names[i] == string(name) {
			return i
		}
	}
	return -1
}

func isNull(value []byte) bool   { return len(value) == 0 || value[0] == 'n' }
func isText(value []byte) bool   { return len(value) > 0 && value[0] == '"' }
func isList(value []byte) bool   { return len(value) > 0 && value[0] == '[' }
func isObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }
func isNumber(value []byte) bool {
	return len(value) > 0 && (value[0] == '-' || '0' <= value[0] && value[0] <= '9')
}
