// Package enginetest holds every engine to what the package engines promises of
// it. Only tests import it.
package enginetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// An Answer is what a request got.
type Answer struct {
	Text   string
	Finish string
	Usage  engines.Usage
}

// Ask completes a request, and holds the pieces to their rules.
func Ask(t *testing.T, m engines.Model, req engines.CompletionRequest) (a Answer, err error) {
	t.Helper()
	a.Usage, err = m.Complete(t.Context(), req, func(c engines.Chunk) error {
		assert.Empty(t, a.Finish, "a piece after the last")
		assert.LessOrEqual(t, len(c.Tokens), engines.MaxChunk)
		assert.Equal(t, strings.ToValidUTF8(c.Text, ""), c.Text, "a character is split")
		if !c.Echoed {
			a.Text += c.Text
		}
		a.Finish = c.Finish
		return nil
	})
	return a, err
}

// Model runs what every model must pass. load loads one with a window of at most
// 8192 tokens, which the suite closes.
func Model(t *testing.T, load func(t *testing.T) engines.Model) {
	open := func(t *testing.T) engines.Model {
		m := load(t)
		t.Cleanup(func() { assert.NoError(t, m.Close()) })
		return m
	}
	ask := func(t *testing.T, m engines.Model, req engines.CompletionRequest) Answer {
		t.Helper()
		a, err := Ask(t, m, req)
		require.NoError(t, err)
		return a
	}
	greedy := engines.CompletionRequest{Prompt: "Write house in capital letters.", MaxTokens: 5}
	t.Run("answers", func(t *testing.T) { answers(t, open(t), greedy, ask) })
	t.Run("refuses", func(t *testing.T) { refuses(t, open(t)) })
	t.Run("stops when asked to", func(t *testing.T) { stops(t, open(t), greedy) })
	t.Run("answers many as one", func(t *testing.T) {
		m := open(t)
		want := ask(t, m, greedy)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				got, err := Ask(t, m, greedy)
				assert.NoError(t, err)
				assert.Equal(t, want.Text, got.Text)
			})
		}
		all.Wait()
	})
	t.Run("is closed", func(t *testing.T) {
		m := load(t)
		require.NoError(t, m.Close())
		_, err := Ask(t, m, greedy)
		require.Equal(t, domain.Unavailable, domain.CodeOf(err), "%v", err)
	})
}

func answers(t *testing.T, m engines.Model, greedy engines.CompletionRequest, ask func(*testing.T, engines.Model, engines.CompletionRequest) Answer) {
	require.Positive(t, m.Info().Slots)
	require.Positive(t, m.Info().ContextLength)

	first := ask(t, m, greedy)
	require.NotEmpty(t, first.Text)
	require.Positive(t, first.Usage.PromptTokens)
	require.Positive(t, first.Usage.CompletionTokens)
	require.LessOrEqual(t, first.Usage.CompletionTokens, greedy.MaxTokens)
	require.Equal(t, first.Text, ask(t, m, greedy).Text, "a greedy answer is always the same")

	seed := uint64(1)<<40 + 7
	drawn := greedy
	drawn.Temperature, drawn.Seed = 1, &seed
	require.Equal(t, ask(t, m, drawn).Text, ask(t, m, drawn).Text, "the same seed")

	one := greedy
	one.MaxTokens = 1
	short := ask(t, m, one)
	require.Equal(t, engines.FinishLength, short.Finish)
	require.Equal(t, 1, short.Usage.CompletionTokens)

	none := greedy
	none.MaxTokens = 0
	empty := ask(t, m, none)
	require.Equal(t, Answer{Finish: engines.FinishLength, Usage: empty.Usage}, empty)
	require.Equal(t, first.Usage.PromptTokens, empty.Usage.PromptTokens)
	require.Zero(t, empty.Usage.CompletionTokens)

	cut := greedy
	runes := []rune(first.Text)
	cut.Stop = []string{string(runes[len(runes)/2:])}
	before, _, _ := strings.Cut(first.Text, cut.Stop[0])
	stopped := ask(t, m, cut)
	require.Equal(t, before, stopped.Text)
	require.Equal(t, engines.FinishStop, stopped.Finish)

	said := ask(t, m, engines.CompletionRequest{MaxTokens: 5, Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: greedy.Prompt}}}})
	require.NotEmpty(t, said.Text)
}

func refuses(t *testing.T, m engines.Model) {
	for name, line := range map[string]struct {
		req  engines.CompletionRequest
		code domain.Code
		says string
	}{
		"five stops":        {engines.CompletionRequest{Prompt: "p", MaxTokens: 1, Stop: []string{"a", "b", "c", "d", "e"}}, domain.InvalidArgument, "stop"},
		"an unknown format": {engines.CompletionRequest{Prompt: "p", MaxTokens: 1, Format: &engines.Format{Type: "poem"}}, domain.InvalidArgument, "format"},
		"an unknown addon":  {engines.CompletionRequest{Prompt: "p", MaxTokens: 1, Addon: "nobody"}, domain.Unavailable, "addon"},
		"a long prompt":     {engines.CompletionRequest{Prompt: strings.Repeat("word ", 8192), MaxTokens: 1}, domain.InvalidArgument, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Ask(t, m, line.req)
			require.Equal(t, line.code, domain.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, line.says)
		})
	}
}

func stops(t *testing.T, m engines.Model, req engines.CompletionRequest) {
	full := errors.New("no room")
	calls := 0
	_, err := m.Complete(t.Context(), req, func(engines.Chunk) error { calls++; return full })
	require.ErrorIs(t, err, full)
	require.Equal(t, 1, calls, "nothing is emitted after emit failed")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req.MaxTokens = 200
	_, err = m.Complete(ctx, req, func(engines.Chunk) error { cancel(); return ctx.Err() })
	require.ErrorIs(t, err, context.Canceled)
}
