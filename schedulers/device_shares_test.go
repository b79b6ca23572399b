package schedulers_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

// sharing returns the intent that registers a node whose devices replicas may share.
func sharing(id string, devices int) domain.Intent {
	return onNode(id, domain.RegisterNode{NodeSpec: domain.NodeSpec{
		Engines: []string{"train", "complete", domain.ShareAbility}, Capacity: domain.Resources{CPUMilli: 40_000,
			MemoryMiB: 40_960, Accelerators: map[string]int{l4: devices}}}})
}

// shareOfL4 requests a share of a device for each replica.
func shareOfL4(milli int) func(*domain.DeploymentSpec) {
	return func(spec *domain.DeploymentSpec) {
		spec.AcceleratorType, spec.AcceleratorShare = l4, milli
	}
}

// slots returns the thousandths of each slot of a node, in the order of their numbers.
func (s *harness) slots(id string) (used []int) {
	row, ok := s.world.View().Nodes.Get(nodeName(id))
	require.True(s.t, ok)
	all := row.State.Slots()
	byNumber := func(a, b domain.DeviceSlot) int { return a.Number - b.Number }
	for _, slot := range slices.SortedFunc(maps.Keys(all), byNumber) {
		used = append(used, all[slot])
	}
	return used
}

// TestSharesFillSharedDevicesFirst checks that shares leave whole devices free, and that whole
// devices and shares exclude one another.
func TestSharesFillSharedDevicesFirst(t *testing.T) {
	for name, strategy := range map[string]string{"default": "", "PACK": domain.PlacementPack} {
		t.Run(name, func(t *testing.T) {
			strategic := func(milli int) func(*domain.DeploymentSpec) {
				return func(spec *domain.DeploymentSpec) {
					shareOfL4(milli)(spec)
					spec.PlacementStrategy = strategy
				}
			}
			s := begin(t, node("n0", "", 40, map[string]int{l4: 4}), sharing("n1", 2), sharing("n2", 2),
				deployment("d1", 3, 3, strategic(300)))
			s.runPlans()
			require.Len(t, s.placed("d1"), 3)
			require.Len(t, s.replicasOn("d1"), 1)
			node := "n1"
			if len(s.slots(node)) == 0 {
				node = "n2"
			}
			require.Equal(t, []int{900}, s.slots(node), "they share one device of one node")
			s.given(deployment("d2", 2, 2, strategic(300)))
			s.runPlans()
			require.Equal(t, []int{900, 600}, s.slots(node))
			s.given(deployment("d3", 1, 1, strategic(100)))
			s.runPlans()
			require.Equal(t, 1600, sum(s.slots(node)), "a device of the other node stays whole")
			require.Empty(t, s.replicasOn("d1")[nodeName("n0")], "n0 offers no shares")

			s.given(deployment("whole", 4, 7, onL4))
			s.runPlans()
			require.Len(t, s.placed("whole"), 4)
			require.Zero(t, s.replicasOn("whole")[nodeName(node)], "no device of the node is whole")
		})
	}
}

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// TestShareWaitsForCapacity checks that a share waits although the free parts of all devices
// together suffice, says so, and is placed when a share is released.
func TestShareWaitsForCapacity(t *testing.T) {
	s := begin(t, sharing("n1", 2), deployment("a", 1, 1, shareOfL4(600)), deployment("b", 1, 1, shareOfL4(600)))
	s.runPlans()
	require.Equal(t, []int{600, 600}, s.slots("n1"))
	s.given(deployment("c", 1, 1, shareOfL4(500)))
	s.runPlans()
	require.Empty(t, s.placed("c"))
	row, _ := s.world.View().Deployments.Get(deploymentName("c"))
	wait := s.world.View().Feasibility(s.world.View().NeedOf(&row.State)).String()
	require.Contains(t, wait, "500/1000 of 1 x "+l4)
	require.Contains(t, wait, "has no "+l4+" with 500/1000 free")
	s.given(domain.Intend(domain.Deployments, deploymentName("a"),
		domain.Command[domain.Deployment](domain.DeleteDeployment{Hard: true, IgnoreChecks: true})))
	s.runPlans()
	require.Len(t, s.placed("c"), 1)
	require.ElementsMatch(t, []int{500, 600}, s.slots("n1"))
}

// TestAllWhoShareAFailedDeviceMove checks that a node with fewer devices than slots loses all work
// of a slot, and no other.
func TestAllWhoShareAFailedDeviceMove(t *testing.T) {
	s := begin(t, sharing("n1", 2), deployment("a", 3, 3, shareOfL4(300)), deployment("b", 2, 2, shareOfL4(400)))
	s.runPlans()
	require.Equal(t, []int{900, 800}, s.slots("n1"))
	s.given(sharing("n1", 1))
	s.advance(schedulers.ShrinkWithin)
	s.heartbeat("n1")
	s.execute(schedulers.Nodes{})
	require.Len(t, s.placed("a"), 3)
	require.Empty(t, s.placed("b"), "both replicas of the newer slot move")
	require.Empty(t, s.plan(schedulers.Nodes{}).Steps)
	s.given(sharing("n1", 2))
	s.runPlans()
	require.Equal(t, []int{900, 800}, s.slots("n1"))
}

// TestRevocableSharesGiveWay checks that revocable shares give way to a share, as many as
// necessary, and to whole devices of replicas.
func TestRevocableSharesGiveWay(t *testing.T) {
	revocable := func(spec *domain.DeploymentSpec) {
		shareOfL4(250)(spec)
		spec.MaxWithRevocableReplicaCount = 4
	}
	for name, c := range map[string]struct {
		needs func(*domain.DeploymentSpec)
		left  int // of the four replicas, of which one is not revocable
	}{"a share": {shareOfL4(500), 2}, "a small share": {shareOfL4(100), 3}} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, sharing("n1", 1), deployment("d1", 1, 1, revocable))
			s.given(scaled("d1", 4))
			s.runPlans()
			require.Equal(t, []int{1000}, s.slots("n1"))
			s.given(deployment("d2", 1, 1, c.needs))
			s.runPlans()
			require.Len(t, s.placed("d2"), 1)
			require.Len(t, s.placed("d1"), c.left)
		})
	}
	t.Run("a whole device", func(t *testing.T) {
		s := begin(t, sharing("n1", 2), deployment("d1", 0, 0, func(spec *domain.DeploymentSpec) {
			revocable(spec)
			spec.MaxReplicaCount = new(int)
		}))
		s.given(scaled("d1", 4))
		s.runPlans()
		require.Equal(t, []int{1000}, s.slots("n1"))
		s.given(deployment("d2", 2, 2, onL4))
		s.runPlans()
		require.Len(t, s.placed("d2"), 2)
		require.Empty(t, s.placed("d1"))
		require.Empty(t, s.slots("n1"))
	})
}

// TestJobsAndShares checks that a job starts on whole devices beside shares, that a revocable
// replica with the only share of a device gives way to a job, and that none does when that frees no
// device.
func TestJobsAndShares(t *testing.T) {
	for name, c := range map[string]struct {
		revocable int // replicas that are revocable, beside one that is not
		milli     int
		starts    bool
	}{"only share of its device": {1, 600, true}, "the device is shared with firm work": {1, 300, false}} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, sharing("n1", 2), deployment("d1", 1, 1, func(spec *domain.DeploymentSpec) {
				shareOfL4(c.milli)(spec)
				spec.MaxWithRevocableReplicaCount = 1 + c.revocable
			}))
			s.given(scaled("d1", 1+c.revocable))
			s.runPlans()
			require.Len(t, s.placed("d1"), 1+c.revocable)
			s.pending(1, "j1")
			s.runPlans()
			before := len(s.placed("d1"))
			s.advance(time.Minute)
			s.pending(1, "j2")
			s.runPlans()
			if c.starts {
				require.True(t, s.jobLife("j1").Active())
				require.Equal(t, 1, before)
				return
			}
			require.True(t, s.jobLife("j1").Active(), "a device is whole")
			require.False(t, s.jobLife("j2").Active())
			require.Len(t, s.placed("d1"), 2, "nothing is revoked in vain")
		})
	}
}

// TestDrainMovesShares checks that the replicas of a node that is drained move to shares of another
// node.
func TestDrainMovesShares(t *testing.T) {
	s := begin(t, sharing("n1", 1), deployment("d1", 2, 2, shareOfL4(400)))
	s.runPlans()
	require.Equal(t, []int{800}, s.slots("n1"))
	s.given(sharing("n2", 1), onNode("n1", domain.DrainNode{Reason: "maintenance", Within: time.Hour}))
	for range 4 {
		s.runPlans()
		s.readyAll("d1")
	}
	s.runPlans()
	require.Equal(t, []int{800}, s.slots("n2"))
	require.Empty(t, s.slots("n1"))
}

// scaled scales a deployment.
func scaled(id string, replicas int) domain.Intent {
	return domain.Intend(domain.Deployments, deploymentName(id),
		domain.Command[domain.Deployment](domain.ScaleDeployment{Replicas: replicas}))
}

// readyAll reports that all replicas of a deployment are ready.
func (s *harness) readyAll(id string) {
	row, _ := s.world.View().Deployments.Get(deploymentName(id))
	for _, r := range row.State.Ordered() {
		for _, state := range []string{domain.ReplicaInitializing, domain.ReplicaReady} {
			s.given(domain.Intend(domain.Deployments, deploymentName(id), domain.Command[domain.Deployment](
				domain.AdvanceReplica{ID: r.ID, Node: r.Node, State: state})))
		}
	}
}
