package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// TestDefaultsOfAdapters checks that the default modules that a job shows are those that are trained.
func TestDefaultsOfAdapters(t *testing.T) {
	var names []string
	for _, m := range modules(engines.TrainSettings{}) {
		names = append(names, m.String())
	}
	require.Equal(t, engines.DefaultLoraModules(), names)
}
