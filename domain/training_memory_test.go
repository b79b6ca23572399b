package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestAcceleratorsOfJobs checks the memory of a training of 8 billion parameters against the terms of
// the formula, and the count of accelerators that holds it.
func TestAcceleratorsOfJobs(t *testing.T) {
	const (
		a100, l4 = "VENDOR_A_A100_80GB", "VENDOR_A_L4_24GB"
		weights  = 8e9 * 2 * 1.2
		acts     = 4096 * 34 * 4564.35 * 32
		adapter  = 16 * 8 * 20 * 4564.35 * 32
		cache    = 4096 * 4 * 131072
	)
	full, rank := 0, 16
	size := func(precision string) domain.ModelSize {
		return domain.ModelSize{ParameterCount: 8_000_000_000, ContextLength: 4096, Precision: precision,
			Attention: domain.Attention{Layers: 32, KVHeads: 8, HeadSize: 128}}
	}
	job := func(method string, loraRank *int, context int) domain.JobSpec {
		return domain.JobSpec{Method: method, Config: domain.TrainingConfig{LoraRank: loraRank, MaxContextLength: context}}
	}
	rollouts := job(domain.MethodReinforcement, nil, 0)
	rollouts.Rollouts = &domain.RolloutSpec{}
	for name, tc := range map[string]struct {
		job       domain.JobSpec
		precision string
		memory    float64
		onA100    int
		onL4      int
	}{
		"adapter":                   {job(domain.MethodSupervised, nil, 0), "BF16", weights + adapter + acts, 1, 2},
		"adapter of rank 16":        {job(domain.MethodSupervised, &rank, 0), "BF16", weights + 2*adapter + acts, 1, 2},
		"adapter, FP8 weights":      {job(domain.MethodSupervised, nil, 0), "FP8_MM", weights/2 + adapter + acts, 1, 2},
		"adapter, 4-bit, 1024":      {job(domain.MethodSupervised, nil, 1024), "NF4", weights/4 + adapter + acts/4, 1, 1},
		"all parameters":            {job(domain.MethodSupervised, &full, 0), "BF16", 8e9*16 + acts, 2, 8},
		"preferences":               {job(domain.MethodDPO, nil, 0), "BF16", weights + adapter + 2*acts, 1, 4},
		"preferences, all":          {job(domain.MethodDPO, &full, 0), "BF16", 8e9*16 + weights + 2*acts, 4, 8},
		"reinforcement":             {rollouts, "BF16", weights + adapter + acts + cache, 1, 2},
		"scored samples, all, 1024": {job(domain.MethodRLOR, &full, 1024), "BF16", 8e9*16 + acts/4, 2, 8},
	} {
		t.Run(name, func(t *testing.T) {
			model := size(tc.precision)
			require.InEpsilon(t, tc.memory, tc.job.Memory(model), 1e-4)
			require.Equal(t, map[string]int{a100: tc.onA100}, tc.job.NeedOn(model, a100, nil).Resources.Accelerators)
			require.Equal(t, map[string]int{l4: tc.onL4}, tc.job.NeedOn(model, l4, nil).Resources.Accelerators)
			require.Empty(t, tc.job.NeedOn(model, "", nil).Resources.Accelerators)
			require.Equal(t, map[string]int{"VENDOR_X": 1}, tc.job.NeedOn(model, "VENDOR_X", nil).Resources.Accelerators)
		})
	}
	require.Equal(t, map[string]int{l4: 1},
		job(domain.MethodSupervised, nil, 0).NeedOn(domain.ModelSize{}, l4, nil).Resources.Accelerators,
		"a model of unknown size")
}
