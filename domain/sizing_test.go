package domain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// Sizes of well-known models. Only the third has known layers.
var (
	small   = domain.ModelSize{ParameterCount: 840_000, ContextLength: 512}
	seven   = domain.ModelSize{ParameterCount: 7e9, ContextLength: 4096}
	seventy = domain.ModelSize{ParameterCount: 70_553_706_496, ContextLength: 8192,
		Attention: domain.Attention{Layers: 80, KVHeads: 8, HeadSize: 128}}
	huge = domain.ModelSize{ParameterCount: 671e9}
)

func TestModelMemory(t *testing.T) {
	require.InDelta(t, 1.2*2*70_553_706_496+8192*327_680, seventy.Memory("", 0), 1,
		"2 x 80 layers x 8 heads x 128 x 2 bytes a token")
	require.InDelta(t, 1.2*70_553_706_496+1000*163_840, seventy.Memory("FP8_MM_KV_ATTN", 1000), 1,
		"weights and cache in one byte")
	require.InDelta(t, 1.2*2*70_553_706_496+1000*163_840, seventy.Memory("FP8_KV", 1000), 1, "the cache alone in one byte")
	require.InDelta(t, 1.2*0.5*70_553_706_496, domain.ModelSize{ParameterCount: 70_553_706_496}.Memory("NF4", 0), 1)
	stored := seven
	stored.Precision = "FP32"
	require.Equal(t, 1.2*2*7e9, stored.Memory("", 0)-seven.Memory("BF16", 0), "four bytes a weight, as they are stored")
	estimate := seventy
	estimate.Attention = domain.Attention{}
	known := seventy.Memory("", 8192) - seventy.Memory("", 1)
	estimated := estimate.Memory("", 8192) - estimate.Memory("", 1)
	require.InDelta(t, 1, estimated/known, 1, "the estimate of %.1f GB is within a factor of two of %.1f", estimated/1e9,
		known/1e9)
	require.GreaterOrEqual(t, estimated, known, "the estimate is not too low")
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
		// needs 17.4 GB of 24 GB
		{model: seven, hardware: domain.Hardware{Type: "VENDOR_A_A10G_24GB"}, devices: 1},
		// needs 35 GB
		{model: seven, hardware: domain.Hardware{Type: "VENDOR_A_A10G_24GB", Context: 131_072}, devices: 2},
		// needs 31.2 GB
		{model: domain.ModelSize{ParameterCount: 13e9}, hardware: domain.Hardware{Type: "VENDOR_A_A10G_24GB"}, devices: 2},
		// needs 172 GB: three devices are enough, and the default is a power of two
		{model: seventy, hardware: domain.Hardware{Type: domain.DefaultAccelerator}, devices: 4},
		// a count of three is accepted
		{model: seventy, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Count: 3}, devices: 3},
		// needs 87 GB
		{model: seventy, hardware: domain.Hardware{Type: "VENDOR_A_H100_80GB", Precision: "FP8_MM"}, devices: 2},
		// needs 45 GB
		{model: seventy, hardware: domain.Hardware{Type: "VENDOR_A_B200_180GB", Precision: "FP4"}, devices: 1},
		// needs 805 GB: six devices are enough, and the default is a power of two
		{model: huge, hardware: domain.Hardware{Type: "VENDOR_A_H200_141GB", Precision: "FP8"}, devices: 8},
		// needs 1,610 GB, more than the default allows: accepted, because the count is set
		{model: huge, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Count: 32}, devices: 32},
		// accepted without a count, because the size is not checked
		{model: huge, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Unchecked: true}, devices: 32},
		// a count that is too small is accepted, because the size is not checked
		{model: seventy, hardware: domain.Hardware{Type: domain.DefaultAccelerator, Count: 1, Unchecked: true}, devices: 1},
		// refused without a count, because the default would be above 8
		{model: huge, hardware: domain.Hardware{Type: domain.DefaultAccelerator}, devices: 32,
			says: "needs about 1610 GB, which is 21 x"},
		{model: seventy, hardware: domain.Hardware{Type: "VENDOR_A_H100_80GB", Count: 2}, devices: 2,
			says: "is 2, but the model needs about 172 GB, which is at least 3 x VENDOR_A_H100_80GB"},
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

// TestContradictions checks that one error lists all contradicting settings of a deployment.
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
		"draftModel and enableMtp": {func(s *domain.DeploymentSpec) {
			s.EnableMTP, s.DraftModel = true, new("accounts/a/models/d")
		}, []string{"enableMtp: "}},
		"not the name of a draft model": {func(s *domain.DeploymentSpec) { s.DraftModel = new("gpt") },
			[]string{"draftModel: must be a name like"}},
		"maximum below minimum": {func(s *domain.DeploymentSpec) { s.MinReplicaCount, s.MaxReplicaCount = 1, new(int) },
			[]string{"maxReplicaCount: must be at least minReplicaCount"}},
		"FP8 on a device without it": {func(s *domain.DeploymentSpec) {
			s.AcceleratorType,
				s.Precision = domain.DefaultAccelerator, "FP8"
		},
			[]string{"precision: VENDOR_A_A100_80GB does not compute in FP8, which FP8 needs: use BF16"}},
		"FP4 on a device without it": {func(s *domain.DeploymentSpec) {
			s.AcceleratorType,
				s.Precision = "VENDOR_A_H100_80GB", "FP4_MX_MOE"
		},
			[]string{"precision: VENDOR_A_H100_80GB does not compute in FP4, which FP4_MX_MOE needs: use NF4"}},
		"a context that is too long": {func(s *domain.DeploymentSpec) { s.MaxContextLength = 8193 },
			[]string{"maxContextLength: is 8193, but must be at most 8192"}},
		"too small": {func(s *domain.DeploymentSpec) { s.AcceleratorType, s.AcceleratorCount = "VENDOR_A_H200_141GB", 1 },
			[]string{"acceleratorCount: is 1, but"}},
		"several": {func(s *domain.DeploymentSpec) {
			s.DraftTokenCount, s.HotLoadBucketType, s.MaxContextLength, s.AcceleratorType, s.AcceleratorCount = -4, "CLOUD_9",
				9000, "VENDOR_A_L4_24GB", 2
		}, []string{"draftTokenCount: ", "hotLoadBucketType: ", "maxContextLength: ", "acceleratorCount: is 2"}},
	} {
		err := check(line.wrong)
		require.Equal(t, "INVALID_FIELDS", reasonOf(err), name)
		for _, says := range line.says {
			require.ErrorContains(t, err, says, name)
		}
	}
	for name, fine := range map[string]func(*domain.DeploymentSpec){
		"draftTokenCount with draftModel": func(s *domain.DeploymentSpec) {
			s.DraftTokenCount, s.DraftModel = 4,
				new("accounts/a/models/d")
		},
		"draftTokenCount alone":              func(s *domain.DeploymentSpec) { s.DraftTokenCount = 4 },
		"enableMtp with an empty draftModel": func(s *domain.DeploymentSpec) { s.EnableMTP, s.DraftModel = true, new("") },
		"a bucket alone": func(s *domain.DeploymentSpec) {
			s.HotLoadBucketType, s.HotLoadBucketURL = "CLOUD_C", "s3://b"
		},
		"draftTokenCount with n-grams": func(s *domain.DeploymentSpec) {
			s.DraftTokenCount, s.NgramSpeculationLength = 4, 3
		},
		"draftTokenCount with enableMtp": func(s *domain.DeploymentSpec) { s.DraftTokenCount, s.EnableMTP = 4, true },
		"draftTokenCount of a shape": func(s *domain.DeploymentSpec) {
			s.DraftTokenCount, s.DeploymentShape = 4, "accounts/a/deploymentShapes/s/versions/v1"
		},
		"FP8_KV": func(s *domain.DeploymentSpec) {
			s.AcceleratorType,
				s.Precision = domain.DefaultAccelerator, "FP8_KV"
		},
		"NF4": func(s *domain.DeploymentSpec) {
			s.AcceleratorType,
				s.Precision = domain.DefaultAccelerator, "NF4"
		},
		"direct keys without a route": func(s *domain.DeploymentSpec) {
			s.DirectRouteAPIKeys = []domain.Sealed{{KeyID: "k"}}
		},
		"enableHotReloadLatestAddon alone": func(s *domain.DeploymentSpec) { s.EnableHotReloadLatestAddon = true },
		"a pricing plan":                   func(s *domain.DeploymentSpec) { s.PricingPlanID = "the plan of March" },
	} {
		require.NoError(t, check(fine), name)
	}
}

// TestUpdatesAreSized checks that an update is compared with the model's size only if the update
// changes the hardware of a replica.
func TestUpdatesAreSized(t *testing.T) {
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", AcceleratorType: "VENDOR_A_L4_24GB",
		AcceleratorCount: 1}
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
	require.ErrorContains(t, update(func(s *domain.DeploymentSpec) { s.AcceleratorCount = 4 }),
		"acceleratorCount: is 4, but")
	require.NoError(t, update(func(s *domain.DeploymentSpec) { s.AcceleratorCount = 8 }))
}

// TestAcceleratorRule checks the one rule for accelerators: for the same settings, the same model and
// the same fleet, shapes and deployments get the same type and count, or the same violation.
func TestAcceleratorRule(t *testing.T) {
	const h200, l4 = "VENDOR_A_H200_141GB", "VENDOR_A_L4_24GB"
	none := domain.NoAccelerator
	for _, line := range []struct {
		fleet, named string
		count        int
		want         string
		devices      int
		says         string
	}{
		{fleet: h200, want: h200, devices: 2},
		{fleet: h200, named: none, want: h200, devices: 2},
		{fleet: h200, count: 4, want: h200, devices: 4},
		{fleet: h200, count: 1, says: "acceleratorCount: is 1, but the model needs about"},
		{fleet: h200, named: l4, count: 8, want: l4, devices: 8},
		{fleet: domain.DefaultAccelerator, want: domain.DefaultAccelerator, devices: 4},
		{fleet: none, want: none},
		{want: none},
		{fleet: none, named: none, want: none},
		{fleet: none, named: h200, want: h200, devices: 2},
		{fleet: none, count: 2, says: "acceleratorCount: is 2, but the nodes of this installation have only CPUs"},
		{fleet: none, named: none, count: 2, says: "leave acceleratorCount out to run on CPUs"},
		{fleet: "VENDOR_A_B300_288GB", want: "VENDOR_A_B300_288GB", devices: 1},
	} {
		deployment, deploymentErr := domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{
			BaseModel: "accounts/a/models/m", AcceleratorType: line.named, AcceleratorCount: line.count},
			Accelerator: line.fleet, Model: seventy}.Check(noon)
		event, shapeErr := domain.CreateDeploymentShape{ShapeSpec: domain.ShapeSpec{BaseModel: "accounts/a/models/m",
			AcceleratorType: line.named, AcceleratorCount: line.count}, Accelerator: line.fleet, Size: seventy}.Decide(
			domain.DeploymentShape{}, noon)
		if line.says != "" {
			require.ErrorContains(t, deploymentErr, line.says, "%+v", line)
			require.ErrorContains(t, shapeErr, line.says, "%+v", line)
			continue
		}
		require.NoError(t, deploymentErr, "%+v", line)
		require.NoError(t, shapeErr, "%+v", line)
		shape := event.(domain.DeploymentShapeCreated)
		require.Equal(t, line.want, shape.AcceleratorType, "%+v", line)
		require.Equal(t, strings.TrimPrefix(line.want, none), deployment.AcceleratorType, "%+v", line)
		require.Equal(t, line.devices, shape.AcceleratorCount, "%+v", line)
		require.Equal(t, line.devices, deployment.AcceleratorCount, "%+v", line)
	}
}

// TestAcceleratorsOfEarlierRules checks that shapes and deployments whose accelerators were stored by
// an earlier rule can be updated, and keep these accelerators until an update changes them.
func TestAcceleratorsOfEarlierRules(t *testing.T) {
	const h200 = "VENDOR_A_H200_141GB"
	counted := domain.ShapeSpec{BaseModel: "accounts/a/models/m", AcceleratorType: domain.NoAccelerator,
		AcceleratorCount: 2}
	shape := fold[domain.DeploymentShape](t, domain.DeploymentShapes,
		domain.DeploymentShapeCreated{ShapeSpec: counted, Time: noon})
	updateShape := func(change func(*domain.ShapeSpec)) (domain.ShapeSpec, error) {
		spec := counted
		change(&spec)
		event, err := domain.UpdateDeploymentShape{ShapeSpec: spec, Size: seventy, Accelerator: h200}.Decide(shape, noon)
		if err != nil {
			return domain.ShapeSpec{}, err
		}
		return event.(domain.DeploymentShapeUpdated).ShapeSpec, nil
	}
	described, err := updateShape(func(s *domain.ShapeSpec) { s.Description = "new" })
	require.NoError(t, err)
	require.Equal(t, domain.ShapeSpec{BaseModel: counted.BaseModel, Description: "new",
		AcceleratorType: domain.NoAccelerator, AcceleratorCount: 2}, described)
	resolved, err := updateShape(func(s *domain.ShapeSpec) { s.AcceleratorCount = 0 })
	require.NoError(t, err)
	require.Equal(t, h200, resolved.AcceleratorType)
	require.Equal(t, 2, resolved.AcceleratorCount)

	var v domain.Violations
	onCPUs := domain.DeploymentSpec{BaseModel: "accounts/a/models/m"}.WithShape(&v,
		"accounts/a/deploymentShapes/s/versions/v1", counted, func(string) bool { return true })
	require.Empty(t, v)
	made, err := domain.CreateDeployment{DeploymentSpec: onCPUs, Accelerator: h200, Model: seventy}.Check(noon)
	require.NoError(t, err)
	require.Empty(t, made.AcceleratorType, "a shape without a type runs on CPUs")
	require.Zero(t, made.AcceleratorCount)

	updateDeployment := func(stored domain.DeploymentSpec, change func(*domain.DeploymentSpec)) domain.DeploymentUpdated {
		stored.BaseModel = "accounts/a/models/m"
		one := 1
		stored.MaxReplicaCount, stored.Placement = &one, &domain.Placement{MultiRegion: "GLOBAL"}
		d := fold[domain.Deployment](t, domain.Deployments, domain.DeploymentCreated{DeploymentSpec: stored, Time: noon})
		change(&stored)
		event, err := domain.UpdateDeployment{DeploymentSpec: stored, Model: seventy, Accelerator: h200}.Decide(d, noon)
		require.NoError(t, err)
		return event.(domain.DeploymentUpdated)
	}
	describe := func(s *domain.DeploymentSpec) { s.Description = "new" }
	for _, stored := range []domain.DeploymentSpec{{}, {AcceleratorType: domain.NoAccelerator},
		{AcceleratorType: "VENDOR_A_GB200", AcceleratorCount: 1}, {AcceleratorType: domain.DefaultAccelerator}} {
		updated := updateDeployment(stored, describe)
		require.Equal(t, stored.AcceleratorType, updated.AcceleratorType)
		require.Equal(t, stored.AcceleratorCount, updated.AcceleratorCount)
		require.False(t, updated.Rollout)
	}
	longer := updateDeployment(domain.DeploymentSpec{}, func(s *domain.DeploymentSpec) { s.MaxContextLength = 9 })
	require.Empty(t, longer.AcceleratorType, "another setting does not move the deployment to accelerators")
	longer = updateDeployment(domain.DeploymentSpec{}, func(s *domain.DeploymentSpec) { s.AcceleratorCount = 4 })
	require.Equal(t, h200, longer.AcceleratorType)
}
