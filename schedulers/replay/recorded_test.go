package replay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

// A recording is a cluster with the schedulers of a server, as they run, on a log in memory. An
// agent simulates all nodes.
type recording struct {
	ctx   context.Context
	log   *eventlog.Memory
	world *projections.World
	mu    sync.Mutex
	work  map[domain.Name]time.Duration // that attempts have to do
}

func (r *recording) try(actor string, intent domain.Intent) error {
	change, err := eventlog.Do(r.ctx, r.log, r.world, eventlog.Request{Time: time.Now().UTC(), Actor: actor}, intent)
	if err == nil && change.Position() > 0 {
		err = r.world.WaitFor(r.ctx, change.Position())
	}
	return err
}

// agent reports for all nodes, every second.
func (r *recording) agent() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case now := <-ticker.C:
			v := r.world.View()
			for row := range v.Nodes.All() {
				r.world.Live().Heartbeat(row.Name, now)
			}
			r.world.Live().ReceivedAll(now)
			for row := range v.Jobs() {
				if life := row.State.Life(); life.Active() {
					r.report(row.Name, life, now)
				}
			}
		}
	}
}

func (r *recording) report(name domain.Name, life *domain.JobLife, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := func(cmd domain.Command[domain.JobLife]) { _ = r.try("nodes/n00", domain.IntendJob(name, cmd)) }
	saved := *life.StartTime
	if last, ok := life.LastCheckpoint(); ok && last.Attempt == life.Attempt {
		saved = last.Time
	}
	checkpoint := func() {
		at(domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: life.Attempt,
			Step: len(life.Checkpoints) + 1000*life.Attempt}})
		r.work[name] -= now.Sub(saved)
	}
	switch {
	case life.Stopping():
		checkpoint()
		at(life.ConfirmStop(life.Attempt))
	case now.Sub(saved) >= r.work[name]:
		model := domain.NewName(name.Account(), domain.Models.Collection, "out-"+name.ID())
		files := domain.Files{Prefix: string(name)}
		at(domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: life.Attempt, Output: model, Results: files,
			Model: domain.ModelRegistered{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, SourceJob: name,
				Files: files}}})
	case now.Sub(saved) >= 10*time.Minute:
		checkpoint()
	}
}

// recordCluster runs the schedulers of a server on a workload, and returns the log.
func recordCluster(t *testing.T, tr *trace, length time.Duration) (events list) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &recording{ctx: ctx, log: eventlog.NewMemory(), world: projections.NewWorld(),
			work: map[domain.Name]time.Duration{}}
		shift := time.Now().Add(time.Minute).Sub(noon) // synctest begins in 2000
		for _, e := range tr.events {
			e.Position, e.Time = 0, e.Time.Add(shift)
			_, err := r.log.Append(ctx, eventlog.Write{Event: e, Expect: r.world.Lookup(e.Name).Version})
			require.NoError(t, err)
			for one := range r.log.Read(ctx, everything, r.world.Position()) {
				require.NoError(t, r.world.Apply(one))
			}
		}
		go func() { _ = r.world.Run(ctx, r.log) }()
		for _, s := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{}, schedulers.Nodes{},
			schedulers.Allocations{}, schedulers.Expiry{}, schedulers.Drain{}} {
			go func() { _ = schedulers.Run(ctx, r.log, r.world, s, slog.New(slog.DiscardHandler)) }()
		}
		go r.agent()
		for _, in := range tr.inputs {
			time.Sleep(time.Until(in.at.Add(shift)))
			if in.work != nil {
				r.mu.Lock()
				r.work[in.event.Name] = in.work.segments[0].work
				r.mu.Unlock()
			}
			intent := tr.intents[in.at.String()+string(in.event.Name)]
			_ = r.try("user", intent)
		}
		time.Sleep(time.Until(noon.Add(shift + length)))
		synctest.Wait()
		for e, err := range r.log.Read(ctx, everything, 0) {
			require.NoError(t, err)
			e.Time = e.Time.Add(-shift)
			events = append(events, e)
		}
		cancel()
		synctest.Wait()
	})
	return events
}

// TestRecordedCluster replays what the schedulers of a server did, as they run concurrently on a
// log. The simulation starts the same jobs, and its waits differ by seconds.
func TestRecordedCluster(t *testing.T) {
	tr := newTrace(t, 4)
	tr.period(4*time.Hour, 150, 4, 0.9)
	log := recordCluster(t, tr, 4*time.Hour)
	report := replayed(t, log, 4*time.Hour, time.Second, "nodes=+4x"+h100)
	recorded, simulated, twice := report.Results[0], report.Results[1], report.Results[2]
	same, late := 0, time.Duration(0)
	for _, name := range slices.Sorted(maps.Keys(recorded.placements)) {
		was, is := recorded.placements[name], simulated.placements[name]
		if was.nodes == is.nodes {
			same++
		}
		late = max(late, was.at.Sub(is.at).Abs())
	}
	text := fmt.Sprintf("%d of %d first starts are on the same nodes, at most %s apart; recorded waits %+v, "+
		"simulated %+v, with twice the nodes %+v; %d and %d preemptions", same, len(recorded.placements), late,
		recorded.Wait, simulated.Wait, twice.Wait, recorded.Preempted, simulated.Preempted)
	t.Logf("%s\n%+v\n%+v", text, recorded.Jobs, simulated.Jobs)
	require.Equal(t, recorded.Jobs.Arrived, simulated.Jobs.Arrived, text)
	require.Equal(t, recorded.Jobs.Completed, simulated.Jobs.Completed, text)
	require.Positive(t, recorded.Wait.P95, text)
	require.InDelta(t, recorded.Wait.Mean, simulated.Wait.Mean, 5, text)
	require.InDelta(t, recorded.Wait.P95, simulated.Wait.P95, 30, text)
	require.Greater(t, same, len(recorded.placements)*6/10, text)
	require.Less(t, twice.Wait.Mean, recorded.Wait.Mean/2, text)
}
