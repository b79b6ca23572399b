package schedulers_test

import (
	"context"
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

// TestEveryCutOfTheLogIsHealed truncates the log of a short run after each of its events, as a
// power failure does, and restarts the control plane and its nodes. It checks that every change is
// complete in the end. The run has a gang of two nodes, an evaluation split, two replicas, and an
// account with its first key.
func TestEveryCutOfTheLogIsHealed(t *testing.T) {
	var whole []eventlog.Event
	synctest.Test(t, func(t *testing.T) {
		whole = shortLife(t, nil, true)
	})
	require.Greater(t, len(whole), 40)
	kinds := map[string]bool{}
	for _, e := range whole {
		kinds[e.Type] = true
	}
	for _, kind := range []string{"allocation.placed.v1", "supervisedFineTuningJob.started.v1",
		"supervisedFineTuningJob.preparing.v1", "replica.placed.v1",
		"supervisedFineTuningJob.resultsStored.v1", "model.registered.v1", "supervisedFineTuningJob.completed.v1",
		"account.created.v1", "apiKey.created.v1"} {
		require.True(t, kinds[kind], "the log has no event %s, only %v", kind, kinds)
	}
	for cut := range whole {
		t.Run(fmt.Sprint(cut, " events"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { shortLife(t, whole[:cut], false) })
		})
	}
}

// shortLife runs a cluster until all work is done, and returns all events of its log. The log
// begins with the events in before. Users act only if first is true; they repeat commands that
// received no reply.
func shortLife(t *testing.T, before []eventlog.Event, first bool) (events []eventlog.Event) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, world := eventlog.NewMemory(), projections.NewWorld()
	last := map[domain.Name]uint64{}
	for _, e := range before {
		position, err := log.Append(ctx, eventlog.Write{Event: e, Expect: last[e.Name]})
		require.NoError(t, err)
		last[e.Name] = position
	}
	cluster := &cluster{t: t, ctx: ctx, log: log, random: rand.New(rand.NewPCG(7, 1)),
		worlds: []*projections.World{world}, receivers: []*receiver{{live: world.Live()}}}
	go func() { _ = world.Run(ctx, log) }()
	go cluster.receivers[0].run(ctx)
	require.NoError(t, world.WaitFor(ctx, uint64(len(before))))
	if first {
		cluster.open()
		key := domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{Role: domain.RoleAdmin}, Hash: []byte("hash")}
		for _, intent := range []domain.Intent{
			domain.Intend(domain.Accounts, "accounts/keyed",
				domain.CreateAccount{FirstKey: &domain.FirstKey{ID: "first",
					Key: domain.APIKeyCreated(key)}}),
			job("gang", func(s *domain.SupervisedSpec) { s.Nodes, s.EvalAutoCarveout = 2, true }),
			deployment("served", 2, 2, nil),
		} {
			cluster.mustDo("user", intent)
		}
	}
	for _, s := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{PlaceWithin: time.Hour},
		schedulers.Nodes{}, schedulers.Allocations{}, schedulers.Accounts{}} {
		go func() { _ = schedulers.Run(ctx, log, world, s, slog.New(slog.DiscardHandler)) }()
	}
	for i := range 4 {
		agent := &agent{cluster: cluster, name: nodeName(fmt.Sprintf("n%d", i)),
			pool: []string{domain.PoolTraining, domain.PoolInference}[i%2], random: rand.New(rand.NewPCG(7,
				uint64(100+i)))}
		agent.repair()
		cluster.agents = append(cluster.agents, agent)
		go agent.run(ctx)
	}
	for began := time.Now(); ; time.Sleep(10 * time.Second) {
		synctest.Wait()
		cluster.fillAll()
		if time.Since(began) > time.Minute && unfinished(world.View()) == "" {
			break
		}
		require.Less(t, time.Since(began), time.Hour, "stuck: %s", unfinished(world.View()))
	}
	awaitQuiet(t, log, func(d time.Duration) {
		time.Sleep(d)
		synctest.Wait()
	})
	view := world.View()
	require.Empty(t, invariantViolations(view))
	require.Empty(t, unfinished(view))
	if _, there := view.Accounts.Get("accounts/keyed"); there {
		_, there = view.APIKeys.Get("accounts/keyed/apiKeys/first")
		require.True(t, there, "the account has its key")
	}
	for row := range projections.TableOf(view, domain.SupervisedJobs).All() {
		require.Equal(t, domain.JobCompletedState, row.State.State, row.State.JobLife.Status.Message)
		_, there := view.Models.Get(row.State.JobLife.Output)
		require.True(t, there, "its model is registered")
	}
	for e, err := range log.Read(ctx, "events.>", 0) {
		require.NoError(t, err)
		events = append(events, e)
	}
	return events
}

// fillAll derives the rows of all pending datasets.
func (o *cluster) fillAll() {
	for row := range o.worlds[0].View().Datasets.All() {
		if !row.State.Filling() {
			continue
		}
		held := row.State.From.Split.Held
		if row.State.From.Split.Rest {
			held = row.State.From.Split.Of - held
		}
		o.mustDo("task", domain.Intend(domain.Datasets, row.Name, domain.FillDataset{
			Files:        domain.Files{Prefix: string(row.Name), Sizes: map[string]int64{"rows.jsonl": 9}},
			DatasetStats: domain.DatasetStats{Shape: domain.ShapeChat, ExampleCount: held}}))
	}
}
