package request

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"anneal/api/wire"
	"anneal/domain"
)

// maxShownBody is the maximum size, in bytes, of a body that the call keeps until it responds, so
// that violations can state the values in it.
const maxShownBody = 64 << 10

// ReadBody returns the JSON body of the request, and keeps it in c.sent if it has at most
// maxShownBody bytes.
func (c *Call) ReadBody() ([]byte, error) {
	data, err := c.Conn.ReadBody(c.Request, c.Limits.Body)
	if err == nil && len(data) <= maxShownBody {
		c.sent = data
	}
	return data, err
}

// BodyHash returns a hash of the API key and the JSON body of the call, by which the server knows a
// request that is sent again. It returns 0 if the body is not JSON or has more than maxShownBody
// bytes.
func BodyHash(c *Call) uint64 {
	if len(c.sent) == 0 {
		return 0
	}
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s\x00", c.Principal.Key) // writing to a hash never fails
	_, _ = h.Write(c.sent)
	return max(1, binary.LittleEndian.Uint64(h.Sum(nil)))
}

// handle runs the operation's handler. To each violation of an INVALID_FIELDS error, it adds what
// the body has in that field: the value of a number, or the length of a text or list.
func handle(c *Call) (any, error) {
	result, err := handleCurrent(c)
	var invalid *domain.Error
	if c.sent == nil || !errors.As(err, &invalid) || invalid.Reason != domain.InvalidFields {
		return result, err
	}
	body, parseErr := wire.Parse(c.sent)
	if parseErr != nil {
		return result, err
	}
	shown := slices.Clone(domain.Violations(invalid.Violations))
	for i, v := range shown {
		shown[i].Description = withGiven(v.Description, lookUp(body, v.Field))
	}
	return result, shown.Err()
}

// shows matches a violation's description that already states the value in the body, such as "must
// be positive, is 0".
var shows = regexp.MustCompile(`, (is|has|not|are) `)

// ruleEnd matches the text between a violation's rule ("must be positive") and the advice or reason
// that follows.
var ruleEnd = regexp.MustCompile(`[:;]|, (because|unless) `)

// withGiven inserts the value that the body has in a field after the rule in a violation's
// description: "must be positive: …" becomes "must be positive, is 0: …". For a text or a list it
// inserts only the length, because a text may be confidential. It returns the description unchanged
// if it does not begin with a rule, or already states the value.
func withGiven(description string, value any) string {
	if !strings.HasPrefix(description, "must ") || shows.MatchString(description) {
		return description
	}
	given := ""
	switch value := value.(type) {
	case json.Number:
		given = ", is " + value.String()
	case []any:
		if strings.HasPrefix(description, "must have ") {
			given = fmt.Sprintf(", has %d", len(value))
		}
	case string:
		switch {
		case !strings.HasPrefix(description, "must have "):
		case strings.Contains(description, " bytes"), strings.Contains(description, " KiB"):
			given = fmt.Sprintf(", has %d", len(value))
		case strings.Contains(description, " characters"):
			given = fmt.Sprintf(", has %d", utf8.RuneCountInString(value))
		}
	}
	end := len(description)
	if at := ruleEnd.FindStringIndex(description); at != nil {
		end = at[0]
	}
	return description[:end] + given + description[end:]
}

// lookUp returns the value at a path such as options.seed or rows[3].n in a parsed JSON body; nil
// if the body has no value there.
func lookUp(value any, path string) any {
	for path != "" {
		var name string
		if list, ok := value.([]any); ok {
			index, rest, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
			i, err := strconv.Atoi(index)
			if err != nil || i < 0 || i >= len(list) {
				return nil
			}
			value, path = list[i], strings.TrimPrefix(rest, ".")
			continue
		}
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		name, path = path[:end], strings.TrimPrefix(path[end:], ".")
		value = nil
		for key, one := range object {
			if key == name || wire.Camel(key) == name {
				value = one
			}
		}
	}
	return value
}
