package schedulers_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/schedulers"
)

// A stalled log takes a minute for the first node.lost.v1, as if the process was paused.
type stalled struct {
	*eventlog.Memory
	lost, cordoned atomic.Int64
}

func (s *stalled) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if w.Type == "node.lost.v1" && s.lost.Add(1) == 1 {
		time.Sleep(time.Minute)
	}
	if w.Type == "node.cordoned.v1" {
		s.cordoned.Add(1)
	}
	return s.Memory.Append(ctx, w)
}

// TestRunDoesNotContinueAnOldPlan checks that a process that was paused in the middle of a plan
// plans again before it executes another step.
func TestRunDoesNotContinueAnOldPlan(t *testing.T) {
	for name, after := range map[string]bool{"same resource": false, "after all": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out testutil.Buffer
				log, began := &stalled{Memory: eventlog.NewMemory()}, time.Now()
				s := &script{plan: func(v *projections.View, now time.Time) (plan schedulers.Plan) {
					if v.Nodes.Len() < 2 || now.Sub(began) > 30*time.Second {
						return plan
					}
					second := map[bool]string{false: "n0", true: "n1"}[after]
					return schedulers.Plan{Steps: []schedulers.Step{
						{Commit: domain.Intend(domain.Nodes, nodeName("n0"), domain.LoseNode{Reason: "test"})},
						{Commit: domain.Intend(domain.Nodes, nodeName(second), domain.CordonNode{Reason: "test"}), After: after}}}
				}}
				world, _ := start(t, log, s, &out)
				register(t, log, world, "n0")
				register(t, log, world, "n1")
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				require.Equal(t, int64(1), log.lost.Load())
				require.Zero(t, log.cordoned.Load())
			})
		})
	}
}

// TestIndependentStepsAreExecutedConcurrently checks that steps on different nodes wait for the log
// together, and steps on one node one after the other.
func TestIndependentStepsAreExecutedConcurrently(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes int
		want  time.Duration
	}{"different nodes": {6, 200 * time.Millisecond}, "one node": {1, 1200 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out testutil.Buffer
				log := &slow{Memory: eventlog.NewMemory()}
				s := &script{plan: func(v *projections.View, _ time.Time) (plan schedulers.Plan) {
					if v.Nodes.Len() < 6 || v.Position > 6 {
						return plan
					}
					for i := range 6 {
						key := fmt.Sprintf("k%d", i)
						plan.Steps = append(plan.Steps, schedulers.Step{Commit: domain.Intend(domain.Nodes,
							nodeName(fmt.Sprintf("n%d", i%tc.nodes)), domain.TaintNode{
								Taint: domain.Taint{Key: key, Value: "v", Effect: domain.NoSchedule}})})
					}
					return plan
				}}
				world, _ := start(t, log, s, &out)
				for i := range 6 {
					register(t, log, world, fmt.Sprintf("n%d", i))
				}
				began := time.Now()
				limit, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.NoError(t, world.WaitFor(limit, 12))
				require.Equal(t, tc.want, time.Since(began))
			})
		})
	}
}

// A slow log takes 200 ms for each append but those of registrations.
type slow struct{ *eventlog.Memory }

func (s *slow) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if w.Type != "node.registered.v1" {
		time.Sleep(200 * time.Millisecond)
	}
	return s.Memory.Append(ctx, w)
}

// TestSilenceBeforeADisconnectionProvesNothing checks that a process that received nothing from a
// node for LostAfter and was disconnected then does not conclude that the node is lost: the node
// may have sent heartbeats since.
func TestSilenceBeforeADisconnectionProvesNothing(t *testing.T) {
	s := newHarness(t)
	s.given(node("n1", "", 1, nil))
	live, began := s.world.Live(), s.now
	live.ListenFrom(began)
	live.Heartbeat(nodeName("n1"), began)
	lost := func(after, received time.Duration) bool {
		live.ReceivedAll(began.Add(received))
		return len(schedulers.Nodes{}.Plan(s.world.View(), began.Add(after)).Steps) > 0
	}
	require.False(t, lost(14*time.Second, 14*time.Second))
	require.False(t, lost(30*time.Second, 16*time.Second), "disconnected since the 16th second")
	require.True(t, lost(31*time.Second, 30*time.Second))
}
