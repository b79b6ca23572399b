package grammar

// Limits of whitespace and numbers, because a model could generate spaces or digits without end.
const (
	maxIndent   = 32 // maximum indentation in spaces
	maxDigits   = 15 // maximum digits of an integer; float64 represents 15 digits exactly
	maxFraction = 16
)

// A jsonKit is a builder with the rules of JSON (RFC 8259), which it creates on first use.
type jsonKit struct {
	*builder
	created  map[string]int
	explored int // number of states that intersections have explored so far
}

func newJSONKit() *jsonKit { return &jsonKit{builder: newBuilder(), created: map[string]int{}} }

// named returns an expression that refers to the rule name. On the first use of name, it creates
// the rule with the expression that body returns.
func (k *jsonKit) named(name string, body func() expr) expr {
	r, ok := k.created[name]
	if !ok {
		r = k.rule(name, nil) // body may refer to the rule
		k.created[name] = r
		k.rules[r].body = body()
	}
	return call(r)
}

// JSON returns the grammar of any JSON object.
func JSON() (*Grammar, error) {
	k := newJSONKit()
	k.object()
	return k.build(k.created["object"])
}

// space returns an expression that matches whitespace between tokens of JSON: none, a space, or a
// newline with indentation.
func space() expr {
	return optional(alt(text(" "), seq(text("\n"), repeat(text(" "), 0, maxIndent))))
}

func (k *jsonKit) value() expr {
	return k.named("value", func() expr {
		return alt(k.object(), k.array(), k.str(), k.number(), literals("true", "false", "null"))
	})
}

func (k *jsonKit) object() expr {
	return k.named("object", func() expr {
		member := seq(k.key(), k.value())
		return seq(text("{"), space(), optional(seq(list(member, 1, unbounded), space())), text("}"))
	})
}

// key returns an expression that matches the key of a member, with the colon.
func (k *jsonKit) key() expr {
	return k.named("key", func() expr { return seq(k.str(), text(":"), space()) })
}

func (k *jsonKit) array() expr {
	return k.named("array", func() expr { return array(nil, k.value(), 0, unbounded) })
}

// list returns an expression that matches minCount to maxCount occurrences of e, separated by
// commas.
func list(e expr, minCount, maxCount int) expr {
	if maxCount == 0 {
		return nothing
	}
	rest := maxCount
	if maxCount != unbounded {
		rest--
	}
	all := seq(e, repeat(seq(text(","), space(), e), max(minCount-1, 0), rest))
	if minCount == 0 {
		return optional(all)
	}
	return all
}

// array returns an expression that matches an array with minCount to maxCount items. first has the
// expressions of the first items; rest matches each further item, and a nil rest allows none.
func array(first []expr, rest expr, minCount, maxCount int) expr {
	after := func(n int) expr { // matches what follows the first n items
		capacity := maxCount
		if maxCount != unbounded {
			capacity = max(maxCount-n, 0)
		}
		if rest == nil {
			capacity = 0
		}
		if n == 0 {
			return seq(list(rest, minCount, capacity), space())
		}
		return seq(repeat(seq(text(","), space(), item(rest)), max(minCount-n, 0), capacity), space())
	}
	if maxCount != unbounded && len(first) > maxCount {
		first = first[:maxCount]
	}
	body := after(len(first))
	for n := len(first) - 1; n >= 0; n-- {
		next := seq(first[n], body)
		if n > 0 {
			next = seq(text(","), space(), next)
		}
		if n >= minCount {
			next = alt(next, space())
		}
		body = next
	}
	return seq(text("["), space(), body, text("]"))
}

func item(e expr) expr {
	if e == nil {
		return never
	}
	return e
}

func (k *jsonKit) str() expr {
	return k.named("string", func() expr { return seq(text(`"`), repeat(char(), 0, unbounded), text(`"`)) })
}

// plainChars are the characters that JSON strings contain without an escape.
var plainChars = anyRune.without(class{{0, 0x1F}}).without(one('"')).without(one('\\'))

// oneOf returns an expression that matches one of the ASCII characters in signs.
func oneOf(signs string) expr {
	var spans []span
	for _, r := range signs {
		spans = append(spans, span{r, r})
	}
	return runes(newClass(spans...))
}

// char returns an expression that matches a character of a JSON string, escaped or not. Surrogates
// must be pairs.
func char() expr {
	hex := oneOf("0123456789abcdefABCDEF")
	d := oneOf("dD")
	unicode := alt(
		seq(oneOf("0123456789abcefABCEF"), hex, hex, hex),
		seq(d, oneOf("01234567"), hex, hex),
		seq(d, oneOf("89abAB"), hex, hex, text(`\u`), d, oneOf("cdefCDEF"), hex, hex),
	)
	return alt(runes(plainChars), seq(text(`\`), alt(oneOf(`"\/bfnrt`), seq(text("u"), unicode))))
}

var digit = runes(class{{'0', '9'}})

// nonNegative returns an expression that matches the digits of a non-negative integer.
func nonNegative() expr {
	return alt(text("0"), seq(runes(class{{'1', '9'}}), repeat(digit, 0, maxDigits-1)))
}

func (k *jsonKit) number() expr {
	return k.named("number", func() expr {
		exponent := seq(runes(newClass(span{'e', 'e'}, span{'E', 'E'})),
			optional(runes(newClass(span{'+', '+'}, span{'-', '-'}))), repeat(digit, 1, 2))
		return seq(optional(text("-")), nonNegative(),
			optional(seq(text("."), repeat(digit, 1, maxFraction))), optional(exponent))
	})
}

func (k *jsonKit) integer() expr {
	return k.named("integer", func() expr {
		return alt(text("0"), seq(optional(text("-")), runes(class{{'1', '9'}}), repeat(digit, 0, maxDigits-1)))
	})
}

// literals returns an expression that matches one of texts. The texts share a prefix tree, which
// needs fewer states than an alternative for each text.
func literals(texts ...string) expr {
	return func(b *builder, next int32) int32 { return b.fork(texts, 0, next) }
}

func (b *builder) fork(texts []string, depth int, next int32) int32 {
	groups := map[byte][]string{}
	var order []byte
	ends := false
	for _, t := range texts {
		if len(t) == depth {
			ends = true
			continue
		}
		c := t[depth]
		if groups[c] == nil {
			order = append(order, c)
		}
		groups[c] = append(groups[c], t)
	}
	var edges []edge
	for _, c := range order {
		to := int32(returns)
		if group := groups[c]; len(group) == 1 {
			to = text(group[0][depth+1:])(b, next)
		} else {
			to = b.fork(group, depth+1, next)
		}
		edges = append(edges, edge{c, c, to})
	}
	at := next
	switch {
	case len(edges) == 1:
		at = b.single(edges[0])
	case len(edges) > 1 || !ends:
		at = b.add(node{op: opBytes, edges: edges})
	}
	if ends && len(edges) > 0 {
		return b.add(node{op: opSplit, split: []int32{at, next}})
	}
	return at
}
