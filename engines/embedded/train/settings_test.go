package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// The defaults that a job shows for its adapter are the trained modules.
func TestDefaultsOfAdapters(t *testing.T) {
	var names []string
	for _, m := range modules(engines.TrainSettings{}) {
		names = append(names, m.String())
	}
	require.Equal(t, engines.DefaultLoraModules(), names)
}
