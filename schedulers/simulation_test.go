package schedulers_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

var seeds = flag.Int("seeds", 3, "number of simulations of a cluster")

const (
	busyTime   = 30 * time.Minute // time in which users act and nodes fail
	quietTime  = 4 * time.Hour    // time after busyTime in which all work must finish
	tick       = 2 * time.Second  // time between heartbeats of an agent
	repairTime = 15               // seconds in which the schedulers must restore an invariant
)

// TestClusterLife simulates hours of a cluster: users create, scale, update, cancel, resume and
// delete; nodes fail, disconnect and return; the log loses acknowledgements; and two sets of
// schedulers, each with its own world, run concurrently. A checker checks every event.
func TestClusterLife(t *testing.T) {
	for seed := range uint64(*seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	checker := newChecker(seed)
	cluster := &cluster{t: t, ctx: ctx, log: checker, random: rand.New(rand.NewPCG(seed, 1))}
	for i := range uint64(2) {
		world := projections.NewWorld()
		receiver := &receiver{live: world.Live(), checker: checker}
		cluster.worlds, cluster.receivers = append(cluster.worlds, world), append(cluster.receivers, receiver)
		go receiver.run(ctx)
		go follow(ctx, checker, world, rand.New(rand.NewPCG(seed, 10+i)))
		for _, s := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{PlaceWithin: time.Hour},
			schedulers.Nodes{}, schedulers.Allocations{}, schedulers.Expiry{},
			schedulers.Drain{}} {
			go func() { _ = schedulers.Run(ctx, checker, world, twice{t, s}, slog.New(slog.DiscardHandler)) }()
		}
	}
	cluster.open()
	for i := range 6 {
		agent := &agent{cluster: cluster, name: nodeName(fmt.Sprintf("n%d", i)),
			pool:   []string{domain.PoolTraining, domain.PoolInference}[i%2],
			random: rand.New(rand.NewPCG(seed, uint64(100+i)))}
		cluster.agents = append(cluster.agents, agent)
		go agent.run(ctx)
	}
	watch := watch{since: map[string]int{}}
	for began := time.Now(); time.Since(began) < busyTime; time.Sleep(time.Second) {
		synctest.Wait()
		cluster.step()
		watch.look(t, cluster.worlds[0].View())
		require.NoError(t, checker.err())
	}
	cluster.endFailures()
	for began := time.Now(); time.Since(began) < quietTime &&
		unfinished(cluster.worlds[0].View()) != ""; time.Sleep(10 * time.Second) {
		synctest.Wait()
		cluster.purge()
		cluster.fill(1000, 0)
		cluster.resume()
		require.NoError(t, checker.err())
	}
	awaitQuiet(t, checker, func(d time.Duration) {
		time.Sleep(d)
		synctest.Wait()
	})
	require.NoError(t, checker.err())
	require.Empty(t, unfinished(cluster.worlds[0].View()), "unfinished work after %s without failures", quietTime)
	require.Empty(t, invariantViolations(cluster.worlds[0].View()))
	before, _ := checker.Last(ctx)
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	after, _ := checker.Last(ctx)
	require.Equal(t, before.Position, after.Position, "an idle cluster recorded events\n%s",
		checker.tail(after.Position))
	checker.report(t)
}

// awaitQuiet waits until nothing was recorded for a while: replicas are still moved when all work
// is finished.
func awaitQuiet(t *testing.T, log eventlog.Log, wait func(time.Duration)) {
	for range 60 {
		before, _ := log.Last(t.Context())
		wait(3 * schedulers.RebalanceEvery)
		if after, _ := log.Last(t.Context()); after.Position == before.Position {
			return
		}
	}
}

// follow applies the events of log to a world, with random delays between and within batches.
func follow(ctx context.Context, log eventlog.Log, world *projections.World, random *rand.Rand) {
	for e, err := range log.Follow(ctx, "events.>", 0) {
		if err != nil {
			return
		}
		if random.IntN(4) == 0 {
			select {
			case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
		if err := world.Apply(e); err != nil {
			panic(err)
		}
	}
}

// twice is a scheduler that calls Plan of another scheduler twice and requires equal plans.
type twice struct {
	t *testing.T
	schedulers.Scheduler
}

func (s twice) Plan(v *projections.View, now time.Time) schedulers.Plan {
	plan := s.Scheduler.Plan(v, now)
	if again := s.Scheduler.Plan(v, now); plan.String() != again.String() {
		s.t.Errorf("%s made two plans of one view:\n%s\n%s", s.Name(), plan, again)
	}
	return plan
}

// watch counts, by violation, the calls of look since it first occurred.
type watch struct{ since map[string]int }

func (w *watch) look(t *testing.T, v *projections.View) {
	now := map[string]int{}
	for _, wrong := range invariantViolations(v) {
		now[wrong] = w.since[wrong] + 1
		require.LessOrEqual(t, now[wrong], repairTime, "for %d seconds: %s", repairTime, wrong)
	}
	w.since = now
}

// invariantViolations returns the violations that the schedulers must correct within repairTime:
// work on lost nodes, and allocations without an owner.
func invariantViolations(v *projections.View) (found []string) {
	owned := map[string]bool{}
	holds := func(node domain.Name, id string) bool {
		row, ok := v.Nodes.Get(node)
		return ok && row.State.State == domain.NodeReady && row.State.Allocations[id].ID == id
	}
	for row := range projections.TableOf(v, domain.SupervisedJobs).All() {
		id := domain.AllocationID(row.Name, row.State.Attempt)
		for _, node := range row.State.JobLife.Nodes {
			owned[string(node)+id] = true
			if !holds(node, id) {
				found = append(found, fmt.Sprintf("%s is %s at attempt %d on %s, which does not hold it", row.Name,
					row.State.State, row.State.Attempt, node))
			}
		}
	}
	for row := range v.Deployments.All() {
		for _, r := range row.State.Ordered() {
			id := domain.ReplicaAllocationID(row.Name, r.ID)
			owned[string(r.Node)+id] = true
			if !holds(r.Node, id) {
				found = append(found, fmt.Sprintf("replica %s of %s runs on %s, which does not hold it", r.ID, row.Name,
					r.Node))
			}
		}
	}
	for row := range v.Nodes.All() {
		for _, a := range row.State.Allocated() {
			if !owned[string(row.Name)+a.ID] {
				found = append(found, fmt.Sprintf("%s holds %s, which has no owner", row.Name, a.ID))
			}
		}
	}
	return found
}

// unfinished describes unfinished work; "" if there is none.
func unfinished(v *projections.View) string {
	for row := range v.Datasets.All() {
		if row.State.Filling() {
			return fmt.Sprintf("the rows of %s are not derived", row.Name)
		}
	}
	for row := range projections.TableOf(v, domain.SupervisedJobs).All() {
		if !row.State.Terminal() {
			return fmt.Sprintf("%s is %s (%s)", row.Name, row.State.State, row.State.JobLife.Status.Message)
		}
	}
	for row := range v.Deployments.All() {
		switch d := row.State; d.State {
		case domain.DeploymentReadyState, domain.DeploymentFailedState:
			if d.ExpireTime != nil {
				return fmt.Sprintf("%s has not expired", row.Name)
			}
			if d.CurrentReplicas() != d.DesiredReplicas || len(d.Replicas) != d.DesiredReplicas {
				return fmt.Sprintf("%s has %d of %d replicas, %d of them current", row.Name, len(d.Replicas),
					d.DesiredReplicas, d.CurrentReplicas())
			}
		case domain.DeploymentDeletedState:
		default:
			return fmt.Sprintf("%s is %s (%s)", row.Name, d.State, d.Status.Message)
		}
	}
	if found := invariantViolations(v); len(found) > 0 {
		return found[0]
	}
	return ""
}
