package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestPanicInAStep checks that a panic in a step fails the running requests and does not end the
// process.
func TestPanicInAStep(t *testing.T) {
	r := &request{ready: make(chan struct{}, 1), prompt: []int{1}}
	s := scheduler{model: &model{}, chunk: 1, running: []*request{r}} // without a decoder, a step panics
	s.step()
	<-r.ready
	require.True(t, r.ended)
	require.Equal(t, domain.Internal, domain.CodeOf(r.err))
}
