package schedulers_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
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

// firstSeed returns the seed of the first run of TestRivals.
func firstSeed(t *testing.T) uint64 { return uint64(testutil.Variable(t, "ANNEAL_SEED", 0)) }

const (
	rivalTime = time.Hour              // in which users act and control planes fail
	slice     = 200 * time.Millisecond // of the simulation: see rivals.advance
	maxOffset = 2 * time.Minute        // of the clock of a control plane
)

// TestRivals simulates hours of a cluster with two control planes that both believe to lead. Each
// is crashed, paused in the middle of a plan, cut from the log, and started with another clock;
// messages of agents are lost, repeated and late. The checker checks every event. When the faults
// stop, all work must end.
//
// One goroutine runs everything, so a seed always gives the same run:
//
//	ANNEAL_SEED=17 go test ./schedulers -run TestRivals
func TestRivals(t *testing.T) {
	first, runs := firstSeed(t), testutil.Variable(t, "ANNEAL_SEEDS", 1)
	for seed := first; seed < first+uint64(runs); seed++ {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulateRivals(t, seed, rivalTime) })
		})
		if !ok {
			t.Fatalf("seed %d failed; repeat it with: ANNEAL_SEED=%d go test ./schedulers -run TestRivals", seed, seed)
		}
	}
}

// TestRivalsReplay checks that a seed gives the same run again.
func TestRivalsReplay(t *testing.T) {
	var digests []string
	for range 2 {
		synctest.Test(t, func(t *testing.T) { digests = append(digests, simulateRivals(t, firstSeed(t), busyTime/6)) })
	}
	require.Equal(t, digests[0], digests[1])
}

// A rivals value is a simulation of a cluster with control planes.
type rivals struct {
	*cluster
	checker *checker
	random  *rand.Rand // of the faults
	planes  []*plane
	late    []lateMessage
	quiet   bool // there are no faults any more
	watch   watch
	digest  hash.Hash
	hashed  uint64 // position of the last event in digest
	faults  map[string]int
}

// A plane is a control plane. It follows the log into a world of its own, and runs all schedulers.
type plane struct {
	of      *rivals
	index   int
	world   *projections.World
	saved   *projections.World // snapshot of an earlier process, from which the next process starts; nil before the first
	offset  time.Duration      // of its clock
	running []*running
	stopped time.Time // it does nothing before this time
	cut     time.Time // it neither reads nor writes the log, and receives no heartbeats, before this time
}

// A running value is a scheduler of a plane and the rest of its plan.
type running struct {
	schedulers.Scheduler
	plan     schedulers.Plan
	intents  int // of the first step, that were executed
	reserved bool
	refused  int
	planned  uint64    // position of the view of the last plan
	made     time.Time // time of the last plan
	pause    time.Time // no plan before this time
}

// A lateMessage is a message of an agent that arrives again.
type lateMessage struct {
	actor  string
	due    time.Time
	intent domain.Intent
}

func simulateRivals(t *testing.T, seed uint64, busy time.Duration) string {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newChecker(seed)
	s := &rivals{checker: c, random: rand.New(rand.NewPCG(seed, 3)), watch: watch{since: map[string]int{}},
		digest: sha256.New(), faults: map[string]int{},
		cluster: &cluster{t: t, ctx: ctx, log: c, random: rand.New(rand.NewPCG(seed, 1))}}
	s.send, s.long = s.deliver, func(job domain.Name) bool { return crc32.ChecksumIEEE([]byte(job))%10 == 0 }
	for i := range 2 {
		p := &plane{of: s, index: i}
		s.planes, s.worlds, s.receivers = append(s.planes, p), append(s.worlds, nil), append(s.receivers, nil)
		p.boot(0)
	}
	s.open()
	for i := range 6 {
		s.agents = append(s.agents, &agent{cluster: s.cluster, name: nodeName(fmt.Sprintf("n%d", i)), devices: 2,
			pool:   []string{domain.PoolTraining, domain.PoolInference}[i%2],
			random: rand.New(rand.NewPCG(seed, uint64(100+i)))})
	}
	for began := time.Now(); time.Since(began) < busy; {
		s.second(func() { s.fail(); s.step() })
	}
	if seed%2 == 0 {
		s.scatter()
	}
	s.endFaults()
	for began := time.Now(); time.Since(began) < 3*quietTime && unfinished(s.worlds[0].View()) != ""; {
		s.second(func() { s.purge(); s.fill(1000, 0); s.resume() })
	}
	awaitQuiet(t, c, func(d time.Duration) {
		for range d / time.Second {
			s.second(func() {})
		}
	})
	require.Empty(t, unfinished(s.worlds[0].View()), "unfinished work after %s without failures", quietTime)
	require.Empty(t, invariantViolations(s.worlds[0].View()))
	before, _ := c.Last(ctx)
	for range 300 {
		s.second(func() {})
	}
	after, _ := c.Last(ctx)
	require.Equal(t, before.Position, after.Position, "an idle cluster recorded events\n%s", c.tail(after.Position))
	for _, p := range s.planes {
		p.requireRebuilt()
	}
	s.faults["preemption"] = c.counts["supervisedFineTuningJob.preempting.v1"]
	s.faults["replica that gave way"], s.faults["revoked replica"] = c.counts["gave way"], c.counts["revoked"]
	s.faults["move"], s.faults["defragmentation"] = c.counts["moved"], c.counts["defragmentation"]
	t.Logf("%d events; faults: %v", after.Position, s.faults)
	return fmt.Sprintf("%x", s.digest.Sum(nil))
}

// scatter fills the fleet with deployments of one accelerator each, and deletes most of them, so
// that the rest must move for a large deployment. Machines do not crash meanwhile, so that replicas
// stay on their nodes long enough to be moved. Control planes still crash.
func (s *rivals) scatter() {
	var pending []domain.Intent // of users, who repeat them until they are recorded or refused
	minutes := func(n int) {
		for range n * 60 {
			s.second(func() {
				s.fail()
				s.purge()
				s.fill(1000, 0)
				pending = slices.DeleteFunc(pending, func(intent domain.Intent) bool {
					return domain.CodeOf(s.try("user", s.worlds[s.random.IntN(2)], intent)) != domain.Unavailable
				})
			})
		}
	}
	remove := func(name domain.Name) {
		pending = append(pending, domain.Intend(domain.Deployments, name, domain.RequestDeletion(domain.Deployments)),
			domain.Intend(domain.Deployments, name, domain.Command[domain.Deployment](domain.DeleteDeployment{Hard: true})))
	}
	s.late = nil // a node has more devices than it registered before
	pending = append(pending, onAccount(domain.RestoreAccount{}))
	for _, a := range s.agents {
		a.devices = 4
		a.repair()
		pending = append(pending, domain.Intend(domain.Nodes, a.name, domain.UncordonNode{}))
	}
	for row := range s.worlds[0].View().Deployments.All() {
		remove(row.Name)
	}
	minutes(2)
	for i := range 12 {
		pending = append(pending, deployment(fmt.Sprintf("small%d", i), 1, 1, onL4))
	}
	minutes(int(schedulers.MoveAgainAfter/time.Minute) + 3)
	for _, i := range s.random.Perm(12)[:7] {
		remove(deploymentName(fmt.Sprintf("small%d", i)))
	}
	pending = append(pending, deployment("large", 1, 1, onL4s(4)))
	minutes(10)
}

// second simulates one second: users and faults, then agents and control planes.
func (s *rivals) second(act func()) {
	act()
	now := time.Now()
	for i, a := range s.agents {
		if now.Unix()%2 == int64(i%2) {
			a.tick()
		}
	}
	s.deliverLate()
	for i, p := range s.planes {
		s.receivers[i].tick(p.now())
	}
	for range time.Second / slice {
		for _, i := range s.random.Perm(len(s.planes)) {
			s.planes[i].advance()
		}
		time.Sleep(slice - time.Since(now)%slice)
	}
	s.hash()
	require.NoError(s.t, s.checker.err())
	s.inspect()
}

// inspect requires that schedulers restore the invariants in time. Time in which no control plane
// works does not count, and a plane whose clock is behind may wait as much longer.
func (s *rivals) inspect() {
	if time.Now().Unix()%3 != 0 {
		return
	}
	for _, p := range s.planes {
		if p.alive() && !p.isCut() && p.offset == 0 {
			s.watch.look(s.t, p.world.View())
			return
		}
	}
	s.watch.since = map[string]int{}
}

// hash adds new events to the digest of the run.
func (s *rivals) hash() {
	last, _ := s.checker.Last(s.ctx)
	for ; s.hashed < last.Position; s.hashed++ {
		if e, err := s.checker.At(s.ctx, s.hashed+1); err == nil {
			fmt.Fprintln(s.digest, e.Time.UnixNano(), e.Name, e.Type, string(e.Data), e.Actor)
		}
	}
}

// fail injects faults.
func (s *rivals) fail() {
	chance := func(perThousand int) bool { return s.random.IntN(1000) < perThousand }
	after := func(seconds int) time.Time {
		return time.Now().Add(time.Duration(1+s.random.IntN(seconds)) * time.Second)
	}
	for _, p := range s.planes {
		switch {
		case chance(4):
			s.faults["crash"]++
			p.boot(0)
			p.stopped = after(20)
			s.receivers[p.index].close(time.Until(p.stopped))
		case chance(2):
			s.faults["crash with clock jump"]++
			p.boot(time.Duration(s.random.Int64N(int64(2*maxOffset))) - maxOffset)
		case chance(6):
			s.faults["pause"]++
			p.stopped = after(40)
			s.receivers[p.index].close(time.Until(p.stopped))
		case chance(6):
			s.faults["partition"]++
			p.cut = after(40)
			s.receivers[p.index].close(time.Until(p.cut))
		}
	}
}

// endFaults ends all faults.
func (s *rivals) endFaults() {
	s.quiet, s.late = true, nil
	for _, p := range s.planes {
		p.stopped, p.cut = time.Time{}, time.Time{}
		p.boot(0)
	}
	for _, a := range s.agents {
		a.devices = 64 // enough for all deployments
	}
	s.endFailures()
}

// deliver records an intent through the control plane of a world. It loses, repeats and delays
// messages of agents.
func (s *rivals) deliver(actor string, world *projections.World, intent domain.Intent) error {
	var p *plane
	for _, one := range s.planes {
		if one.world == world {
			p = one
		}
	}
	if !p.alive() || p.isCut() {
		return domain.Errorf(domain.Unavailable, "the control plane does not reply")
	}
	if !s.quiet && strings.Contains(actor, "/nodes/") {
		switch s.random.IntN(40) {
		case 0:
			s.faults["lost message"]++
			return domain.Errorf(domain.Unavailable, "the message was lost")
		case 1:
			s.faults["repeated message"]++
			due := time.Now().Add(time.Duration(s.random.IntN(60)) * time.Second)
			s.late = append(s.late, lateMessage{actor, due, intent})
		}
	}
	_, err := p.do(actor, intent)
	return err
}

func (s *rivals) deliverLate() {
	var later []lateMessage
	for _, m := range s.late {
		if m.due.After(time.Now()) {
			later = append(later, m)
			continue
		}
		if p := s.planes[s.random.IntN(len(s.planes))]; p.alive() && !p.isCut() {
			_, _ = p.do(m.actor, m.intent)
		}
	}
	s.late = later
}

// boot starts the process of the plane, whose world continues from the snapshot of an earlier
// process.
func (p *plane) boot(offset time.Duration) {
	p.world, p.offset, p.running = projections.NewWorld(), offset, nil
	if p.saved != nil {
		p.world = projections.Fork(p.saved)
	}
	p.world.SetClock(p.now)
	p.of.worlds[p.index] = p.world
	p.of.receivers[p.index] = &receiver{live: p.world.Live(), checker: p.of.checker, clock: p.now}
	p.world.Live().ListenFrom(p.now())
	for _, one := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{PlaceWithin: time.Hour},
		schedulers.Nodes{}, schedulers.Allocations{}, schedulers.Expiry{}, schedulers.Drain{}} {
		p.running = append(p.running, &running{Scheduler: one})
	}
	last, _ := p.of.checker.Last(p.of.ctx)
	p.follow(last.Position)
	p.saved = projections.Fork(p.world)
}

// requireRebuilt requires that the world of the plane, which went through all of its snapshots, is
// the one that follows from the log.
func (p *plane) requireRebuilt() {
	served, rebuilt := p.world, projections.NewWorld()
	for rebuilt.Position() < served.Position() {
		e, err := p.of.checker.At(p.of.ctx, rebuilt.Position()+1)
		require.NoError(p.of.t, err)
		require.NoError(p.of.t, rebuilt.Apply(e))
	}
	compared, err := projections.Compare(p.of.ctx, served.View(), rebuilt.View())
	require.NoError(p.of.t, err)
	require.True(p.of.t, compared.Equal(), "the world of control plane %d differs from the log: %v", p.index,
		compared.Differences)
}

func (p *plane) now() time.Time { return time.Now().UTC().Add(p.offset) }
func (p *plane) alive() bool    { return !time.Now().Before(p.stopped) }
func (p *plane) isCut() bool    { return time.Now().Before(p.cut) }

// advance follows the log for a while, and lets each scheduler plan or execute a part of its plan.
func (p *plane) advance() {
	if !p.alive() {
		return
	}
	if last, _ := p.of.checker.Last(p.of.ctx); !p.isCut() && p.of.random.IntN(5) > 0 {
		upTo := last.Position
		if behind := upTo - p.world.Position(); behind > 1 && p.of.random.IntN(4) == 0 {
			upTo -= p.of.random.Uint64N(behind)
		}
		p.follow(upTo)
	}
	for _, i := range p.of.random.Perm(len(p.running)) {
		p.running[i].advance(p)
	}
}

func (p *plane) follow(upTo uint64) {
	for p.world.Position() < upTo {
		e, err := p.of.checker.At(p.of.ctx, p.world.Position()+1)
		require.NoError(p.of.t, err)
		require.NoError(p.of.t, p.world.Apply(e))
	}
}

// advance makes a plan when there is none, and executes some intents of it.
func (r *running) advance(p *plane) {
	if len(r.plan.Steps) == 0 {
		due := !r.plan.Again.IsZero() && !p.now().Before(r.plan.Again)
		if p.world.Position() == r.planned && !due || time.Now().Before(r.pause) {
			return
		}
		view := p.world.View()
		r.plan, r.planned, r.made = r.Plan(view, p.now()), view.Position, time.Now()
		if p.of.random.IntN(50) == 0 {
			again := r.Plan(view, p.now())
			require.Equal(p.of.t, r.plan.String(), again.String(), "%s made two plans of one view", r.Name())
		}
		r.intents, r.reserved, r.refused = 0, false, 0
	}
	if r.intents == 0 && time.Since(r.made) > 2*time.Second { // as in schedulers.Run, between two steps
		r.plan, r.planned = schedulers.Plan{}, 0
		return
	}
	for n := 1 + p.of.random.IntN(20); n > 0 && len(r.plan.Steps) > 0; n-- {
		r.execute(p)
	}
	if len(r.plan.Steps) == 0 && r.refused > 0 { // as schedulers.Run does
		r.pause = time.Now().Add(time.Second)
		r.planned = 0
	}
}

// execute executes one intent of the plan, as schedulers.Run does: reservations, the commit, and if
// one of them fails after a reservation was recorded, the abandonment.
func (r *running) execute(p *plane) {
	step := r.plan.Steps[0]
	intents := step.Intents()
	position, err := p.do("scheduler/"+r.Name(), intents[r.intents])
	r.reserved = r.reserved || position > 0 && r.intents < len(step.Reserve)
	r.intents++
	switch {
	case err != nil:
		if r.refused++; r.reserved && step.Abandon != nil {
			_, _ = p.do("scheduler/"+r.Name(), *step.Abandon)
		}
	case r.intents < len(intents):
		return
	}
	r.plan.Steps, r.intents, r.reserved = r.plan.Steps[1:], 0, false
}

// do records an intent of an actor, decided with the world of the plane.
func (p *plane) do(actor string, intent domain.Intent) (uint64, error) {
	change, err := eventlog.Do(p.of.ctx, planeLog{p.of.checker, p}, planeRows{p.world, p},
		eventlog.Request{Time: p.now(), Actor: actor}, intent)
	if err == nil && change.Position() > 0 && !p.isCut() {
		p.follow(change.Position())
	}
	return change.Position(), err
}

var errCut = errors.New("the control plane is cut from the log")

// A planeLog is the log as a plane reaches it.
type planeLog struct {
	eventlog.Log
	plane *plane
}

func (l planeLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if l.plane.isCut() {
		return 0, domain.Errorf(domain.Unavailable, "%v", errCut)
	}
	return l.Log.Append(ctx, w)
}

// planeRows are the rows of a plane's world, which follows the log at once when a position is
// awaited.
type planeRows struct {
	*projections.World
	plane *plane
}

func (r planeRows) WaitFor(_ context.Context, position uint64) error {
	if r.plane.isCut() {
		return errCut
	}
	r.plane.follow(position)
	return nil
}
