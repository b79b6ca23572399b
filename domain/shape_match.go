package domain

import (
	"fmt"
	"iter"
	"sort"
)

// ModelTraits are the properties of a model that determine which deployment shapes it can use.
type ModelTraits struct {
	ModelType      string `json:"modelType"`
	ParameterCount Count  `json:"parameterCount"`
	Embedding      bool   `json:"embedding,omitempty"` // the model generates embeddings, not text
}

// output says what the model generates, for messages: text or embeddings.
func (t ModelTraits) output() string {
	if t.Embedding {
		return "embeddings"
	}
	return "text"
}

// Traits returns the model's traits.
func (f ModelMetadata) Traits() ModelTraits {
	return ModelTraits{f.ModelType, f.ParameterCount, f.Embedding}
}

// parameterTiers are the upper bounds of the size tiers of models, in parameters. A shape fits the
// models of its tier. The bounds lie between the usual sizes of models.
var parameterTiers = []Count{250e6, 800e6, 2e9, 5e9, 10e9, 20e9, 45e9, 90e9, 160e9, 300e9, 500e9, 800e9}

func tierOf(parameters Count) int {
	return sort.Search(len(parameterTiers), func(i int) bool { return parameters <= parameterTiers[i] })
}

// ShapeRequirements describe which shape versions the deployment of a model can use.
type ShapeRequirements struct {
	Model    ModelTraits // traits of the model or, for an addon, of its base model
	FineTune bool        // the model is a full-parameter fine-tune
	Addons   bool        // the deployment loads addons
	Account  string      // ID of the account that owns the deployment
}

// ShapeRequirementsOf returns the requirements of a deployment of the model. For an addon, pass its
// base model.
func ShapeRequirementsOf(m Model) ShapeRequirements {
	return ShapeRequirements{Model: m.Traits(), FineTune: m.Kind == BaseModel && m.BaseModel != ""}
}

// MatchShapes yields the latest validated version of each shape, if that version meets the
// requirements: the version is public or belongs to the account; it is for models of the same type
// and size tier, which generate embeddings if and only if the model does; it has MULTI_LORA if the
// deployment loads addons; and it does not quantize a full-parameter fine-tune to four bits.
func MatchShapes(shapes iter.Seq2[Name, DeploymentShape], req ShapeRequirements) iter.Seq2[Name, *ShapeVersion] {
	return func(yield func(Name, *ShapeVersion) bool) {
		for name, shape := range shapes {
			version, ok := shape.LatestValidated()
			if !ok || !version.Public && name.Account() != req.Account || len(req.mismatches(version)) > 0 {
				continue
			}
			if !yield(name, version) {
				return
			}
		}
	}
}

// mismatches returns why a version does not meet the requirements; nil when it meets them.
func (r ShapeRequirements) mismatches(s *ShapeVersion) (reasons []string) {
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			reasons = append(reasons, fmt.Sprintf(format, args...))
		}
	}
	add(s.ModelType != r.Model.ModelType, "serves models of type %s, not %s", s.ModelType, r.Model.ModelType)
	add(tierOf(s.ParameterCount) != tierOf(r.Model.ParameterCount),
		"serves models of about %d parameters, but the model has %d", s.ParameterCount, r.Model.ParameterCount)
	add(s.Embedding && !r.Model.Embedding, "serves embedding models, but the model generates text")
	add(!s.Embedding && r.Model.Embedding, "serves text models, but the model is an embedding model")
	add(r.FineTune && fourBit(s.Precision), "has precision %s, which a full-parameter fine-tune cannot have",
		s.Precision)
	add(r.Addons && len(s.Capabilities()) == 0, "does not have the capability %s, which enableAddons needs", MultiLora)
	return reasons
}

// RequireMatch adds a violation of deploymentShape to v for each requirement that the version does
// not meet.
func (s *ShapeVersion) RequireMatch(v *Violations, req ShapeRequirements) {
	for _, reason := range req.mismatches(s) {
		v.Add("deploymentShape", "%s: POST deploymentShapeVersions:match lists the shapes that fit", reason)
	}
}

// WithShape returns the spec with its unset fields set to those of a shape version, whose resource
// name is name. It adds violations to v for fields that contradict the shape. It ignores fields for
// which applies returns false.
func (s DeploymentSpec) WithShape(v *Violations, name string, shape ShapeSpec,
	applies func(field string) bool) DeploymentSpec {
	s.DeploymentShape = name
	for _, one := range s.shapedSettings(shape) {
		one.take(v, applies(one.field))
	}
	return s
}

// WithoutShape returns the spec with deploymentShape and the fields that shapes also have cleared,
// except fields for which keep returns true.
func (s DeploymentSpec) WithoutShape(keep func(field string) bool) DeploymentSpec {
	s.DeploymentShape = ""
	for _, one := range s.shapedSettings(ShapeSpec{}) {
		if !keep(one.field) {
			one.clear()
		}
	}
	return s
}

// A shapedSetting is a field that both shapes and deployments have. take sets the deployment's
// field to the shape's value, or adds a violation to v if they contradict; clear clears the
// deployment's field.
type shapedSetting struct {
	field string
	take  func(v *Violations, applies bool)
	clear func()
}

func (s *DeploymentSpec) shapedSettings(shape ShapeSpec) []shapedSetting {
	for _, enum := range []*string{&s.AcceleratorType, &s.Precision, &shape.AcceleratorType, &shape.Precision} {
		*enum = specified(*enum)
	}
	if shape.AcceleratorType == "" { // earlier versions of anneal stored an acceleratorCount in shapes for CPUs
		shape.AcceleratorCount = 0
	}
	return []shapedSetting{
		shaped("acceleratorType", &s.AcceleratorType, shape.AcceleratorType, true),
		shaped("acceleratorCount", &s.AcceleratorCount, shape.AcceleratorCount, true),
		shaped("precision", &s.Precision, shape.Precision, false),
		shaped("enableAddons", &s.EnableAddons, shape.EnableAddons, false),
		shaped("draftTokenCount", &s.DraftTokenCount, shape.DraftTokenCount, false),
		s.shapedDrafter(shape.DraftModel),
		shaped("ngramSpeculationLength", &s.NgramSpeculationLength, shape.NgramSpeculationLength, false),
		shaped("enableSessionAffinity", &s.EnableSessionAffinity, shape.EnableSessionAffinity, false),
		shaped("maxContextLength", &s.MaxContextLength, shape.MaxContextLength, false),
		shaped("disableDeploymentSizeValidation", &s.DisableDeploymentSizeValidation, shape.DisableDeploymentSizeValidation,
			false),
	}
}

// shaped returns the shapedSetting of a field. own is the deployment's value, and ofShape the
// shape's. If the shape does not set the field, the deployment may set any value, unless strict is
// true.
func shaped[T comparable](field string, own *T, ofShape T, strict bool) shapedSetting {
	var zero T
	return shapedSetting{field, func(v *Violations, applies bool) {
		switch {
		case !applies:
		case *own == zero:
			*own = ofShape
		case *own != ofShape && (ofShape != zero || strict):
			v.Add(field, "contradicts the deployment shape, whose value is %v: leave it out, or choose another shape",
				valueOrNone(ofShape))
		}
	}, func() { *own = zero }}
}

// shapedDrafter returns the shapedSetting of draftModel, where ofShape is the shape's value. A
// deployment can set draftModel to "" to disable the draft model of the shape.
func (s *DeploymentSpec) shapedDrafter(ofShape string) shapedSetting {
	own := s.Drafter()
	setting := shaped("draftModel", &own, ofShape, false)
	return shapedSetting{setting.field, func(v *Violations, applies bool) {
		if s.DraftModel != nil && own == "" {
			return
		}
		if setting.take(v, applies); own != "" {
			s.DraftModel = &own
		}
	}, func() { s.DraftModel = nil }}
}

func valueOrNone(value any) any {
	if value == "" || value == 0 {
		return "none"
	}
	return value
}
