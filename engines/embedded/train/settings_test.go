package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// What a job shows of its adapter is what is trained.
func TestDefaultsOfAdapters(t *testing.T) {
	var names []string
	for _, m := range modules(engines.TrainSettings{}) {
		names = append(names, m.String())
	}
	require.Equal(t, engines.DefaultLoraModules(), names)
}
