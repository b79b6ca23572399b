package inference

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// TestRawOutputShowsTheGrammar checks that raw_output has the grammar of the request, or else the
// one that the engine reports.
func TestRawOutputShowsTheGrammar(t *testing.T) {
	grammarOf := func(format *engines.ResponseFormat, reported string) *string {
		c := &choice{}
		c.append(engines.Chunk{Prompt: &engines.RenderedPrompt{Tokens: []int{1}}})
		c.append(engines.Chunk{Prompt: &engines.RenderedPrompt{Tokens: []int{2}, Grammar: reported}})
		q := &generationRequest{}
		q.settings.RawOutput, q.settings.Format = true, format
		return c.rawOutput(q).Grammar
	}
	require.Nil(t, grammarOf(nil, ""))
	require.Nil(t, grammarOf(&engines.ResponseFormat{Type: engines.FormatSchema}, ""))
	require.Equal(t, "root ::= r1", *grammarOf(&engines.ResponseFormat{Type: engines.FormatSchema}, "root ::= r1"))
	given := &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= "a" # mine`}
	require.Equal(t, given.Grammar, *grammarOf(given, `root ::= "a"`), "the caller's own text")
}
