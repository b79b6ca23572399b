package schedulers_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/projections/live"
	"anneal/schedulers"
)

const (
	slots     = 4
	startTime = 20 * time.Second // time that a replica takes to start
	askTime   = 10 * time.Second // duration of a request that has a slot
	drainTime = 20 * time.Second // time in which a removed replica finishes its requests
)

// TestAutoscaleLife simulates hours of one deployment with two control planes. The deployment is
// woken, overloaded, idle, scaled to zero, and woken again. The test checks the replica counts, and
// that no request is lost.
func TestAutoscaleLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newService(t, ctx)
		name := deploymentName("d1")
		count := func() int {
			row, _ := s.worlds[0].View().Deployments.Get(name)
			return row.State.DesiredReplicas
		}
		reach := func(want int, within time.Duration) time.Duration {
			t.Helper()
			began := time.Now()
			for count() != want {
				require.LessOrEqual(t, time.Since(began), within, "%d replicas are wanted, not %d", count(), want)
				time.Sleep(time.Second)
			}
			return time.Since(began)
		}
		time.Sleep(10 * time.Second)
		require.Zero(t, count())

		woken := time.Now()
		s.request()
		require.LessOrEqual(t, time.Since(woken), startTime+askTime+8*time.Second)
		require.Equal(t, 1, count())

		var flood sync.WaitGroup
		for range 24 {
			flood.Go(func() {
				for range 30 {
					s.request()
				}
			})
		}
		reach(4, 2*live.LoadStep) // there are more requests than slots, so replicas are added at once
		flood.Wait()
		ended := time.Now()
		require.Equal(t, 4, count())
		reach(1, domain.DefaultScaleDownWindow+3*live.LoadStep)
		// The replicas stay until the window after the last time at which one could not serve the load.
		// The sample of that time has begun up to a LoadStep earlier.
		require.GreaterOrEqual(t, time.Since(s.loaded()), domain.DefaultScaleDownWindow-live.LoadStep)
		reach(0, domain.DefaultScaleToZeroWindow)
		require.GreaterOrEqual(t, time.Since(ended), domain.DefaultScaleToZeroWindow)
		time.Sleep(time.Hour)
		require.Zero(t, count())
		s.request()

		require.Equal(t, 1+24*30+1, s.answered)
		require.Zero(t, s.lost)
		history := s.scaled(name)
		peak := slices.IndexFunc(history, func(e domain.DeploymentScaled) bool { return e.Replicas == 4 })
		for i, e := range history {
			switch was := history[max(0, i-1)].Replicas; {
			case i == 0 || i == len(history)-1:
				require.Equal(t, domain.DeploymentScaled{Replicas: 1, Reason: "a request is waiting for a replica",
					Time: e.Time}, e)
			case i == len(history)-2:
				require.Equal(t, domain.DeploymentScaled{Replicas: 0,
					Reason: "no requests in the last 3600s", ByLoad: true, Time: e.Time}, e)
			case i <= peak:
				require.Greater(t, e.Replicas, was, "the count only grows during the overload")
				require.Regexp(t, `^[0-9]+ requests at once \(a replica serves 4\)$`,
					e.Reason)
			default:
				require.Less(t, e.Replicas, was, "the count only shrinks after the overload")
				require.Regexp(t, `^(requests in flight [0-9.]+ \(target 3.2|`+
					`[0-9]+ requests at once \(4 slots) per replica\), maximum of the last 600s$`,
					e.Reason)
			}
		}
	})
}

// TestAutoscaleAfterARestart checks that a control plane that restarts after the load has ended
// does not scale down before it has samples of a whole window.
func TestAutoscaleAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newService(t, ctx)
		s.do(s.worlds[0], onDeployment("d1", domain.ScaleDeployment{Replicas: 3, Reason: "scaled by its user"}))
		time.Sleep(9 * time.Minute)
		for _, w := range s.worlds {
			w.Live().Forget(deploymentName("d1"))
		}
		again := time.Now()
		count := func() int {
			row, _ := s.worlds[0].View().Deployments.Get(deploymentName("d1"))
			return row.State.DesiredReplicas
		}
		for count() == 3 {
			require.LessOrEqual(t, time.Since(again), domain.DefaultScaleDownWindow+3*live.LoadStep)
			time.Sleep(time.Second)
		}
		require.GreaterOrEqual(t, time.Since(again), domain.DefaultScaleDownWindow)
		require.Equal(t, 1, count())
	})
}

// A service is one deployment, the node that serves it, and its gateway.
type service struct {
	t      *testing.T
	ctx    context.Context
	log    *eventlog.Memory
	worlds []*projections.World

	mu             sync.Mutex
	replicas       map[string]*serving
	answered, lost int
	above          time.Time // when there were last more requests than one replica serves at its target load
}

// loaded returns the last time at which one replica was not enough.
func (s *service) loaded() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.above
}

// noteLoad is called, with mu held, before the number of requests falls.
func (s *service) noteLoad() {
	requests := 0
	for _, r := range s.replicas {
		if r.gone.IsZero() {
			requests += r.active + r.queued
		}
	}
	if float64(requests) > domain.DefaultCapacityTarget*slots {
		s.above = time.Now()
	}
}

// serving is one replica on the simulated node.
type serving struct {
	began          time.Time
	places         chan struct{}
	active, queued int
	asked          int       // number of requests since the last heartbeat
	gone           time.Time // when the replica was removed
}

func newService(t *testing.T, ctx context.Context) *service {
	s := &service{t: t, ctx: ctx, log: eventlog.NewMemory(), replicas: map[string]*serving{}}
	for i := range uint64(2) {
		world := projections.NewWorld()
		s.worlds = append(s.worlds, world)
		go follow(ctx, s.log, world, rand.New(rand.NewPCG(1, i)))
		for _, scheduler := range []schedulers.Scheduler{schedulers.Autoscale{}, schedulers.Replicas{},
			schedulers.Allocations{}} {
			go func() { _ = schedulers.Run(ctx, s.log, world, twice{t, scheduler}, slog.New(slog.DiscardHandler)) }()
		}
	}
	for _, intent := range []domain.Intent{account(), baseModel("base"), node("n1", domain.PoolInference, 8, nil),
		deployment("d1", 0, 4, nil)} {
		s.do(s.worlds[0], intent)
	}
	go func() {
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				s.heartbeat()
			}
		}
	}()
	return s
}

// do records an intent; it ignores a refusal.
func (s *service) do(world *projections.World, intent domain.Intent) {
	result, err := eventlog.Do(s.ctx, s.log, world, eventlog.Request{Time: time.Now().UTC(), Actor: "test"}, intent)
	if err == nil {
		_ = world.WaitFor(s.ctx, result.Position())
	}
}

// heartbeat simulates one heartbeat of the node: it starts and stops replicas as assigned, and
// reports their load to every control plane.
func (s *service) heartbeat() {
	row, ok := s.worlds[0].View().Deployments.Get(deploymentName("d1"))
	if !ok {
		return
	}
	var ready []string
	s.mu.Lock()
	for id, r := range s.replicas {
		if _, wanted := row.State.Replicas[id]; !wanted && r.gone.IsZero() {
			r.gone = time.Now()
		}
	}
	for _, wanted := range row.State.Ordered() {
		r := s.replicas[wanted.ID]
		if r == nil {
			r = &serving{began: time.Now(), places: make(chan struct{}, slots)}
			s.replicas[wanted.ID] = r
		}
		load := live.ReplicaLoad{Ready: time.Since(r.began) >= startTime, Active: r.active, Queued: r.queued,
			RequestsPerSecond: float64(r.asked) / tick.Seconds(), Time: time.Now()}
		if load.Ready {
			load.Slots = slots
		}
		r.asked = 0
		for _, world := range s.worlds {
			world.Live().Load(row.Name, wanted.ID, load)
		}
		if load.Ready && wanted.State != domain.ReplicaReady {
			ready = append(ready, wanted.ID)
		}
	}
	s.mu.Unlock()
	for _, id := range ready {
		s.do(s.worlds[0], onDeployment("d1", domain.AdvanceReplica{ID: id, Node: nodeName("n1"),
			State: domain.ReplicaReady}))
	}
}

// request sends one request through the gateway of the first control plane and waits for the
// response.
func (s *service) request() {
	world := s.worlds[0]
	world.Live().RecordRequest(deploymentName("d1"), time.Now())
	r := s.choose(world)
	for ; r == nil; r = s.choose(world) {
		v := world.View()
		if row, _ := v.Deployments.Get(deploymentName("d1")); row.State.DesiredReplicas == 0 {
			s.do(world, onDeployment("d1", domain.WakeDeployment{}))
			continue
		}
		<-world.Changed(v.Position)
	}
	r.places <- struct{}{}
	s.mu.Lock()
	r.queued--
	r.active++
	s.mu.Unlock()
	time.Sleep(askTime)
	<-r.places
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteLoad()
	r.active--
	if !r.gone.IsZero() && time.Since(r.gone) > drainTime {
		s.lost++
		return
	}
	s.answered++
}

// choose returns the replica with the lowest load, and counts a request in its queue; nil when no
// replica is ready.
func (s *service) choose(world *projections.World) *serving {
	row, _ := world.View().Deployments.Get(deploymentName("d1"))
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *serving
	for _, r := range row.State.Ordered() {
		one := s.replicas[r.ID]
		if r.State == domain.ReplicaReady && one != nil && one.gone.IsZero() && (best == nil ||
			one.active+one.queued < best.active+best.queued) {
			best = one
		}
	}
	if best != nil {
		best.queued++
		best.asked++
	}
	return best
}

// scaled returns the changes of the desired count, in order.
func (s *service) scaled(name domain.Name) (all []domain.DeploymentScaled) {
	for e, err := range s.log.Read(s.ctx, name.Subject(), 0) {
		require.NoError(s.t, err)
		if e.Type != "deployment.scaled.v1" {
			continue
		}
		var fact domain.DeploymentScaled
		require.NoError(s.t, json.Unmarshal(e.Data, &fact))
		all = append(all, fact)
	}
	return all
}
