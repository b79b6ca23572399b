// Package placement chooses the nodes and devices for requests for accelerators, so that as few
// free devices as possible remain that no typical request can use.
//
// The score of a node starts from fragmentation gradient descent: Weng et al., "Beware of
// Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC
// 2023). The score here also weighs the balance of CPU and memory with devices, and a price for
// scarce models. Every quantity is an integer, ties are decided by the recorded order of the nodes,
// and nothing depends on a clock or on randomness: the same requests and nodes give the same
// choices.
package placement

import "errors"

// WholeDevice is the share of each device that a request for whole devices takes, in thousandths of
// a device (milli-GPU).
const WholeDevice = 1000

// MaxNodes is the maximum number of nodes of a Fleet.
const MaxNodes = 1 << rankBits

// ErrTooManyNodes is returned by NewFleet for more than MaxNodes nodes.
var ErrTooManyNodes = errors.New("placement: the fleet has more nodes than MaxNodes")

// A Request asks for a part of one node. The scores of nodes for equal requests are computed once
// for each change of a node.
type Request struct {
	CPUMilli  int64
	MemoryMiB int64
	Devices   int    // number of devices; 0 for a request without accelerators
	Share     int64  // thousandths of each device; less than WholeDevice only if Devices is 1
	Models    string // allowed models of the devices, separated by "|"; "" allows all
	Selector  string // key of further conditions that a node must satisfy: see Fleet.Eligible
}

// gpu returns what the request takes of all devices together, in milli-GPU.
func (r Request) gpu() int64 { return int64(r.Devices) * r.Share }

// sharesDevice reports whether the request takes a part of one device.
func (r Request) sharesDevice() bool { return r.Devices == 1 && r.Share < WholeDevice }

// A Node describes the capacity of a node, whose devices are all of the same model.
type Node struct {
	Model     string // model of the node's devices; "" for a node without devices
	Devices   int
	CPUMilli  int64
	MemoryMiB int64
}

// A Choice is the node on which a request was placed, and the reason.
type Choice struct {
	Node    int   // index of the node in the fleet
	Devices []int // indexes of the devices on the node, ascending

	Score         int64 // quantized score of the node: the highest of all feasible nodes, unless Order.First is set
	Fragmentation int64 // change of the node's fragmentation by the request, in millionths of a milli-GPU
	Feasible      int   // number of nodes on which the request fitted before the choice
}
