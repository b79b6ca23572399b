package grammar

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// maxPattern is the maximum length of a regular expression, in bytes.
const maxPattern = 4096

// A condition is a pattern that the content of a string must match or, if not is true, must not
// match.
type condition struct {
	e   expr
	not bool
}

// unicodeEscape matches the \u escapes in regular expressions of ECMAScript.
var unicodeEscape = regexp.MustCompile(`(\\\\)|\\u([0-9a-fA-F]{4})`)

// readPattern parses source, the value of the keyword "pattern" of a JSON schema. A string contains a
// match of source if it meets all of the returned conditions: one for each lookahead, and one for the
// rest. readPattern supports the part of ECMA-262 that describes regular languages, and lookaheads
// only after a ^ at the beginning.
func readPattern(source string) ([]condition, error) {
	if len(source) > maxPattern {
		return nil, fmt.Errorf("has %d bytes; give at most %d", len(source), maxPattern)
	}
	rest := unicodeEscape.ReplaceAllStringFunc(source, func(found string) string {
		if found[1] == '\\' {
			return found
		}
		return `\x{` + found[2:] + `}`
	})
	var all []condition
	rest, anchored := strings.CutPrefix(rest, "^")
	for anchored && (strings.HasPrefix(rest, "(?!") || strings.HasPrefix(rest, "(?=")) {
		inside, after, ok := lookahead(rest)
		if !ok {
			break
		}
		e, err := readRegexp("^(?:" + inside + ")")
		if err != nil {
			return nil, err
		}
		all = append(all, condition{e, rest[2] == '!'})
		rest = after
	}
	if anchored {
		rest = "^" + rest
	}
	e, err := readRegexp(rest)
	if err != nil {
		return nil, err
	}
	return append(all, condition{e: e}), nil
}

// lookahead splits a pattern that begins with a lookahead into the content of the lookahead and the
// rest. ok is false if the lookahead is not closed.
func lookahead(source string) (inside, after string, ok bool) {
	depth, class := 0, false
	for i := 0; i < len(source); i++ {
		switch c := source[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return source[3:i], source[i+1:], true
			}
		}
	}
	return "", "", false
}

func readRegexp(source string) (expr, error) {
	re, err := syntax.Parse(source, syntax.Perl&^syntax.UnicodeGroups|syntax.UnicodeGroups)
	if err != nil {
		return nil, fmt.Errorf("cannot be enforced: %v", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	p := &pattern{}
	e := p.search(re)
	return e, p.err
}

// A pattern converts a parsed regular expression to an expr. It keeps the first error.
type pattern struct{ err error }

// anything returns an expression that matches any number of characters of a JSON string.
func anything() expr { return repeat(inString(anyRune), 0, unbounded) }

// search returns an expression that matches the strings that contain a match of re. re may have
// anchors only at its ends and at the ends of its alternatives.
func (p *pattern) search(re *syntax.Regexp) expr {
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	if re.Op == syntax.OpAlternate {
		var ways []expr
		for _, sub := range re.Sub {
			ways = append(ways, p.search(sub))
		}
		return alt(ways...)
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	before, after := anything(), anything()
	if len(parts) > 0 && parts[0].Op == syntax.OpBeginText {
		parts, before = parts[1:], nothing
	}
	if last := len(parts) - 1; last >= 0 && parts[last].Op == syntax.OpEndText {
		parts, after = parts[:last], nothing
	}
	all := []expr{before}
	// Re is ^( … )$ or ( … ).
	if len(parts) == 1 && (parts[0].Op == syntax.OpCapture || parts[0].Op == syntax.OpAlternate) {
		if anchored(parts[0]) {
			return p.search(parts[0])
		}
	}
	for _, part := range parts {
		all = append(all, p.inside(part))
	}
	return seq(append(all, after)...)
}

// anchored reports whether re contains an anchor.
func anchored(re *syntax.Regexp) bool {
	return re.Op == syntax.OpBeginText || re.Op == syntax.OpEndText || slices.ContainsFunc(re.Sub, anchored)
}

// inside returns an expression that matches the strings that re matches as a whole.
func (p *pattern) inside(re *syntax.Regexp) expr {
	var subs []expr
	for _, sub := range re.Sub {
		subs = append(subs, p.inside(sub))
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		return nothing
	case syntax.OpNoMatch:
		return never
	case syntax.OpLiteral:
		var all []expr
		for _, r := range re.Rune {
			all = append(all, inString(folded(r, re.Flags&syntax.FoldCase != 0)))
		}
		return seq(all...)
	case syntax.OpCharClass:
		var spans []span
		for i := 0; i+1 < len(re.Rune); i += 2 {
			spans = append(spans, span{re.Rune[i], re.Rune[i+1]})
		}
		return inString(ecmaClass(newClass(spans...)))
	case syntax.OpAnyCharNotNL:
		return inString(anyRune.without(newClass(span{'\n', '\n'}, span{'\r', '\r'}, span{0x2028, 0x2029})))
	case syntax.OpAnyChar:
		return inString(anyRune)
	case syntax.OpCapture:
		return subs[0]
	case syntax.OpStar:
		return repeat(subs[0], 0, unbounded)
	case syntax.OpPlus:
		return repeat(subs[0], 1, unbounded)
	case syntax.OpQuest:
		return optional(subs[0])
	case syntax.OpRepeat:
		return repeat(subs[0], re.Min, re.Max)
	case syntax.OpConcat:
		return seq(subs...)
	case syntax.OpAlternate:
		return alt(subs...)
	}
	if p.err == nil {
		p.err = fmt.Errorf("cannot be enforced: %s is not supported here: use ^ and $ at the ends only, and no \\b", re)
	}
	return nothing
}

func folded(r rune, fold bool) class {
	spans := []span{{r, r}}
	for f := unicode.SimpleFold(r); fold && f != r; f = unicode.SimpleFold(f) {
		spans = append(spans, span{f, f})
	}
	return newClass(spans...)
}

// blanks are the characters that \s matches in ECMA-262 but not in Go.
var blanks = newClass(
	span{0x0B, 0x0B}, span{0xA0, 0xA0}, span{0x1680, 0x1680}, span{0x2000, 0x200A}, span{0x2028, 0x2029},
	span{0x202F, 0x202F}, span{0x205F, 0x205F}, span{0x3000, 0x3000}, span{0xFEFF, 0xFEFF})

// ecmaClass removes from a class the characters that \S and [^\s] exclude in ECMA-262 but not in
// Go.
func ecmaClass(c class) class {
	if c.has(' ') || c.has('\t') || c.has('\n') {
		return c
	}
	return c.without(blanks)
}

// inString returns an expression that matches a character of a class in a JSON string, escaped or
// not.
func inString(c class) expr {
	ways := []expr{}
	if plain := c.without(anyRune.without(plainChars)); len(plain) > 0 {
		ways = append(ways, runes(plain))
	}
	var spelt []string
	for r := range rune(0x80) {
		if c.has(r) && !plainChars.has(r) {
			spelt = append(spelt, escaped(r))
		}
	}
	if len(spelt) > 0 {
		ways = append(ways, literals(spelt...))
	}
	return alt(append(ways, never)...)
}
