package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestEngineNamesOfANode(t *testing.T) {
	node := domain.Node{NodeSpec: domain.NodeSpec{Engines: []string{"complete", domain.EngineAbility("llama.cpp"), "train",
		"train:dpo"}}}
	require.Equal(t, []string{"llama.cpp"}, node.EngineNames())
	require.Empty(t, domain.Node{}.EngineNames())
}
