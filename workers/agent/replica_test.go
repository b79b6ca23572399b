package agent

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// A heldModel is a model whose completions end when the test allows it. Those that obey their
// context also end with it.
type heldModel struct {
	engines.Model
	obeys   bool
	proceed chan struct{}
}

func (m heldModel) Complete(ctx context.Context, _ engines.CompletionRequest, emit func(engines.Chunk) error,
) (engines.Usage, error) {
	var canceled <-chan struct{}
	if m.obeys {
		canceled = ctx.Done()
	}
	select {
	case <-m.proceed:
	case <-canceled:
		return engines.Usage{}, ctx.Err()
	}
	return engines.Usage{CompletionTokens: 1}, emit(engines.Chunk{})
}

// TestRequestsLeaveAFailedDevice checks that, when the device of a replica fails, the requests in
// progress end at once with the error for a lost replica, on which the gateway sends them to
// another replica, and that nothing is delivered that the device computes after its failure.
// Requests of a replica that is stopped may finish.
func TestRequestsLeaveAFailedDevice(t *testing.T) {
	for name, test := range map[string]struct {
		obeys, fails, succeeds bool
	}{
		"failed device": {obeys: true, fails: true},
		"failed device, engine ignores the context": {fails: true},
		"stopped": {obeys: true, succeeds: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := newTestReplica(t)
				model := heldModel{obeys: test.obeys, proceed: make(chan struct{})}
				r.model, r.phase = model, domain.ReplicaReady
				s := &stream[engines.CompletionRequest, engines.Chunk, engines.Usage]{service: completions,
					agent: r.agent, wake: make(chan struct{}, 1), done: make(chan struct{})}
				close(s.done) // the test itself reads the messages, so none are sent
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					s.serve(t.Context(), r, engines.CompletionRequest{})
				}()
				synctest.Wait()
				if test.fails {
					r.loseDevice(deviceError(engines.Device{Type: l4}, "2 uncorrected ECC errors"))
				} else {
					r.stop()
				}
				synctest.Wait()
				state := r.state()
				if test.obeys && test.fails {
					requireClosed(t, ended, "the request waits for the failed device")
				}
				close(model.proceed)
				synctest.Wait()
				requireClosed(t, ended, "the request has not ended")
				if test.succeeds {
					require.Nil(t, s.last.Error)
					require.Len(t, s.chunks, 1)
					return
				}
				require.NotNil(t, s.last.Error)
				require.Equal(t, engines.ReplicaGone, s.last.Error.Reason)
				require.Empty(t, s.chunks, "what a failed device has computed may be wrong")
				require.Equal(t, protocol.ReplicaFailed, state.State)
				require.True(t, state.Preempted)
				require.Contains(t, state.Reason, "2 uncorrected ECC errors")
				_, err := r.enter()
				require.Equal(t, errReplicaGone, err)
			})
		})
	}
}

func requireClosed(t *testing.T, c <-chan struct{}, message string) {
	t.Helper()
	select {
	case <-c:
	default:
		require.Fail(t, message)
	}
}
