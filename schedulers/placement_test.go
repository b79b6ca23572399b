package schedulers_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/schedulers"
)

func TestBestFit(t *testing.T) {
	has := func(name domain.Name, pool string, cpu int64, l4, h100 int) schedulers.Candidate {
		return schedulers.Candidate{Name: name, Pool: pool, Engines: []string{"train"},
			Free: domain.Resources{CPUMilli: cpu, MemoryMiB: 1000,
				Accelerators: map[string]int{"L4": l4, "H100": h100}}}
	}
	nodes := []schedulers.Candidate{has("a", "", 4000, 0, 8), has("b", domain.PoolTraining, 2000, 2, 0),
		has("c", domain.PoolTraining, 1000, 0, 0),
		has("d", domain.PoolInference, 1000, 0, 0), has("e", domain.PoolTraining, 1000, 0, 0), has("f",
			domain.PoolTraining, -500, -1, 0)}
	nodes[1].Region = "EU_PARIS_1"
	in := func(need domain.Need, regions ...string) domain.Need {
		need.Regions = regions
		return need
	}
	need := func(count int, takes domain.Resources) domain.Need {
		return domain.Need{Count: count, Pool: domain.PoolTraining, Engine: "train", Resources: takes}
	}
	with := func(t string, n int) domain.Resources {
		return domain.Resources{CPUMilli: 500, Accelerators: map[string]int{t: n}}
	}
	for _, line := range []struct {
		name string
		need domain.Need
		want []domain.Name
	}{
		{"the least that is left, ties by name", need(1, domain.Resources{CPUMilli: 1000}), []domain.Name{"c"}},
		{"a gang on different nodes", need(3, domain.Resources{CPUMilli: 1000}), []domain.Name{"c", "e", "b"}},
		{"a gang is whole or absent", need(5, domain.Resources{CPUMilli: 1000}), nil},
		{"accelerators of its type", need(1, with("L4", 1)), []domain.Name{"b"}},
		{"more accelerators than any has", need(1, with("L4", 3)), nil},
		{"a type that nobody has", need(1, with("MI300X", 1)), nil},
		{"memory that nobody has", need(1, domain.Resources{MemoryMiB: 2000}), nil},
		{"a region", in(need(1, domain.Resources{CPUMilli: 1000}), "EU_PARIS_1"), []domain.Name{"b"}},
		{"a region that nobody has", in(need(1, domain.Resources{CPUMilli: 1000}), "EU_LONDON_1"), nil},
		{"an engine that nobody has", domain.Need{Count: 1, Pool: domain.PoolTraining, Engine: "score"}, nil},
	} {
		t.Run(line.name, func(t *testing.T) {
			before := fmt.Sprint(nodes)
			got, ok := schedulers.BestFit{}.Place(nodes, line.need)
			require.Equal(t, line.want, got)
			require.Equal(t, line.want != nil, ok)
			require.Equal(t, before, fmt.Sprint(nodes), "placing must not change what it is given")
		})
	}
}
