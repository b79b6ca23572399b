package schedulers

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestSelectors checks that two needs have different selectors if different nodes suit them,
// because a pool keeps one need for each selector.
func TestSelectors(t *testing.T) {
	regions := func(names ...string) domain.Need { return domain.Need{Pool: "p", Engine: "e", Regions: names} }
	needs := []domain.Need{{}, {Pool: "p"}, {Pool: "p", Engine: "e"}, regions("A", "B", "C", "D"),
		regions("A", "E", "F", "G"),
		{Pool: "p", Engine: "e", Policy: domain.NodePolicy{Selector: map[string]string{"a": "b"}}},
		{Pool: "p", Engine: "e", Policy: domain.NodePolicy{Tolerations: []domain.Taint{{Key: "a", Value: "b"}}}},
		{Resources: domain.Resources{Accelerators: map[string]int{"A": 1, "B": 1}}},
		{Resources: domain.Resources{Accelerators: map[string]int{"A": 1, "C": 1}}}}
	seen := map[string]int{}
	for i, need := range needs {
		_, request := requestOf(need)
		other, known := seen[request.Selector]
		require.False(t, known, "needs %d and %d: %q", other, i, request.Selector)
		seen[request.Selector] = i
	}
}
