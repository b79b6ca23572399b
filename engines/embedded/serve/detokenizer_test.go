package serve

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/tokenizer"
)

// TestDetokenizerMatchesDefinition compares the detokenizer with the definition of its output:
// the text up to the token that completes a stop sequence, cut before the first stop sequence in
// the text.
func TestDetokenizerMatchesDefinition(t *testing.T) {
	tokens, source := tokenizer.NewBytes(), rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", "b", "é", "東", "🙂", "\xe6", "\x9d"}
	words := func(n int, from []string) string {
		out := ""
		for range n {
			out += from[source.IntN(len(from))]
		}
		return out
	}
	stopped := 0
	for range 3000 {
		var stops []string
		for range source.IntN(5) {
			stops = append(stops, words(1+source.IntN(3), letters[:5]))
		}
		ids := tokens.Encode(words(source.IntN(9), letters))
		want, wantStop := plain(tokens, ids, stops)

		s, got, gotStop := detokenizer{decoder: tokens.NewDecoder(), stops: stops}, "", false
		for _, id := range ids {
			chunk, found := s.add(id)
			require.True(t, utf8.ValidString(chunk.Text))
			if got += chunk.Text; found {
				gotStop = true
				break
			}
			require.True(t, strings.HasPrefix(want, got), "sent %q of %q with stops %q", got, want, stops)
		}
		if !gotStop {
			chunk, found := s.flush()
			got, gotStop = got+chunk.Text, found
		} else {
			stopped++
		}
		require.Equal(t, want, got, "%q with stops %q", tokens.Decode(ids), stops)
		require.Equal(t, wantStop, gotStop)
	}
	assert.Greater(t, stopped, 500, "enough examples contain a stop sequence")
}

func plain(tokens *tokenizer.Tokenizer, ids []int, stops []string) (text string, stopped bool) {
	for n := range len(ids) + 1 {
		d := tokens.NewDecoder()
		text = ""
		for _, id := range ids[:n] {
			text += d.Next(id)
		}
		if n == len(ids) {
			text += d.Rest()
		}
		first := -1
		for _, stop := range stops {
			if at := strings.Index(text, stop); at >= 0 && (first < 0 || at < first) {
				first = at
			}
		}
		if first >= 0 {
			return text[:first], true
		}
	}
	return text, false
}
