package simulated_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

func TestAddonMatchesModelWithAdapter(t *testing.T) {
	result, err := simulated.New(simulated.Options{}).Trainer.Train(t.Context(), request(t), &watcher{})
	require.NoError(t, err)
	completer := simulated.New(simulated.Options{Seed: 3}).Completer
	base, adapter := t.TempDir(), dirOf(t, result)
	merged, err := completer.Load(t.Context(), engines.ModelFiles{Dir: base, AdapterDir: adapter})
	require.NoError(t, err)
	shared, err := completer.Load(t.Context(), engines.ModelFiles{Dir: base})
	require.NoError(t, err)
	loader := shared.(engines.AddonLoader)

	plain := engines.CompletionRequest{Prompt: "go", MaxTokens: 30, IgnoreEOS: true}
	addon := plain
	addon.Addon = "a"
	_, err = shared.Complete(t.Context(), addon, nil)
	require.Equal(t, engines.ErrAddonNotLoaded("a"), err)
	require.NoError(t, loader.LoadAddon(t.Context(), "a", adapter))
	want, _, _ := complete(t, merged, plain)
	got, _, _ := complete(t, shared, addon)
	require.Equal(t, want, got)
	withoutAddon, _, _ := complete(t, shared, plain)
	require.NotEqual(t, withoutAddon, got)
	require.NoError(t, loader.UnloadAddon("a"))
	_, err = shared.Complete(t.Context(), addon, nil)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
}

// TestCanceledLoad checks that an addon whose load was canceled is not loaded.
func TestCanceledLoad(t *testing.T) {
	m := load(t, simulated.Options{}).(engines.AddonLoader)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.LoadAddon(ctx, "a", t.TempDir()), context.Canceled)
	_, err := m.Complete(t.Context(), engines.CompletionRequest{Prompt: "go", MaxTokens: 3, Addon: "a"}, nil)
	require.Equal(t, engines.ErrAddonNotLoaded("a"), err)
}

func TestInjectedFaultOfLoadAddon(t *testing.T) {
	broken := errors.New("broken")
	m := load(t, simulated.Options{Fault: func(a simulated.Action) error {
		if a.Name == simulated.LoadAddon {
			return broken
		}
		return nil
	}})
	require.ErrorIs(t, m.(engines.AddonLoader).LoadAddon(t.Context(), "a", t.TempDir()), broken)
}
