package placement

import "slices"

// The weights of the score. A weight multiplies a quantity in milli-GPU, and the result is in
// millionths of a milli-GPU, like fragmentation. The values were fitted on the 17 traces of the
// publication. The results also hold when weightCPU is multiplied by 0.5 to 1.5, when weightPrice
// is multiplied by 0.25 to 2, and when the quantum is halved.
const (
	surplusPercent = 160        // see surplus
	weightCPU      = 1_000_000  // multiplies the free devices that lack CPU
	weightMemory   = 200_000    // multiplies the free devices that lack memory
	weightLeft     = 10_000     // multiplies the devices that remain free on the node, for requests with devices
	weightPrice    = 500        // multiplies the requested devices and the price of their model
	quantum        = 40_000_000 // the score is divided by the quantum, so that small differences are ties
)

// A nodeState is a node and its free resources.
type nodeState struct {
	Node
	cpu, memory int64
	left        []int64 // of each device, in milli-GPU
	gpu         int64   // sum of left
	frag        int64
	lacksCPU    int64
	lacksMemory int64

	model   int // index in Fleet.models
	table   *fragmentation
	price   int64
	changed int // position of the node's last change in Fleet.changes
}

// surplus returns the part of a node's free devices gpu, in milli-GPU, for which its free CPU or
// memory (left of capacity) does not suffice. A free share of the CPU suffices for surplusPercent
// of that share of the devices: 10 % of the CPU for 16 % of the devices.
func surplus(gpu int64, devices int, left, capacity int64) int64 {
	for capacity > 1<<40 { // keeps the product within 64 bits
		left, capacity = left/2, capacity/2
	}
	if capacity <= 0 {
		return gpu
	}
	return max(0, gpu-surplusPercent*int64(devices)*10*max(0, left)/capacity)
}

// refresh computes the values that depend on what is left.
func (n *nodeState) refresh() {
	n.gpu = 0
	for _, milli := range n.left {
		n.gpu += milli
	}
	n.frag = n.table.of(n.cpu, n.left)
	n.lacksCPU = surplus(n.gpu, n.Devices, n.cpu, n.CPUMilli)
	n.lacksMemory = surplus(n.gpu, n.Devices, n.memory, n.MemoryMiB)
}

// fits reports whether the request fits on what is left of the node. It does not check the model.
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

// after returns the fragmentation of the node after the request, and the devices that the request
// takes. For a request for a share of a device, this is the device with the greatest decrease of
// fragmentation; otherwise these are the first devices with enough left. The contents of buffer are
// overwritten. With fill, a share takes a free device only if it fits on no device that is already shared.
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

// sameBefore reports whether a device before i has as much left as device i.
func sameBefore(left []int64, i int) bool {
	for _, milli := range left[:i] {
		if milli == left[i] {
			return true
		}
	}
	return false
}

// score returns the quantized score of a node that the request fits on; a higher score is better.
// after is the fragmentation of the node after the request.
func (n *nodeState) score(r *Request, after int64) int64 {
	left := n.gpu - r.gpu()
	d := n.frag - after -
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
