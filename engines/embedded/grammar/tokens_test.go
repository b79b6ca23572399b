package grammar

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/tokenizer"
	"anneal/internal/testutil"
)

// pairs returns a vocabulary of byte-pair encoding that was trained without word boundaries. Its
// tokens span several characters, mix JSON syntax and letters, and split characters.
func pairs(t testing.TB, merges int) *Vocabulary {
	var parts [][]byte
	for seed := range 300 {
		r := rand.New(rand.NewPCG(uint64(seed), 77))
		g, err := Schema([]byte(RandomSchema(r)), "format")
		if err != nil {
			continue
		}
		text, _ := write(t, g, r, 200)
		for i := range len(text) {
			parts = append(parts, []byte{text[i]})
		}
	}
	var tokens [][]byte
	for c := range 256 {
		tokens = append(tokens, []byte{byte(c)})
	}
	for range merges {
		counts, best, limit := map[[2]string]int{}, [2]string{}, 0
		for i := range len(parts) - 1 {
			pair := [2]string{string(parts[i]), string(parts[i+1])}
			counts[pair]++
			if n := counts[pair]; n > limit || n == limit && pair[0]+pair[1] < best[0]+best[1] {
				best, limit = pair, n
			}
		}
		tokens = append(tokens, []byte(best[0]+best[1]))
		joined := parts[:0:0]
		for i := 0; i < len(parts); i++ {
			if i+1 < len(parts) && string(parts[i]) == best[0] && string(parts[i+1]) == best[1] {
				joined = append(joined, tokens[len(tokens)-1])
				i++
				continue
			}
			joined = append(joined, parts[i])
		}
		parts = joined
	}
	tokens = append(tokens, nil, tokens[300]) // a special token, and a duplicate
	return NewVocabulary(len(tokens), func(token int) []byte { return tokens[token] })
}

// TestTokensOfSeveralBytes samples texts of random schemas in tokens of a byte-pair encoding,
// and checks that each text conforms under an independent validator, that masks match the bytes
// of each token, and that every tokenization of a conforming text is allowed.
func TestTokensOfSeveralBytes(t *testing.T) {
	v := pairs(t, 700)
	var mixed, broken int
	for token := 256; token < v.size; token++ {
		text := v.Bytes(token)
		mixed += share(bytes.ContainsAny(text, `"{}[],:`) && bytes.ContainsAny(text, "abcdefghijklmnopqrstuvwxyz0123456789"))
		broken += share(!utf8.Valid(text))
	}
	require.Greater(t, mixed, 50, "tokens of signs and letters together")
	require.Greater(t, broken, 20, "tokens that end within a character")
	n := schemas()
	whole := randomSchemasIn(t, v, n)
	require.Greater(t, whole, n/2)
}

// TestTokensOfPublishedVocabularies runs randomSchemasIn with the vocabularies of GPT-2 and Llama
// 3, which `make clients` installs.
func TestTokensOfPublishedVocabularies(t *testing.T) {
	published := filepath.Join("..", "tokenizer", "testdata", "published")
	node, err := exec.LookPath("node")
	if _, missing := os.Stat(filepath.Join(published, "node_modules")); err != nil || missing != nil {
		t.Skip("the published vocabularies are not installed: make clients")
	}
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), node, filepath.Join(published, "dump.mjs"), dir)
	command.Stdin, command.Stderr = strings.NewReader("[]"), os.Stderr
	require.NoError(t, command.Run())
	found := testutil.ReadDir(t, dir)
	require.Len(t, found, 2)
	for _, one := range found {
		t.Run(one.Name(), func(t *testing.T) {
			tok, err := tokenizer.Load(filepath.Join(dir, one.Name()))
			require.NoError(t, err)
			v := NewVocabulary(tok.VocabSize(), tok.Text)
			n := 300
			if testing.Short() {
				n = 30
			}
			require.Greater(t, randomSchemasIn(t, v, n), n/3)
			text := `{"city":"東京","note":"naïve — 🙂","items":[{"count":12345,"ok":true}]}`
			g, err := JSON()
			require.NoError(t, err)
			follow(t, g, v, tok.Encode(text))
		})
	}
}

func share(is bool) int {
	if is {
		return 1
	}
	return 0
}

// randomSchemasIn samples texts of n random schemas in tokens of v. It requires that each
// complete text conforms and that any tokenization of it is allowed, and returns the number of
// complete texts.
func randomSchemasIn(t *testing.T, v *Vocabulary, n int) (whole int) {
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 5))
		schema := RandomSchema(r)
		g, err := Schema([]byte(schema), "format")
		if err != nil {
			continue
		}
		text, done := writeIn(t, g, v, r, 200)
		require.True(t, utf8.ValidString(text) || !done, "%q", text)
		if done {
			conforms(t, schema, text)
			follow(t, g, v, cut(v, text, r))
			whole++
		}
	}
	return whole
}

// writeIn samples a text that conforms to g in tokens of v. whole is false if the text was cut
// off after limit tokens.
func writeIn(t testing.TB, g *Grammar, v *Vocabulary, r *rand.Rand, limit int) (out string, whole bool) {
	state := mustBegin(t, g)
	var text []byte
	for range limit {
		if state.Complete() || state.Accepts() && r.IntN(3) == 0 {
			return string(text), true
		}
		mask, err := g.Allowed(state, v)
		require.NoError(t, err)
		var can, ends []int
		for token := range v.size {
			if !mask.Has(token) {
				continue
			}
			can = append(can, token)
			if bytes.ContainsAny(v.Bytes(token), `"}]`) {
				ends = append(ends, token)
			}
		}
		require.NotEmpty(t, can, "nothing follows %q", text)
		for range 4 { // the mask must match the bytes of the tokens
			token := r.IntN(v.size)
			next := mustNext(t, g, state, v.Bytes(token))
			require.Equal(t, next != nil && len(v.Bytes(token)) > 0, mask.Has(token), "%q after %q", v.Bytes(token), text)
		}
		if len(ends) > 0 && r.IntN(3) == 0 {
			can = ends
		}
		token := can[r.IntN(len(can))]
		text = append(text, v.Bytes(token)...)
		state = mustNext(t, g, state, v.Bytes(token))
		require.NotNil(t, state)
	}
	return string(text), false
}

// cut splits text into tokens of v at random.
func cut(v *Vocabulary, text string, r *rand.Rand) (tokens []int) {
	for len(text) > 0 {
		var ways []int
		at := &v.nodes[0]
		for depth := 0; depth < len(text); depth++ {
			below := v.nodes[at.child : at.child+at.children]
			i, found := slices.BinarySearchFunc(below, text[depth], func(b branch, c byte) int { return int(b.byte) - int(c) })
			if !found {
				break
			}
			at = &below[i]
			for _, token := range v.ids[at.firstToken : at.firstToken+at.numToken] {
				ways = append(ways, int(token))
			}
		}
		token := ways[r.IntN(len(ways))]
		tokens, text = append(tokens, token), text[len(v.Bytes(token)):]
	}
	return tokens
}

// follow requires that g allows tokens one after another, and that the text may then end.
func follow(t testing.TB, g *Grammar, v *Vocabulary, tokens []int) {
	state := mustBegin(t, g)
	for _, token := range tokens {
		mask, err := g.Allowed(state, v)
		require.NoError(t, err)
		require.True(t, mask.Has(token), "%q", v.Bytes(token))
		state = mustNext(t, g, state, v.Bytes(token))
	}
	require.True(t, state.Accepts())
}

// schemas returns the number of random schemas that a test tries: 2,000, 500 in short mode, or
// ANNEAL_SCHEMAS.
func schemas() int {
	if n, err := strconv.Atoi(os.Getenv("ANNEAL_SCHEMAS")); err == nil {
		return n
	}
	if testing.Short() {
		return 500
	}
	return 2_000
}
