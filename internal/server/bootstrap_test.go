package server

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs/reconcile/faults"
	"anneal/domain"
)

// TestFaultsAtEveryEffect injects a fault at each file that the first start stores. The next start
// must complete the bootstrap.
func TestFaultsAtEveryEffect(t *testing.T) {
	base := len(bootstrapWithFault(t, faults.NewPlan("", 0), false))
	require.Greater(t, base, 4)
	for at := range base { // a start ends at the first error, so a refusal is like a crash
		t.Run(fmt.Sprintf("base model, file %d", at), func(t *testing.T) {
			t.Parallel()
			bootstrapWithFault(t, faults.NewPlan(faults.Crash, at+1), false)
		})
	}
	t.Run("speech model", func(t *testing.T) { // its files are large: one fault suffices
		t.Parallel()
		if err := SpeechInstalled(); err != nil {
			t.Skip(err)
		}
		bootstrapWithFault(t, faults.NewPlan(faults.Crash, base+len(speechFiles)/2), true)
	})
}

// bootstrapWithFault starts a server in a new directory with the faults of a plan, and then without,
// and returns the effects. With speech, it also stores the speech model.
func bootstrapWithFault(t *testing.T, plan *faults.Plan, speech bool) []string {
	flags := corpusFlags(filepath.Join(t.TempDir(), "data"))
	flags.intercept = plan.Do
	if speech {
		flags.Node.Engine.Speech = DefaultFlags().Node.Engine.Speech
	}
	start := func() (*Server, func(), error) {
		ctx, stop := context.WithCancel(t.Context())
		s, err := Start(ctx, flags, slog.New(slog.DiscardHandler))
		return s, func() {
			stop()
			if err == nil {
				require.NoError(t, s.Wait(ctx))
			}
		}, err
	}
	_, stop, _ := start() // fails where the plan injects a fault
	stop()
	flags.intercept = nil
	s, stop, err := start()
	require.NoError(t, err)
	defer stop()
	models := []domain.Name{domain.DefaultBaseModel}
	if speech {
		models = append(models, speechModelName)
	}
	for _, name := range models {
		model, ok := s.world.View().Models.Get(name)
		require.True(t, ok)
		require.Equal(t, domain.ModelReady, model.State.State)
		require.Greater(t, len(model.State.Files.Sizes), 4)
		for name, size := range model.State.Files.Sizes {
			stored, err := s.blobs.Size(t.Context(), model.State.Files.Prefix+name)
			require.NoError(t, err)
			require.Equal(t, size, stored)
		}
	}
	return plan.Steps()
}
