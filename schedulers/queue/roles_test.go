package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/queue"
)

// TestReplicas checks the rules for replicas in the queue.
func TestReplicas(t *testing.T) {
	young, old := int64(1700), int64(1800)
	busy := runs("busy", "a", 1, 60, 60, 1) // so that the account runs something
	for name, c := range map[string]struct {
		nodes []queue.Node
		jobs  []*queue.Job
		want  []string
	}{
		"a replica within the minimum comes before all jobs": {cluster(8), []*queue.Job{
			waits("j", "a", 1, 8, day), as(queue.Minimum, waits("r", "b", 1, 1, 0))},
			[]string{"r on [0]: capacity was freed by preemption"}},
		"it does not preempt before it is due": {cluster(8), []*queue.Job{
			runs("long", "a", 8, 2*hour, 0, 0), as(queue.Minimum, waits("r", "b", 1, 8, 119))}, nil},
		"it preempts when it is due": {cluster(8), []*queue.Job{
			runs("long", "a", 8, 2*hour, 0, 0), as(queue.Minimum, waits("r", "b", 1, 8, 120))},
			[]string{"r on [0] for long: the deadline in the queue has passed"}},
		"a node is held for it when it is due": {cluster(8), []*queue.Job{
			runs("short", "a", 4, 60, 0, 0), as(queue.Minimum, waits("r", "b", 1, 8, 120)), waits("j", "a", 1, 1, 0)}, nil},
		"a node is not held for it before": {cluster(8), []*queue.Job{
			runs("short", "a", 4, 60, 0, 0), as(queue.Minimum, waits("r", "b", 1, 8, 119)), waits("j", "a", 1, 1, 0)},
			[]string{"j on [0]"}},
		"a replica above the minimum waits like a fresh job": {cluster(8), []*queue.Job{
			waits("j", "a", 1, 8, 50), as(queue.Elastic, waits("r", "b", 1, 8, 100))}, []string{"r on [0]"}},
		"it waits behind older jobs": {cluster(8), []*queue.Job{
			waits("j", "a", 1, 8, 200), as(queue.Elastic, waits("r", "b", 1, 8, 100))}, []string{"j on [0]"}},
		"it preempts nothing": {cluster(8), []*queue.Job{
			runs("long", "a", 8, day, 0, 0), as(queue.Elastic, waits("r", "b", 1, 8, day))}, nil},
		"it gives way to a job that is due, before a job does": {cluster(8, 8), []*queue.Job{busy,
			runs("long", "b", 4, day, 0, 0), as(queue.Elastic, runs("r", "b", 4, old, old, 0)),
			runs("other", "b", 7, day, 0, 1), waits("j", "a", 1, 4, 700)},
			[]string{"j on [0] for r: the deadline in the queue has passed"}},
		"it gives way after half an hour": {cluster(8, 8), []*queue.Job{busy,
			as(queue.Elastic, runs("r", "b", 8, young, 0, 0)), runs("other", "b", 7, young, 0, 1), waits("j", "a", 1, 4, 700)},
			nil},
		"it does not give way to a job that is not due": {cluster(8, 8), []*queue.Job{busy,
			as(queue.Elastic, runs("r", "b", 8, old, 0, 0)), runs("other", "b", 7, old, 0, 1), waits("j", "a", 1, 4, 500)},
			nil},
		"a job and replicas give way together": {cluster(8), []*queue.Job{
			runs("long", "b", 6, day, 0, 0), as(queue.Elastic, runs("r", "b", 2, old, old, 0)), waits("j", "a", 1, 8, 700)},
			[]string{"j on [0] for long for r: the deadline in the queue has passed"}},
		"a revocable replica gives way to every job": {cluster(8, 8), []*queue.Job{busy,
			as(queue.Revocable, runs("r", "b", 8, 10, 0, 0)), runs("other", "b", 7, young, 0, 1), waits("j", "a", 1, 4, 0)},
			[]string{"j on [0] for r: revocable replicas are removed for every waiting job"}},
		"no more revocable replicas give way than needed": {cluster(8), []*queue.Job{
			as(queue.Revocable, runs("r1", "b", 4, 10, 0, 0)), as(queue.Revocable, runs("r2", "b", 4, 10, 0, 0)),
			waits("j", "a", 1, 4, 0)}, []string{"j on [0] for r1: revocable replicas are removed for every waiting job"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, decide(c.nodes, c.jobs...))
		})
	}
}
