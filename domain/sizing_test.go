package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// Sizes of well-known models: the third has its layers written down.
var (
	small   = domain.ModelSize{ParameterCount: 840_000, ContextLength: 512}
	seven   = domain.ModelSize{ParameterCount: 7e9, ContextLength: 4096}
	seventy = domain.ModelSize{ParameterCount: 70_553_706_496, ContextLength: 8192, Attention: domain.Attention{Layers: 80, KVHeads: 8, HeadSize: 128}}
	huge    = domain.ModelSize{ParameterCount: 671e9}
)

func TestModelMemory(t *testing.T) {
	require.InDelta(t, 1.2*2*70_553_706_496+8192*327_680, seventy.Memory("", 0), 1, "2 x 80 layers x 8 heads x 128 x 2 bytes a token")
	require.InDelta(t, 1.2*70_553_706_496+1000*163_840, seventy.Memory("FP8_MM_KV_ATTN", 1000), 1, "weights and cache in one byte")
	require.InDelta(t, 1.2*2*70_553_706_496+1000*163_840, seventy.Memory("FP8_KV", 1000), 1, "the cache alone in one byte")
	require.InDelta(t, 1.2*0.5*70_553_706_496, domain.ModelSize{ParameterCount: 70_553_706_496}.Memory("NF4", 0), 1)
	stored := seven
	stored.Precision = "FP32"
	require.Equal(t, 1.2*2*7e9, stored.Memory("", 0)-seven.Memory("BF16", 0), "four bytes a weight, as they are stored")
	guess := seventy
	guess.Attention = domain.Attention{}
	known := seventy.Memory("", 8192) - seventy.Memory("", 1)
	estimated := guess.Memory("", 8192) - guess.Memory("", 1)
	require.InDelta(t, 1, estimated/known, 1, "the estimate of %.1f GB is within a factor of two of %.1f", estimated/1e9, known/1e9)
	require.GreaterOrEqual(t, estimated, known, "and rather too much")
}

func TestAccelerators(t *testing.T) {
	for _, line := range []struct {
		model    domain.ModelSize
		hardware domain.Hardware
		devices  int
		says     string
	}{
		{model: small, hardware: domain.Hardware{Type: domain.DefaultAccelerator}, devices: 1},
		{model: small, hardware: domain.Hardware{Type: domain.NoAccelerator}},
		{model: small},
		{hardware: domain.Hardware{Type: domain.DefaultAccelerator}, devices: 1},
		{model: seven, hardware: domain.Hardware{Type: "VENDOR_A_A10G_24GB"}, devices: 1},                                                  // 17.4 of 24 GB
		{model: seven, hardware: domain.Hardware{Type: "VENDOR_A_A10G_24GB", Context: 131_072}, devices: 2},                                // 35
		{model: domain.ModelSize{ParameterCount: 13e9}, hardware: domain.Hardware{Type: "VENDOR_A_A10G_24GB"}, devices: 2},                 // 31.2
		{model: seventy, hardware: domain.Hardware{Type: domain.DefaultAccelerator}, devices: 4},                                           // 172: three would do
		{model: seventy, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Count: 3}, devices: 3},                                 // and three are taken
		{model: seventy, hardware: domain.Hardware{Type: "VENDOR_A_H100_80GB", Precision: "FP8_MM"}, devices: 2},                           // 87
		{model: seventy, hardware: domain.Hardware{Type: "VENDOR_A_B200_180GB", Precision: "FP4"}, devices: 1},                             // 45
		{model: huge, hardware: domain.Hardware{Type: "VENDOR_A_H200_141GB", Precision: "FP8"}, devices: 8},                                // 805: six would do
		{model: huge, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Count: 32}, devices: 32},                                  // 1,610: asked for
		{model: huge, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Unchecked: true}, devices: 32},                            // unasked, and unchecked
		{model: seventy, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Count: 1, Unchecked: true}, devices: 1},                // they know better
		{model: huge, hardware: domain.Hardware{Type: domain.DefaultAccelerator}, devices: 32, says: "takes about 1610 GB, which is 21 x"}, // a power of two above 8
		{model: seventy, hardware: domain.Hardware{Type: "VENDOR_A_H100_80GB", Count: 2}, devices: 2, says: "is 2, but the model takes about 172 GB, which needs at least 3 x VENDOR_A_H100_80GB"},
	} {
		var v domain.Violations
		require.Equal(t, line.devices, line.model.Accelerators(&v, line.hardware), "%+v", line.hardware)
		if line.says == "" {
			require.NoError(t, v.Err(), "%+v", line.hardware)
			continue
		}
		require.Len(t, v, 1)
		require.Equal(t, "acceleratorCount", v[0].Field)
		require.Contains(t, v[0].Description, line.says)
	}
}

// What contradicts one another in a deployment is named, all of it at once.
func TestContradictions(t *testing.T) {
	check := func(change func(*domain.DeploymentSpec)) error {
		spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m"}
		change(&spec)
		_, err := domain.CreateDeployment{DeploymentSpec: spec, Model: seventy}.Check(noon)
		return err
	}
	for name, line := range map[string]struct {
		wrong func(*domain.DeploymentSpec)
		says  []string
	}{
		"two drafters":     {func(s *domain.DeploymentSpec) { s.EnableMTP, s.DraftModel = true, new("accounts/a/models/d") }, []string{"enableMtp: "}},
		"no drafter":       {func(s *domain.DeploymentSpec) { s.DraftModel = new("gpt") }, []string{"draftModel: must be a name like"}},
		"most below least": {func(s *domain.DeploymentSpec) { s.MinReplicaCount, s.MaxReplicaCount = 1, new(int) }, []string{"maxReplicaCount: must be at least minReplicaCount"}},
		"eight bits on a device without": {func(s *domain.DeploymentSpec) { s.AcceleratorType, s.Precision = domain.DefaultAccelerator, "FP8" },
			[]string{"precision: VENDOR_A_A100_80GB does not compute in FP8, which FP8 needs: use BF16"}},
		"four bits on a device without": {func(s *domain.DeploymentSpec) { s.AcceleratorType, s.Precision = "VENDOR_A_H100_80GB", "FP4_MX_MOE" },
			[]string{"precision: VENDOR_A_H100_80GB does not compute in FP4, which FP4_MX_MOE needs: use NF4"}},
		"too far a view": {func(s *domain.DeploymentSpec) { s.MaxContextLength = 8193 }, []string{"maxContextLength: must be at most 8192"}},
		"too small":      {func(s *domain.DeploymentSpec) { s.AcceleratorType, s.AcceleratorCount = "VENDOR_A_H200_141GB", 1 }, []string{"acceleratorCount: is 1, but"}},
		"several": {func(s *domain.DeploymentSpec) {
			s.DraftTokenCount, s.HotLoadBucketType, s.MaxContextLength, s.AcceleratorType, s.AcceleratorCount = -4, "CLOUD_9", 9000, "VENDOR_A_L4_24GB", 2
		}, []string{"draftTokenCount: ", "hotLoadBucketType: ", "maxContextLength: ", "acceleratorCount: is 2"}},
	} {
		err := check(line.wrong)
		require.Equal(t, "INVALID_FIELDS", reasonOf(err), name)
		for _, says := range line.says {
			require.ErrorContains(t, err, says, name)
		}
	}
	for name, fine := range map[string]func(*domain.DeploymentSpec){
		"drafts of a model": func(s *domain.DeploymentSpec) { s.DraftTokenCount, s.DraftModel = 4, new("accounts/a/models/d") },
		"drafts of nothing": func(s *domain.DeploymentSpec) { s.DraftTokenCount = 4 },
		"a drafter of none": func(s *domain.DeploymentSpec) { s.EnableMTP, s.DraftModel = true, new("") },
		"a bucket alone":    func(s *domain.DeploymentSpec) { s.HotLoadBucketType, s.HotLoadBucketURL = "CLOUD_C", "s3://b" },
		"drafts of n-grams": func(s *domain.DeploymentSpec) { s.DraftTokenCount, s.NgramSpeculationLength = 4, 3 },
		"drafts of its own": func(s *domain.DeploymentSpec) { s.DraftTokenCount, s.EnableMTP = 4, true },
		"drafts of a shape": func(s *domain.DeploymentSpec) {
			s.DraftTokenCount, s.DeploymentShape = 4, "accounts/a/deploymentShapes/s/versions/v1"
		},
		"a cache in eight":            func(s *domain.DeploymentSpec) { s.AcceleratorType, s.Precision = domain.DefaultAccelerator, "FP8_KV" },
		"weights kept in four":        func(s *domain.DeploymentSpec) { s.AcceleratorType, s.Precision = domain.DefaultAccelerator, "NF4" },
		"keys without a route":        func(s *domain.DeploymentSpec) { s.DirectRouteAPIKeys = []domain.Sealed{{KeyID: "k"}} },
		"the latest addon, by itself": func(s *domain.DeploymentSpec) { s.EnableHotReloadLatestAddon = true },
		"a plan":                      func(s *domain.DeploymentSpec) { s.PricingPlanID = "the plan of March" },
	} {
		require.NoError(t, check(fine), name)
	}
}

// An update is held to the model's size where it changes what a replica gets.
func TestUpdatesAreSized(t *testing.T) {
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", AcceleratorType: "VENDOR_A_L4_24GB", AcceleratorCount: 1}
	created, err := domain.CreateDeployment{DeploymentSpec: spec}.Decide(domain.Deployment{}, noon)
	require.NoError(t, err, "nothing is known of the model's size")
	d := fold[domain.Deployment](t, domain.Deployments, created)
	update := func(change func(*domain.DeploymentSpec)) error {
		next := d.DeploymentSpec
		change(&next)
		_, err := domain.UpdateDeployment{DeploymentSpec: next, Model: seventy}.Decide(d, noon.Add(time.Hour))
		return err
	}
	require.NoError(t, update(func(s *domain.DeploymentSpec) { s.DisplayName = "it was too small before" }))
	require.ErrorContains(t, update(func(s *domain.DeploymentSpec) { s.AcceleratorCount = 4 }), "acceleratorCount: is 4, but")
	require.NoError(t, update(func(s *domain.DeploymentSpec) { s.AcceleratorCount = 8 }))
}

// Accelerators that are counted and not named are of the type that the fleet
// has, and of the interface's default where it has none.
func TestCountedAccelerators(t *testing.T) {
	for _, line := range []struct{ named, fleet, want string }{
		{"", "VENDOR_A_H200_141GB", "VENDOR_A_H200_141GB"},
		{domain.NoAccelerator, "VENDOR_A_H200_141GB", "VENDOR_A_H200_141GB"},
		{"VENDOR_A_L4_24GB", "VENDOR_A_H200_141GB", "VENDOR_A_L4_24GB"},
		{"", domain.NoAccelerator, domain.DefaultAccelerator},
		{"", "", domain.DefaultAccelerator},
	} {
		spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", AcceleratorType: line.named, AcceleratorCount: 4}
		got, err := domain.CreateDeployment{DeploymentSpec: spec, Accelerator: line.fleet, Model: seventy}.Check(noon)
		require.Equal(t, line.want == "VENDOR_A_L4_24GB", err != nil, "the size is checked with that type: %v", err)
		require.Equal(t, line.want, got.AcceleratorType)
	}
	_, err := domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{BaseModel: "accounts/a/models/m", AcceleratorCount: 1}, Accelerator: "VENDOR_A_H200_141GB", Model: seventy}.Check(noon)
	require.ErrorContains(t, err, "acceleratorCount: is 1, but the model takes about")
}

// What counts only with other settings is told, and taken.
func TestUnusedSettings(t *testing.T) {
	spec := domain.DeploymentSpec{DraftTokenCount: 4, HotLoadBucketType: "CLOUD_C", HotLoadBucketURL: "s3://b"}
	require.Equal(t, []string{
		"draftTokenCount: kept, but unused without draftModel, ngramSpeculationLength or enableMtp, since nothing drafts tokens",
		"hotLoadBucketType: kept, but unused without enableHotLoad",
		"hotLoadBucketUrl: kept, but unused without enableHotLoad"}, spec.Unused())
	spec.NgramSpeculationLength, spec.EnableHotLoad = 3, true
	require.Empty(t, spec.Unused())
}
