package engines

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Device is an accelerator of a node that is given to one replica.
type Device struct {
	Type  string // as nodes name it
	Index int    // among those of its vendor, in the order of their places on the bus
}

// Number names devices of which only types and counts are known.
func Number(counts map[string]int) []Device {
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

// Visible are the variables with which a program sees these devices and no
// others of their vendors. A program that is given none sees what there is.
func Visible(devices []Device) []string {
	indices := map[string][]string{}
	for _, d := range devices {
		v := visibility(d.Type)
		indices[v] = append(indices[v], strconv.Itoa(d.Index))
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(indices)) {
		env = append(env, name+"="+strings.Join(indices[name], ","))
		if name == cudaVisible {
			env = append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID") // the fastest come first otherwise
		}
	}
	return env
}

const cudaVisible = "CUDA_VISIBLE_DEVICES"

// visibility is the variable that the libraries of a type's vendor look at.
func visibility(kind string) string {
	if strings.HasPrefix(kind, "VENDOR_B_") {
		return "HIP_VISIBLE_DEVICES"
	}
	return cudaVisible
}
