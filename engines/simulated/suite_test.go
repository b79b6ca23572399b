package simulated_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/enginetest"
	"anneal/engines/simulated"
)

func TestModelConformance(t *testing.T) {
	enginetest.Model(t, func(t *testing.T) engines.Model {
		m, err := simulated.New(simulated.Options{}).Completer.Load(t.Context(), engines.ModelFiles{Dir: t.TempDir()})
		require.NoError(t, err)
		return m
	})
}
