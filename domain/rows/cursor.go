package rows

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// A cursor goes through one JSON value and gives the values in it as parts of
// its text, without copying. It is used again for the next value.
type cursor struct {
	text    []byte
	source  bytes.Buffer
	decoder jsontext.Decoder
	name    []byte // of a member, where escapes had to be read
	err     error  // the first; there are no more values then
}

// The verdict is that of encoding/json: half a surrogate pair stands for
// U+FFFD. Bytes that are not UTF-8 are refused before. Names that come twice
// are the business of members.
var lenient = []jsontext.Options{jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)}

func (c *cursor) reset(text []byte) {
	c.text, c.err = text, nil
	c.source = *bytes.NewBuffer(text)
	c.decoder.Reset(&c.source, lenient...)
}

// enter goes into the list or object that comes next.
func (c *cursor) enter() { c.token() }

func (c *cursor) token() {
	if _, err := c.decoder.ReadToken(); err != nil && c.err == nil {
		c.err = err
	}
}

// end tells whether the text held one value and blanks.
func (c *cursor) end() bool {
	return c.err == nil && len(bytes.Trim(c.text[c.decoder.InputOffset():], " \t\r\n")) == 0
}

// more tells whether something is left of the list or object, and leaves it
// when nothing is.
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

// list tells whether a list comes next, null whether null does.
func (c *cursor) list() bool { return c.decoder.PeekKind() == jsontext.KindBeginArray }
func (c *cursor) null() bool { return c.decoder.PeekKind() == jsontext.KindNull }

// object tells whether an object comes next.
func (c *cursor) object() bool { return c.decoder.PeekKind() == jsontext.KindBeginObject }

// value is the text of the next value; nil after an error.
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

// key is the name of the next member; it is good until the next key.
func (c *cursor) key() []byte {
	key := c.value()
	if len(key) == 0 || bytes.IndexByte(key, '\\') >= 0 {
		c.name, _ = jsontext.AppendUnquote(c.name[:0], key)
		return c.name
	}
	return key[1 : len(key)-1]
}

// members finds the members of the object that comes next, names[i] into
// values[i]: nil for those that are absent or null. twice is a name that
// comes more than once, or ""; the first counts. What the first name stands for is read by first,
// if there is one, instead.
func (c *cursor) members(names []string, values [][]byte, first func()) (twice string) {
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
			twice = names[i]
			continue
		}
		seen |= 1 << i
		values[i] = value
		if isNull(value) {
			values[i] = nil
		}
	}
	return twice
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
