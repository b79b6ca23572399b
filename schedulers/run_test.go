package schedulers_test

import (
	"context"
	"errors"
	"log/slog"
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

// A script is a scheduler whose plan is a function of the test. It counts the calls of Plan.
type script struct {
	plan func(v *projections.View, now time.Time) schedulers.Plan
	made atomic.Int64
	last atomic.Value // time.Time of the last plan
}

func (*script) Name() string { return "script" }

func (s *script) Plan(v *projections.View, now time.Time) schedulers.Plan {
	s.made.Add(1)
	s.last.Store(now)
	return s.plan(v, now)
}

func (s *script) plans() int { return int(s.made.Load()) }

// A broken log refuses every append until it is repaired.
type broken struct {
	*eventlog.Memory
	mended atomic.Bool
}

func (b *broken) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if !b.mended.Load() {
		return 0, errors.New("the disk is full")
	}
	return b.Memory.Append(ctx, w)
}

// start runs a world and a scheduler on the log until the test ends.
func start(t *testing.T, log eventlog.Log, s schedulers.Scheduler, out *testutil.Buffer) (world *projections.World,
	stop func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	world = projections.NewWorld()
	go func() { _ = world.Run(ctx, log) }()
	done := make(chan error, 1)
	go func() {
		done <- schedulers.Run(ctx, log, world, s, slog.New(slog.NewTextHandler(out, nil)))
	}()
	t.Cleanup(cancel)
	return world, func() error { cancel(); return <-done }
}

func register(t *testing.T, log eventlog.Log, world *projections.World, id string) {
	t.Helper()
	result, err := eventlog.Do(t.Context(), log, world, eventlog.Request{Time: time.Now(), Actor: "test"},
		node(id, "", 1, nil))
	require.NoError(t, err)
	require.NoError(t, world.WaitFor(t.Context(), result.Position()))
	synctest.Wait()
}

func TestRunPlansAgainWhenTheWorldMovesAndWhenItsTimeHasCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testutil.Buffer
		log, began := eventlog.NewMemory(), time.Now()
		s := &script{plan: func(_ *projections.View, now time.Time) schedulers.Plan {
			if now.Sub(began) < time.Hour {
				return schedulers.Plan{Again: began.Add(time.Hour)}
			}
			return schedulers.Plan{}
		}}
		world, stop := start(t, log, s, &out)
		synctest.Wait()
		require.Equal(t, 1, s.plans())
		register(t, log, world, "n1")
		require.Equal(t, 2, s.plans())
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Equal(t, 3, s.plans())
		require.Equal(t, time.Hour, s.last.Load().(time.Time).Sub(began))
		require.ErrorIs(t, stop(), context.Canceled)
		require.Empty(t, out.String())
	})
}

func TestRunRecordsStepsInItsNameAndPlansOnWhatItWrote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testutil.Buffer
		log := eventlog.NewMemory()
		s := &script{plan: func(v *projections.View, _ time.Time) schedulers.Plan {
			var plan schedulers.Plan
			for row := range v.Nodes.All() {
				if row.State.State == domain.NodeReady {
					plan.Steps = append(plan.Steps, schedulers.Step{Commit: domain.Intend(domain.Nodes, row.Name,
						domain.LoseNode{Reason: "test"})})
				}
			}
			return plan
		}}
		world, _ := start(t, log, s, &out)
		register(t, log, world, "n1")
		register(t, log, world, "n2")
		var actors []string
		for e, err := range log.Read(t.Context(), "events.>", 0) {
			require.NoError(t, err)
			actors = append(actors, e.Actor+" "+e.Type)
		}
		require.Equal(t, []string{"test node.registered.v1", "scheduler/script node.lost.v1", "test node.registered.v1",
			"scheduler/script node.lost.v1"}, actors)
		require.LessOrEqual(t, s.plans(), 7)
		require.Empty(t, out.String())
	})
}

func TestRunDoesNotSpinOnStepsThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testutil.Buffer
		log := eventlog.NewMemory()
		refused := schedulers.Step{Commit: domain.Intend(domain.Nodes, nodeName("nowhere"), domain.LoseNode{})}
		s := &script{plan: func(*projections.View, time.Time) schedulers.Plan {
			return schedulers.Plan{Steps: []schedulers.Step{refused}}
		}}
		world, _ := start(t, log, s, &out)
		for i := range 60 {
			time.Sleep(time.Minute)
			register(t, log, world, "n"+string(rune('a'+i%26)))
		}
		require.Less(t, s.plans(), 150, "in an hour")
		require.Greater(t, s.plans(), 100, "Run keeps planning")
		require.Contains(t, out.String(), "level=WARN")
		require.Contains(t, out.String(), "the node does not exist")
	})
}

func TestRunDoesNotSpinOnStepsThatChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testutil.Buffer
		log := eventlog.NewMemory()
		s := &script{plan: func(*projections.View, time.Time) schedulers.Plan {
			return schedulers.Plan{Steps: []schedulers.Step{{Commit: onNode("n1",
				domain.ReleaseAllocation{ID: "gone"})}}, Again: noon}
		}}
		start(t, log, s, &out)
		time.Sleep(time.Second)
		synctest.Wait()
		require.LessOrEqual(t, s.plans(), 101, "Plan.Again is in the past, so Run plans again after a pause")
	})
}

func TestRunOutlivesALogThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testutil.Buffer
		log := &broken{Memory: eventlog.NewMemory()}
		s := &script{plan: func(v *projections.View, _ time.Time) schedulers.Plan {
			if v.Nodes.Len() > 0 {
				return schedulers.Plan{}
			}
			return schedulers.Plan{Steps: []schedulers.Step{{Commit: node("n1", "", 1, nil)}}}
		}}
		world, _ := start(t, log, s, &out)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Less(t, s.plans(), 20)
		require.Contains(t, out.String(), "the disk is full")
		log.mended.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, world.View().Nodes.Len())
	})
}
