package schedulers_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers"
)

// zoned returns the intent that registers a node in a region and zone, "" without them.
func zoned(id, region, zone string, cores int64, devices int) domain.Intent {
	spec := domain.NodeSpec{Region: region, Engines: []string{"complete"},
		Capacity: domain.Resources{CPUMilli: cores * 1000, MemoryMiB: cores * 1024}}
	if zone != "" {
		spec.Labels = map[string]string{domain.ZoneLabel: zone}
	}
	if devices > 0 {
		spec.Capacity.Accelerators = map[string]int{h100: devices}
	}
	return onNode(id, domain.RegisterNode{NodeSpec: spec})
}

// spreadBy sets the placement strategy, and the accelerators of each replica.
func spreadBy(strategy string, devices int) func(*domain.DeploymentSpec) {
	return func(spec *domain.DeploymentSpec) {
		if spec.PlacementStrategy = strategy; devices > 0 {
			devicesOf(devices)(spec)
		}
	}
}

// nodesOf returns the IDs of the nodes of a deployment's replicas, in the order of the replicas.
func (s *harness) nodesOf(id string) (nodes []string) {
	row, ok := s.world.View().Deployments.Get(deploymentName(id))
	require.True(s.t, ok)
	for _, r := range row.State.Ordered() {
		nodes = append(nodes, r.Node.ID())
	}
	return nodes
}

const us, eu = "US_OHIO_1", "EU_PARIS_1"

// TestPlacementStrategies checks where each strategy places the replicas of a deployment. In each
// fleet, the deployment "first" runs before it.
func TestPlacementStrategies(t *testing.T) {
	cpus := []domain.Intent{zoned("a1", "", "a", 8, 0), zoned("a2", "", "a", 8, 0), zoned("a3", "", "a", 8, 0),
		zoned("b1", "", "b", 8, 0)}
	devices := []domain.Intent{zoned("a1", "", "a", 8, 4), zoned("a2", "", "a", 8, 4), zoned("b1", "", "b", 8, 4)}
	regions := []domain.Intent{zoned("u1", us, "a", 8, 0), zoned("u2", us, "b", 8, 0), zoned("u3", us, "b", 8, 0),
		zoned("e1", eu, "a", 8, 0), zoned("e2", eu, "a", 8, 0)}
	plain := []domain.Intent{zoned("p1", "", "", 8, 0), zoned("p2", "", "", 8, 0)}
	full := []domain.Intent{zoned("a1", "", "a", 8, 2), zoned("b1", "", "b", 8, 1), zoned("b2", "", "b", 1, 0)}
	for _, line := range []struct {
		name     string
		nodes    []domain.Intent
		first    int // accelerators of a replica that runs before; 0 without one
		strategy string
		devices  int
		replicas int
		want     []string // nodes, ordered by name
	}{
		{"zones without accelerators", cpus, 0, "", 0, 4, []string{"a1", "a2", "b1", "b1"}},
		{"together without accelerators", cpus, 0, domain.PlacementPack, 0, 4, []string{"a2", "a2", "a2", "a2"}},
		{"accelerators in use first", devices, 1, "", 1, 3, []string{"a2", "a2", "a2"}},
		{"accelerators of other zones", devices, 1, domain.PlacementSpread, 1, 3, []string{"a1", "a2", "b1"}},
		{"whole nodes cost nothing", devices, 0, "", 4, 2, []string{"a2", "b1"}},
		{"whole nodes together", devices, 0, domain.PlacementPack, 4, 2, []string{"a1", "a2"}},
		{"regions, zones and nodes", regions, 0, domain.PlacementSpread, 0, 4, []string{"e1", "e2", "u1", "u2"}},
		{"regions, zones and nodes by default", regions, 0, "", 0, 4, []string{"e1", "e2", "u1", "u2"}},
		{"nodes without zones", plain, 0, domain.PlacementSpread, 0, 2, []string{"p1", "p2"}},
		{"a zone without capacity", full, 0, domain.PlacementSpread, 1, 3, []string{"a1", "a1", "b1"}},
	} {
		t.Run(line.name, func(t *testing.T) {
			s := newHarnessWithInputs(t)
			s.given(line.nodes...)
			if line.first > 0 {
				s.given(deployment("first", 1, 1, devicesOf(line.first)))
				s.execute(schedulers.Replicas{})
			}
			s.given(deployment("d1", line.replicas, line.replicas, spreadBy(line.strategy, line.devices)))
			s.execute(schedulers.Replicas{})
			require.Equal(t, line.want, slices.Sorted(slices.Values(s.nodesOf("d1"))))
		})
	}
}

// TestPlacementReasonNamesTheDomain checks what the event of a replica's allocation records.
func TestPlacementReasonNamesTheDomain(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(zoned("u1", us, "a", 8, 0), zoned("e1", eu, "", 8, 0))
	s.given(deployment("d1", 3, 3, spreadBy(domain.PlacementSpread, 0)))
	s.execute(schedulers.Replicas{})
	var got []string
	for row := range s.world.View().Nodes.All() {
		for _, a := range row.State.Allocated() {
			r := a.Reason
			got = append(got, fmt.Sprintf("%s %s %s %d %d", a.Replica, r.Strategy, r.FailureDomain, r.DomainReplicas,
				r.NodeReplicas))
		}
	}
	slices.Sort(got)
	require.Equal(t, []string{"r1 SPREAD EU_PARIS_1 0 0", "r2 SPREAD US_OHIO_1/a 0 0", "r3 SPREAD EU_PARIS_1 1 1"}, got)
}

// TestStrategyAppliesToTheNextReplicas checks that a changed strategy replaces no replica, and that
// replicas of a deployment with SPREAD are removed where most of them are.
func TestStrategyAppliesToTheNextReplicas(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(zoned("a1", "", "a", 8, 0), zoned("a2", "", "a", 8, 0), zoned("b1", "", "b", 8, 0))
	s.given(deployment("d1", 0, 9, spreadBy(domain.PlacementPack, 0)))
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 3}))
	s.execute(schedulers.Replicas{})
	packed := s.nodesOf("d1")
	require.Equal(t, slices.Repeat(packed[:1], 3), packed)

	row, _ := s.world.View().Deployments.Get(deploymentName("d1"))
	spec := row.State.DeploymentSpec
	spec.PlacementStrategy = domain.PlacementSpread
	s.given(onDeployment("d1", domain.UpdateDeployment{DeploymentSpec: spec}))
	s.execute(schedulers.Replicas{})
	require.Equal(t, packed, s.nodesOf("d1"))
	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 7}))
	s.execute(schedulers.Replicas{})
	require.Equal(t, []string{"b1", "b1", "b1", "a1"}, s.nodesOf("d1")[3:])

	s.given(onDeployment("d1", domain.ScaleDeployment{Replicas: 4}))
	s.execute(schedulers.Replicas{})
	require.Equal(t, map[domain.Name]int{nodeName("a1"): 1, nodeName("a2"): 1, nodeName("b1"): 2}, s.replicasOn("d1"))
}

// TestSpreadSimulation simulates fleets in which deployments come, scale and go, and nodes are lost
// and return. It checks each placement, independently of the scheduler, against the state before
// it.
func TestSpreadSimulation(t *testing.T) {
	placed := map[string]int{}
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newHarnessWithInputs(t)
			random := rand.New(rand.NewPCG(seed, 7))
			fleet := make([]domain.Intent, 14)
			for i := range fleet {
				fleet[i] = zoned(fmt.Sprintf("n%d", i), []string{us, eu}[random.IntN(2)], []string{"", "a", "b"}[random.IntN(3)],
					int64(1+random.IntN(2)), []int{0, 2, 4}[random.IntN(3)])
			}
			s.do(fleet...)
			for step := range 50 {
				id := fmt.Sprintf("d%d", random.IntN(6))
				row, exists := s.world.View().Deployments.Get(deploymentName(id))
				switch node := fleet[random.IntN(len(fleet))]; {
				case step%9 == 8:
					s.do(domain.Intend(domain.Nodes, node.Name, domain.LoseNode{Reason: "silent"}))
				case step%9 == 3:
					s.do(fleet...) // lost nodes return
				case exists:
					if n := random.IntN(8); n != row.State.DesiredReplicas {
						s.do(onDeployment(id, domain.ScaleDeployment{Replicas: n}))
					}
				default:
					strategy := domain.PlacementStrategies[random.IntN(3)]
					s.do(deployment(id, 0, 8, spreadBy(strategy, random.IntN(3))))
				}
				for _, scheduler := range []schedulers.Scheduler{schedulers.Replicas{}, schedulers.Allocations{}} {
					for _, planned := range s.plan(scheduler).Steps {
						for _, intent := range planned.Intents() {
							s.checkSpread(intent, placed)
							s.do(intent)
						}
					}
				}
			}
		})
	}
	for _, strategy := range []string{"", domain.PlacementPack, domain.PlacementSpread} {
		require.Greater(t, placed[strategy], 50, "placements with the strategy %q", strategy)
	}
}

// checkSpread checks an intent that allocates a node to a replica: the node has capacity, the
// reason is true, and no node that the strategy prefers has capacity.
func (s *harness) checkSpread(intent domain.Intent, placed map[string]int) {
	s.t.Helper()
	place, ok := intent.Command.(domain.PlaceAllocation)
	if !ok {
		return
	}
	v := s.world.View()
	row, _ := v.Deployments.Get(place.For)
	strategy := row.State.Strategy()
	placed[strategy]++
	node, _ := v.Nodes.Get(intent.Name)
	require.True(s.t, node.State.HasCapacity(place.Resources))
	chosen := countsAt(v, &row.State, node)
	reason := place.Reason
	if reason.FailureDomain == "" {
		require.Empty(s.t, node.State.Region+node.State.Labels[domain.ZoneLabel])
		chosen[1] = 0
	}
	require.Equal(s.t, []any{strategy, chosen[1], chosen[2]},
		[]any{reason.Strategy, reason.DomainReplicas, reason.NodeReplicas})
	for other := range v.Nodes.All() {
		if other.Name == node.Name || !other.State.HasCapacity(place.Resources) {
			continue
		}
		counts, same := countsAt(v, &row.State, other), sameResources(node.State, other.State)
		crowding, distance := slices.Compare(counts, chosen), slices.Compare(reversed(chosen), reversed(counts))
		switch {
		case strategy == domain.PlacementSpread, strategy == "" && same:
			require.GreaterOrEqual(s.t, crowding, 0, "%s %v is less crowded than %s %v", other.Name, counts, node.Name,
				chosen)
		case same:
			require.GreaterOrEqual(s.t, distance, 0, "%s %v is closer than %s %v", other.Name, counts, node.Name, chosen)
		}
	}
}

func reversed(counts []int) []int {
	counts = slices.Clone(counts)
	slices.Reverse(counts)
	return counts
}

// countsAt returns how many replicas of a deployment are in the region of a node, in its zone, and
// on it.
func countsAt(v *projections.View, d *domain.Deployment, node *projections.Row[domain.Node]) []int {
	counts := []int{0, 0, 0}
	for _, r := range d.Replicas {
		on, ok := v.Nodes.Get(r.Node)
		if !ok || on.State.State != domain.NodeReady || on.State.Region != node.State.Region {
			continue
		}
		counts[0]++
		if on.State.Labels[domain.ZoneLabel] == node.State.Labels[domain.ZoneLabel] {
			counts[1]++
		}
		if on.Name == node.Name {
			counts[2]++
		}
	}
	return counts
}

// sameResources reports whether two nodes have the same capacity and the same free resources.
func sameResources(a, b domain.Node) bool {
	return cmp.Or(cmp.Compare(a.Capacity.String(), b.Capacity.String()),
		cmp.Compare(a.Used().String(), b.Used().String())) == 0
}
