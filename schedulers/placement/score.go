package placement

import "slices"

// The weights of the score. A weight multiplies a quantity in milli-GPU, and the product is in
// millionths of a milli-GPU, like fragmentation. The values were fitted on the 17 traces of the
// paper. Placements are about as good when weightCPU is multiplied by 0.5 to 1.5, when weightPrice
// is multiplied by 0.25 to 2, and when the quantum is halved.
const (
	// 1.6 in percent: x % of a node's CPU or memory is assumed to be enough for 1.6·x % of its
	// devices
	surplusPercent = 160
	weightCPU      = 1_000_000  // weight of the free devices for which CPU is lacking: see surplus
	weightMemory   = 200_000    // weight of the free devices for which memory is lacking: see surplus
	weightLeft     = 10_000     // weight of the devices that remain free on the node, for requests with devices
	weightPrice    = 500        // weight of the requested devices × the price of their model
	quantum        = 40_000_000 // divisor of the scores, so that nodes with almost the same score get equal scores
)

// A nodeState is a node and its free resources.
type nodeState struct {
	Node
	cpu, memory int64
	left        []int64 // free part of each device, in milli-GPU
	gpu         int64   // sum of the field left
	frag        int64
	lacksCPU    int64
	lacksMemory int64

	model   int // index of the devices' model in Fleet.models
	table   *fragmentation
	price   int64
	changed int // number of the node's last change in Fleet.changes
}

// surplus returns how much of gpu, the free milli-GPU of a node's devices, cannot be used because
// too little CPU or memory is free. left is the free amount of CPU or memory, and capacity the
// amount that the node has. 1 % of CPU or memory is assumed to be enough for 1.6 % (surplusPercent)
// of the devices.
func surplus(gpu int64, devices int, left, capacity int64) int64 {
	for capacity > 1<<40 { // so that the products below fit into 64 bits
		left, capacity = left/2, capacity/2
	}
	if capacity <= 0 {
		return gpu
	}
	return max(0, gpu-surplusPercent*int64(devices)*10*max(0, left)/capacity)
}

// refresh computes the fields that depend on what is free on the node.
func (n *nodeState) refresh() {
	n.gpu = 0
	for _, milli := range n.left {
		n.gpu += milli
	}
	n.frag = n.table.of(n.cpu, n.left)
	n.lacksCPU = surplus(n.gpu, n.Devices, n.cpu, n.CPUMilli)
	n.lacksMemory = surplus(n.gpu, n.Devices, n.memory, n.MemoryMiB)
}

// fits reports whether the request fits on what is free on the node. It does not check the model of
// the devices.
func (n *nodeState) fits(r *Request) bool {
	if r.CPUMilli > n.cpu || r.MemoryMiB > n.memory {
		return false
	}
	if r.Devices == 0 {
		return true
	}
	if r.gpu() > n.gpu {
		return false
	}
	count := 0
	for _, milli := range n.left {
		if milli >= r.Share {
			count++
		}
	}
	return count >= r.Devices
}

// after returns the fragmentation of the node after the request is placed on it, and the devices
// that the request takes. A share of a device takes the device with which the fragmentation
// decreases most; with fill, it takes an unused device only if it fits on no shared one. Whole
// devices are the first unused ones. buffer and devices are memory for the results, whose contents
// are overwritten.
func (n *nodeState) after(r *Request, buffer []int64, devices []int, fill bool) (int64, []int) {
	devices = devices[:0]
	copy(buffer, n.left)
	cpu := n.cpu - r.CPUMilli
	if !r.sharesDevice() {
		for i := 0; i < len(buffer) && len(devices) < r.Devices; i++ {
			if buffer[i] >= r.Share {
				buffer[i] -= r.Share
				devices = append(devices, i)
			}
		}
		return n.table.of(cpu, buffer), devices
	}
	best, chosen := int64(0), -1
	fill = fill && slices.ContainsFunc(n.left, func(milli int64) bool { return milli >= r.Share && milli < WholeDevice })
	for i, milli := range n.left {
		if milli < r.Share || fill && milli == WholeDevice || sameBefore(n.left, i) {
			continue
		}
		buffer[i] -= r.Share
		if frag := n.table.of(cpu, buffer); chosen < 0 || frag < best {
			best, chosen = frag, i
		}
		buffer[i] = milli
	}
	return best, append(devices, chosen)
}

// sameBefore reports whether a device before device i has the same free amount as device i.
func sameBefore(left []int64, i int) bool {
	for _, milli := range left[:i] {
		if milli == left[i] {
			return true
		}
	}
	return false
}

// score returns the quantized score of a node on which the request fits; a higher score is better.
// fragmentation is that of the node after the request is placed on it.
func (n *nodeState) score(r *Request, fragmentation int64) int64 {
	left := n.gpu - r.gpu()
	d := n.frag - fragmentation -
		weightCPU*(surplus(left, n.Devices, n.cpu-r.CPUMilli, n.CPUMilli)-n.lacksCPU) -
		weightMemory*(surplus(left, n.Devices, n.memory-r.MemoryMiB, n.MemoryMiB)-n.lacksMemory)
	if r.Devices > 0 {
		d -= weightLeft*left + weightPrice*r.gpu()*n.price
	}
	return floorDiv(d, quantum)
}

// floorDiv returns a / b rounded toward minus infinity; b is positive.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
