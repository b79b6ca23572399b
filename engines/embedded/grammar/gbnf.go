package grammar

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"anneal/domain"
)

// maxRepeats is the maximum of the numbers in a repetition {m,n}.
const maxRepeats = 1_000_000

// Parse parses a grammar in GBNF. The rule root matches the whole completion. Parse supports
// literals, classes, ".", groups, references to rules, the repetitions ? * + {m} {m,} {m,n}, and
// comments after #. A rule can continue on the next line after ::=, inside a group, and before and
// after |.
//
// It returns InvalidArgument for an invalid grammar, with the line and column of a syntax error.
// field is the request field with the grammar, for errors.
func Parse(source, field string) (*Grammar, error) {
	g, err := parse(source)
	return g, within(field, err)
}

func parse(source string) (*Grammar, error) {
	if len(source) > maxSource {
		return nil, invalid("the grammar has %d bytes; give at most %d", len(source), maxSource)
	}
	if !utf8.ValidString(source) {
		return nil, invalid("the grammar is not valid UTF-8")
	}
	p := &gbnf{
		source: source, builder: newBuilder(), rules: map[string]int{}, defined: map[string]bool{},
		references: map[string]int{},
	}
	if err := p.all(); err != nil {
		return nil, err
	}
	return p.builder.build(p.rules["root"])
}

func invalid(format string, args ...any) error {
	return domain.Errorf(domain.InvalidArgument, format, args...)
}

// A gbnf is a parser of a grammar in GBNF.
type gbnf struct {
	source     string
	at         int
	builder    *builder
	rules      map[string]int
	defined    map[string]bool
	references map[string]int // offset of the first reference to each rule
	err        error
}

// fail records a syntax error at offset in the source, unless an error is already recorded, and
// ends parsing.
func (p *gbnf) fail(offset int, format string, args ...any) {
	if p.err == nil {
		before := p.source[:offset]
		line := strings.Count(before, "\n") + 1
		column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
		p.err = invalid("line %d, column %d: "+format, append([]any{line, column}, args...)...)
	}
	p.at = len(p.source) // ends the loops of the parser
}

func (p *gbnf) all() error {
	for p.blank(true); p.at < len(p.source); p.blank(true) {
		p.definition()
	}
	if p.err != nil {
		return p.err
	}
	if !p.defined["root"] {
		return invalid("the grammar has no rule named root: add a start rule named root")
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.references),
		func(a, b string) int { return cmp.Compare(p.references[a], p.references[b]) }) {
		if !p.defined[name] {
			p.fail(p.references[name], "rule %q is not defined: define it, or correct the name", name)
		}
	}
	return p.err
}

func (p *gbnf) definition() {
	begin := p.at
	name := p.name()
	if name == "" {
		p.fail(begin, "expected a rule: a name, ::= and a body")
		return
	}
	p.blank(false)
	if !p.take("::=") {
		p.fail(p.at, "expected ::= after the name %q", name)
		return
	}
	if p.defined[name] {
		p.fail(begin, "rule %q is defined twice: rename one", name)
		return
	}
	p.defined[name] = true
	p.blank(true)
	body := p.alternatives(0)
	p.builder.rules[p.reference(name)].body = body
	if p.at < len(p.source) && p.source[p.at] != '\n' {
		p.fail(p.at, "unexpected %q", p.source[p.at:p.at+p.width()])
	}
}

// reference returns the index of the rule with a name. The rule may be defined later.
func (p *gbnf) reference(name string) int {
	r, ok := p.rules[name]
	if !ok {
		r = p.builder.rule(name, never)
		p.rules[name] = r
	}
	return r
}

func (p *gbnf) alternatives(depth int) expr {
	if depth > maxNesting {
		p.fail(p.at, "groups are nested more than %d deep: use rules instead", maxNesting)
		return nothing
	}
	ways := []expr{p.sequence(depth)}
	for p.nextAlternative() {
		p.blank(true)
		ways = append(ways, p.sequence(depth))
	}
	return alt(ways...)
}

// nextAlternative consumes the character |, which may be on a later line, and reports whether it
// was there.
func (p *gbnf) nextAlternative() bool {
	begin := p.at
	p.blank(true)
	if p.take("|") {
		return true
	}
	if p.err == nil {
		p.at = begin
	}
	return false
}

func (p *gbnf) sequence(depth int) expr {
	var parts []expr
	for {
		part := p.part(depth)
		if part == nil {
			return seq(parts...)
		}
		p.blank(depth > 0)
		parts = append(parts, p.repeated(part))
		p.blank(depth > 0)
	}
}

// part parses the next element of a sequence; it returns nil at the end of the sequence.
func (p *gbnf) part(depth int) expr {
	if p.at >= len(p.source) {
		return nil
	}
	begin := p.at
	switch c := p.source[p.at]; {
	case c == '"':
		p.at++
		return p.literal(begin)
	case c == '[':
		p.at++
		return p.class(begin)
	case c == '.':
		p.at++
		return runes(anyRune)
	case c == '(':
		p.at++
		p.blank(true)
		inside := p.alternatives(depth + 1)
		if !p.take(")") {
			p.fail(begin, "group is not closed: add )")
		}
		return inside
	case c == '<' || c == '!':
		p.fail(begin, "token references are not supported: write their text as a literal")
		return nil
	}
	name := p.name()
	if name == "" {
		return nil
	}
	if _, ok := p.references[name]; !ok {
		p.references[name] = begin
	}
	return call(p.reference(name))
}

// repeated parses the repetition operators after e, and returns the repeated expression.
func (p *gbnf) repeated(e expr) expr {
	for {
		begin := p.at
		switch {
		case p.take("?"):
			e = optional(e)
		case p.take("*"):
			e = repeat(e, 0, unbounded)
		case p.take("+"):
			e = repeat(e, 1, unbounded)
		case p.take("{"):
			minCount, maxCount := p.bounds(begin)
			e = repeat(e, minCount, maxCount)
		default:
			return e
		}
		p.blank(false)
	}
}

func (p *gbnf) bounds(begin int) (minCount, maxCount int) {
	inside, _, closed := strings.Cut(p.source[p.at:], "}")
	if !closed {
		p.fail(begin, "repetition is not closed: add }")
		return 0, 0
	}
	p.at += len(inside) + 1
	low, high, both := strings.Cut(inside, ",")
	number := func(text string, otherwise int) int {
		text = strings.TrimSpace(text)
		if text == "" && both {
			return otherwise
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n > maxRepeats {
			p.fail(begin, "a repetition must be {m}, {m,} or {m,n} with numbers up to %d", maxRepeats)
		}
		return int(min(n, maxRepeats))
	}
	minCount = number(low, 0)
	if !both {
		return minCount, minCount
	}
	if maxCount = number(high, unbounded); maxCount != unbounded && maxCount < minCount {
		p.fail(begin, "a repetition's maximum must not be less than its minimum")
	}
	return minCount, maxCount
}

func (p *gbnf) literal(begin int) expr {
	var all strings.Builder
	for {
		if p.at >= len(p.source) || p.source[p.at] == '\n' {
			p.fail(begin, "literal is not closed: add a double quote")
			return nothing
		}
		if p.take(`"`) {
			return text(all.String())
		}
		all.WriteRune(p.character())
	}
}

func (p *gbnf) class(begin int) expr {
	not := p.take("^")
	var spans []span
	for !p.take("]") {
		if p.at >= len(p.source) || p.source[p.at] == '\n' {
			p.fail(begin, "class is not closed: add ]")
			return nothing
		}
		s := span{lo: p.character()}
		s.hi = s.lo
		if rest := p.source[p.at:]; len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			p.at++
			s.hi = p.character()
		}
		if s.hi < s.lo {
			p.fail(begin, "a range of a class must be ascending")
		}
		spans = append(spans, s)
	}
	c := newClass(spans...)
	if not {
		c = anyRune.without(c)
	}
	return runes(c)
}

// escapes maps the letter of each single-character escape to its character.
var escapes = map[byte]rune{
	'n': '\n', 'r': '\r', 't': '\t', '\\': '\\', '"': '"', '[': '[', ']': ']', '-': '-', '^': '^', '/': '/',
}

// character parses a character of a literal or class.
func (p *gbnf) character() rune {
	begin := p.at
	r, size := utf8.DecodeRuneInString(p.source[p.at:])
	p.at += size
	if r != '\\' || p.at >= len(p.source) {
		return r
	}
	c := p.source[p.at]
	p.at++
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	if digits == 0 {
		r, ok := escapes[c]
		if !ok {
			p.fail(begin, `unknown escape: use n, r, t, x, u, U, \, ", [ or ]`)
		}
		return r
	}
	hex := p.source[p.at:min(p.at+digits, len(p.source))]
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil || len(hex) < digits || !utf8.ValidRune(rune(n)) {
		p.fail(begin, `\%c must be followed by %d hexadecimal digits of a character`, c, digits)
		return utf8.RuneError
	}
	p.at += digits
	return rune(n)
}

// name parses the name of a rule; "" if there is none at the offset.
func (p *gbnf) name() string {
	begin := p.at
	for p.at < len(p.source) {
		c := p.source[p.at]
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			break
		}
		p.at++
	}
	return p.source[begin:p.at]
}

// blank skips spaces and comments, and also newlines if lines is true.
func (p *gbnf) blank(lines bool) {
	for p.at < len(p.source) {
		switch c := p.source[p.at]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n' && lines:
			p.at++
		case c == '#':
			end := strings.IndexByte(p.source[p.at:], '\n')
			if end < 0 {
				end = len(p.source) - p.at
			}
			p.at += end
		default:
			return
		}
	}
}

func (p *gbnf) take(sign string) bool {
	found := strings.HasPrefix(p.source[p.at:], sign)
	if found {
		p.at += len(sign)
	}
	return found
}

// width returns the size in bytes of the character at the offset.
func (p *gbnf) width() int {
	_, size := utf8.DecodeRuneInString(p.source[p.at:])
	return size
}
