package domain

import (
	"slices"
	"strconv"
	"time"
)

// A deployment shape is a set of hardware and serving settings for models of
// one type and size. Its versions never change but for what their reviewers
// say of them; they live and end with the shape.
//
//	(none) --CreateDeploymentShape--> live, with its first version
//	live   --UpdateDeploymentShape--> live, with one version more
//	live   --ReviewShapeVersion-->    live, a version is validated or public, or no longer
//	live   --DeleteDeploymentShape--> (none)
var DeploymentShapes = usable(NewKind("deploymentShapes", map[string]Event[DeploymentShape]{
	"deploymentShape.created.v1":  DeploymentShapeCreated{},
	"deploymentShape.updated.v1":  DeploymentShapeUpdated{},
	"deploymentShape.reviewed.v1": ShapeVersionReviewed{},
	"deploymentShape.deleted.v1":  DeploymentShapeDeleted{},
}), "deploymentShape.", func(x *DeploymentShape) *Deletion { return &x.Deletion })

// MaxShapeVersions is how many versions one shape may have.
const MaxShapeVersions = 100

// A ShapeVersion is the shape as it was from one change to the next.
type ShapeVersion struct {
	ShapeSpec
	ModelTraits
	ID         string    `json:"id"`
	CreateTime time.Time `json:"createTime"`
	Validated  bool      `json:"validated"`
	Public     bool      `json:"public"`
}

// DeploymentShape is the state of one shape: the newest version is what it is.
type DeploymentShape struct {
	Deletion
	CreatedBy string         `json:"createdBy"`
	Versions  []ShapeVersion `json:"versions,omitempty"` // oldest first
}

// Exists implements State.
func (s DeploymentShape) Exists() bool { return len(s.Versions) > 0 }

// Newest is the shape as it is now. The shape must exist.
func (s DeploymentShape) Newest() *ShapeVersion { return &s.Versions[len(s.Versions)-1] }

// Version finds a version by its ID.
func (s DeploymentShape) Version(id string) (*ShapeVersion, bool) {
	i := slices.IndexFunc(s.Versions, func(v ShapeVersion) bool { return v.ID == id })
	if i < 0 {
		return nil, false
	}
	return &s.Versions[i], true
}

// LatestValidated is the newest version that is validated.
func (s DeploymentShape) LatestValidated() (*ShapeVersion, bool) {
	for i := len(s.Versions) - 1; i >= 0; i-- {
		if s.Versions[i].Validated {
			return &s.Versions[i], true
		}
	}
	return nil, false
}

// ShapeVersionName names a version of a shape.
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

// CreateDeploymentShape makes a shape and its first version. Model is what is
// known of its baseModel.
type CreateDeploymentShape struct {
	ShapeSpec
	Model       ModelTraits
	Size        ModelSize
	Accelerator string // that is taken where the shape names none, see FleetAccelerator
	CreatedBy   string
}

func (c CreateDeploymentShape) Decide(s DeploymentShape, now time.Time) (Event[DeploymentShape], error) {
	if s.Exists() {
		return nil, exists("a deployment shape")
	}
	v := c.check()
	spec := c.filled(&v, c.Size, c.Accelerator)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DeploymentShapeCreated{spec, c.Model, c.CreatedBy, now}, nil
}

// UpdateDeploymentShape makes a version with other settings. Model is what is
// known of the baseModel that they name.
type UpdateDeploymentShape struct {
	ShapeSpec
	Model       ModelTraits
	Size        ModelSize
	Accelerator string // as of CreateDeploymentShape
}

func (c UpdateDeploymentShape) Decide(s DeploymentShape, now time.Time) (Event[DeploymentShape], error) {
	if !s.Exists() {
		return nil, gone("deployment shape")
	}
	old := s.Newest()
	v := c.check()
	spec := c.filled(&v, c.Size, c.Accelerator)
	if spec == old.ShapeSpec {
		return nil, nil
	}
	v.Require(c.BaseModel == old.BaseModel || c.Model == old.ModelTraits, "baseModel",
		"may only change to a model of the same type (%s), parameter count (%d) and embedding status (%t): create another shape", old.ModelType, old.ParameterCount, old.Embedding)
	if err := v.Err(); err != nil {
		return nil, err
	}
	if len(s.Versions) >= MaxShapeVersions {
		return nil, precondition("TOO_MANY_VERSIONS", "the shape has %d versions, the most that one may have: create another shape", MaxShapeVersions)
	}
	return DeploymentShapeUpdated{spec, old.ModelTraits, now}, nil
}

// ReviewShapeVersion says whether a version has been validated, and whether
// every account may read and use it.
type ReviewShapeVersion struct {
	Version   string
	Validated bool
	Public    bool
}

func (c ReviewShapeVersion) Decide(s DeploymentShape, _ time.Time) (Event[DeploymentShape], error) {
	version, ok := s.Version(c.Version)
	switch {
	case !ok:
		return nil, gone("deployment shape version")
	case version.Validated == c.Validated && version.Public == c.Public:
		return nil, nil
	}
	return ShapeVersionReviewed(c), nil
}

// DeleteDeploymentShape removes the shape and its versions. Deployments that
// were made with it keep their settings.
type DeleteDeploymentShape struct{}

func (DeleteDeploymentShape) Decide(s DeploymentShape, now time.Time) (Event[DeploymentShape], error) {
	if !s.Exists() {
		return nil, gone("deployment shape")
	}
	return DeploymentShapeDeleted{}, s.mayDelete(now)
}
