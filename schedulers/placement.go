package schedulers

import (
	"crypto/sha256"
	"maps"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers/placement"
)

const (
	// maxModeled is the maximum number of devices of one node that a devicePool considers.
	maxModeled = 1024
	// lastResort is added to the score of a node with free accelerators for a need without
	// accelerators.
	lastResort = -100_000
	// opensDevice is added to the score of a node on which a share takes an unused device.
	opensDevice = -100_000
	// wholeNodePercent is the percentage of the requests for a type of devices that are assumed to
	// need all devices of the largest node, so that some nodes stay empty for such requests.
	wholeNodePercent = 10
)

// A Candidate is a READY node on which replicas and jobs can be placed.
type Candidate struct {
	Name     domain.Name
	Pool     string // kind of work that the node accepts: see domain.NodeSpec.Pool; "" accepts every kind
	Region   string // region of the node: result of domain.Node.RegionIn
	Engines  []string
	Cordoned bool // the node gets no new allocations
	Labels   map[string]string
	Taints   []domain.Taint
	Capacity domain.Resources
	// free resources, without devices that are shared; negative if the node has lost capacity
	Free  domain.Resources
	Slots map[domain.DeviceSlot]int // allocated thousandths of each shared device, by its slot
}

// suits reports whether the node could meet the need if it were empty: it is not cordoned, accepts
// the need's pool, has the need's engine and gang ability, is in one of the need's regions, and is
// allowed by the need's policy.
func (c *Candidate) suits(need domain.Need) bool {
	return !c.Cordoned && (c.Pool == "" || c.Pool == need.Pool) && slices.Contains(c.Engines, need.Engine) &&
		need.TrainsWith(c.Engines) && need.Allows(c.Region) && need.AdmitsNode(c.Labels, c.Taints) &&
		(!need.Resources.Shared() || slices.Contains(c.Engines, domain.ShareAbility))
}

// A chosenNode is a node that was chosen for an allocation, and the reason.
type chosenNode struct {
	name   domain.Name
	reason domain.PlacementReason
	slot   int // number of the device slot for the share; 0 for a need without a share
}

// resources returns the resources that a need takes on the node, with the slot of its share.
func (n chosenNode) resources(need domain.Need) domain.Resources {
	takes := need.Resources
	takes.Share.Slot = n.slot
	return takes
}

func namesOf(chosen []chosenNode) []domain.Name {
	names := make([]domain.Name, len(chosen))
	for i, node := range chosen {
		names[i] = node.name
	}
	return names
}

// A devicePool chooses among the nodes with devices of one type, or among all nodes for needs
// without devices.
type devicePool struct {
	fleet     *placement.Fleet
	indexes   []int                  // indexes of the pool's nodes in fleet.nodes, in the order of their ranks
	positions map[int]int            // by index of a node in fleet.nodes: position of the node in indexes
	needs     map[string]domain.Need // needs of requests by their placement.Request.Selector
	grouped   bool                   // the nodes of fleet are grouped by their failure domains
}

// group groups the nodes of the pool by their failure domains, for the orders of a spread.
func (p *devicePool) group(d *failureDomains) {
	if p.grouped {
		return
	}
	p.grouped = true
	zones := make([]int, p.fleet.Len())
	for position := range zones {
		zones[position] = d.of[p.indexes[position]]
	}
	p.fleet.SetGroups(zones)
}

// appendPosition appends the position of a node, given by its index in fleet.nodes, if it is in the
// pool.
func (p *devicePool) appendPosition(positions []int, index int) []int {
	if position, known := p.positions[index]; known && position < p.fleet.Len() {
		return append(positions, position)
	}
	return positions
}

// withhold takes the resources of a need, if it fits, so that this plan gives them to nothing else.
// It returns false if it does not fit.
func (f *fleet) withhold(v *projections.View, need domain.Need, replicas *spread) bool {
	chosen, fits := f.place(v, need, replicas)
	if fits {
		f.takeChosen(chosen, need)
	}
	return fits
}

// place chooses need.Count distinct nodes that suit the need and have enough free resources: those
// with the highest score of package placement. If replicas is not nil, its order decides too: see
// spread.order. place does not deduct the resources: see take. It returns false when there are too
// few nodes.
func (f *fleet) place(v *projections.View, need domain.Need, replicas *spread) ([]chosenNode, bool) {
	deviceType, request := requestOf(need)
	p := f.pool(v, deviceType)
	if _, known := p.needs[request.Selector]; !known {
		p.needs[request.Selector] = need
	}
	choices, ok := p.fleet.PlaceGang(request, need.Count, true, replicas.order(p))
	var chosen []chosenNode
	for _, choice := range choices {
		p.fleet.Release(choice.Node, request, choice.Devices)
		node := p.indexes[choice.Node]
		reason := domain.PlacementReason{Score: choice.Score, Rank: choice.Node, Feasible: choice.Feasible,
			FragmentationMilli: choice.Fragmentation / 1_000_000}
		replicas.explain(&reason, node)
		one := chosenNode{f.nodes[node].Name, reason, 0}
		if need.Resources.Shared() {
			one.slot = f.nodes[node].slotAt(deviceType, choice.Devices[0])
			one.reason.DeviceMilli = f.nodes[node].Slots[domain.DeviceSlot{Type: deviceType, Number: one.slot}]
		}
		chosen = append(chosen, one)
	}
	return chosen, ok
}

// requestOf returns the placement request for a need on one node, and the type of its devices; ""
// without devices. If a need has several types, the request is for the first one by name.
func requestOf(need domain.Need) (deviceType string, r placement.Request) {
	deviceType, r = classOf(need.Resources)
	selector := []string{need.Pool, need.Engine, need.Gang, need.Policy.String(), strings.Join(need.Regions, " ")}
	if need.Resources.Shared() {
		selector = append(selector, domain.ShareAbility)
	}
	if len(need.Resources.Accelerators) > 1 {
		selector = append(selector, need.Resources.String())
	}
	r.Selector = strings.Join(selector, "\n")
	return deviceType, r
}

// classOf returns the placement request for resources, without a selector, and the type of its
// devices.
func classOf(resources domain.Resources) (deviceType string, r placement.Request) {
	r = placement.Request{CPUMilli: resources.CPUMilli, MemoryMiB: resources.MemoryMiB}
	if types := typesOf(resources); len(types) > 0 {
		deviceType = types[0]
		r.Devices, r.Share, r.Models = resources.Accelerators[deviceType], placement.WholeDevice, deviceType
		if resources.Shared() {
			r.Share = int64(resources.Share.Milli)
		}
	}
	return deviceType, r
}

// typesOf returns the types of the devices in r, ordered by name.
func typesOf(r domain.Resources) []string {
	var types []string
	for t, n := range r.Accelerators {
		if n > 0 {
			types = append(types, t)
		}
	}
	slices.Sort(types)
	return types
}

// pool returns the pool of the nodes with a type of devices; the type "" stands for needs without
// devices.
func (f *fleet) pool(v *projections.View, deviceType string) *devicePool {
	if p, known := f.pools[deviceType]; known {
		return p
	}
	if f.ranks == nil {
		f.ranks = ranks(f.nodes)
		f.counts = f.countRequests(v)
	}
	p := &devicePool{positions: map[int]int{}, needs: map[string]domain.Need{}}
	var nodes []placement.Node
	for _, i := range f.ranks {
		node := &f.nodes[i]
		model := deviceType
		if deviceType == "" {
			model = commonType(node.Capacity)
		} else if node.Capacity.Accelerators[deviceType] <= 0 {
			continue
		}
		p.positions[i] = len(nodes)
		p.indexes = append(p.indexes, i)
		nodes = append(nodes, placement.Node{Model: model, Devices: modeled(node.Capacity, model),
			CPUMilli: node.Capacity.CPUMilli, MemoryMiB: node.Capacity.MemoryMiB})
	}
	// the error is always nil: NewFleet fails only above MaxNodes nodes
	nodes = nodes[:min(len(nodes), placement.MaxNodes)]
	p.fleet, _ = placement.NewFleet(nodes, placement.TypicalClasses(f.classesOf(deviceType)), nil)
	p.fleet.Eligible = func(node int, r *placement.Request) bool {
		need, candidate := p.needs[r.Selector], &f.nodes[p.indexes[node]]
		return candidate.suits(need) && (len(need.Resources.Accelerators) < 2 || need.Resources.Fits(candidate.Free))
	}
	p.fleet.FillShared = true
	p.fleet.Preference = func(node int, r *placement.Request) int64 {
		share := domain.Resources{Accelerators: map[string]int{deviceType: r.Devices},
			Share: domain.DeviceShare{Milli: int(r.Share)}}
		if r.Devices == 1 && r.Share < placement.WholeDevice && !f.nodes[p.indexes[node]].shareFits(share) {
			return opensDevice
		}
		return 0
	}
	if deviceType == "" {
		p.fleet.Preference = func(node int, _ *placement.Request) int64 {
			if devices(f.nodes[p.indexes[node]].Free) > 0 {
				return lastResort
			}
			return 0
		}
	}
	f.pools[deviceType] = p
	for i := range f.nodes {
		f.refresh(p, i)
	}
	return p
}

// ranks returns the indexes of the nodes in the order of the hashes of their names. This order is
// the same for every control plane, does not change when other nodes are added or removed, and does
// not depend on how operators name similar nodes.
func ranks(nodes []Candidate) []int {
	hashes := make([][sha256.Size]byte, len(nodes))
	order := make([]int, len(nodes))
	for i := range nodes {
		hashes[i], order[i] = sha256.Sum256([]byte(nodes[i].Name)), i
	}
	slices.SortFunc(order, func(a, b int) int { return slices.Compare(hashes[a][:], hashes[b][:]) })
	return order
}

// refresh copies what is free on a node into a pool.
func (f *fleet) refresh(p *devicePool, index int) {
	position, known := p.positions[index]
	if !known {
		return
	}
	free := f.nodes[index].Free
	// how much is free on devices, but not on which, because the agents choose them: see
	// docs/adr/0046
	left := f.nodes[index].left(p.fleet.Model(position), len(p.fleet.Left(position)))
	p.fleet.Set(position, free.CPUMilli, free.MemoryMiB, left)
}

// modeled returns the number of devices of a type in r, at most maxModeled.
func modeled(r domain.Resources, deviceType string) int {
	return max(0, min(r.Accelerators[deviceType], maxModeled))
}

// commonType returns the type with the most devices in r; of several such types the first by name;
// "" without devices.
func commonType(r domain.Resources) string {
	accelerator, _ := r.Units()
	return accelerator
}

// countRequests counts the requests for devices of all running and waiting replicas and jobs, by
// type of devices.
func (f *fleet) countRequests(v *projections.View) map[string]map[placement.Request]int64 {
	counts := map[string]map[placement.Request]int64{}
	for i := range f.nodes {
		for _, t := range typesOf(f.nodes[i].Capacity) {
			counts[t] = map[placement.Request]int64{}
		}
	}
	if len(counts) == 0 {
		return counts // without devices there is no fragmentation to compute
	}
	add := func(resources domain.Resources, n int) {
		t, r := classOf(resources)
		if requests, known := counts[t]; known && n > 0 {
			requests[r] += int64(n)
		}
	}
	for _, allocation := range f.allocations() {
		add(allocation.Resources, 1)
	}
	for j := range jobs(v) {
		if j.Life.State == domain.JobPendingState {
			need := f.needOf(v, j.Name, j.spec())
			add(need.Resources, need.Count)
		}
	}
	for row := range v.Deployments.All() {
		if d := &row.State; d.Live() {
			add(v.NeedOf(d).Resources, d.DesiredReplicas-len(d.Replicas))
		}
	}
	for t, requests := range counts {
		total, largest := int64(0), 0
		for _, n := range requests {
			total += n
		}
		for i := range f.nodes {
			largest = max(largest, modeled(f.nodes[i].Capacity, t))
		}
		requests[placement.Request{Devices: largest, Share: placement.WholeDevice, Models: t}] +=
			total*wholeNodePercent/(100-wholeNodePercent) + 1
	}
	return counts
}

// classesOf returns the counts of the requests for a type of devices; for "", those for all types.
func (f *fleet) classesOf(deviceType string) map[placement.Request]int64 {
	if deviceType != "" {
		return f.counts[deviceType]
	}
	all := map[placement.Request]int64{}
	for _, requests := range f.counts {
		maps.Copy(all, requests) // requests for different types are never equal
	}
	return all
}

func devices(r domain.Resources) int {
	sum := 0
	for _, n := range r.Accelerators {
		sum += n
	}
	return sum
}
