package schedulers_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/schedulers"
)

// onL4s makes each replica take n L4s.
func onL4s(n int) func(*domain.DeploymentSpec) {
	return func(d *domain.DeploymentSpec) { d.AcceleratorType, d.AcceleratorCount = l4, n }
}

// nodesWithEightL4s returns the intents that register n nodes with eight L4s each: n1, n2, ….
func nodesWithEightL4s(n int) (intents []domain.Intent) {
	for i := range n {
		intents = append(intents, node(fmt.Sprintf("n%d", i+1), "", 64, map[string]int{l4: 8}))
	}
	return intents
}

// serveOn creates a deployment with a ready replica of n L4s on each of the nodes.
func (s *harness) serveOn(id string, n int, change func(*domain.DeploymentSpec), nodes ...string) {
	s.t.Helper()
	s.do(deployment(id, len(nodes), len(nodes), func(d *domain.DeploymentSpec) {
		onL4s(n)(d)
		if change != nil {
			change(d)
		}
	}))
	for i, on := range nodes {
		replica := fmt.Sprintf("r%d", i+1)
		s.do(onNode(on, domain.PlaceAllocation{Allocation: domain.Allocation{
			ID: domain.ReplicaAllocationID(deploymentName(id), replica), For: deploymentName(id), Replica: replica,
			Resources: domain.Resources{CPUMilli: 100, MemoryMiB: 128, Accelerators: map[string]int{l4: n}}}}))
		s.do(onDeployment(id, domain.PlaceReplica{ID: replica, Node: nodeName(on), Generation: 1}))
		s.do(onDeployment(id, domain.AdvanceReplica{ID: replica, Node: nodeName(on), State: domain.ReplicaReady}))
	}
	s.do(onDeployment(id, domain.MarkDeploymentReady{Generation: 1}))
}

// gangOnL4s creates a pending job that takes n L4s on each of some nodes.
func (s *harness) gangOnL4s(id string, nodes, n int) {
	s.t.Helper()
	s.do(domain.Intend(domain.Accounts, "accounts/system", domain.CreateAccount{}), onModel("sized", domain.RegisterModel{
		ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, Files: domain.Files{Prefix: "models/sized/"},
		ModelMetadata: domain.ModelMetadata{ParameterCount: 8e9, ContextLength: 512, Precision: "BF16"}}))
	s.do(setAccelerators(domain.System, domain.JobAcceleratorRow{MaxParameterCount: 8e9, AcceleratorType: l4,
		AcceleratorCount: n}))
	s.do(job(id, func(spec *domain.SupervisedSpec) { spec.Nodes, spec.BaseModel = nodes, string(modelName("sized")) }))
	s.do(onJob(id, domain.StartValidation{}))
	s.do(onJob(id, domain.QueueJob{}))
}

// pass executes the plans of ten seconds, in which new replicas become ready. It returns the
// reasons of the moves that begin.
func (s *harness) pass() (moves []string) {
	s.t.Helper()
	return s.passWith(schedulers.Replicas{PlaceWithin: 24 * time.Hour}, 10*time.Second)
}

// passWith is pass with another scheduler of replicas, and over another time.
func (s *harness) passWith(replicas schedulers.Replicas, d time.Duration) (moves []string) {
	s.t.Helper()
	for _, scheduler := range []schedulers.Scheduler{schedulers.Jobs{}, replicas, schedulers.Allocations{}} {
		for _, step := range s.plan(scheduler).Steps {
			place, ok := step.Commit.Command.(domain.PlaceReplica)
			if ok && strings.HasPrefix(place.Reason, schedulers.DefragmentReason) {
				moves = append(moves, place.Reason)
			}
			s.do(step.Intents()...)
		}
	}
	for row := range s.world.View().Deployments.All() {
		for _, r := range row.State.Ordered() {
			s.do(domain.Intend(domain.Deployments, row.Name, domain.AdvanceReplica{ID: r.ID, Node: r.Node,
				State: domain.ReplicaReady}))
		}
	}
	s.now = s.now.Add(d)
	return moves
}

// TestReplicasDefragment checks that 20 replicas on 20 nodes, of which none has eight free devices
// although 140 are free, move for a replica with eight devices and for gangs, with as few moves as
// possible, one a minute, while all of them serve.
func TestReplicasDefragment(t *testing.T) {
	var nodes []string
	for i := range 20 {
		nodes = append(nodes, fmt.Sprintf("n%d", i+1))
	}
	for gang := range 5 {
		t.Run(fmt.Sprint(gang), func(t *testing.T) {
			s := newHarnessWithInputs(t)
			s.do(nodesWithEightL4s(20)...)
			s.serveOn("small", 1, nil, nodes...)
			s.advance(time.Hour)
			want := max(1, gang)
			if gang == 0 {
				s.do(deployment("large", 1, 1, onL4s(8)))
			} else {
				s.gangOnL4s("gang", gang, 8)
			}
			began, placed := s.now, func() bool {
				if gang == 0 {
					return len(s.placed("large")) == 1
				}
				return s.lifeOf("gang").Active()
			}
			var moves []time.Time
			for !placed() {
				require.Less(t, s.now.Sub(began), time.Hour, "after %d moves", len(moves))
				if begun := s.pass(); len(begun) > 0 {
					require.Len(t, begun, 1)
					require.Contains(t, begun[0], fmt.Sprintf("moves left: %d", want-len(moves)))
					moves = append(moves, s.now)
				}
				row, _ := s.world.View().Deployments.Get(deploymentName("small"))
				require.Equal(t, 20, row.State.ReadyReplicas()-s.starting("small"), "all serve meanwhile")
			}
			require.Len(t, moves, want)
			for i := range moves[1:] {
				require.GreaterOrEqual(t, moves[i+1].Sub(moves[i]), schedulers.RebalanceEvery)
			}
			t.Logf("%d nodes free after %s and %d moves", want, s.now.Sub(began), len(moves))
			for range 200 {
				require.Empty(t, s.pass(), "nothing waits any more")
			}
		})
	}
}

// starting returns how many replicas of a deployment are being moved.
func (s *harness) starting(id string) (n int) {
	row, _ := s.world.View().Deployments.Get(deploymentName(id))
	return len(row.State.Replicas) - row.State.DesiredReplicas
}

// TestNoDefragmentation checks the situations in which no replica moves for work that waits.
func TestNoDefragmentation(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(d *domain.DeploymentSpec)
		then  func(s *harness)
		rests time.Duration // how long the replicas rest before something waits
		waits time.Duration // how long it waits
		moves bool
	}{
		"none of them":                       {nil, nil, time.Hour, schedulers.DefragmentAfter, true},
		"capacity may become free":           {nil, nil, time.Hour, schedulers.DefragmentAfter - time.Second, false},
		"the replicas have just been placed": {nil, nil, 0, schedulers.MoveAgainAfter - time.Second, false},
		"too few are free": {nil, func(s *harness) {
			s.serveOn("other", 7, nil, "n2")
		}, time.Hour, time.Hour, false},
		"no other node is left": {nil, func(s *harness) {
			s.do(onNode("n2", domain.CordonNode{Reason: "driver"}))
		}, time.Hour, time.Hour, false},
		"the replicas would be less spread": {func(d *domain.DeploymentSpec) {
			d.PlacementStrategy = domain.PlacementSpread
		}, nil, time.Hour, time.Hour, false},
		"the deployment is rolled out": {nil, func(s *harness) { s.rollOut("small") }, time.Hour, time.Hour, false},
		"a replica has failed": {nil, func(s *harness) {
			s.do(onDeployment("small", domain.RemoveReplica{ID: "r2", Reason: "out of memory", Failed: true}))
		}, time.Hour, time.Hour, false},
		"the plan has other steps": {nil, func(s *harness) {
			s.do(deployment("other", 1, 1, onL4s(1)))
		}, time.Hour, time.Hour, false},
		"other waiting work fits on the node to which a replica would move": {nil, func(s *harness) {
			s.serveOn("other", 3, nil, "n2")
			s.gangOnL4s("fits", 1, 4)
			s.do(onJob("fits", domain.HoldJob{For: domain.HeldForCapacity}))
		}, time.Hour, time.Hour, false},
		"such work waits for something else": {nil, func(s *harness) {
			s.serveOn("other", 3, nil, "n2")
			s.gangOnL4s("fits", 1, 4)
			s.do(onJob("fits", domain.HoldJob{For: "its user"}))
		}, time.Hour, time.Hour, true},
		"a node has capacity": {nil, func(s *harness) { s.do(nodesWithEightL4s(3)...) }, time.Hour, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarnessWithInputs(t)
			s.do(nodesWithEightL4s(2)...)
			s.serveOn("small", 1, c.edit, "n1", "n2")
			s.advance(c.rests)
			s.do(deployment("large", 1, 1, onL4s(8)))
			if c.then != nil {
				c.then(s)
			}
			s.advance(c.waits)
			moves := false
			for _, step := range s.plan(schedulers.Replicas{PlaceWithin: 24 * time.Hour}).Steps {
				moves = moves || strings.Contains(step.String(), schedulers.DefragmentReason)
			}
			require.Equal(t, c.moves, moves)
		})
	}
}

// TestDefragmentationOfRandomFleets checks random fleets, in which work waits, until nothing
// changes any more: moves come to an end, no more replicas move than a search of all sets of
// replicas needs, and work that such a search finds a node for gets it.
func TestDefragmentationOfRandomFleets(t *testing.T) {
	made, missed, none := 0, 0, 0
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 5))
		s := newHarnessWithInputs(t)
		n := 2 + random.IntN(3)
		s.do(nodesWithEightL4s(n)...)
		free := slices.Repeat([]int{8}, n)
		var replicas [][2]int // node and devices
		for i := range 3 + random.IntN(6) {
			size, on := 1<<random.IntN(3), random.IntN(n)
			if free[on] >= size {
				s.serveOn(fmt.Sprintf("d%d", i), size, nil, fmt.Sprintf("n%d", on+1))
				free[on] -= size
				replicas = append(replicas, [2]int{on, size})
			}
		}
		size := []int{4, 8}[random.IntN(2)]
		fewest := fewestMoves(free, replicas, size)
		s.do(deployment("large", 1, 1, onL4s(size)))
		s.advance(time.Hour)
		moves, quiet := 0, 0
		for quiet < 70 {
			before := s.world.Position()
			moves += len(s.pass())
			if quiet++; s.world.Position() != before {
				quiet = 0
			}
			require.Less(t, moves, 20, "seed %d", seed)
		}
		placed := len(s.placed("large")) == 1
		switch {
		case placed && fewest >= 0:
			require.LessOrEqual(t, fewest, moves, "seed %d", seed)
			if moves > fewest {
				missed++
			}
			made += min(1, moves)
		case fewest < 0:
			require.False(t, placed, "seed %d", seed)
			require.Zero(t, moves, "seed %d: replicas moved in vain", seed)
			none++
		default:
			require.Zero(t, moves, "seed %d: replicas moved in vain", seed)
			missed++
		}
	}
	t.Logf("%d times replicas moved, %d times not as few as possible or not at all, and %d times moves did not help", made,
		missed, none)
	require.Greater(t, made, 10)
	require.Greater(t, none, 10)
	require.LessOrEqual(t, missed, 1)
}

// TestDefragmentationForSeveral checks random fleets in which replicas and gangs of several sizes
// wait: the moves for one of them do not undo those for another, so that they come to an end, and
// no deployment has fewer ready replicas than its minimum at any time.
func TestDefragmentationForSeveral(t *testing.T) {
	placed, waiting, moves := 0, 0, 0
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 6))
		s := newHarnessWithInputs(t)
		n := 3 + random.IntN(4)
		s.do(nodesWithEightL4s(n)...)
		small := 0
		for i := range 2 * n {
			size, on := 1<<random.IntN(3), nodeName(fmt.Sprintf("n%d", 1+random.IntN(n)))
			row, _ := s.world.View().Nodes.Get(on)
			if row.State.HasCapacity(domain.Resources{Accelerators: map[string]int{l4: size}}) {
				s.serveOn(fmt.Sprintf("d%d", i), size, nil, on.ID())
				small++
			}
		}
		for i := range 3 {
			s.do(deployment(fmt.Sprintf("large%d", i), 1, 1, onL4s([]int{4, 8}[random.IntN(2)])))
		}
		s.gangOnL4s("gang", 1+random.IntN(2), 4<<random.IntN(2))
		s.advance(time.Hour)
		made := 0
		for quiet := 0; quiet < 80; quiet++ { // longer than MoveAgainAfter
			before := s.world.Position()
			made += len(s.pass())
			if s.world.Position() != before {
				quiet = 0
			}
			for row := range s.world.View().Deployments.All() {
				if strings.HasPrefix(row.Name.ID(), "d") {
					require.GreaterOrEqual(t, row.State.ReadyReplicas(), 1, "seed %d: %s", seed, row.Name)
				}
			}
			require.Less(t, made, 3*small, "seed %d", seed)
		}
		moves += made
		for i := range 3 {
			got := len(s.placed(fmt.Sprintf("large%d", i)))
			placed, waiting = placed+got, waiting+1-got
		}
	}
	t.Logf("%d moves; %d large replicas were placed, and %d wait", moves, placed, waiting)
	require.Greater(t, moves, 15)
}

// TestDefragmentationInUse simulates a day of a fleet with 160 devices: deployments, which have as
// many replicas as their minimum, come and go. Every hour, a replica arrives that needs all eight
// devices of a node, and stays for three hours. The test logs how long these wait, with and without
// moves.
const smallDevices = 124

func TestDefragmentationInUse(t *testing.T) {
	waited := map[bool]time.Duration{}
	for _, moving := range []bool{false, true} {
		s, random := newHarnessWithInputs(t), rand.New(rand.NewPCG(1, 8))
		s.do(nodesWithEightL4s(20)...)
		replicas := schedulers.Replicas{PlaceWithin: 24 * time.Hour}
		if !moving {
			replicas.DefragmentAfter = 1000 * time.Hour
		}
		used, sizes, moves := 0, map[string]int{}, 0 // devices of all deployments, and of each
		remove := func(id string) {
			s.do(onDeployment(id, domain.RequestDeletion(domain.Deployments)))
			s.do(onDeployment(id, domain.DeleteDeployment{Hard: true}))
			used -= sizes[id]
			delete(sizes, id)
		}
		arrived, waits := map[string]time.Time{}, []time.Duration{}
		for minute := range 24 * 60 {
			if minute%5 == 0 {
				size, n := []int{1, 1, 2, 4}[random.IntN(4)], 1+random.IntN(3)
				for ids := slices.Sorted(maps.Keys(sizes)); used+n*size > smallDevices; ids = slices.Sorted(maps.Keys(sizes)) {
					remove(ids[random.IntN(len(ids))])
				}
				id := fmt.Sprintf("d%d", minute)
				s.do(deployment(id, n, n, onL4s(size)))
				sizes[id], used = n*size, used+n*size
			}
			if hour := minute / 60; minute%60 == 0 && hour >= 4 {
				id := fmt.Sprintf("large%d", hour)
				arrived[id] = s.now
				s.do(deployment(id, 1, 1, onL4s(8)))
				if hour >= 7 {
					s.do(onDeployment(fmt.Sprintf("large%d", hour-3), domain.RequestDeletion(domain.Deployments)))
					s.do(onDeployment(fmt.Sprintf("large%d", hour-3), domain.DeleteDeployment{Hard: true}))
				}
			}
			moves += len(s.passWith(replicas, time.Minute))
			for id, at := range arrived {
				if len(s.placed(id)) > 0 || s.now.Sub(at) >= 3*time.Hour {
					waits = append(waits, s.now.Sub(at)-time.Minute)
					delete(arrived, id)
				}
			}
		}
		late := 0
		for _, wait := range waits {
			waited[moving] += wait
			if wait > 10*time.Minute {
				late++
			}
		}
		t.Logf("%d of 160 devices in small replicas, moves %t: %d large replicas waited %s on average, at most %s, and %d "+
			"of them for more than 10 minutes; %d moves", smallDevices, moving, len(waits),
			(waited[moving] / time.Duration(len(waits))).Round(time.Second), slices.Max(waits), late, moves)
	}
	require.Less(t, waited[true], waited[false])
}

// TestNothingIsDefragmentedForJobsWithoutQuota checks that no replica moves for a job that waits
// for capacity, but would not start, because its account has no quota left.
func TestNothingIsDefragmentedForJobsWithoutQuota(t *testing.T) {
	for _, quota := range []domain.Count{10, 9} { // the two replicas use two
		s := newHarnessWithInputs(t)
		s.do(nodesWithEightL4s(2)...)
		s.serveOn("small", 1, nil, "n1", "n2")
		s.advance(time.Hour)
		s.gangOnL4s("large", 1, 8)
		s.pass()
		s.quota("acme", domain.QuotaAccelerators, quota)
		s.advance(time.Hour)
		moves := 0
		for range 60 {
			moves += len(s.pass())
		}
		require.Equal(t, quota == 10, s.lifeOf("large").Active(), s.lifeOf("large").Status)
		require.Equal(t, quota == 10, moves > 0, "quota %d: %d moves", quota, moves)
	}
}

// TestAMovedReplicaStaysWithoutItsReplacement checks that a replica is not removed when its
// replacement was removed after the view of the plan.
func TestAMovedReplicaStaysWithoutItsReplacement(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.do(nodesWithEightL4s(2)...)
	s.serveOn("small", 1, nil, "n1", "n2")
	s.do(deployment("large", 1, 1, onL4s(8)))
	s.advance(time.Hour)
	require.Len(t, s.pass(), 1)
	steps := s.plan(schedulers.Replicas{PlaceWithin: 24 * time.Hour}).Steps
	require.Len(t, steps, 1)
	require.Contains(t, steps[0].String(), "moved to node")
	s.do(onDeployment("small", domain.RemoveReplica{ID: "r3", Reason: "out of memory", Failed: true}))
	_, err := eventlog.Do(t.Context(), s.log, s.world, eventlog.Request{Time: s.now}, steps[0].Commit)
	require.ErrorContains(t, err, "must keep its minReplicaCount")
	row, _ := s.world.View().Deployments.Get(deploymentName("small"))
	require.Equal(t, 2, row.State.ReadyReplicas())
}

// fewestMoves returns the fewest moves of replicas after which a node has size free devices; -1 if
// there are none. It tries all sets of replicas and all places for them.
func fewestMoves(free []int, replicas [][2]int, size int) int {
	best := -1
	for target := range free {
		for set := range 1 << len(replicas) {
			left, moved := slices.Clone(free), []int{}
			for i, r := range replicas {
				if set>>i&1 == 1 {
					left[r[0]] += r[1]
					moved = append(moved, r[1])
					if r[0] != target {
						moved = append(moved, 99) // only replicas of the target move
					}
				}
			}
			if left[target] < size || best >= 0 && len(moved) >= best {
				continue
			}
			left[target] = 0
			slices.Sort(moved)
			slices.Reverse(moved)
			if packs(left, moved) {
				best = len(moved)
			}
		}
	}
	return best
}

// packs reports whether replicas fit on what is left.
func packs(left, replicas []int) bool {
	if len(replicas) == 0 {
		return true
	}
	for i := range left {
		if left[i] >= replicas[0] {
			left[i] -= replicas[0]
			if packs(left, replicas[1:]) {
				return true
			}
			left[i] += replicas[0]
		}
	}
	return false
}
