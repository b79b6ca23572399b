package domain

import (
	"fmt"
	"iter"
	"sort"
)

// ModelTraits are what decides which shapes serve a model.
type ModelTraits struct {
	ModelType      string `json:"modelType"`
	ParameterCount Count  `json:"parameterCount"`
	Embedding      bool   `json:"embedding,omitempty"` // makes vectors, not text
}

// Traits are the model's.
func (f ModelFacts) Traits() ModelTraits {
	return ModelTraits{f.ModelType, f.ParameterCount, f.Embedding}
}

// parameterTiers are the upper ends of the tiers of size, in parameters; they
// lie between the sizes in which models are made.
var parameterTiers = []Count{250e6, 800e6, 2e9, 5e9, 10e9, 20e9, 45e9, 90e9, 160e9, 300e9, 500e9, 800e9}

func tierOf(parameters Count) int {
	return sort.Search(len(parameterTiers), func(i int) bool { return parameters <= parameterTiers[i] })
}

// A ShapeWish is what the deployment of a model asks of a shape.
type ShapeWish struct {
	Model    ModelTraits // of an addon: its base model's
	FineTune bool        // the model is a fine-tune of all parameters
	Addons   bool        // the deployment loads addons
	Account  string      // will own the deployment
}

// WishOf is what a model asks of shapes. Of an addon, give its base model.
func WishOf(m Model) ShapeWish {
	return ShapeWish{Model: m.Traits(), FineTune: m.Kind == BaseModel && m.BaseModel != ""}
}

// MatchShapes yields, of each shape, the latest validated version if it can
// serve what is wished for: it is public or of the account; model type, tier
// of parameter count and embedding status agree; addons have MULTI_LORA; and a
// fine-tune of all parameters is not squeezed into four bits.
func MatchShapes(shapes iter.Seq2[Name, DeploymentShape], wish ShapeWish) iter.Seq2[Name, *ShapeVersion] {
	return func(yield func(Name, *ShapeVersion) bool) {
		for name, shape := range shapes {
			version, ok := shape.LatestValidated()
			if !ok || !version.Public && name.Account() != wish.Account || len(wish.mismatches(version)) > 0 {
				continue
			}
			if !yield(name, version) {
				return
			}
		}
	}
}

// mismatches are why a version does not serve what is wished for; none when it
// does.
func (w ShapeWish) mismatches(s *ShapeVersion) (reasons []string) {
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			reasons = append(reasons, fmt.Sprintf(format, args...))
		}
	}
	add(s.ModelType != w.Model.ModelType, "serves models of type %s, not %s", s.ModelType, w.Model.ModelType)
	add(tierOf(s.ParameterCount) != tierOf(w.Model.ParameterCount), "serves models of about %d parameters, and this has %d", s.ParameterCount, w.Model.ParameterCount)
	add(s.Embedding && !w.Model.Embedding, "serves embedding models, and this is none")
	add(!s.Embedding && w.Model.Embedding, "serves models of text, and this is an embedding model")
	add(w.FineTune && fourBit(s.Precision), "has precision %s, which a fine-tune of all parameters cannot have", s.Precision)
	add(w.Addons && len(s.Capabilities()) == 0, "does not have the capability %s, which enableAddons needs", MultiLora)
	return reasons
}

// Serves names in v why the version cannot serve what is wished for.
func (s *ShapeVersion) Serves(v *Violations, wish ShapeWish) {
	for _, why := range wish.mismatches(s) {
		v.Add("deploymentShape", "%s: POST deploymentShapeVersions:match lists the shapes that fit", why)
	}
}

// Shaped is the spec with the settings that a version of a shape has, where it
// has none itself and fills holds; what it says otherwise goes to v.
func (s DeploymentSpec) Shaped(v *Violations, name string, shape ShapeSpec, fills func(field string) bool) DeploymentSpec {
	s.DeploymentShape = name
	for _, one := range s.shapedSettings(shape) {
		one.take(v, fills(one.field))
	}
	return s
}

// Unshaped is the spec without the settings that shapes have, but for those
// that keep holds for.
func (s DeploymentSpec) Unshaped(keep func(field string) bool) DeploymentSpec {
	s.DeploymentShape = ""
	for _, one := range s.shapedSettings(ShapeSpec{}) {
		if !keep(one.field) {
			one.clear()
		}
	}
	return s
}

// A shapedSetting is one field that shapes and deployments both have.
type shapedSetting struct {
	field string
	take  func(v *Violations, fill bool)
	clear func()
}

func (s *DeploymentSpec) shapedSettings(shape ShapeSpec) []shapedSetting {
	for _, enum := range []*string{&s.AcceleratorType, &s.Precision, &shape.AcceleratorType, &shape.Precision} {
		if unspecified(*enum) {
			*enum = ""
		}
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
		shaped("disableDeploymentSizeValidation", &s.DisableDeploymentSizeValidation, shape.DisableDeploymentSizeValidation, false),
	}
}

// shaped pairs a deployment's setting with a shape's. Where the shape has none
// the deployment chooses, unless the shape is strict about that.
func shaped[T comparable](field string, mine *T, shapes T, strict bool) shapedSetting {
	var none T
	return shapedSetting{field, func(v *Violations, fill bool) {
		switch {
		case *mine == none && fill:
			*mine = shapes
		case *mine == none:
		case *mine != shapes && (shapes != none || strict):
			v.Add(field, "contradicts the deployment shape, which has %v: leave it out, or choose another shape", orNothing(shapes))
		}
	}, func() { *mine = none }}
}

// shapedDrafter is draftModel, of which "" is a choice too: no model drafts,
// whatever the shape says.
func (s *DeploymentSpec) shapedDrafter(shapes string) shapedSetting {
	mine := s.Drafter()
	setting := shaped("draftModel", &mine, shapes, false)
	return shapedSetting{setting.field, func(v *Violations, fill bool) {
		if s.DraftModel != nil && mine == "" {
			return
		}
		if setting.take(v, fill); mine != "" {
			s.DraftModel = &mine
		}
	}, func() { s.DraftModel = nil }}
}

func orNothing(value any) any {
	if value == "" || value == 0 {
		return "none"
	}
	return value
}
