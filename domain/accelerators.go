package domain

// FleetAccelerator returns the accelerator type of a deployment or job that requests no type; work
// is what it needs. It counts the devices of each type on those nodes in the work's regions that
// can do the work, or on all nodes in these regions if none of them can. It returns the type with
// the most devices; of types with the same number, the first one in ShapeAcceleratorTypes. It
// returns NoAccelerator when the nodes have only CPUs, and DefaultAccelerator (VENDOR_A_A100_80GB)
// when no node is registered in these regions.
func FleetAccelerator(fleet Fleet, work Need) string {
	known, all, capable := false, map[string]int{}, map[string]int(nil)
	for _, node := range fleet.Nodes {
		if !node.Registered() || !work.Allows(node.RegionIn(fleet.Located)) {
			continue
		}
		known = true
		count(all, node)
		if work.incapable(node) == "" {
			if capable == nil {
				capable = map[string]int{}
			}
			count(capable, node)
		}
	}
	switch {
	case !known:
		return DefaultAccelerator
	case capable == nil:
		return typeWithMaxDevices(all)
	}
	return typeWithMaxDevices(capable)
}

func count(devices map[string]int, node Node) {
	for t, n := range node.Capacity.Accelerators {
		devices[t] += n
	}
}

func typeWithMaxDevices(devices map[string]int) string {
	best := NoAccelerator
	for _, t := range ShapeAcceleratorTypes {
		if devices[t] > devices[best] {
			best = t
		}
	}
	return best
}

// Resolve returns h, the hardware that a user requests to run the model, with defaults for the
// fields that the user left out. Shapes, deployments and jobs share this rule:
//
//   - a type that is left out becomes fleet, a result of FleetAccelerator
//   - a count that is left out becomes the estimated minimum for the type, or 0 without accelerators
//   - a count is refused if neither h nor fleet has a type, because then all nodes have only CPUs
//
// Resolve adds a violation to v when the hardware cannot hold the model, or cannot compute in the
// precision.
func (m ModelSize) Resolve(v *Violations, h Hardware, fleet string) Hardware {
	if unspecified(h.Type) {
		h.Type = fleet
	}
	m.checkContext(v, h.Context)
	if unspecified(h.Type) {
		h.Type = NoAccelerator
		v.Require(h.Count <= 0, "acceleratorCount", "is %d, but the nodes of this installation have only CPUs, and "+
			"acceleratorType is not set: leave acceleratorCount out to run on CPUs, or set acceleratorType to wait for "+
			"a node with such devices", h.Count)
		v.Require(h.Share == 0, "acceleratorShare", "is %d, but the nodes of this installation have only CPUs, and "+
			"acceleratorType is not set: leave acceleratorShare out to run on CPUs, which are always shared, or set "+
			"acceleratorType to wait for a node with such devices", h.Share)
		return h
	}
	checkPrecision(v, h.Precision, h.Type)
	h.Count = m.Accelerators(v, h)
	return h
}
