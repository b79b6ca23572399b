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

// maxRepeats bounds the numbers of a repetition.
const maxRepeats = 1_000_000

// Parse reads a grammar in GBNF, whose rule root is the answer: literals,
// classes, ".", groups, references, the repetitions ? * + {m} {m,} {m,n}, and
// comments after #. A rule goes on in the next line inside a group, and before and after |.
//
// The grammar stands in that field of a request.
func Parse(source, field string) (*Grammar, error) {
	g, err := parse(source)
	return g, within(field, err)
}

func parse(source string) (*Grammar, error) {
	if len(source) > maxSource {
		return nil, fault("it has %d bytes; give at most %d", len(source), maxSource)
	}
	if !utf8.ValidString(source) {
		return nil, fault("it is not valid UTF-8")
	}
	p := &gbnf{source: source, builder: newBuilder(), rules: map[string]int{}, defined: map[string]bool{}, asked: map[string]int{}}
	if err := p.all(); err != nil {
		return nil, err
	}
	return p.builder.build(p.rules["root"])
}

func fault(format string, args ...any) error {
	return domain.Errorf(domain.InvalidArgument, format, args...)
}

// A gbnf is a grammar that is being read.
type gbnf struct {
	source  string
	at      int
	builder *builder
	rules   map[string]int
	defined map[string]bool
	asked   map[string]int // where a rule is referred to first
	err     error
}

// wrong notes what is wrong at a place, unless something was before.
func (p *gbnf) wrong(at int, format string, args ...any) {
	if p.err == nil {
		before := p.source[:at]
		line := strings.Count(before, "\n") + 1
		column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
		p.err = fault("line %d, column %d: "+format, append([]any{line, column}, args...)...)
	}
	p.at = len(p.source) // which ends all loops
}

func (p *gbnf) all() error {
	for p.blank(true); p.at < len(p.source); p.blank(true) {
		p.definition()
	}
	if p.err != nil {
		return p.err
	}
	if !p.defined["root"] {
		return fault("it has no rule named root: name the rule that an answer conforms to root ::= …")
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.asked), func(a, b string) int { return cmp.Compare(p.asked[a], p.asked[b]) }) {
		if !p.defined[name] {
			p.wrong(p.asked[name], "there is no rule %q: define it, or correct its name", name)
		}
	}
	return p.err
}

func (p *gbnf) definition() {
	begin := p.at
	name := p.name()
	if name == "" {
		p.wrong(begin, "a rule must begin here: its name, ::= and its body")
		return
	}
	p.blank(false)
	if !p.take("::=") {
		p.wrong(p.at, "the name %q must be followed by ::=", name)
		return
	}
	if p.defined[name] {
		p.wrong(begin, "the rule %q is defined twice: give each its own name", name)
		return
	}
	p.defined[name] = true
	p.blank(true)
	body := p.alternatives(0)
	p.builder.rules[p.reference(name)].body = body
	if p.at < len(p.source) && p.source[p.at] != '\n' {
		p.wrong(p.at, "%q has no meaning here", p.source[p.at:p.at+p.width()])
	}
}

// reference is the rule of that name, which may be defined later.
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
		p.wrong(p.at, "groups are nested more than %d deep: make rules of them", maxNesting)
		return nothing
	}
	ways := []expr{p.sequence(depth)}
	for p.another() {
		p.blank(true)
		ways = append(ways, p.sequence(depth))
	}
	return alt(ways...)
}

// another takes a |, which may stand in a later line.
func (p *gbnf) another() bool {
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

// part is one thing of a sequence; nil at its end.
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
			p.wrong(begin, "this group is not closed")
		}
		return inside
	case c == '<' || c == '!':
		p.wrong(begin, "tokens cannot be named in a grammar here: write the text that they stand for")
		return nil
	}
	name := p.name()
	if name == "" {
		return nil
	}
	if _, ok := p.asked[name]; !ok {
		p.asked[name] = begin
	}
	return call(p.reference(name))
}

// repeated is e as often as the sign after it says.
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
			least, most := p.bounds(begin)
			e = repeat(e, least, most)
		default:
			return e
		}
		p.blank(false)
	}
}

func (p *gbnf) bounds(begin int) (least, most int) {
	inside, _, closed := strings.Cut(p.source[p.at:], "}")
	if !closed {
		p.wrong(begin, "this repetition is not closed")
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
			p.wrong(begin, "a repetition is {m}, {m,} or {m,n} with numbers up to %d", maxRepeats)
		}
		return int(min(n, maxRepeats))
	}
	least = number(low, 0)
	if !both {
		return least, least
	}
	if most = number(high, unbounded); most != unbounded && most < least {
		p.wrong(begin, "the second number of a repetition must not be less than the first")
	}
	return least, most
}

func (p *gbnf) literal(begin int) expr {
	var all strings.Builder
	for {
		if p.at >= len(p.source) || p.source[p.at] == '\n' {
			p.wrong(begin, "this literal is not closed")
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
			p.wrong(begin, "this class is not closed")
			return nothing
		}
		s := span{lo: p.character()}
		s.hi = s.lo
		if rest := p.source[p.at:]; len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			p.at++
			s.hi = p.character()
		}
		if s.hi < s.lo {
			p.wrong(begin, "a range of a class must go up")
		}
		spans = append(spans, s)
	}
	c := newClass(spans...)
	if not {
		c = anyRune.without(c)
	}
	return runes(c)
}

// escapes are the characters that a backslash and a letter stand for.
var escapes = map[byte]rune{'n': '\n', 'r': '\r', 't': '\t', '\\': '\\', '"': '"', '[': '[', ']': ']', '-': '-', '^': '^', '/': '/'}

// character is the next of a literal or class.
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
			p.wrong(begin, `after a backslash come n, r, t, x, u, U, \, ", [ or ]`)
		}
		return r
	}
	hex := p.source[p.at:min(p.at+digits, len(p.source))]
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil || len(hex) < digits || !utf8.ValidRune(rune(n)) {
		p.wrong(begin, `\%c must be followed by %d hexadecimal digits of a character`, c, digits)
		return utf8.RuneError
	}
	p.at += digits
	return rune(n)
}

// name is a rule's; "" when there is none here.
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

// blank passes over blanks and comments, and new lines too where a rule goes on.
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

// width is the length of the character here.
func (p *gbnf) width() int {
	_, size := utf8.DecodeRuneInString(p.source[p.at:])
	return size
}
