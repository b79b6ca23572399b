// Package placement chooses the nodes and devices of requests for accelerators, so that as few
// devices as possible are left that no typical request can use.
//
// The score of a node starts from fragmentation gradient descent: Weng et al., "Beware of
// Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC
// 2023). The score here also weighs the balance of CPU and memory with devices, and a price for
// scarce models. Every quantity is an integer, ties are decided by the recorded order of the nodes,
// and nothing depends on a clock or on randomness: the same requests and nodes give the same
// choices.
package placement

import "errors"

// WholeDevice is the share of a device that a request for whole devices takes, in thousandths of a
// device (milli-GPU).
const WholeDevice = 1000

// MaxNodes is the maximum number of nodes of a Fleet.
const MaxNodes = 1 << rankBits

// ErrTooManyNodes is the error of a Fleet with more than MaxNodes nodes.
var ErrTooManyNodes = errors.New("placement: too many nodes")

// A Request asks for a part of one node. Requests that are equal are one class: their scores are
// computed once for each version of a node.
type Request struct {
	CPUMilli  int64
	MemoryMiB int64
	Devices   int    // 0 for a request without accelerators
	Share     int64  // of each device; less than WholeDevice only with one device
	Models    string // allowed models of the devices, separated by "|"; "" allows all
	Selector  string // names what else a node must satisfy: see Fleet.Eligible
}

// gpu returns the sum of the shares in milli-GPU.
func (r Request) gpu() int64 { return int64(r.Devices) * r.Share }

// sharesDevice reports whether the request takes a part of one device.
func (r Request) sharesDevice() bool { return r.Devices == 1 && r.Share < WholeDevice }

// A Node is the capacity of a node. All of its devices are of one model.
type Node struct {
	Model     string // "" without devices
	Devices   int
	CPUMilli  int64
	MemoryMiB int64
}

// A Choice is the node that a request was placed on, and the reason.
type Choice struct {
	Node    int   // index in the fleet
	Devices []int // indexes of the devices on the node, ascending

	Score         int64 // quantized score: the highest of all feasible nodes, unless Order.First is true
	Fragmentation int64 // change of the node's fragmentation, in millionths of a milli-GPU
	Feasible      int   // number of nodes that the request fits on
}
