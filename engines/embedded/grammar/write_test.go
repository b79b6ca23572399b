package grammar

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// equalInGBNF requires that the GBNF of a grammar accepts the same texts as the grammar. It tries
// the given texts and texts that either grammar generates, unchanged and with one byte changed.
func equalInGBNF(t *testing.T, g *Grammar, texts []string) {
	t.Helper()
	source := g.GBNF()
	require.NotEmpty(t, source)
	written, err := Parse(source, "grammar")
	require.NoError(t, err, source)
	random := rand.New(rand.NewPCG(3, 4))
	for range 2 {
		for _, from := range []*Grammar{g, written} {
			text, whole := write(t, from, random, 100)
			if whole {
				require.True(t, accepts(t, g, text) && accepts(t, written, text), "%q of\n%s", text, source)
			}
			if text != "" {
				changed := []byte(text)
				changed[random.IntN(len(changed))] ^= byte(1 << random.IntN(8))
				texts = append(texts, string(changed), text[:random.IntN(len(text))])
			}
		}
	}
	for _, text := range texts {
		require.Equal(t, accepts(t, g, text), accepts(t, written, text), "%q of\n%s", text, source)
	}
}

func TestGBNF(t *testing.T) {
	g, err := Schema([]byte(`{"type":"object","properties":{"city":{"enum":["Rome","Bern"]}},"required":["city"],`+
		`"additionalProperties":false}`), "format")
	require.NoError(t, err)
	require.Contains(t, g.GBNF(), `"\"city\":"`)
	require.Zero(t, testing.AllocsPerRun(1, func() { g.GBNF() }), "the text is computed once")
	equalInGBNF(t, g, []string{`{"city":"Rome"}`, `{}`})
	g, err = JSON()
	require.NoError(t, err)
	require.Less(t, len(g.GBNF()), 4000)
	equalInGBNF(t, g, []string{`{}`, `{"a":[1,{"é":"\ud83d\ude00"}]}`, `[]`, `{"a":1,}`})
	for _, class := range []string{`[\x00-\x1F]`, `[^"\\]`, `[-^\]\[]`, `[é-東🙂-\U0010FFFF]`, `"-^[]\\\"\n\t"`, `.`} {
		g := mustParse(t, "root ::= "+class, "format")
		equalInGBNF(t, g, []string{"a", "-", "^", "]", "é", "東", "🙂", "\x00", "\n", `"`, `\`, "\xff", "\xed\xa0\x80"})
	}
	// A grammar that GBNF cannot express within its limits has no text.
	g = mustParse(t, "root ::= (x y)* \"c\"\nx ::= \"a\"?\ny ::= \"b\"?", "format")
	if source := g.GBNF(); source != "" {
		equalInGBNF(t, g, []string{"abc", "c", "ac", "bac", "b"})
	}
	var many strings.Builder
	many.WriteString(`{"enum":[`)
	for i := range 20000 {
		if i > 0 {
			many.WriteString(",")
		}
		many.WriteString(strings.Repeat("7", 5) + strings.Repeat("1", i%9) + string(rune('0'+i%10)))
	}
	many.WriteString(`]}`)
	if g, err = Schema([]byte(many.String()), "format"); err == nil {
		require.LessOrEqual(t, len(g.GBNF()), maxSource)
	}
}
