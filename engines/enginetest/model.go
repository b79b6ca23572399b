// Package enginetest is a conformance test suite for implementations of the
// interfaces of package engines. Only tests import it.
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

// A Completion is the result of a completion request.
type Completion struct {
	Text   string
	Finish string
	Usage  engines.Usage
}

// Complete sends a request to m, checks the invariants of the chunks, and returns the completion
// and the error that m returned.
func Complete(t *testing.T, m engines.Model, req engines.CompletionRequest) (a Completion, err error) {
	t.Helper()
	a.Usage, err = m.Complete(t.Context(), req, func(c engines.Chunk) error {
		assert.Empty(t, a.Finish, "a chunk after the last one")
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

// Model runs the tests that every implementation of engines.Model must pass. load loads a model
// with a context length of at most 8192 tokens; Model closes it.
func Model(t *testing.T, load func(t *testing.T) engines.Model) {
	open := func(t *testing.T) engines.Model {
		m := load(t)
		t.Cleanup(func() { assert.NoError(t, m.Close()) })
		return m
	}
	complete := func(t *testing.T, m engines.Model, req engines.CompletionRequest) Completion {
		t.Helper()
		a, err := Complete(t, m, req)
		require.NoError(t, err)
		return a
	}
	greedy := engines.CompletionRequest{Prompt: "Write house in capital letters.", MaxTokens: 5}
	t.Run("completes", func(t *testing.T) { testComplete(t, open(t), greedy, complete) })
	t.Run("rejects invalid requests", func(t *testing.T) { testInvalid(t, open(t)) })
	t.Run("stops when emit fails or ctx is done", func(t *testing.T) { testStop(t, open(t), greedy) })
	t.Run("completes concurrent requests alike", func(t *testing.T) {
		m := open(t)
		want := complete(t, m, greedy)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				got, err := Complete(t, m, greedy)
				assert.NoError(t, err)
				assert.Equal(t, want.Text, got.Text)
			})
		}
		all.Wait()
	})
	t.Run("rejects requests when closed", func(t *testing.T) {
		m := load(t)
		require.NoError(t, m.Close())
		_, err := Complete(t, m, greedy)
		require.Equal(t, domain.Unavailable, domain.CodeOf(err), "%v", err)
	})
}

func testComplete(
	t *testing.T, m engines.Model, greedy engines.CompletionRequest,
	complete func(*testing.T, engines.Model, engines.CompletionRequest) Completion,
) {
	require.Positive(t, m.Info().Slots)
	require.Positive(t, m.Info().ContextLength)

	first := complete(t, m, greedy)
	require.NotEmpty(t, first.Text)
	require.Positive(t, first.Usage.PromptTokens)
	require.Positive(t, first.Usage.CompletionTokens)
	require.LessOrEqual(t, first.Usage.CompletionTokens, greedy.MaxTokens)
	require.Equal(t, first.Text, complete(t, m, greedy).Text, "a greedy answer is always the same")

	seed := uint64(1)<<40 + 7
	drawn := greedy
	drawn.Temperature, drawn.Seed = 1, &seed
	require.Equal(t, complete(t, m, drawn).Text, complete(t, m, drawn).Text, "the same seed")

	one := greedy
	one.MaxTokens = 1
	short := complete(t, m, one)
	require.Equal(t, engines.FinishLength, short.Finish)
	require.Equal(t, 1, short.Usage.CompletionTokens)

	none := greedy
	none.MaxTokens = 0
	empty := complete(t, m, none)
	require.Equal(t, Completion{Finish: engines.FinishLength, Usage: empty.Usage}, empty)
	require.Equal(t, first.Usage.PromptTokens, empty.Usage.PromptTokens)
	require.Zero(t, empty.Usage.CompletionTokens)

	cut := greedy
	runes := []rune(first.Text)
	cut.Stop = []string{string(runes[len(runes)/2:])}
	before, _, _ := strings.Cut(first.Text, cut.Stop[0])
	stopped := complete(t, m, cut)
	require.Equal(t, before, stopped.Text)
	require.Equal(t, engines.FinishStop, stopped.Finish)

	chat := &engines.Chat{Messages: []engines.Message{{Role: "user", Content: greedy.Prompt}}}
	require.NotEmpty(t, complete(t, m, engines.CompletionRequest{MaxTokens: 5, Chat: chat}).Text)
}

func testInvalid(t *testing.T, m engines.Model) {
	for name, line := range map[string]struct {
		req     engines.CompletionRequest
		code    domain.Code
		message string
	}{
		"five stops": {
			engines.CompletionRequest{Prompt: "p", Stop: []string{"a", "b", "c", "d", "e"}},
			domain.InvalidArgument, "stop",
		},
		"an unknown format": {
			engines.CompletionRequest{Prompt: "p", Format: &engines.ResponseFormat{Type: "poem"}},
			domain.InvalidArgument, "format",
		},
		"an unknown addon": {
			engines.CompletionRequest{Prompt: "p", Addon: "unknown"}, domain.Unavailable, "addon",
		},
		"a long prompt": {
			engines.CompletionRequest{Prompt: strings.Repeat("word ", 8192)}, domain.InvalidArgument, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			line.req.MaxTokens = 1
			_, err := Complete(t, m, line.req)
			require.Equal(t, line.code, domain.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, line.message)
		})
	}
}

func testStop(t *testing.T, m engines.Model, req engines.CompletionRequest) {
	failed := errors.New("emit failed")
	calls := 0
	_, err := m.Complete(t.Context(), req, func(engines.Chunk) error { calls++; return failed })
	require.ErrorIs(t, err, failed)
	require.Equal(t, 1, calls, "nothing is emitted after emit failed")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req.MaxTokens = 200
	_, err = m.Complete(ctx, req, func(engines.Chunk) error { cancel(); return ctx.Err() })
	require.ErrorIs(t, err, context.Canceled)
}
