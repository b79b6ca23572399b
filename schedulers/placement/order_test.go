package placement_test

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/placement"
)

// onesAndTwos returns a fleet of five nodes: the first three have one free device, the others two.
func onesAndTwos(t *testing.T) *placement.Fleet {
	nodes := slices.Repeat([]placement.Node{{Model: "T4", Devices: 2, CPUMilli: 64000, MemoryMiB: 1 << 20}}, 5)
	fleet := newFleet(t, nodes, map[placement.Request]int64{wholeDevices(1): 1, wholeDevices(2): 1})
	for node := range 3 {
		fleet.Take(node, wholeDevices(1), []int{0})
	}
	return fleet
}

func TestOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		cost  []int64
		first bool
		want  int
	}{
		"no difference":                         {[]int64{0, 0, 0, 0, 0}, false, 0},
		"the first with the lowest cost":        {[]int64{1, 0, 0, 0, 0}, false, 1},
		"of the nodes with the highest score":   {[]int64{2, 2, 1, 0, 0}, false, 2},
		"all have the same cost":                {[]int64{3, 3, 3, 0, 0}, false, 0},
		"negative costs":                        {[]int64{-1, -2, -3, -9, -9}, false, 2},
		"the cost first":                        {[]int64{2, 2, 1, 0, 0}, true, 3},
		"the cost first, then the score":        {[]int64{1, 0, 1, 0, 0}, true, 1},
		"the cost first, then the rank":         {[]int64{1, 0, 0, 1, 1}, true, 1},
		"the cost first, where it is no matter": {[]int64{5, 5, 5, 5, 5}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, groups := range [][]int{{0, 0, 0, 0, 0}, {0, 1, 2, 3, 4}, {1, 0, 1, 0, 1}} {
				fleet := onesAndTwos(t)
				fleet.SetGroups(groups)
				choice, ok := fleet.Place(wholeDevices(1), orderBy(tc.first, tc.cost, groups))
				require.True(t, ok)
				require.Equal(t, tc.want, choice.Node, "with groups %v", groups)
			}
		})
	}
}

// orderBy returns an order with the given costs. A group costs what its first node costs.
func orderBy(first bool, costs []int64, groups []int) *placement.Order {
	o := &placement.Order{First: first, Group: func(group int) int64 { return costs[slices.Index(groups, group)] }}
	o.Extra = func(node int) int64 { return costs[node] - o.Group(groups[node]) }
	for node := range costs {
		if o.Extra(node) != 0 {
			o.Nodes = append(o.Nodes, node)
		}
	}
	return o
}

// chooseOfAll returns the node and its score that an order with the given costs chooses; -1 if no
// node is feasible. It looks at every node on its own, in a fleet that knows no orders.
func chooseOfAll(fleet *placement.Fleet, r placement.Request, first bool, costs []int64) (node int, score int64) {
	node = -1
	only := 0
	defer func() { fleet.Eligible = nil }()
	for ; only < fleet.Len(); only++ {
		fleet.Eligible = func(other int, _ *placement.Request) bool { return other == only }
		fleet.SetGroups(make([]int, fleet.Len())) // forgets what was computed with another Eligible
		choice, ok := fleet.Place(r, nil)
		if !ok {
			continue
		}
		fleet.Release(only, r, choice.Devices)
		better := choice.Score > score || choice.Score == score && costs[only] < costs[max(0, node)]
		if first && node >= 0 {
			better = costs[only] < costs[node] || costs[only] == costs[node] && choice.Score > score
		}
		if node < 0 || better {
			node, score = only, choice.Score
		}
	}
	return node, score
}

// TestOrderIsExhaustive compares choices over random histories with a search of all nodes: requests
// of several sizes and gangs come and go, nodes change, and each choice has costs of its own.
func TestOrderIsExhaustive(t *testing.T) {
	for seed := range int64(20) {
		random := rand.New(rand.NewSource(seed))
		nodes := make([]placement.Node, 40)
		groups, costs := make([]int, len(nodes)), make([]int64, len(nodes))
		for i := range nodes {
			nodes[i] = placement.Node{Model: "T4", Devices: 1 + random.Intn(4), CPUMilli: 64000, MemoryMiB: 1 << 20}
			groups[i] = random.Intn(5)
		}
		counts := map[placement.Request]int64{wholeDevices(1): 3, wholeDevices(2): 1}
		fleet, all := newFleet(t, nodes, counts), newFleet(t, nodes, counts)
		fleet.SetGroups(groups)
		type taken struct {
			choice  placement.Choice
			request placement.Request
		}
		var held []taken
		take := func(r placement.Request, c placement.Choice) {
			held = append(held, taken{c, r})
			all.Take(c.Node, r, c.Devices)
		}
		refused := 0
		for range 400 {
			byGroup := []int64{0, 1, 2, 0, 1}
			for i := range costs {
				costs[i] = byGroup[groups[i]]
				if random.Intn(4) == 0 {
					costs[i] += int64(random.Intn(7) - 3)
				}
			}
			first, r := random.Intn(2) == 0, wholeDevices(1+random.Intn(2))
			order := orderBy(first, costs, groups)
			switch chance := random.Intn(10); {
			case chance < 3 && len(held) > 0:
				i := random.Intn(len(held))
				fleet.Release(held[i].choice.Node, held[i].request, held[i].choice.Devices)
				all.Release(held[i].choice.Node, held[i].request, held[i].choice.Devices)
				held = slices.Delete(held, i, i+1)
			case chance < 4:
				choices, _ := fleet.PlaceGang(r, 1+random.Intn(3), true, order)
				for _, c := range choices {
					take(r, c)
				}
			default:
				want, score := chooseOfAll(all, r, first, costs)
				choice, ok := fleet.Place(r, order)
				require.Equal(t, want >= 0, ok)
				if !ok {
					refused++
					continue
				}
				require.Equal(t, want, choice.Node)
				require.Equal(t, score, choice.Score)
				take(r, choice)
			}
		}
		require.Positive(t, refused, "the fleet was full at times")
	}
}

// BenchmarkOrder places and releases a whole device on equal nodes in 16 groups. 15 nodes, each in
// another group, have a cost of their own, as those of replicas of the same deployment.
func BenchmarkOrder(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000, 100_000} {
		nodes := slices.Repeat([]placement.Node{{Model: "T4", Devices: 8, CPUMilli: 64000, MemoryMiB: 1 << 20}}, n)
		counts := map[placement.Request]int64{wholeDevices(1): 1, wholeDevices(8): 1}
		groups := make([]int, n)
		for node := range groups {
			groups[node] = node % 16
		}
		after := &placement.Order{Group: func(group int) int64 { return int64(min(group, 1)) },
			Extra: func(node int) int64 { return int64(min(1, max(0, 15-node))) }}
		for node := range 15 {
			after.Nodes = append(after.Nodes, node)
		}
		before := *after
		before.First = true
		for _, order := range []struct {
			name string
			*placement.Order
		}{{"none", nil}, {"after the score", after}, {"before the score", &before}} {
			b.Run(fmt.Sprintf("%d nodes/%s", n, order.name), func(b *testing.B) {
				fleet, err := placement.NewFleet(nodes, placement.TypicalClasses(counts), nil)
				require.NoError(b, err)
				fleet.SetGroups(groups)
				for b.Loop() {
					choice, ok := fleet.Place(wholeDevices(1), order.Order)
					require.True(b, ok)
					fleet.Release(choice.Node, wholeDevices(1), choice.Devices)
				}
			})
		}
	}
}
