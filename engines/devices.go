package engines

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Device is an accelerator of a node, allocated to one replica.
type Device struct {
	Type  string // accelerator type that the node declares
	Index int    // among the vendor's devices, in the order of their PCI bus IDs
}

// NumberDevices assigns indices to devices of which only types and counts are known.
func NumberDevices(counts map[string]int) []Device {
	var all []Device
	next := map[string]int{}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		for range counts[kind] {
			v := visibility(kind)
			all = append(all, Device{kind, next[v]})
			next[v]++
		}
	}
	return all
}

// VisibleDevicesEnv returns the environment variables that restrict a program to these
// devices. Without devices it returns none, so a program sees all of them.
func VisibleDevicesEnv(devices []Device) []string {
	indices := map[string][]string{}
	for _, d := range devices {
		v := visibility(d.Type)
		indices[v] = append(indices[v], strconv.Itoa(d.Index))
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(indices)) {
		env = append(env, name+"="+strings.Join(indices[name], ","))
		if name == cudaVisible {
			env = append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID") // the default order is fastest first
		}
	}
	return env
}

const cudaVisible = "CUDA_VISIBLE_DEVICES"

// visibility returns the name of the variable that restricts devices of a
// type's vendor.
func visibility(kind string) string {
	if strings.HasPrefix(kind, "VENDOR_B_") {
		return "HIP_VISIBLE_DEVICES"
	}
	return cudaVisible
}
