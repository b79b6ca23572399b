package placement_test

import (
	"math"
	"math/rand"
	"slices"
	"strconv"
	"strings"

	"anneal/schedulers/placement"
)

// The six policies of the publication, as its simulator implements them
// (github.com/hkust-adsl/kubernetes-scheduler-simulator, pkg/simulator/plugin, Apache-2.0). Scores
// are integers from 0 to 100, and ties go to the lowest rank. The policies serve only for
// comparison.

var publishedPolicies = []string{"Random", "DotProd", "GpuClustering", "GpuPacking", "BestFit", "FGD"}

const (
	maxSpecCPU = 128000
	maxSpecGPU = 8000
)

// A hostState is a node of the simulator.
type hostState struct {
	placement.Node
	cpu, memory int64
	left        []int64
	gpu         int64
	affinity    map[string]int // requests with devices on the node, by their number of devices
	version     int

	typical []placement.Class // typical classes that can use the model
	other   float64           // frequency of the other classes
}

type scored struct {
	version, score int
}

// A simulator places requests by one of the published policies.
type simulator struct {
	policy string
	hosts  []hostState
	random *rand.Rand
	scores map[placement.Request][]scored
}

func newSimulator(s scenario, policy string) *simulator {
	sim := &simulator{policy: policy, random: s.random, scores: map[placement.Request][]scored{}}
	typical := placement.TypicalClasses(s.counts)
	for _, node := range s.nodes {
		h := hostState{Node: node, cpu: node.CPUMilli, memory: node.MemoryMiB,
			left: slices.Repeat([]int64{1000}, node.Devices), gpu: int64(node.Devices) * 1000, affinity: map[string]int{}}
		for _, class := range typical {
			if class.Devices > 0 && allowed(class.Models, node.Model) {
				h.typical = append(h.typical, class)
			} else {
				h.other += float64(class.Frequency) / 1e6
			}
		}
		sim.hosts = append(sim.hosts, h)
	}
	return sim
}

func allowed(models, model string) bool {
	return models == "" || slices.Contains(strings.Split(models, "|"), model)
}

// fits reports whether the request fits on the host.
func (h *hostState) fits(r *placement.Request) bool {
	if r.CPUMilli > h.cpu || r.MemoryMiB > h.memory {
		return false
	}
	if r.Devices == 0 {
		return true
	}
	count := 0
	for _, milli := range h.left {
		if milli >= r.Share {
			count++
		}
	}
	return count >= r.Devices && allowed(r.Models, h.Model)
}

func (s *simulator) place(r placement.Request) (int, []int, bool) {
	cache := s.scores[r]
	if cache == nil {
		cache = make([]scored, len(s.hosts))
		for i := range cache {
			cache[i].version = -1
		}
		s.scores[r] = cache
	}
	chosen, best := -1, -1
	var feasible []int
	for i := range s.hosts {
		h := &s.hosts[i]
		if cache[i].version != h.version {
			cache[i] = scored{h.version, -1}
			if h.fits(&r) {
				cache[i].score = s.score(h, &r)
			}
		}
		if cache[i].score > best {
			chosen, best = i, cache[i].score
		}
		if s.policy == "Random" && cache[i].score >= 0 {
			feasible = append(feasible, i)
		}
	}
	if chosen < 0 {
		return 0, nil, false
	}
	if len(feasible) > 0 {
		chosen = feasible[s.random.Intn(len(feasible))]
	}
	h := &s.hosts[chosen]
	devices := s.devices(h, &r)
	h.take(&r, devices, 1)
	return chosen, devices, true
}

func (s *simulator) release(r placement.Request, node int, devices []int) {
	s.hosts[node].take(&r, devices, -1)
}

func (h *hostState) take(r *placement.Request, devices []int, sign int64) {
	h.cpu -= sign * r.CPUMilli
	h.memory -= sign * r.MemoryMiB
	for _, i := range devices {
		h.left[i] -= sign * r.Share
		h.gpu -= sign * r.Share
	}
	if r.Devices > 0 {
		h.affinity[affinity(r)] += int(sign)
		if h.affinity[affinity(r)] == 0 {
			delete(h.affinity, affinity(r))
		}
	}
	h.version++
}

func affinity(r *placement.Request) string {
	if r.Share < 1000 {
		return "share"
	}
	return strconv.Itoa(r.Devices)
}

// devices chooses the devices of a request on a host.
func (s *simulator) devices(h *hostState, r *placement.Request) []int {
	if r.Devices == 0 {
		return nil
	}
	if r.Share < 1000 && s.policy == "FGD" {
		_, device := h.gradient(r)
		return []int{device}
	}
	var devices []int
	seen := 0
	for i, milli := range h.left {
		switch {
		case milli < r.Share:
		case r.Share == 1000:
			if len(devices) < r.Devices {
				devices = append(devices, i)
			}
		case s.policy == "Random":
			if seen++; s.random.Intn(seen) == 0 {
				devices = []int{i}
			}
		case devices == nil || milli < h.left[devices[0]]:
			devices = []int{i}
		}
	}
	return devices
}

// score returns the score of a host that the request fits on, from 0 to 100.
func (s *simulator) score(h *hostState, r *placement.Request) int {
	cpuLeft, gpuLeft := float64(h.cpu)/maxSpecCPU, float64(h.gpu)/maxSpecGPU
	cpu, gpu := float64(r.CPUMilli)/maxSpecCPU, float64(gpu(*r))/maxSpecGPU
	switch s.policy {
	case "DotProd":
		return int(100 * (1 - (cpuLeft*cpu+gpuLeft*gpu)/2))
	case "GpuClustering":
		return clustering(h, r)
	case "GpuPacking":
		return packing(h, r)
	case "BestFit":
		return int((1 - ((cpuLeft-cpu)*0.5 + (gpuLeft-gpu)*0.5)) * 100)
	case "FGD":
		score, _ := h.gradient(r)
		return score
	}
	return 0
}

func clustering(h *hostState, r *placement.Request) int {
	if r.Devices == 0 {
		return 0
	}
	score := 25 * int(maxSpecGPU-h.gpu) / maxSpecGPU
	same := h.affinity[affinity(r)] > 0
	switch {
	case same && len(h.affinity) == 1:
		return score + 75
	case same:
		return score + 50
	case len(h.affinity) == 0:
		return score + 25
	}
	return score
}

func packing(h *hostState, r *placement.Request) int {
	if r.Devices == 0 {
		return 0
	}
	left := slices.Sorted(slices.Values(h.left))
	free := 0
	for _, milli := range left {
		if milli == 1000 {
			free++
		}
	}
	if free == h.Devices {
		return max(33-free, free)
	}
	wanted, used, ratio := r.Devices, 0, int64(0)
	for _, milli := range left {
		if wanted > 0 && milli >= r.Share {
			wanted--
			ratio += milli / 10
			if milli == 1000 {
				used++
			}
		}
	}
	if used > 0 {
		return max(50-used, 33)
	}
	return int(max(100-ratio/10, 50))
}

// fragmentation returns the fragmentation of a host in milli-GPU.
func (h *hostState) fragmentation(cpu int64, left []int64) float64 {
	all := int64(0)
	for _, milli := range left {
		all += milli
	}
	sum := h.other * float64(all)
	for i := range h.typical {
		class := &h.typical[i]
		count, below := 0, int64(0)
		for _, milli := range left {
			if milli >= class.Share {
				count++
			} else {
				below += milli
			}
		}
		if count < class.Devices || cpu < class.CPUMilli {
			below = all
		}
		sum += float64(class.Frequency) / 1e6 * float64(below)
	}
	return sum
}

// gradient returns the score of FGD, and for a share the device.
func (h *hostState) gradient(r *placement.Request) (score, device int) {
	before := h.fragmentation(h.cpu, h.left)
	left := slices.Clone(h.left)
	of := func() int {
		d := before - h.fragmentation(h.cpu-r.CPUMilli, left)
		return int(100 / (1 + math.Exp(-d/1000)))
	}
	if r.Devices == 1 && r.Share < 1000 {
		score, device = -1, -1
		for i, milli := range h.left {
			if milli < r.Share {
				continue
			}
			left[i] -= r.Share
			if at := of(); at > score {
				score, device = at, i
			}
			left[i] = milli
		}
		return score, device
	}
	for i, wanted := 0, r.Devices; i < len(left) && wanted > 0; i++ {
		if left[i] >= r.Share {
			left[i] -= r.Share
			wanted--
		}
	}
	return of(), -1
}
