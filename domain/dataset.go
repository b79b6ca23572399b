package domain

import "time"

// A dataset is rows of training or evaluation data. Its content is fixed once
// it is READY.
//
//	(none)    --CreateDataset-->  UPLOADING
//	UPLOADING --UploadDataset-->  UPLOADING, its files wait for validation
//	UPLOADING --AcceptDataset-->  READY
//	UPLOADING --RejectDataset-->  UPLOADING, its status says why: upload again
//	UPLOADING, from another --FillDataset-->   READY
//	UPLOADING, from another --LeaveUnfilled--> UPLOADING, its status says why: create another
//	any       --UpdateDataset-->  the same
//	any       --DeleteDataset-->  (none)
var Datasets = usable(NewKind("datasets", map[string]Event[Dataset]{
	"dataset.created.v1":  DatasetCreated{},
	"dataset.uploaded.v1": DatasetUploaded{},
	"dataset.accepted.v1": DatasetAccepted{},
	"dataset.rejected.v1": DatasetRejected{},
	"dataset.filled.v1":   DatasetFilled{},
	"dataset.unfilled.v1": DatasetUnfilled{},
	"dataset.updated.v1":  DatasetUpdated{},
	"dataset.deleted.v1":  DatasetDeleted{},
}), "dataset.", func(x *Dataset) *Deletion { return &x.Deletion })

// Dataset states and formats.
const (
	DatasetUploading = "UPLOADING"
	DatasetReady     = "READY"

	FormatChat       = "CHAT"
	FormatCompletion = "COMPLETION"
	FormatRL         = "RL"
)

// Row shapes: a format has one or two of them (spec/gaps.md section 8).
const (
	ShapeChat       = "chat"
	ShapePreference = "preference"
	ShapeCompletion = "completion"
	ShapePrompt     = "prompt"
	ShapeSamples    = "samples"
)

// DatasetSpec is what the caller sets.
type DatasetSpec struct {
	DisplayName      string                   `json:"displayName"`
	ExampleCount     Count                    `json:"exampleCount"`
	Format           string                   `json:"format"`
	SourceJobName    string                   `json:"sourceJobName,omitempty"`
	ExternalURL      string                   `json:"externalUrl,omitempty"`
	UserUploaded     *struct{}                `json:"userUploaded,omitempty"`
	EvaluationResult *DatasetEvaluationResult `json:"evaluationResult,omitempty"`
	Transformed      *DatasetTransformed      `json:"transformed,omitempty"`
	Splitted         *DatasetSplitted         `json:"splitted,omitempty"`
	EvalProtocol     *struct{}                `json:"evalProtocol,omitempty"`
}

// DatasetEvaluationResult marks a dataset that an evaluation wrote.
type DatasetEvaluationResult struct {
	EvaluationJobID string `json:"evaluationJobId"`
}

// DatasetTransformed marks a dataset that was filtered from another.
type DatasetTransformed struct {
	SourceDatasetID string `json:"sourceDatasetId"`
	Filter          string `json:"filter"`
	OriginalFormat  string `json:"originalFormat,omitempty"`
}

// DatasetSplitted marks a dataset that is a part of another. Beside a
// sourceDatasetId, fraction, seed and rest ask that the part be made.
type DatasetSplitted struct {
	SourceDatasetID string  `json:"sourceDatasetId"`
	Fraction        float64 `json:"fraction,omitempty"` // of the rows, held out: above 0 and below 1
	Seed            int     `json:"seed,omitempty"`     // another seed chooses other rows
	Rest            bool    `json:"rest,omitempty"`     // the rows that are not held out
}

// DatasetFacts are what the rows themselves say.
type DatasetFacts struct {
	Format              string `json:"format"`
	Shape               string `json:"shape"`
	ExampleCount        Count  `json:"exampleCount"`
	EstimatedTokenCount Count  `json:"estimatedTokenCount"`
	AverageTurnCount    int    `json:"averageTurnCount"`
}

// Dataset is the state of one dataset.
type Dataset struct {
	DatasetSpec
	Deletion
	State               string      `json:"state"`
	Status              Status      `json:"status"`
	CreatedBy           string      `json:"createdBy"`
	Upload              int         `json:"upload"`               // number of the newest upload, 0 before the first
	Validated           int         `json:"validated"`            // the upload that was accepted or rejected last
	Violations          []Violation `json:"violations,omitempty"` // of the rejected upload
	Files               Files       `json:"files"`
	From                *Derivation `json:"from,omitempty"` // what the platform makes it of; nil when its rows are uploaded
	Shape               string      `json:"shape"`
	EstimatedTokenCount Count       `json:"estimatedTokenCount"`
	AverageTurnCount    int         `json:"averageTurnCount"`
}

// Exists implements State.
func (d Dataset) Exists() bool { return d.State != "" }

// Stage implements Staged.
func (d Dataset) Stage() string { return d.State }

type DatasetCreated struct {
	DatasetSpec
	CreatedBy string      `json:"createdBy"`
	From      *Derivation `json:"from,omitempty"`
}

func (e DatasetCreated) Evolve(d *Dataset) {
	*d = Dataset{DatasetSpec: e.DatasetSpec, CreatedBy: e.CreatedBy, From: e.From, State: DatasetUploading, Status: StatusOf(nil)}
	if e.From != nil {
		d.Status.Message = "its rows are being made from " + string(e.From.Source)
	}
}

type DatasetUploaded struct {
	Upload int   `json:"upload"`
	Files  Files `json:"files"`
}

func (e DatasetUploaded) Evolve(d *Dataset) {
	d.Upload, d.Files, d.Status, d.Violations = e.Upload, e.Files, Status{OK.String(), "the upload is being validated"}, nil
}

type DatasetAccepted struct {
	Upload int `json:"upload"`
	DatasetFacts
}

func (e DatasetAccepted) Evolve(d *Dataset) {
	d.State, d.Status, d.Validated = DatasetReady, StatusOf(nil), e.Upload
	d.tell(e.DatasetFacts)
}

func (d *Dataset) tell(f DatasetFacts) {
	d.Format, d.Shape, d.ExampleCount = f.Format, f.Shape, f.ExampleCount
	d.EstimatedTokenCount, d.AverageTurnCount = f.EstimatedTokenCount, f.AverageTurnCount
}

type DatasetRejected struct {
	Upload     int         `json:"upload"`
	Status     Status      `json:"status"`
	Violations []Violation `json:"violations,omitempty"`
}

func (e DatasetRejected) Evolve(d *Dataset) {
	d.Validated, d.Status, d.Violations = e.Upload, e.Status, e.Violations
}

type DatasetUpdated struct{ DatasetSpec }

func (e DatasetUpdated) Evolve(d *Dataset) { d.DatasetSpec = e.DatasetSpec }

type DatasetDeleted struct{}

func (DatasetDeleted) Evolve(d *Dataset) { *d = Dataset{} }

// CreateDataset announces rows that will be uploaded, or that the platform will
// make from another dataset's.
type CreateDataset struct {
	DatasetSpec
	CreatedBy string
	From      *Derivation
}

func (c CreateDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.Exists() {
		return nil, exists("a dataset")
	}
	v := c.check()
	c.From.check(&v, c.DatasetSpec)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DatasetCreated(c), nil
}

// UploadDataset records that files are stored and wait for validation. Upload
// is the number that follows the newest one.
type UploadDataset struct {
	Upload int
	Files  Files
}

func (c UploadDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case !d.Exists():
		return nil, gone("dataset")
	case c.Upload == d.Upload && c.Files.Folder == d.Files.Folder:
		return nil, nil
	case d.State == DatasetReady:
		return nil, precondition("DATASET_READY", "the dataset is READY and its content can no longer change: create another")
	case d.From != nil:
		return nil, derived(d)
	case c.Upload != d.Upload+1:
		return nil, precondition("UPLOAD_SUPERSEDED", "another upload came first: upload again")
	case len(c.Files.Sizes) == 0:
		return nil, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload one, then validate")
	}
	return DatasetUploaded(c), nil
}

// AcceptDataset records that every row of an upload is right.
type AcceptDataset struct {
	Upload int
	DatasetFacts
}

func (c AcceptDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if recorded, err := d.judged(c.Upload, DatasetReady); recorded || err != nil {
		return nil, err
	}
	return DatasetAccepted(c), nil
}

// RejectDataset records why an upload cannot be used.
type RejectDataset struct {
	Upload     int
	Status     Status
	Violations []Violation // by file and line; at most 100
}

func (c RejectDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if recorded, err := d.judged(c.Upload, DatasetUploading); recorded || err != nil {
		return nil, err
	}
	return DatasetRejected(c), nil
}

// judged reports whether the validation result that leads to a state is already recorded
// for the upload: see uploads.
func (d Dataset) judged(upload int, verdict string) (bool, error) {
	if !d.Exists() {
		return false, gone("dataset")
	}
	return uploads{"dataset", d.State == DatasetReady, d.Upload, d.Validated}.judged(upload, verdict == DatasetReady)
}

// UpdateDataset replaces what the caller sets.
type UpdateDataset struct{ DatasetSpec }

func (c UpdateDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case !d.Exists():
		return nil, gone("dataset")
	case sameJSON(d.DatasetSpec, c.DatasetSpec):
		return nil, nil
	}
	if err := c.check().Err(); err != nil {
		return nil, err
	}
	if d.From != nil && !sameJSON(d.lineage(), c.lineage()) {
		return nil, derived(d)
	}
	if d.State == DatasetReady && (c.Format != d.Format || c.ExampleCount != d.ExampleCount) {
		return nil, precondition("DATASET_READY", "format and exampleCount of a READY dataset are what its rows say and cannot change")
	}
	return DatasetUpdated(c), nil
}

// DeleteDataset removes the dataset.
type DeleteDataset struct{}

func (DeleteDataset) Decide(d Dataset, now time.Time) (Event[Dataset], error) {
	if !d.Exists() {
		return nil, gone("dataset")
	}
	return DatasetDeleted{}, d.mayDelete(now)
}

// derived refuses to change what a derived dataset is.
func derived(d Dataset) error {
	return precondition("DATASET_DERIVED", "the dataset is made from %s, and its rows and origin are not yours to set: create another", d.From.Source)
}

func (s DatasetSpec) check() Violations {
	var v Violations
	checkText(&v, s.DisplayName, "")
	oneOf(&v, "format", s.Format, "FORMAT_UNSPECIFIED", FormatChat, FormatCompletion, FormatRL)
	v.Require(s.ExampleCount >= 0, "exampleCount", "must not be negative")
	v.Require(len(s.ExternalURL) <= 2048, "externalUrl", "must have at most 2048 characters")
	s.checkOrigin(&v)
	return v
}
