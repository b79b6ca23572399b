package placement_test

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"io"
	"math"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/placement"
)

// workloads are the 17 traces of the publication: see testdata/traces/README.md.
var workloads = []string{"default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80",
	"gpushare100", "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40",
	"multigpu50"}

// readCSV returns the rows of a file in testdata/traces, without the header.
func readCSV(t testing.TB, name string) [][]string {
	content, err := os.ReadFile("testdata/traces/" + name)
	require.NoError(t, err)
	var r io.Reader = bytes.NewReader(content)
	if strings.HasSuffix(name, ".gz") {
		r, err = gzip.NewReader(r)
		require.NoError(t, err)
	}
	rows, err := csv.NewReader(r).ReadAll()
	require.NoError(t, err)
	return rows[1:]
}

func number(t testing.TB, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// readNodes returns the nodes of the traces, ordered by name.
func readNodes(t testing.TB) []placement.Node {
	var nodes []placement.Node
	for _, row := range readCSV(t, "nodes.csv.gz") {
		nodes = append(nodes, placement.Node{CPUMilli: number(t, row[0]), MemoryMiB: number(t, row[1]),
			Devices: int(number(t, row[2])), Model: row[3]})
	}
	return nodes
}

// readRequests returns the requests of a trace, ordered by name.
func readRequests(t testing.TB, workload string) []placement.Request {
	var requests []placement.Request
	for _, row := range readCSV(t, "pods_"+workload+".csv.gz") {
		requests = append(requests, placement.Request{CPUMilli: number(t, row[0]), MemoryMiB: number(t, row[1]),
			Devices: int(number(t, row[2])), Share: number(t, row[3]), Models: row[4]})
	}
	return requests
}

// published returns the published percentage of allocated GPUs of a policy, at 95 % and at 100 % of
// arrived GPUs, for each seed.
func published(t testing.TB, workload, policy string) map[int64][2]float64 {
	values := map[int64][2]float64{}
	for _, row := range readCSV(t, "published.csv") {
		if row[0] != workload || row[1] != policy {
			continue
		}
		var at [2]float64
		for i := range at {
			v, err := strconv.ParseFloat(row[3+i], 64)
			require.NoError(t, err)
			at[i] = v
		}
		values[number(t, row[2])] = at
	}
	require.Len(t, values, 10)
	return values
}

// A scenario is the input of one replay: the procedure of the publication with one seed.
type scenario struct {
	nodes    []placement.Node // in the order of their rank
	arrivals []placement.Request
	counts   map[placement.Request]int64 // of the trace
	random   *rand.Rand                  // continues after the permutation of the nodes
	capacity int64                       // in milli-GPU
}

func gpu(r placement.Request) int64 { return int64(r.Devices) * r.Share }

// countsOf returns how often each request occurs.
func countsOf(requests []placement.Request) map[placement.Request]int64 {
	counts := map[placement.Request]int64{}
	for _, r := range requests {
		counts[r]++
	}
	return counts
}

// newScenario shuffles the requests of a trace, adds or removes randomly drawn requests until all
// request 130 % of the devices, and gives each node a random rank.
func newScenario(nodes []placement.Node, requests []placement.Request, seed int64) scenario {
	s := scenario{counts: countsOf(requests), random: rand.New(rand.NewSource(seed))}
	s.random.Int()
	s.arrivals = append(s.arrivals, requests...)
	s.random.Shuffle(len(s.arrivals), func(i, j int) { s.arrivals[i], s.arrivals[j] = s.arrivals[j], s.arrivals[i] })
	demand := int64(0)
	for _, r := range s.arrivals {
		demand += gpu(r)
	}
	for _, node := range nodes {
		s.capacity += int64(node.Devices) * placement.WholeDevice
	}
	limit := 1.3 * float64(s.capacity)
	for float64(demand) > limit {
		i := s.random.Intn(len(s.arrivals))
		demand -= gpu(s.arrivals[i])
		s.arrivals = append(s.arrivals[:i], s.arrivals[i+1:]...)
	}
	for len(s.arrivals) >= len(requests) {
		r := requests[s.random.Intn(len(requests))]
		if float64(demand+r.Share) > limit {
			break
		}
		demand += gpu(r)
		s.arrivals = append(s.arrivals, r)
	}
	s.nodes = make([]placement.Node, len(nodes))
	for i, rank := range s.random.Perm(len(nodes)) {
		s.nodes[rank] = nodes[i]
	}
	return s
}

// A policy places a request on a node of a scenario. ok is false when the request fits nowhere.
type policy interface {
	place(r placement.Request) (node int, devices []int, ok bool)
	release(r placement.Request, node int, devices []int)
}

// replay returns the percentage of allocated GPUs when 95 and when 100 % of the GPUs have arrived.
func (s scenario) replay(p policy) [2]float64 {
	var sum, count [2]float64
	arrived, used := int64(0), int64(0)
	for _, r := range s.arrivals {
		arrived += gpu(r)
		if _, _, ok := p.place(r); ok {
			used += gpu(r)
		}
		percent := math.RoundToEven(float64(arrived) / float64(s.capacity) * 100)
		for i, at := range []float64{95, 100} {
			if percent == at {
				sum[i] += 100 * float64(used) / float64(s.capacity)
				count[i]++
			}
		}
	}
	return [2]float64{sum[0] / count[0], sum[1] / count[1]}
}

// rules is the policy of package placement.
type rules struct{ *placement.Fleet }

func newRules(t testing.TB, s scenario) rules {
	fleet, err := placement.NewFleet(s.nodes, placement.TypicalClasses(s.counts), placement.Prices(s.counts, s.nodes))
	require.NoError(t, err)
	return rules{fleet}
}

func (p rules) place(r placement.Request) (int, []int, bool) {
	choice, ok := p.Place(r, nil)
	return choice.Node, choice.Devices, ok
}

func (p rules) release(r placement.Request, node int, devices []int) { p.Release(node, r, devices) }
