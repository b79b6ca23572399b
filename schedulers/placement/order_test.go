package placement_test

import (
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
			order := &placement.Order{Cost: func(node int) int64 { return tc.cost[node] }, First: tc.first,
				Floor: slices.Min(tc.cost)}
			choice, ok := onesAndTwos(t).Place(wholeDevices(1), order)
			require.True(t, ok)
			require.Equal(t, tc.want, choice.Node)
		})
	}
}

// TestOrderIsExhaustive compares each choice with a search of all nodes.
func TestOrderIsExhaustive(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	nodes := make([]placement.Node, 60)
	for i := range nodes {
		nodes[i] = placement.Node{Model: "T4", Devices: 1 + random.Intn(4), CPUMilli: 64000, MemoryMiB: 1 << 20}
	}
	fleet := newFleet(t, nodes, map[placement.Request]int64{wholeDevices(1): 3, wholeDevices(2): 1})
	costs := make([]int64, len(nodes))
	placed := 0
	for {
		for i := range costs {
			costs[i] = int64(random.Intn(4))
		}
		first := random.Intn(2) == 0
		want, score, cost := -1, int64(0), int64(0)
		for node := range nodes {
			alone := &placement.Order{First: true, Cost: func(other int) int64 {
				if other == node {
					return 0
				}
				return 1
			}}
			choice, ok := fleet.Place(wholeDevices(1), alone)
			if !ok {
				require.GreaterOrEqual(t, placed, len(nodes))
				return // the fleet is full
			}
			fleet.Release(choice.Node, wholeDevices(1), choice.Devices)
			if choice.Node != node {
				continue // the node is full
			}
			better := want < 0 || choice.Score > score || choice.Score == score && costs[node] < cost
			if first {
				better = want < 0 || costs[node] < cost || costs[node] == cost && choice.Score > score
			}
			if better {
				want, score, cost = node, choice.Score, costs[node]
			}
		}
		choice, ok := fleet.Place(wholeDevices(1), &placement.Order{First: first,
			Cost: func(node int) int64 { return costs[node] }})
		require.True(t, ok)
		require.Equal(t, want, choice.Node)
		require.Equal(t, score, choice.Score)
		placed++
	}
}

// BenchmarkOrder places and releases a whole device on 10,000 equal nodes, of which none reaches the
// floor: the worst case of an order.
func BenchmarkOrder(b *testing.B) {
	nodes := slices.Repeat([]placement.Node{{Model: "T4", Devices: 8, CPUMilli: 64000, MemoryMiB: 1 << 20}}, 10_000)
	counts := map[placement.Request]int64{wholeDevices(1): 1, wholeDevices(8): 1}
	cost := func(node int) int64 { return int64(1 + node%16) }
	for name, order := range map[string]*placement.Order{"none": nil, "after the score": {Cost: cost},
		"before the score": {Cost: cost, First: true}} {
		b.Run(name, func(b *testing.B) {
			fleet, err := placement.NewFleet(nodes, placement.TypicalClasses(counts), nil)
			require.NoError(b, err)
			for b.Loop() {
				choice, ok := fleet.Place(wholeDevices(1), order)
				require.True(b, ok)
				fleet.Release(choice.Node, wholeDevices(1), choice.Devices)
			}
		})
	}
}
