package query

import (
	"fmt"
	"strings"
)

// quoteArguments returns the filter with quotes around the bare values on the right of comparisons,
// so that the parser accepts values such as my-model, 2026-03-01T00:00:00Z, 1e-4, 30s and 007. It
// returns an error for parentheses that are nested deeper than MaxFilterDepth, before the parser
// recurses into them. origin maps an offset in quoted to the offset in filter.
func quoteArguments(filter string) (quoted string, origin func(at int) int, err error) {
	q := quoter{whole: filter, rest: filter}
	for q.rest != "" {
		if err := q.next(); err != nil {
			return "", nil, err
		}
	}
	return q.out.String(), q.origin, nil
}

type quoter struct {
	whole string
	rest  string
	out   strings.Builder
	added []addition
	depth int
	right bool // the last token was a comparison operator, so that a value must follow
	group int  // depth of the outermost parenthesis on the right of a comparison; 0 outside of such parentheses
}

// An addition records that the given number of bytes was inserted before the offset at in the
// output.
type addition struct{ at, bytes int }

func (q *quoter) origin(at int) int {
	for i := len(q.added) - 1; i >= 0; i-- {
		if q.added[i].at <= at {
			return min(at-q.added[i].bytes, len(q.whole))
		}
	}
	return min(at, len(q.whole))
}

func (q *quoter) next() error {
	switch c := q.rest[0]; {
	case c == '"' || c == '\'':
		q.copy(quotedLength(q.rest))
		q.right = false
	case strings.IndexByte(" \t\r\n", c) >= 0:
		q.copy(1)
	case c == '(':
		q.depth++
		if q.depth > MaxFilterDepth {
			return fmt.Errorf("is nested deeper than %d parentheses", MaxFilterDepth)
		}
		if q.right && q.group == 0 {
			q.group = q.depth
		}
		q.copy(1)
		q.right = false
	case c == ')':
		if q.depth == q.group {
			q.group = 0
		}
		q.depth--
		q.copy(1)
		q.right = false
	case strings.IndexByte("=<>:!", c) >= 0:
		q.copy(1)
		q.right = true
	case c == ',':
		q.copy(1)
		q.right = false
	case q.right || q.group > 0:
		q.argument()
	default:
		q.copy(wordLength(q.rest, stops+":"))
	}
	return nil
}

// argument copies the next word of the filter to the output, in quotes unless it is a keyword or
// the name of a function.
func (q *quoter) argument() {
	q.right = false
	n := wordLength(q.rest, stops)
	word := q.rest[:n]
	switch after := strings.TrimLeft(q.rest[n:], " "); {
	case word == "AND" || word == "OR" || word == "NOT" || n == 0,
		strings.HasPrefix(q.rest[n:], "("):
		q.copy(max(n, 1))
	case word == "-" && after != "":
		q.copy(1)
	default:
		q.out.WriteByte('"')
		q.out.WriteString(strings.ReplaceAll(word, `\`, `\\`))
		q.out.WriteByte('"')
		q.rest = q.rest[n:]
		q.added = append(q.added, addition{q.out.Len(), q.out.Len() - (len(q.whole) - len(q.rest))})
	}
}

func (q *quoter) copy(n int) {
	q.out.WriteString(q.rest[:n])
	q.rest = q.rest[n:]
}

const stops = " \t\r\n()\"'=<>!," // characters that end a bare value

func wordLength(s, stops string) int {
	if n := strings.IndexAny(s, stops); n >= 0 {
		return n
	}
	return len(s)
}

// quotedLength returns the length in bytes, with its quotes, of the quoted text with which s
// begins.
func quotedLength(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return len(s)
}
