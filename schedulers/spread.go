package schedulers

import (
	"cmp"
	"slices"

	"anneal/domain"
	"anneal/schedulers/placement"
)

// failureDomains holds the regions and zones of the nodes of a fleet. The zone of a node is the
// value of its label domain.ZoneLabel; nodes of a region without this label are one zone.
type failureDomains struct {
	names  []string // names of the zones, with their regions
	region []int    // region[i] is the index of the region of the zone names[i]
	of     []int    // of[i] is the index in names of the zone of the node with the index i in the fleet
}

// failureDomains returns the failure domains of the fleet. It computes them only once.
func (f *fleet) failureDomains() *failureDomains {
	if f.domains != nil {
		return f.domains
	}
	d := &failureDomains{of: make([]int, len(f.nodes))}
	regions, zones := map[string]int{}, map[[2]string]int{}
	for i := range f.nodes {
		region, zone := f.nodes[i].Region, f.nodes[i].Labels[domain.ZoneLabel]
		if region == domain.AnyRegion {
			region = ""
		}
		if _, known := regions[region]; !known {
			regions[region] = len(regions)
		}
		key := [2]string{region, zone}
		index, known := zones[key]
		if !known {
			index = len(zones)
			zones[key] = index
			d.region = append(d.region, regions[region])
			d.names = append(d.names, joinNonEmpty(region, zone))
		}
		d.of[i] = index
	}
	f.domains = d
	return d
}

func joinNonEmpty(region, zone string) string {
	if region != "" && zone != "" {
		return region + "/" + zone
	}
	return region + zone
}

// A spread counts the replicas of a deployment in each failure domain, and orders nodes for the
// next replica.
type spread struct {
	strategy string // domain.PlacementPack, domain.PlacementSpread, or "" for the default
	domains  *failureDomains
	regions  []int       // number of replicas in each region, by its index in failureDomains
	zones    []int       // number of replicas in each zone, by its index in failureDomains
	nodes    map[int]int // number of replicas by index of the node in the fleet; nodes never used are missing

	pool    *devicePool      // pool of the last call of order
	ordered *placement.Order // its result; nil before the first
}

func (f *fleet) newSpread(strategy string) *spread {
	domains := f.failureDomains()
	return &spread{strategy: strategy, domains: domains, regions: make([]int, len(domains.names)),
		zones: make([]int, len(domains.names)), nodes: map[int]int{}}
}

// add adds n, which may be negative, to the number of replicas on a node.
func (s *spread) add(node, n int) {
	zone := s.domains.of[node]
	s.regions[s.domains.region[zone]] += n
	s.zones[zone] += n
	if _, known := s.nodes[node]; !known && s.ordered != nil {
		s.ordered.Nodes = s.pool.appendPosition(s.ordered.Nodes, node)
	}
	s.nodes[node] += n
}

// countBits is the number of bits for each count of replicas in the results of crowding and
// distanceOf.
const countBits = 20

// crowding returns a cost of placing the next replica on a node, for the order of nodes: the number
// of replicas in its region, then in its zone, and then on the node itself. With the lowest cost,
// the loss of a whole region or zone stops as few replicas as possible.
func (s *spread) crowding(node int) int64 {
	return s.crowdingOf(s.domains.of[node]) + int64(s.nodes[node])
}

// crowdingOf is crowding of a node of a zone without replicas.
func (s *spread) crowdingOf(zone int) int64 {
	return int64(s.regions[s.domains.region[zone]])<<(2*countBits) + int64(s.zones[zone])<<countBits
}

// distanceOf returns a cost of placing the next replica on a node of a zone without replicas, which
// is lower the closer the zone is to the other replicas: the more of them are in the zone, and then
// in its region. The more replicas are on the node itself, the lower is its cost: see order.
func (s *spread) distanceOf(zone int) int64 {
	return -(int64(s.zones[zone])<<countBits + int64(s.regions[s.domains.region[zone]]))
}

// order returns the order in which package placement prefers nodes of the pool for the next
// replica.
func (s *spread) order(p *devicePool) *placement.Order {
	if s == nil {
		return nil
	}
	if s.pool == p {
		return s.ordered
	}
	p.group(s.domains)
	o := &placement.Order{First: s.strategy == domain.PlacementSpread, Group: s.crowdingOf,
		Extra: func(node int) int64 { return int64(s.nodes[p.indexes[node]]) }}
	if s.strategy == domain.PlacementPack {
		o.Group = s.distanceOf
		o.Extra = func(node int) int64 { return -int64(s.nodes[p.indexes[node]]) << (2 * countBits) }
	}
	for node := range s.nodes {
		o.Nodes = p.appendPosition(o.Nodes, node)
	}
	s.pool, s.ordered = p, o
	return o
}

// explain adds to reason what the strategy and the failure domains contributed to the choice of a
// node for the next replica.
func (s *spread) explain(reason *domain.PlacementReason, node int) {
	if s == nil {
		return
	}
	zone := s.domains.of[node]
	reason.Strategy, reason.NodeReplicas = s.strategy, s.nodes[node]
	if name := s.domains.names[zone]; name != "" {
		reason.FailureDomain, reason.DomainReplicas = name, s.zones[zone]
	}
}

// thin reorders replicas, which are in the order in which they are removed, so that the remaining
// ones stay spread: those that are not ready first, then those in the failure domains with the most
// replicas.
func (s *spread) thin(f *fleet, replicas []domain.Replica) (order []domain.Replica) {
	left := slices.Clone(replicas)
	counts := f.newSpread(s.strategy)
	for _, r := range left {
		counts.add(f.index[r.Node], 1)
	}
	for len(left) > 0 {
		next := 0
		for i, r := range left {
			if cmp.Or(readiness(r)-readiness(left[next]),
				cmp.Compare(counts.crowding(f.index[left[next].Node]), counts.crowding(f.index[r.Node]))) < 0 {
				next = i
			}
		}
		order = append(order, left[next])
		counts.add(f.index[left[next].Node], -1)
		left = slices.Delete(left, next, next+1)
	}
	return order
}
