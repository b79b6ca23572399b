package schedulers_test

import (
	"context"
	"fmt"
	"slices"
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

// A heldLog stores events at once, and makes none durable before durable is closed. The world
// receives events only when they are durable.
type heldLog struct {
	*eventlog.Memory
	held    bool
	durable chan struct{}
	stored  []string // types and resources of the events that were stored while held was set
}

func (l *heldLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if !l.held {
		return l.Memory.Append(ctx, w)
	}
	position := uint64(len(l.stored) + 2) // after the registration of the node
	l.stored = append(l.stored, w.Type+" "+w.Name.ID())
	w.Stored(position)
	<-l.durable
	return position, nil
}

// TestStepsOnOneNodeShareSyncs checks that the reservations of a plan on one node do not wait for
// one another to be durable, and that no attempt starts before its reservation is durable.
func TestStepsOnOneNodeShareSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testutil.Buffer
		log := &heldLog{Memory: eventlog.NewMemory(), durable: make(chan struct{})}
		s := &script{plan: func(v *projections.View, _ time.Time) schedulers.Plan {
			var plan schedulers.Plan
			for i := range min(3, 3*v.Nodes.Len()) {
				name := jobName(fmt.Sprint("j", i))
				reserve := onNode("n1", domain.PlaceAllocation{Allocation: domain.Allocation{ID: domain.AllocationID(name, 1),
					For: name, Attempt: 1, Resources: domain.Resources{CPUMilli: 1}}})
				plan.Steps = append(plan.Steps, schedulers.Step{Reserve: []domain.Intent{reserve},
					Commit: domain.IntendJob(name, domain.StartJob{Attempt: 1, Nodes: []domain.Name{nodeName("n1")}})})
			}
			log.held = v.Nodes.Len() > 0
			return plan
		}}
		_, stop := start(t, log, s, &out)
		_, err := log.Memory.Append(t.Context(), registration(t))
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, slices.Repeat([]string{"allocation.placed.v1 n1"}, 3), log.stored)
		close(log.durable)
		require.ErrorIs(t, stop(), context.Canceled)
	})
}

// registration returns the event that registers the node n1.
func registration(t *testing.T) eventlog.Write {
	log := eventlog.NewMemory()
	_, err := eventlog.Do(t.Context(), log, projections.NewWorld(), eventlog.Request{Time: time.Now(), Actor: "test"},
		node("n1", "", 1, nil))
	require.NoError(t, err)
	for e, err := range log.Read(t.Context(), "", 0) {
		require.NoError(t, err)
		return eventlog.Write{Event: e}
	}
	return eventlog.Write{}
}
