package placement

import (
	"cmp"
	"slices"
	"strings"
)

// parts is the sum of the frequencies of all typical classes, which are in parts per million.
const parts = 1_000_000

// typicalPercent is the percentage of all requests that the typical classes cover, as in the paper
// (see the package comment).
const typicalPercent = 95

// A Class is a class of requests that are equal for the computation of fragmentation, with its
// frequency.
type Class struct {
	CPUMilli  int64
	Devices   int
	Share     int64
	Models    string
	Frequency int64 // share of the class in all requests, in parts per million
}

// TypicalClasses returns the most frequent classes of the requests, which cover 95 % of them.
// counts holds the number of requests of each class. The frequencies are rounded down, and the most
// frequent class gets the remainder, so that they add up to a million. Classes of the same
// frequency are ordered by CPU, share, devices and models, the greatest first, as in the paper.
func TypicalClasses(counts map[Request]int64) []Class {
	sums := map[Class]int64{}
	total := int64(0)
	for r, n := range counts {
		sums[Class{r.CPUMilli, r.Devices, r.Share, r.Models, 0}] += n
		total += n
	}
	classes := make([]Class, 0, len(sums))
	for class, n := range sums {
		class.Frequency = n
		classes = append(classes, class)
	}
	slices.SortFunc(classes, func(a, b Class) int {
		return cmp.Or(cmp.Compare(b.Frequency, a.Frequency), cmp.Compare(b.CPUMilli, a.CPUMilli),
			cmp.Compare(b.Share, a.Share), cmp.Compare(b.Devices, a.Devices), cmp.Compare(b.Models, a.Models))
	})
	covered, n := int64(0), 0
	for n < len(classes) && covered*100 < total*typicalPercent {
		covered += classes[n].Frequency
		n++
	}
	classes = classes[:n]
	rest := int64(parts)
	for i := range classes {
		classes[i].Frequency = classes[i].Frequency * parts / covered
		rest -= classes[i].Frequency
	}
	if n > 0 {
		classes[0].Frequency += rest
	}
	return classes
}

// allows reports whether models, a list separated by "|", contains the model; "" contains all
// models.
func allows(models, model string) bool {
	if models == "" {
		return true
	}
	for one := range strings.SplitSeq(models, "|") {
		if one == model {
			return true
		}
	}
	return false
}

// A classGroup holds typical classes that differ only in their CPU.
type classGroup struct {
	devices   int
	share     int64
	frequency int64
	cpu       []int64 // CPU that each class needs, in ascending order
	upTo      []int64 // upTo[i] is the sum of the frequencies of the classes that need at most cpu[i]
}

// fitting returns the sum of the frequencies of the group's classes that need at most cpu.
func (g *classGroup) fitting(cpu int64) int64 {
	n, found := slices.BinarySearch(g.cpu, cpu)
	if found {
		n++
	}
	if n == 0 {
		return 0
	}
	return g.upTo[n-1]
}

// A fragmentation computes the fragmentation of nodes whose devices are of one model.
type fragmentation struct {
	excluded int64 // sum of the frequencies of the classes that cannot use the model, or need no device
	groups   []classGroup
}

// fragmentationOf returns the fragmentation for nodes with devices of a model.
func fragmentationOf(classes []Class, model string) *fragmentation {
	f := &fragmentation{}
	var usable []Class
	for _, class := range classes {
		if class.Devices == 0 || !allows(class.Models, model) {
			f.excluded += class.Frequency
			continue
		}
		usable = append(usable, class)
	}
	slices.SortFunc(usable, func(a, b Class) int {
		return cmp.Or(cmp.Compare(a.Share, b.Share), cmp.Compare(a.Devices, b.Devices), cmp.Compare(a.CPUMilli, b.CPUMilli))
	})
	for _, class := range usable {
		last := len(f.groups) - 1
		if last < 0 || f.groups[last].share != class.Share || f.groups[last].devices != class.Devices {
			f.groups = append(f.groups, classGroup{devices: class.Devices, share: class.Share})
			last++
		}
		g := &f.groups[last]
		g.frequency += class.Frequency
		g.cpu, g.upTo = append(g.cpu, class.CPUMilli), append(g.upTo, g.frequency)
	}
	return f
}

// of returns the fragmentation of a node in millionths of a milli-GPU. cpu is the node's free CPU,
// and left what is free on each device. The fragmentation is the sum, over all typical classes, of
// the frequency of the class × what is free on the devices that the class cannot use. A class
// cannot use a device on which less than its share is free. It can use no device at all if it does
// not fit on the node, is not allowed on the model, or needs no device (Weng et al., section 3).
func (f *fragmentation) of(cpu int64, left []int64) int64 {
	all := int64(0)
	for _, milli := range left {
		all += milli
	}
	if all == 0 {
		return 0
	}
	sum := f.excluded * all
	share, count, below := int64(-1), 0, int64(0)
	for i := range f.groups {
		g := &f.groups[i]
		if g.share != share {
			share, count, below = g.share, 0, 0
			for _, milli := range left {
				if milli >= share {
					count++
				} else {
					below += milli
				}
			}
		}
		fitting := int64(0)
		if count >= g.devices {
			fitting = g.fitting(cpu)
		}
		sum += fitting*below + (g.frequency-fitting)*all
	}
	return sum
}
