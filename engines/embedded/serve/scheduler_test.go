package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestPanicInAStep checks that a panic fails the running requests only.
func TestPanicInAStep(t *testing.T) {
	r := &request{ready: make(chan struct{}, 1), prompt: []int{1}}
	s := scheduler{model: &model{}, chunk: 1, running: []*request{r}} // without a decoder
	s.step()
	<-r.ready
	require.True(t, r.ended)
	require.Equal(t, domain.Internal, domain.CodeOf(r.err))
}
