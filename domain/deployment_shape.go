package domain

import (
	"slices"
	"strconv"
	"time"
)

// A deployment shape is a set of hardware and serving settings for models of one type and size. A
// version of a shape is immutable except for the result of its review; versions are deleted with
// the shape.
//
//	(none) --CreateDeploymentShape--> live, with its first version
//	live   --UpdateDeploymentShape--> live, with one more version
//	live   --ReviewShapeVersion-->    live, with the review result of one version
//	live   --DeleteDeploymentShape--> (none)
var DeploymentShapes = referenceable(NewKind("deploymentShapes", map[string]Event[DeploymentShape]{
	"deploymentShape.created.v1":  DeploymentShapeCreated{},
	"deploymentShape.updated.v1":  DeploymentShapeUpdated{},
	"deploymentShape.reviewed.v1": ShapeVersionReviewed{},
	"deploymentShape.deleted.v1":  DeploymentShapeDeleted{},
}), "deploymentShape.", func(x *DeploymentShape) *Deletion { return &x.Deletion })

// MaxShapeVersions is the maximum number of versions of one shape.
const MaxShapeVersions = 100

// A ShapeVersion holds the settings of a shape after one change of the shape.
type ShapeVersion struct {
	ShapeSpec
	ModelTraits
	ID         string    `json:"id"`
	CreateTime time.Time `json:"createTime"`
	Validated  bool      `json:"validated"`
	Public     bool      `json:"public"`
}

// DeploymentShape is the state of one shape. Its current settings are those of the newest version.
type DeploymentShape struct {
	Deletion
	CreatedBy string         `json:"createdBy"`
	Versions  []ShapeVersion `json:"versions,omitempty"` // all versions of the shape, oldest first
}

// Exists implements State.
func (s DeploymentShape) Exists() bool { return len(s.Versions) > 0 }

// Newest returns the current version. The shape must exist.
func (s DeploymentShape) Newest() *ShapeVersion { return &s.Versions[len(s.Versions)-1] }

// Version returns the version with the given ID, and whether there is one.
func (s DeploymentShape) Version(id string) (*ShapeVersion, bool) {
	i := slices.IndexFunc(s.Versions, func(v ShapeVersion) bool { return v.ID == id })
	if i < 0 {
		return nil, false
	}
	return &s.Versions[i], true
}

// LatestValidated returns the newest validated version, and whether there is one.
func (s DeploymentShape) LatestValidated() (*ShapeVersion, bool) {
	for i := len(s.Versions) - 1; i >= 0; i-- {
		if s.Versions[i].Validated {
			return &s.Versions[i], true
		}
	}
	return nil, false
}

// ShapeVersionName returns the resource name of a version of a shape.
func ShapeVersionName(shape Name, version string) string {
	return string(shape) + "/versions/" + version
}

func (s *DeploymentShape) add(spec ShapeSpec, model ModelTraits, at time.Time) {
	version := ShapeVersion{ShapeSpec: spec, ModelTraits: model, ID: "v" + strconv.Itoa(len(s.Versions)+1), CreateTime: at}
	s.Versions = append(slices.Clip(s.Versions), version)
}

type DeploymentShapeCreated struct {
	ShapeSpec
	ModelTraits
	CreatedBy string    `json:"createdBy"`
	Time      time.Time `json:"time"`
}

func (e DeploymentShapeCreated) Evolve(s *DeploymentShape) {
	*s = DeploymentShape{CreatedBy: e.CreatedBy}
	s.add(e.ShapeSpec, e.ModelTraits, e.Time)
}

type DeploymentShapeUpdated struct {
	ShapeSpec
	ModelTraits
	Time time.Time `json:"time"`
}

func (e DeploymentShapeUpdated) Evolve(s *DeploymentShape) { s.add(e.ShapeSpec, e.ModelTraits, e.Time) }

type ShapeVersionReviewed struct {
	Version   string `json:"version"`
	Validated bool   `json:"validated"`
	Public    bool   `json:"public"`
}

func (e ShapeVersionReviewed) Evolve(s *DeploymentShape) {
	s.Versions = slices.Clone(s.Versions)
	if version, ok := s.Version(e.Version); ok {
		version.Validated, version.Public = e.Validated, e.Public
	}
}

type DeploymentShapeDeleted struct{}

func (DeploymentShapeDeleted) Evolve(s *DeploymentShape) { *s = DeploymentShape{} }

// CreateDeploymentShape creates a shape and its first version. Model and Size describe the
// baseModel; zero fields are unknown.
type CreateDeploymentShape struct {
	ShapeSpec
	Model       ModelTraits
	Size        ModelSize
	Accelerator string // accelerator type if the spec names none (see FleetAccelerator); "" is NoAccelerator
	CreatedBy   string
}

func (c CreateDeploymentShape) Decide(s DeploymentShape, now time.Time) (Event[DeploymentShape], error) {
	if s.Exists() {
		return nil, alreadyExists("a deployment shape")
	}
	v := c.check()
	spec := c.withDefaults(&v, c.Size, c.Accelerator)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DeploymentShapeCreated{spec, c.Model, c.CreatedBy, now}, nil
}

// UpdateDeploymentShape adds a version with other settings. Model and Size describe the new
// baseModel; zero fields are unknown. Hardware settings that do not change are not checked, because
// an earlier version of anneal may have stored them by another rule.
type UpdateDeploymentShape struct {
	ShapeSpec
	Model       ModelTraits
	Size        ModelSize
	Accelerator string // accelerator type if the spec names none (see FleetAccelerator); "" is NoAccelerator
}

func (c UpdateDeploymentShape) Decide(s DeploymentShape, now time.Time) (Event[DeploymentShape], error) {
	if !s.Exists() {
		return nil, notFound("deployment shape")
	}
	old := s.Newest()
	v, spec := c.check(), c.ShapeSpec
	switch same := c.hardware() == old.hardware(); {
	case same && (c.BaseModel == old.BaseModel || unspecified(old.AcceleratorType)):
		spec.AcceleratorType, spec.Precision = old.AcceleratorType, old.Precision
	default:
		spec = c.withDefaults(&v, c.Size, c.Accelerator)
	}
	if spec == old.ShapeSpec {
		return nil, nil
	}
	v.Require(c.BaseModel == old.BaseModel || c.Model == old.ModelTraits, "baseModel",
		"may only change to a model of the same type (%s), parameter count (%d) and output (%s): create another shape",
		old.ModelType, old.ParameterCount, old.output())
	if err := v.Err(); err != nil {
		return nil, err
	}
	if len(s.Versions) >= MaxShapeVersions {
		return nil, precondition("TOO_MANY_VERSIONS",
			"the shape has %d versions, which is the maximum: create another shape", MaxShapeVersions)
	}
	return DeploymentShapeUpdated{spec, old.ModelTraits, now}, nil
}

// ReviewShapeVersion records the operator's review of a version: whether it is validated, and
// whether it is public, so that every account may read and use it.
type ReviewShapeVersion struct {
	Version   string
	Validated bool
	Public    bool
}

func (c ReviewShapeVersion) Decide(s DeploymentShape, _ time.Time) (Event[DeploymentShape], error) {
	version, ok := s.Version(c.Version)
	switch {
	case !ok:
		return nil, notFound("deployment shape version")
	case version.Validated == c.Validated && version.Public == c.Public:
		return nil, nil
	}
	return ShapeVersionReviewed(c), nil
}

// DeleteDeploymentShape deletes a shape and its versions. Deployments that were created with the
// shape keep their settings.
type DeleteDeploymentShape struct{}

func (DeleteDeploymentShape) Decide(s DeploymentShape, now time.Time) (Event[DeploymentShape], error) {
	if !s.Exists() {
		return nil, notFound("deployment shape")
	}
	return DeploymentShapeDeleted{}, s.mayDelete(now)
}
