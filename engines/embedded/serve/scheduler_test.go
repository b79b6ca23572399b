package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// A step that breaks down ends what is running with a fault, and nothing else:
// the goroutine goes on.
func TestAStepThatBreaksDown(t *testing.T) {
	r := &request{ready: make(chan struct{}, 1), prompt: []int{1}}
	s := scheduler{model: &model{}, chunk: 1, running: []*request{r}} // without a decoder
	s.step()
	<-r.ready
	require.True(t, r.ended)
	require.Equal(t, domain.Internal, domain.CodeOf(r.err))
}
