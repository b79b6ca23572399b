package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/enginetest"
)

func TestEngineSuite(t *testing.T) {
	enginetest.Model(t, func(t *testing.T) engines.Model {
		m, err := embedded.New(embedded.Options{}).Completer.Load(t.Context(), engines.ModelFiles{Dir: base(t)})
		require.NoError(t, err)
		return m
	})
}
