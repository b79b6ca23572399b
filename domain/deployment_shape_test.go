package domain_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

var (
	llama7 = domain.ModelTraits{ModelType: "llama", ParameterCount: 7e9}
	aShape = domain.ShapeSpec{BaseModel: "accounts/a/models/m", AcceleratorType: "VENDOR_A_H100_80GB",
		AcceleratorCount: 1}
	created = domain.DeploymentShapeCreated{ShapeSpec: aShape, ModelTraits: llama7, Time: noon}
)

func TestDeploymentShapes(t *testing.T) {
	f := events[domain.DeploymentShape]
	with := func(change func(*domain.ShapeSpec)) domain.ShapeSpec {
		spec := aShape
		change(&spec)
		return spec
	}
	other := with(func(s *domain.ShapeSpec) { s.BaseModel = "accounts/a/models/n" })
	decide(t, domain.DeploymentShapes, []decision[domain.DeploymentShape]{
		{name: "create with defaults for the model",
			when: domain.CreateDeploymentShape{ShapeSpec: domain.ShapeSpec{BaseModel: "accounts/a/models/m"},
				Model:       domain.ModelTraits{ModelType: "llama", ParameterCount: 70e9},
				Size:        domain.ModelSize{ParameterCount: 70e9},
				Accelerator: domain.DefaultAccelerator},
			then: domain.DeploymentShapeCreated{ShapeSpec: domain.ShapeSpec{BaseModel: "accounts/a/models/m",
				AcceleratorType: domain.DefaultAccelerator, AcceleratorCount: 4},
				ModelTraits: domain.ModelTraits{ModelType: "llama", ParameterCount: 70e9}, Time: noon}},
		{name: "create with several violations",
			when: domain.CreateDeploymentShape{ShapeSpec: domain.ShapeSpec{Precision: "FP3",
				AcceleratorType: domain.NoAccelerator, AcceleratorCount: 2}},
			fault: "INVALID_FIELDS", says: "baseModel: is required; precision: must be one of"},
		{name: "update to a model with the same traits", given: f(created),
			when: domain.UpdateDeploymentShape{ShapeSpec: other, Model: llama7},
			then: domain.DeploymentShapeUpdated{ShapeSpec: other, ModelTraits: llama7, Time: noon}},
		{name: "update to a model of another size", given: f(created),
			when: domain.UpdateDeploymentShape{ShapeSpec: other,
				Model: domain.ModelTraits{ModelType: "llama", ParameterCount: 8e9}},
			fault: "INVALID_FIELDS", says: "same type (llama), parameter count (7000000000)"},
		{name: "update to a model of another type", given: f(created),
			when: domain.UpdateDeploymentShape{ShapeSpec: other,
				Model: domain.ModelTraits{ModelType: "qwen2", ParameterCount: 7e9}}, fault: "INVALID_FIELDS", says: "baseModel"},
		{name: "update to an embedding model", given: f(created),
			when: domain.UpdateDeploymentShape{ShapeSpec: other,
				Model: domain.ModelTraits{ModelType: "llama", ParameterCount: 7e9, Embedding: true}}, fault: "INVALID_FIELDS",
			says: "output (text)"},
		{name: "update to the same", given: f(created),
			when: domain.UpdateDeploymentShape{ShapeSpec: aShape, Model: llama7}},
		{name: "review a missing version", given: f(slices.Repeat([]domain.Event[domain.DeploymentShape]{created}, 1)...),
			when: domain.ReviewShapeVersion{Version: "v2"}, fault: "NOT_FOUND", says: "version"},
	})
}

func TestShapeVersions(t *testing.T) {
	updated := func(precision string) domain.DeploymentShapeUpdated {
		spec := aShape
		spec.Precision = precision
		return domain.DeploymentShapeUpdated{ShapeSpec: spec, ModelTraits: llama7, Time: noon.Add(time.Hour)}
	}
	validated := func(id string, is bool) domain.ShapeVersionReviewed {
		return domain.ShapeVersionReviewed{Version: id, Validated: is}
	}
	shape := fold[domain.DeploymentShape](t, domain.DeploymentShapes, created, updated("FP8"), updated("FP4"),
		validated("v1", true), validated("v2", true))
	latest, ok := shape.LatestValidated()
	require.True(t, ok)
	require.Equal(t, "v2", latest.ID)
	first, ok := shape.Version("v1")
	require.True(t, ok)
	require.True(t, first.Validated)
	require.Equal(t, aShape, first.ShapeSpec, "a version keeps its settings")
	require.Equal(t, "FP4", shape.Newest().Precision)

	domain.ShapeVersionReviewed{Version: "v2"}.Evolve(&shape)
	latest, _ = shape.LatestValidated()
	require.Equal(t, "v1", latest.ID)

	for len(shape.Versions) < domain.MaxShapeVersions {
		updated("FP8").Evolve(&shape)
	}
	_, err := domain.UpdateDeploymentShape{ShapeSpec: aShape, Model: llama7}.Decide(shape, noon)
	require.Equal(t, "TOO_MANY_VERSIONS", reasonOf(err))
}

func TestDeploymentShapeTransitions(t *testing.T) {
	f := events[domain.DeploymentShape]
	other := aShape
	other.Precision = "FP8"
	situations := []situation[domain.DeploymentShape]{
		{name: "(none)"},
		{name: "one version", facts: f(created)},
		{name: "one version, validated", facts: f(created, domain.ShapeVersionReviewed{Version: "v1", Validated: true})},
	}
	commands := []domain.Command[domain.DeploymentShape]{domain.CreateDeploymentShape{ShapeSpec: aShape, Model: llama7},
		domain.UpdateDeploymentShape{ShapeSpec: other, Model: llama7},
		domain.ReviewShapeVersion{Version: "v1", Validated: true},
		requested[domain.DeploymentShape]{domain.DeleteDeploymentShape{}, domain.DeploymentShapes}}
	golden(t, "deployment_shape_transitions.txt",
		transitions(t, domain.DeploymentShapes, situations, commands, func(s domain.DeploymentShape) string {
			latest := "none"
			if version, ok := s.LatestValidated(); ok {
				latest = version.ID
			}
			return fmt.Sprintf("%d versions, %s validated", len(s.Versions), latest)
		}))
}

// validatedShape returns a shape whose only version is validated.
func validatedShape(spec domain.ShapeSpec, model domain.ModelTraits, public bool) domain.DeploymentShape {
	return domain.DeploymentShape{
		Versions: []domain.ShapeVersion{{ShapeSpec: spec, ModelTraits: model, ID: "v1", Validated: true, Public: public}}}
}

func TestMatchShapes(t *testing.T) {
	fp4, lora, preset := aShape, aShape, aShape
	fp4.Precision, lora.EnableAddons, preset.PresetType = "FP4_MX_MOE", true, domain.MultiLora
	unvalidated := validatedShape(aShape, llama7, false)
	unvalidated.Versions[0].Validated = false
	shapes := map[domain.Name]domain.DeploymentShape{
		"accounts/a/deploymentShapes/plain": validatedShape(aShape, llama7, false),
		"accounts/a/deploymentShapes/same-tier": validatedShape(aShape,
			domain.ModelTraits{ModelType: "llama", ParameterCount: 8_030_261_248}, false),
		"accounts/a/deploymentShapes/larger": validatedShape(aShape,
			domain.ModelTraits{ModelType: "llama", ParameterCount: 13e9}, false),
		"accounts/a/deploymentShapes/type": validatedShape(aShape,
			domain.ModelTraits{ModelType: "qwen2", ParameterCount: 7e9}, false),
		"accounts/a/deploymentShapes/embedding": validatedShape(aShape,
			domain.ModelTraits{ModelType: "llama", ParameterCount: 7e9, Embedding: true}, false),
		"accounts/a/deploymentShapes/fp4":         validatedShape(fp4, llama7, false),
		"accounts/a/deploymentShapes/lora":        validatedShape(lora, llama7, false),
		"accounts/a/deploymentShapes/preset":      validatedShape(preset, llama7, false),
		"accounts/a/deploymentShapes/unvalidated": unvalidated,
		"accounts/b/deploymentShapes/hidden":      validatedShape(aShape, llama7, false),
		"accounts/b/deploymentShapes/public":      validatedShape(aShape, llama7, true),
	}
	model := domain.Model{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 7e9}}
	tuned := model
	tuned.BaseModel = "accounts/b/models/m"
	for _, line := range []struct {
		name   string
		model  domain.Model
		addons bool
		want   []string
	}{
		{"same type, tier and embedding, and public or own", model, false,
			[]string{"fp4", "lora", "plain", "preset", "public", "same-tier"}},
		{"addons need MULTI_LORA", model, true, []string{"lora", "preset"}},
		{"a full-parameter fine-tune is not quantized to four bits", tuned, false,
			[]string{"lora", "plain", "preset", "public", "same-tier"}},
	} {
		t.Run(line.name, func(t *testing.T) {
			req := domain.ShapeRequirementsOf(line.model)
			req.Addons, req.Account = line.addons, "a"
			var got []string
			for name, version := range domain.MatchShapes(maps.All(shapes), req) {
				require.True(t, version.Validated)
				got = append(got, name.ID())
			}
			slices.Sort(got)
			require.Equal(t, line.want, got)
		})
	}
}

func TestShapedDeployments(t *testing.T) {
	shape := domain.ShapeSpec{AcceleratorType: "VENDOR_A_GB200", AcceleratorCount: 4, Precision: "FP8", DraftTokenCount: 3,
		EnableSessionAffinity: true}
	name := "accounts/a/deploymentShapes/s/versions/v1"
	always := func(string) bool { return true }
	never := func(string) bool { return false }
	var v domain.Violations
	got := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MaxContextLength: 100}.WithShape(&v, name, shape,
		always)
	require.Empty(t, v)
	require.Equal(t, domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MaxContextLength: 100, DeploymentShape: name,
		AcceleratorType:  "VENDOR_A_GB200",
		AcceleratorCount: 4, Precision: "FP8", DraftTokenCount: 3, EnableSessionAffinity: true}, got)
	_, err := domain.CreateDeployment{DeploymentSpec: got}.Check(noon)
	require.NoError(t, err, "a shape can request devices that a deployment without a shape cannot")

	require.Empty(t, domain.DeploymentSpec{}.WithShape(&v, name, shape, never).Precision)
	require.Equal(t, domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MaxContextLength: 100},
		got.WithoutShape(func(field string) bool { return field == "maxContextLength" }))

	domain.DeploymentSpec{AcceleratorType: "VENDOR_A_L4_24GB", AcceleratorCount: 1, Precision: "PRECISION_UNSPECIFIED",
		DraftTokenCount: 5}.WithShape(&v, name, shape, always)
	require.Equal(t, []string{"acceleratorType", "acceleratorCount", "draftTokenCount"}, fieldsOf(v),
		"one error lists all contradictions")

	v = nil
	domain.DeploymentSpec{AcceleratorType: "VENDOR_A_L4_24GB", AcceleratorCount: 1}.WithShape(&v, name,
		domain.ShapeSpec{AcceleratorType: domain.NoAccelerator}, always)
	require.Equal(t, []string{"acceleratorType", "acceleratorCount"}, fieldsOf(v))
}

func fieldsOf(v domain.Violations) []string {
	var fields []string
	for _, one := range v {
		fields = append(fields, one.Field)
	}
	return fields
}

// BenchmarkMatchShapes matches 1,000 shapes.
func BenchmarkMatchShapes(b *testing.B) {
	shapes := map[domain.Name]domain.DeploymentShape{}
	for i := range 1000 {
		shape := validatedShape(aShape,
			domain.ModelTraits{ModelType: "llama", ParameterCount: domain.Count(1e9 * (1 + i%80))}, false)
		shapes[domain.NewName("a", "deploymentShapes", fmt.Sprint("s", i))] = shape
	}
	req := domain.ShapeRequirements{Model: llama7, Account: "a"}
	for b.Loop() {
		matched := 0
		for range domain.MatchShapes(maps.All(shapes), req) {
			matched++
		}
		if matched == 0 {
			b.Fatal("nothing matched")
		}
	}
}
