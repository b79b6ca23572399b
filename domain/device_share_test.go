package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func shareOf(id, deviceType string, milli, slot int) domain.PlaceAllocation {
	return domain.PlaceAllocation{Allocation: domain.Allocation{ID: id, For: "accounts/a/deployments/d", Replica: id,
		Resources: domain.Resources{CPUMilli: 100, MemoryMiB: 10, Accelerators: map[string]int{deviceType: 1},
			Share: domain.DeviceShare{Milli: milli, Slot: slot}}}}
}

func wholeOf(id, deviceType string, n int) domain.PlaceAllocation {
	place := shareOf(id, deviceType, 0, 0)
	place.Resources.Accelerators[deviceType] = n
	return place
}

// TestSharesNeverOvercommitDevices places allocations one after the other on a node with two devices of
// each of two types.
func TestSharesNeverOvercommitDevices(t *testing.T) {
	const l4, h100 = "VENDOR_A_L4_24GB", "VENDOR_A_H100_80GB"
	twoDevices := wholeOf("a", l4, 2)
	twoDevices.Resources.Share = domain.DeviceShare{Milli: 300, Slot: 1}
	for name, c := range map[string]struct {
		placed []domain.PlaceAllocation
		then   domain.PlaceAllocation
		refuse string
		used   map[string]int // after then
	}{
		"a slot takes one device": {nil, shareOf("b", l4, 300, 1), "", map[string]int{l4: 1}},
		"a slot counts once": {[]domain.PlaceAllocation{shareOf("a", l4, 700, 1)}, shareOf("b", l4, 300, 1), "",
			map[string]int{l4: 1}},
		"a slot is full": {[]domain.PlaceAllocation{shareOf("a", l4, 701, 1)}, shareOf("b", l4, 300, 1), "NODE_FULL",
			map[string]int{l4: 1}},
		"another slot": {[]domain.PlaceAllocation{shareOf("a", l4, 701, 1)}, shareOf("b", l4, 300, 2), "",
			map[string]int{l4: 2}},
		"slots of another type": {[]domain.PlaceAllocation{shareOf("a", h100, 900, 1)}, shareOf("b", l4, 900, 1), "",
			map[string]int{l4: 1, h100: 1}},
		"whole devices and slots": {[]domain.PlaceAllocation{wholeOf("a", l4, 1), shareOf("b", l4, 10, 1)},
			wholeOf("c", l4, 1), "NODE_FULL", map[string]int{l4: 2}},
		"no device for a slot": {[]domain.PlaceAllocation{wholeOf("a", l4, 2)}, shareOf("b", l4, 1, 1), "NODE_FULL",
			map[string]int{l4: 2}},
		"two devices with 400 free": {[]domain.PlaceAllocation{shareOf("a", l4, 600, 1), shareOf("b", l4, 600, 2)},
			shareOf("c", l4, 500, 1), "NODE_FULL", map[string]int{l4: 2}},
		"no slot":     {nil, shareOf("a", l4, 300, 0), "", nil},
		"a whole":     {nil, shareOf("a", l4, 1000, 1), "", nil},
		"negative":    {nil, shareOf("a", l4, -1, 1), "", nil},
		"two devices": {nil, twoDevices, "", nil},
		"a second one": {[]domain.PlaceAllocation{shareOf("a", l4, 300, 1)}, shareOf("a", l4, 400, 1), "ALLOCATION_EXISTS",
			map[string]int{l4: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			node := domain.Node{State: domain.NodeReady, NodeSpec: domain.NodeSpec{Capacity: domain.Resources{
				CPUMilli: 9000, MemoryMiB: 900, Accelerators: map[string]int{l4: 2, h100: 2}}}}
			for _, place := range c.placed {
				event, err := place.Decide(node, noon)
				require.NoError(t, err)
				event.Evolve(&node)
			}
			event, err := c.then.Decide(node, noon)
			switch {
			case c.used == nil:
				require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
				return
			case c.refuse != "":
				var refused *domain.Error
				require.ErrorAs(t, err, &refused)
				require.Equal(t, c.refuse, refused.Reason)
			default:
				require.NoError(t, err)
				event.Evolve(&node)
			}
			require.Equal(t, c.used, node.Used().Accelerators)
			for _, a := range node.Allocated() {
				released, err := domain.ReleaseAllocation{ID: a.ID, Reason: "over"}.Decide(node, noon)
				require.NoError(t, err)
				released.Evolve(&node)
			}
			require.Empty(t, node.Slots())
			require.Empty(t, node.Used().Accelerators)
		})
	}
}

// TestDeploymentsRequestShares checks what a deployment may request, for a model of 1.5 billion
// parameters (about 4 GB) on an L4 (24 GB).
func TestDeploymentsRequestShares(t *testing.T) {
	const l4 = "VENDOR_A_L4_24GB"
	for name, c := range map[string]struct {
		share, count int
		fleet        string
		change       func(*domain.CreateDeployment)
		refuse       string // part of the error; "" accepts
	}{
		"fits":        {share: 250, fleet: l4},
		"one device":  {share: 250, count: 1, fleet: l4},
		"two devices": {share: 250, count: 2, fleet: l4, refuse: "acceleratorShare: is a part of one device"},
		"too small":   {share: 10, fleet: l4, refuse: "is at least"},
		"too small, but unchecked": {share: 10, fleet: l4, change: func(c *domain.CreateDeployment) {
			c.DisableDeploymentSizeValidation = true
		}},
		"negative":       {share: -1, fleet: l4, refuse: "acceleratorShare: is -1"},
		"a whole device": {share: 1000, fleet: l4, refuse: "acceleratorShare: is 1000"},
		"CPUs only":      {share: 250, fleet: domain.NoAccelerator, refuse: "have only CPUs"},
		"more than a device": {share: 999, fleet: l4, refuse: "more than a part of one",
			change: func(c *domain.CreateDeployment) { c.Model.ParameterCount = 70e9 }},
		"a shape": {share: 250, fleet: l4, refuse: "acceleratorShare: cannot be set with deploymentShape",
			change: func(c *domain.CreateDeployment) { c.DeploymentShape = "accounts/a/deploymentShapes/s" }},
	} {
		t.Run(name, func(t *testing.T) {
			create := domain.CreateDeployment{Accelerator: c.fleet, Model: domain.ModelSize{ParameterCount: 1.5e9,
				ContextLength: 1024, Precision: "BF16"}, DeploymentSpec: domain.DeploymentSpec{
				BaseModel: "accounts/a/models/m", MinReplicaCount: 3, AcceleratorShare: c.share, AcceleratorCount: c.count}}
			if c.change != nil {
				c.change(&create)
			}
			event, err := create.Decide(domain.Deployment{}, noon)
			if c.refuse != "" {
				require.ErrorContains(t, err, c.refuse)
				return
			}
			require.NoError(t, err)
			var d domain.Deployment
			event.Evolve(&d)
			takes := d.ReplicaResources(domain.Hosted{})
			require.Equal(t, map[string]int{l4: 1}, takes.Accelerators)
			require.Equal(t, domain.DeviceShare{Milli: c.share}, takes.Share)
			require.EqualValues(t, (3*c.share+999)/1000, d.Usage().Accelerators, "rounded up to whole devices")
			require.Contains(t, takes.String(), "/1000 of 1 x "+l4)

			whole := domain.UpdateDeployment{DeploymentSpec: d.DeploymentSpec, Model: create.Model}
			whole.AcceleratorShare = 0
			updated, err := whole.Decide(d, noon)
			require.NoError(t, err)
			require.True(t, updated.(domain.DeploymentUpdated).Rollout)
		})
	}
}
