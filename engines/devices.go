package engines

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Device is an accelerator of a node, allocated to one replica or to one attempt of a job.
type Device struct {
	Type  string // accelerator type that the node declares
	Index int    // index among the devices of the same vendor, in the order of their PCI bus IDs
}

// NumberDevices returns the devices of a node. counts is the number of devices that the node
// declares of each type. The devices of each vendor are numbered from 0.
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

// VisibleDevicesEnv returns the environment variables that limit a program to the given devices.
// Without devices it returns no variables, so that the program sees all devices of the machine.
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
			env = append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID") // by default, CUDA orders devices by their speed
		}
	}
	return env
}

const cudaVisible = "CUDA_VISIBLE_DEVICES"

// visibility returns the name of the environment variable that limits a program to devices of the
// vendor of an accelerator type.
func visibility(kind string) string {
	if strings.HasPrefix(kind, "VENDOR_B_") {
		return "HIP_VISIBLE_DEVICES"
	}
	return cudaVisible
}
