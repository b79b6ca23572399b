package placement_test

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/placement"
)

func wholeDevices(devices int) placement.Request {
	return placement.Request{CPUMilli: int64(devices) * 1000, MemoryMiB: 1024, Devices: devices,
		Share: placement.WholeDevice}
}

func newFleet(t *testing.T, nodes []placement.Node, counts map[placement.Request]int64) *placement.Fleet {
	fleet, err := placement.NewFleet(nodes, placement.TypicalClasses(counts), placement.Prices(counts, nodes))
	require.NoError(t, err)
	return fleet
}

func TestTypicalClasses(t *testing.T) {
	counts := map[placement.Request]int64{wholeDevices(1): 60, wholeDevices(2): 35, wholeDevices(8): 5}
	more := wholeDevices(1)
	more.MemoryMiB = 2048 // memory does not distinguish classes
	counts[more], counts[wholeDevices(1)] = 6, 54
	classes := placement.TypicalClasses(counts)
	require.Len(t, classes, 2, "two classes cover 95 %%")
	require.Equal(t, placement.Class{CPUMilli: 1000, Devices: 1, Share: 1000, Frequency: 631_579}, classes[0])
	require.EqualValues(t, 1_000_000, classes[0].Frequency+classes[1].Frequency)
	require.Empty(t, placement.TypicalClasses(nil))
}

func TestFragmentation(t *testing.T) {
	share := placement.Request{CPUMilli: 1000, Devices: 1, Share: 600}
	counts := map[placement.Request]int64{wholeDevices(2): 1, share: 1}
	fleet := newFleet(t, []placement.Node{{Model: "T4", Devices: 2, CPUMilli: 4000, MemoryMiB: 1 << 20}}, counts)
	require.Zero(t, fleet.Fragmentation(0), "an empty node fits all classes")
	fleet.Take(0, placement.Request{CPUMilli: 1000, Devices: 1, Share: 500}, []int{1})
	require.EqualValues(t, 500_000*1500+500_000*500, fleet.Fragmentation(0),
		"two devices do not fit, and 500 of the second device are too few for the share")
	fleet.Take(0, placement.Request{CPUMilli: 2500}, nil)
	require.EqualValues(t, 1_000_000*1500, fleet.Fragmentation(0), "no class has enough CPU")
}

func TestPrices(t *testing.T) {
	nodes := []placement.Node{{Model: "A", Devices: 8}, {Model: "B", Devices: 2}, {}}
	b, either := wholeDevices(1), wholeDevices(1)
	b.Models, either.Models = "B", "B|A"
	counts := map[placement.Request]int64{wholeDevices(1): 15, b: 1, either: 4}
	// Requests for A or B have 4,000 of the demand of 20,000, and can use the whole capacity of
	// 10,000. Requests for B alone have 1,000 of the demand, and can use 2,000 of the capacity.
	require.Equal(t, map[string]int64{"A": 200, "B": 200 + 250}, placement.Prices(counts, nodes))
	require.Equal(t, map[string]int64{"A": 0, "B": 0}, placement.Prices(nil, nodes))
}

// TestSharesFillDevices checks that shares are placed on devices where they leave no unusable rest.
func TestSharesFillDevices(t *testing.T) {
	half := placement.Request{CPUMilli: 1000, Devices: 1, Share: 500}
	third := placement.Request{CPUMilli: 1000, Devices: 1, Share: 300}
	nodes := slices.Repeat([]placement.Node{{Model: "T4", Devices: 2, CPUMilli: 64000, MemoryMiB: 1 << 20}}, 2)
	fleet := newFleet(t, nodes,
		map[placement.Request]int64{half: 4, wholeDevices(1): 1, third: 1})
	fleet.Take(1, half, []int{1})
	choice, ok := fleet.Place(half, nil)
	require.True(t, ok)
	require.Equal(t, 1, choice.Node)
	require.Equal(t, []int{1}, choice.Devices)
	require.Equal(t, 2, choice.Feasible)
	require.Negative(t, choice.Fragmentation)
}

func TestGangIsWholeOrAbsent(t *testing.T) {
	nodes := slices.Repeat([]placement.Node{{Model: "T4", Devices: 4, CPUMilli: 64000, MemoryMiB: 1 << 20}}, 3)
	counts := map[placement.Request]int64{wholeDevices(2): 1}
	fleet := newFleet(t, nodes, counts)
	_, ok := fleet.PlaceGang(wholeDevices(2), 4, true, nil)
	require.False(t, ok, "there are three nodes")
	for node := range nodes {
		require.EqualValues(t, 4000, fleet.Free(node), "a gang that does not fit takes nothing")
	}
	choices, ok := fleet.PlaceGang(wholeDevices(2), 3, true, nil)
	require.True(t, ok)
	require.ElementsMatch(t, []int{0, 1, 2}, []int{choices[0].Node, choices[1].Node, choices[2].Node})
	choices, ok = fleet.PlaceGang(wholeDevices(2), 3, false, nil)
	require.True(t, ok)
	require.Equal(t, []int{2, 3}, choices[0].Devices)
	_, ok = fleet.Place(wholeDevices(1), nil)
	require.False(t, ok)
}

func TestEligibleAndPreference(t *testing.T) {
	nodes := slices.Repeat([]placement.Node{{CPUMilli: 64000, MemoryMiB: 1 << 20}}, 3)
	fleet := newFleet(t, nodes, nil)
	fleet.Eligible = func(node int, r *placement.Request) bool { return r.Selector == "" || node > 0 }
	fleet.Preference = func(node int, r *placement.Request) int64 { return int64(node % 2) }
	choice, ok := fleet.Place(placement.Request{CPUMilli: 1000, Selector: "not the first"}, nil)
	require.True(t, ok)
	require.Equal(t, 1, choice.Node)
	require.Equal(t, 2, choice.Feasible)
	require.EqualValues(t, 1, choice.Score)
}

// TestCachedScoresAreCurrent compares each choice with that of a fleet that has cached nothing.
func TestCachedScoresAreCurrent(t *testing.T) {
	nodes, requests := readNodes(t), readRequests(t, "gpuspec20")[:200]
	counts := countsOf(requests)
	random := rand.New(rand.NewSource(1))
	nodes = nodes[300:340]
	type running struct {
		r       placement.Request
		node    int
		devices []int
	}
	var all []running
	fleet := newFleet(t, nodes, counts)
	placed := 0
	for range 1500 {
		r, members := requests[random.Intn(len(requests))], 1
		if random.Intn(10) == 0 {
			members = 1 + random.Intn(8)
		}
		fresh := newFleet(t, nodes, counts)
		for _, one := range all {
			fresh.Take(one.node, one.r, one.devices)
		}
		expected, fits := fresh.PlaceGang(r, members, members > 4, nil)
		choices, ok := fleet.PlaceGang(r, members, members > 4, nil)
		require.Equal(t, fits, ok)
		require.Equal(t, expected, choices)
		for _, choice := range choices {
			all = append(all, running{r, choice.Node, choice.Devices})
			placed++
		}
		for !ok && len(all) > 0 && random.Intn(3) > 0 {
			i := random.Intn(len(all))
			fleet.Release(all[i].node, all[i].r, all[i].devices)
			all = append(all[:i], all[i+1:]...)
		}
	}
	require.Greater(t, placed, 300)
}
