package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// modelOf returns a READY model with a weight file of weights bytes, and with copies whose weight
// files have the given sizes by precision.
func modelOf(size domain.ModelSize, weights int64, copies map[string]int64) domain.Model {
	files := func(bytes int64) domain.Files {
		return domain.Files{Sizes: map[string]int64{"config.json": 1 << 30, "model.safetensors": bytes}}
	}
	m := domain.Model{State: domain.ModelReady, Files: files(weights), ModelMetadata: domain.ModelMetadata{
		ParameterCount: size.ParameterCount, ContextLength: size.ContextLength, Precision: size.Precision,
		Attention: size.Attention}}
	m.Copies = map[string]domain.ModelCopy{"FP16": {State: domain.CopyFailed, Files: files(1)}}
	for precision, bytes := range copies {
		m.Copies[precision] = domain.ModelCopy{State: domain.CopyReady, Files: files(bytes)}
	}
	return m
}

// TestReplicasTakeWhatTheirModelDoes checks the memory that a replica requests: 1.2 times the size of
// its model's weights in the served precision, 64 MiB for the engine, and a KV cache for eight contexts
// with 4 bytes per number. The sum is at least 128 MiB. The KV cache has at most 1 GiB, unless one
// context of maxContextLength needs more.
func TestReplicasTakeWhatTheirModelDoes(t *testing.T) {
	attention := func(layers, heads, size int) domain.Attention {
		return domain.Attention{Layers: layers, KVHeads: heads, HeadSize: size}
	}
	shipped := modelOf(domain.ModelSize{ParameterCount: 837_248, ContextLength: 512, Attention: attention(4, 4, 32)},
		1_680_000, map[string]int64{"FP8": 900_000})
	small := modelOf(domain.ModelSize{ParameterCount: 25_800_000, ContextLength: 512, Precision: "FP32",
		Attention: attention(8, 8, 64)}, 103_200_000, map[string]int64{"FP8": 26_400_000})
	half := modelOf(domain.ModelSize{ParameterCount: 494_032_768, ContextLength: 32768, Attention: attention(24, 2, 64)},
		988_097_824, map[string]int64{"FP8": 630_300_000})
	unknown := modelOf(domain.ModelSize{}, 500<<20, nil)
	unread := modelOf(domain.ModelSize{ParameterCount: 7e9, Attention: attention(32, 8, 128)}, 0, nil)
	twice := modelOf(domain.ModelSize{ParameterCount: 1000}, 1<<40, nil)
	for name, c := range map[string]struct {
		spec  domain.DeploymentSpec
		model domain.Hosted
		mib   int64
	}{
		"nothing known":                  {domain.DeploymentSpec{}, domain.Hosted{}, 128},
		"shipped model":                  {domain.DeploymentSpec{}, shipped.Hosted(""), 128},
		"shipped model with an addon":    {domain.DeploymentSpec{}, shipped.Hosted("").Merged(), 128},
		"a small model":                  {domain.DeploymentSpec{}, small.Hosted(""), 64 + 119 + 128},
		"a small model in FP8":           {domain.DeploymentSpec{}, small.Hosted("FP8"), 64 + 31 + 128},
		"a small model, its copy FAILED": {domain.DeploymentSpec{}, small.Hosted("FP16"), 64 + 119 + 128},
		"a small model without a copy":   {domain.DeploymentSpec{}, small.Hosted("BF16"), 64 + 119 + 128},
		"500 million parameters":         {domain.DeploymentSpec{}, half.Hosted(""), 64 + 1131 + 1024},
		"500 million with an addon":      {domain.DeploymentSpec{}, half.Hosted("").Merged(), 64 + 2262 + 1024},
		"a short context":                {domain.DeploymentSpec{MaxContextLength: 1024}, half.Hosted(""), 64 + 1131 + 192},
		"a long context":                 {domain.DeploymentSpec{MaxContextLength: 65536}, half.Hosted(""), 64 + 1131 + 1536},
		"only the file sizes known":      {domain.DeploymentSpec{}, unknown.Hosted(""), 64 + 600},
		"only the parameter count known": {domain.DeploymentSpec{}, unread.Hosted(""), 64 + 16022},
		"weights stored twice":           {domain.DeploymentSpec{}, twice.Hosted(""), 128},
		"on accelerators": {domain.DeploymentSpec{AcceleratorType: "VENDOR_A_L4_24GB", AcceleratorCount: 1},
			half.Hosted(""), 128},
	} {
		takes := c.spec.ReplicaResources(c.model)
		require.InDelta(t, c.mib, takes.MemoryMiB, 1, name)
		require.Equal(t, c.spec.AcceleratorCount, takes.Accelerators["VENDOR_A_L4_24GB"], name)
		if c.spec.AcceleratorCount == 0 {
			require.GreaterOrEqual(t, domain.KVCacheCapacity(takes.MemoryMiB<<20, c.model.Weights),
				min(int64(domain.MaxKVCache), (c.mib-64)<<20-c.model.Weights*6/5)-2<<20, name)
		}
	}
	require.Negative(t, domain.KVCacheCapacity(128<<20, 500<<20))
}

// TestDraftModelsTakeMemory checks that a replica without accelerators reserves the memory of its draft
// model, unless it does not load the draft model.
func TestDraftModelsTakeMemory(t *testing.T) {
	model := domain.Hosted{ModelSize: domain.ModelSize{ParameterCount: 1e9, ContextLength: 4096}, Weights: 1 << 30}
	draft := domain.Hosted{ModelSize: domain.ModelSize{ParameterCount: 1e8, ContextLength: 4096}, Weights: 100 << 20}
	name := "accounts/a/models/draft"
	spec := domain.DeploymentSpec{DraftModel: &name}
	without := spec.ReplicaResources(model).MemoryMiB
	alone := domain.DeploymentSpec{}.ReplicaResources(draft).MemoryMiB
	model.Draft = &draft
	require.Equal(t, without+alone, spec.ReplicaResources(model).MemoryMiB)
	require.Equal(t, alone, spec.DraftMemoryMiB(model))
	for _, change := range []func(*domain.DeploymentSpec){
		func(s *domain.DeploymentSpec) { s.DraftModel = nil },
		func(s *domain.DeploymentSpec) { s.DisableSpeculativeDecoding = true },
		func(s *domain.DeploymentSpec) { s.AcceleratorType, s.AcceleratorCount = "VENDOR_A_L4_24GB", 1 },
	} {
		other := spec
		change(&other)
		require.Zero(t, other.DraftMemoryMiB(model))
	}
}

// TestLongPromptsTakeMemory checks that the profile for long prompts doubles the KV cache of a
// replica without accelerators.
func TestLongPromptsTakeMemory(t *testing.T) {
	model := domain.Hosted{ModelSize: domain.ModelSize{ParameterCount: 1e9, ContextLength: 4096}, Weights: 1 << 30}
	plain := domain.DeploymentSpec{BaseModel: "accounts/a/models/m"}
	long := plain
	long.AutoTune = &domain.AutoTune{LongPrompt: true}
	without, with := plain.ReplicaResources(model).MemoryMiB, long.ReplicaResources(model).MemoryMiB
	require.Greater(t, with, without)
	fixed := int64(64 + 1024*6/5)
	require.InDelta(t, 2*(without-fixed), with-fixed, 2)
	long.AcceleratorCount, plain.AcceleratorCount = 1, 1
	require.Equal(t, plain.ReplicaResources(model).MemoryMiB, long.ReplicaResources(model).MemoryMiB)
}
