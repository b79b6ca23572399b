package grammar

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// accepts reports whether a text conforms to a grammar.
func accepts(t testing.TB, g *Grammar, s string) bool {
	state := mustBegin(t, g)
	state = mustNext(t, g, state, []byte(s))
	return state != nil && state.Accepts()
}

// letters is a vocabulary with one token for each byte.
var letters = NewVocabulary(256, func(token int) []byte { return []byte{byte(token)} })

// write samples a text that conforms to g byte by byte. whole is false if the text was cut off
// at limit bytes. Where the text may end, write ends it with probability 1/3.
func write(t testing.TB, g *Grammar, r *rand.Rand, limit int) (out string, whole bool) {
	state := mustBegin(t, g)
	var text []byte
	for len(text) < limit {
		if state.Complete() || state.Accepts() && r.IntN(3) == 0 {
			return string(text), true
		}
		mask, err := g.Allowed(state, letters)
		require.NoError(t, err)
		var can []byte
		for c := range 256 {
			if mask.Has(c) {
				can = append(can, byte(c))
			}
		}
		require.NotEmpty(t, can, "nothing follows %q", text)
		c := can[r.IntN(len(can))]
		if slices.Contains(can, '"') && r.IntN(4) == 0 {
			c = '"'
		}
		text = append(text, c)
		state = mustNext(t, g, state, []byte{c})
		require.NotNil(t, state)
	}
	return string(text), false
}

func TestGrammars(t *testing.T) {
	for name, c := range map[string]struct {
		source   string
		yes, not []string
	}{
		"literal": {`root ::= "ab"`, []string{"ab"}, []string{"", "a", "abc"}},
		"escapes": {`root ::= "\x41\u00e9\U0001F642\n\t\"\\"`, []string{"Aé🙂\n\t\"\\"}, nil},
		"class":   {`root ::= [a-cX\]-]+`, []string{"abcX]-"}, []string{"", "d", "A"}},
		"not": {
			`root ::= [^a-c]`, []string{"d", "é", "🙂", "\x00"}, []string{"a", "b", "\xff", "\xc3", "\xed\xa0\x80"},
		},
		"any": {
			`root ::= .`, []string{"a", "é", "東", "🙂", "\u0800", "\uFFFF", "\U0010FFFF"},
			[]string{"", "\x80", "\xf4\x90\x80\x80", "\xc0\x80", "\xe0\x80\x80"},
		},
		"choice":       {"root ::= \"a\"\n  | \"b\" |\n \"c\"", []string{"a", "b", "c"}, []string{"ab"}},
		"empty choice": {`root ::= "a" ("b" | )`, []string{"a", "ab"}, []string{"b"}},
		"repeats": {
			`root ::= "a"? "b"* "c"{2} "d"{1,} "e"{,2} "f"{0,1}`, []string{"ccd", "abbccddeef"},
			[]string{"cd", "ccdeee", "cccd"},
		},
		"repeat many": {`root ::= ("ab" | "c"){2,3}`, []string{"abc", "abab", "ccc"}, []string{"ab", "cccc"}},
		"of nothing":  {`root ::= ("a"?)* ("b"*){2,4} "c"`, []string{"c", "aabbbbbbbc"}, []string{"ab"}},
		"rules": {
			"# a sum\nroot ::= term (\"+\" term)* # more\nterm ::= [0-9]+ | \"(\" root \")\"\n",
			[]string{"1", "1+(2+3)+45", "((1))"}, []string{"1+", "(1", "1)"},
		},
		"far below": {
			`root ::= "(" root ")" | "x"`, []string{strings.Repeat("(", 500) + "x" + strings.Repeat(")", 500)}, []string{"((x)"},
		},
		"to the right": {`root ::= [ab] root | "c"`, []string{strings.Repeat("ab", 900) + "c"}, []string{"ab"}},
		"a dead end":   {"root ::= \"a\" never | \"b\"\nnever ::= \"x\" never", []string{"b"}, []string{"a", "ax"}},
		"ambiguous":    {`root ::= ("a" | "a" | [a-b])* "a"`, []string{"a", "aaaa", "baa"}, []string{"b", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			g := mustParse(t, c.source, "format")
			equalInGBNF(t, g, slices.Concat(c.yes, c.not))
			for _, s := range c.yes {
				require.True(t, accepts(t, g, s), "%q", s)
			}
			for _, s := range c.not {
				require.False(t, accepts(t, g, s), "%q", s)
			}
			if !slices.Contains([]string{"far below", "to the right"}, name) {
				text, whole := write(t, g, rand.New(rand.NewPCG(1, 2)), 2000)
				require.True(t, !whole || accepts(t, g, text), "%q", text)
			}
		})
	}
}

func TestInvalidGrammars(t *testing.T) {
	deep := strings.Repeat("(", 80) + `"a"` + strings.Repeat(")", 80)
	for name, c := range map[string]struct{ source, want string }{
		"no root":            {`a ::= "b"`, "no rule named root"},
		"nothing":            {"", "no rule named root"},
		"not a rule":         {`root = "a"`, `line 1, column 6: expected ::= after the name "root"`},
		"unknown":            {"root ::= a\n", `line 1, column 10: rule "a" is not defined`},
		"twice":              {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule \"root\" is defined twice"},
		"open literal":       {`root ::= "a`, "column 10: literal is not closed"},
		"open class":         {`root ::= [a`, "class is not closed"},
		"open group":         {`root ::= ("a"`, "group is not closed"},
		"open repetition":    {`root ::= "a"{2`, "repetition is not closed"},
		"escape":             {`root ::= "\q"`, "unknown escape"},
		"no character":       {`root ::= "\uD800"`, "hexadecimal digits of a character"},
		"half a character":   {`root ::= [0\x0`, "hexadecimal digits of a character"},
		"range":              {`root ::= [b-a]`, "must be ascending"},
		"many times":         {`root ::= "a"{2000000}`, "numbers up to 1000000"},
		"fewer times":        {`root ::= "a"{3,2}`, "must not be less"},
		"tokens":             {`root ::= <think>`, "token references are not supported"},
		"a stray sign":       {`root ::= "a" )`, `unexpected ")"`},
		"left recursion":     {"root ::= sum\nsum ::= sum \"+\" [0-9] | [0-9]", `rule "sum" is left-recursive`},
		"hidden behind":      {"root ::= a\na ::= \"x\"? b \"y\"\nb ::= a | \"z\"", "left-recursive"},
		"behind a repeat":    {`root ::= ("x"?){2,3} root "y" | "z"`, "left-recursive"},
		"no end":             {`root ::= "a" root`, "no finite text conforms"},
		"an empty class":     {`root ::= []`, "no finite text conforms"},
		"nested":             {"root ::= " + deep, "more than 64 deep"},
		"long":               {"root ::= \"" + strings.Repeat("a", 300<<10) + "\"", "bytes; give at most"},
		"large":              {"root ::= " + strings.Repeat(`[^a]`, 60_000), "too large"},
		"not UTF-8":          {"root ::= \"\xff\"", "UTF-8"},
		"too ambiguous":      {`root ::= ("a"?){0,1000000} "b"`, "too ambiguous"},
		"nested repetitions": {`root ::= ((("a"?){0,900}){0,900}){0,900} "b"`, "too ambiguous"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := Parse(c.source, "format")
			if err == nil {
				_, err = g.Start()
			}
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "format: ")
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		})
	}
}

// TestAmbiguityIsLimited checks that Next fails for a grammar whose number of derivations
// doubles with each byte, and that the grammar can then be used again.
func TestAmbiguityIsLimited(t *testing.T) {
	g := mustParse(t, `root ::= a "!"
a ::= "x" a "y" | "x" a "z" | "x" b "y"
b ::= "x" a "z" | "x" b "y" | "w"`, "format")
	state, err := g.Start()
	for range 100 {
		if err == nil {
			state, err = g.Next(state, []byte("x"))
		}
	}
	require.ErrorContains(t, err, "too ambiguous")
	_, err = g.Start()
	require.NoError(t, err, "the grammar can be used again")
}

// TestMasksMatchTransitions checks that a mask from Allowed contains exactly the tokens whose
// bytes Next accepts.
func TestMasksMatchTransitions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tokens := []string{"", "", "é", "\xc3", "\xa9", `{"`, `":`, `"}`, `\"`, "true", "tru", "e,", "\n  ", "\n\n", "  "}
	for range 600 {
		piece := make([]byte, 1+r.IntN(4))
		for i := range piece {
			piece[i] = `{}[]",:\ntrue0123.5eE "abc`[r.IntN(25)]
		}
		tokens = append(tokens, string(piece))
	}
	v := NewVocabulary(len(tokens), func(token int) []byte { return []byte(tokens[token]) })
	g, err := JSON()
	require.NoError(t, err)
	for range 40 {
		text, _ := write(t, g, r, 1+r.IntN(60))
		state := mustBegin(t, g)
		state = mustNext(t, g, state, []byte(text))
		mask, err := g.Allowed(state, v)
		require.NoError(t, err)
		for token, piece := range tokens {
			next := mustNext(t, g, state, []byte(piece))
			require.Equal(t, next != nil && piece != "", mask.Has(token), "%q after %q", piece, text)
		}
	}
}

// TestCacheIsLimited checks that the cache of states stays within its limit, and that a state
// from before the cache was dropped remains usable.
func TestCacheIsLimited(t *testing.T) {
	g := mustParse(t, `root ::= "(" root ")" | [a-z]{5000} | "x"`, "format")
	old := mustBegin(t, g)
	old = mustNext(t, g, old, []byte("(("))
	for i := range 5 {
		text := strings.Repeat("(", i) + strings.Repeat("q", 5000) + strings.Repeat(")", i)
		state := mustBegin(t, g)
		for _, c := range []byte(text) {
			state = mustNext(t, g, state, []byte{c})
			require.NotNil(t, state)
			require.LessOrEqual(t, len(g.tables.states), maxStates+2)
		}
		require.True(t, state.Complete())
		next := mustNext(t, g, old, []byte("x))"))
		require.True(t, next.Complete())
		next = mustNext(t, g, old, []byte("x)))"))
		require.Nil(t, next)
	}
	require.Greater(t, g.tables.generation, 3)
}

func TestReasoningPrecedesAnswers(t *testing.T) {
	answer := mustParse(t, `root ::= "yes" | "no"`, "format")
	for name, c := range map[string]struct {
		started  bool
		g        *Grammar
		yes, not []string
	}{
		"may think": {
			false, answer, []string{"yes", "<think>so</think>no", "\n<think>a</thin</think>\n\nyes"},
			[]string{"<think>so", "so</think>yes", "<think></think>maybe", "<think></think>\n\n\nno"},
		},
		"thinks": {
			true, answer, []string{"</think>yes", "a << b <</think>\nno", "\xff</think>no"},
			[]string{"yes", "</thin>yes", "</think></think>yes"},
		},
		"is free":     {true, nil, []string{"hm</think>", "hm</think>\n"}, []string{"hm", "hm</think>a"}},
		"is all free": {false, nil, []string{"", "\n\n\n<think></think>"}, []string{"a", "<thin"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := After(Thinking{"<think>", "</think>", c.started}, c.g)
			for _, s := range c.yes {
				require.True(t, accepts(t, g, s), "%q", s)
			}
			for _, s := range c.not {
				require.False(t, accepts(t, g, s), "%q", s)
			}
		})
	}
}

func TestCloseReasoning(t *testing.T) {
	answer := mustParse(t, `root ::= "yes" | "no"`, "format")
	g := After(Thinking{"<think>", "</think>", false}, answer)
	state := mustBegin(t, g)
	require.False(t, g.Reasoning(state))
	state = mustNext(t, g, state, []byte("<think>so </thi"))
	require.True(t, g.Reasoning(state))
	closed, err := g.Close(state)
	require.NoError(t, err)
	for text, may := range map[string]bool{
		"n": true, "nk>yes": true, "nk>\n\nno": true, "s": false, "</think>": false, " ": false,
	} {
		next := mustNext(t, g, closed, []byte(text))
		require.Equal(t, may, next != nil, "%q", text)
	}
	next := mustNext(t, g, closed, []byte("nk>"))
	require.False(t, g.Reasoning(next))
}

func TestCalls(t *testing.T) {
	form := CallForm{Before: "<call>{\"name\": \"", Between: "\", \"arguments\": ", After: "}</call>", Separator: "\n"}
	functions := []Function{
		{Name: "now"},
		{
			Name:       "rain",
			Parameters: []byte(`{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"]}`),
			Strict:     true,
		},
		{Name: "odd", Parameters: []byte(`{"type":"object","minProperties":2}`)}, // keyword that is not enforced
	}
	many, err := Calls(form, functions, true)
	require.NoError(t, err)
	single, err := Calls(form, functions[1:2], false)
	require.NoError(t, err)
	rome := `<call>{"name": "rain", "arguments": {"city": "Rome"}}</call>`
	require.True(t, accepts(t, many, rome))
	require.True(t, accepts(t, single, rome))
	require.True(t,
		accepts(t, many,
			rome+"\n"+`<call>{"name": "now", "arguments": {}}</call>`+"\n"+
				`<call>{"name": "odd", "arguments": {"a": 1}}</call>`))
	require.False(t, accepts(t, single, rome+"\n"+rome))
	require.False(t, accepts(t, many, strings.ReplaceAll(rome, "Rome", "Bonn")))
	require.False(t, accepts(t, many, strings.ReplaceAll(rome, "rain", "now2")))
	functions[2].Strict, functions[2].Field = true, "tools[2].function.parameters"
	_, err = Calls(form, functions, true)
	require.ErrorContains(t, err, "tools[2].function.parameters: #/minProperties cannot be enforced")
}

// TestOfferedCalls checks that the grammar of Offered constrains only text after a delimiter outside
// of the reasoning.
func TestOfferedCalls(t *testing.T) {
	const mark = "<call>"
	form := CallForm{Before: mark + "{\"name\": \"", Between: "\", \"arguments\": ", After: "}</call>", Separator: "\n"}
	functions := []Function{
		{Name: "now"},
		{
			Name:       "rain",
			Parameters: []byte(`{"type":"object","properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"]}`),
			Strict:     true,
		},
	}
	thinks := &Thinking{"<think>", "</think>", false}
	started := &Thinking{"<think>", "</think>", true}
	rome := `<call>{"name": "rain", "arguments": {"city": "Rome"}}</call>`
	bonn := strings.ReplaceAll(rome, "Rome", "Bonn")
	for name, c := range map[string]struct {
		thinking *Thinking
		yes, not []string
	}{
		"an answer": {nil, []string{
			"", "text", "<cal", "<<call", rome, "So: " + rome + "\n" + `<call>{"name": "now", "arguments": {}}</call>` + " done",
			"{\"name\": \"rain\"}", bonn[1:], "<think>" + rome, "</call>\xff",
		},
			[]string{
				bonn, "So: " + bonn, "<call>", "<call> ", "<<call>x", rome + bonn, "<call>{\"name\": \"snow\"", "<think>" + bonn,
				strings.ReplaceAll(rome, "}}", "}} "),
			}},
		"may think": {thinks, []string{
			"", " \n<th", "text", " " + rome, "<think>" + bonn + "</think>" + rome, "\n<think></think>text", "a<think>b",
			"<t" + rome,
		},
			[]string{
				bonn, "<think>" + rome, "<think>a</think>" + bonn, "<think>" + bonn[:40] + "</think>" + bonn, "<thi" + bonn,
				"a<think>" + bonn,
			}},
		"thinks": {
			started, []string{bonn + "</think>" + rome, "</think>"}, []string{rome, "</think>" + bonn, bonn + "</think>" + bonn},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := Offered(c.thinking, mark, form, functions)
			require.NoError(t, err)
			for _, s := range c.yes {
				require.True(t, accepts(t, g, s), "%q", s)
			}
			for _, s := range c.not {
				require.False(t, accepts(t, g, s), "%q", s)
			}
		})
	}
	g, err := Offered(thinks, mark, form, functions)
	require.NoError(t, err)
	for text, inside := range map[string]bool{
		"": false, "\n<think>": true, "<think>a<call>": true, "<think>a</think>": false, "a<think>": false,
	} {
		state, err := g.Start()
		require.NoError(t, err)
		state = mustNext(t, g, state, []byte(text))
		require.Equal(t, inside, g.Reasoning(state), "%q", text)
		if inside {
			state, err = g.Close(state)
			require.NoError(t, err)
			state = mustNext(t, g, state, []byte("</think>"+rome))
			require.True(t, state.Accepts())
		}
	}
	functions[1].Parameters, functions[1].Field = []byte(`{"minProperties":2}`), "tools[1].function.parameters"
	_, err = Offered(nil, mark, form, functions)
	require.ErrorContains(t, err, "tools[1].function.parameters: #/minProperties cannot be enforced")
}

// large returns a vocabulary of size random tokens; large models have about 150 000.
var large = func(size int) *Vocabulary {
	r := rand.New(rand.NewPCG(5, 6))
	return NewVocabulary(size, func(token int) []byte {
		if token < 256 {
			return []byte{byte(token)}
		}
		var word strings.Builder
		if r.IntN(2) == 0 {
			word.WriteByte(' ')
		}
		for range 1 + r.IntN(9) {
			word.WriteByte("etaoinshrdlucmfwypvbgkqjxzETAO0123456789.,:{}\"[]-_\n"[min(r.IntN(51), r.IntN(51))])
		}
		return []byte(word.String())
	})
}

func BenchmarkMask(b *testing.B) {
	v := large(150_000)
	for name, text := range map[string]string{"in a string": `{"a": "`, "at a value": `{"a": `, "at a key": `{`} {
		for _, known := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s, known %v", name, known), func(b *testing.B) {
				g, err := JSON()
				require.NoError(b, err)
				once := func() {
					state := mustBegin(b, g)
					state = mustNext(b, g, state, []byte(text))
					_, err := g.Allowed(state, v)
					require.NoError(b, err)
				}
				once()
				for b.Loop() {
					if !known {
						g.tables.states = nil
					}
					once()
				}
			})
		}
	}
}

func mustParse(t testing.TB, source, field string) *Grammar {
	t.Helper()
	g, err := Parse(source, field)
	require.NoError(t, err)
	return g
}

func mustBegin(t testing.TB, g *Grammar) *State {
	t.Helper()
	state, err := g.Start()
	require.NoError(t, err)
	return state
}

func mustNext(t testing.TB, g *Grammar, s *State, text []byte) *State {
	t.Helper()
	next, err := g.Next(s, text)
	require.NoError(t, err)
	return next
}
