package domain

import "time"

// A dataset is a set of rows for training or evaluation. Its content cannot change once it is
// READY.
//
//	(none)    --CreateDataset-->  UPLOADING
//	UPLOADING --UploadDataset-->  UPLOADING, its files wait for validation
//	UPLOADING --AcceptDataset-->  READY
//	UPLOADING --RejectDataset-->  UPLOADING, with the reason in its status: upload again
//	UPLOADING, derived --FillDataset--> READY
//	UPLOADING, derived --FailFill-->    UPLOADING, with the reason in its status: create another
//	(none)    --CreateDataset with externalUrl--> UPLOADING, the rows are imported: see Transfer
//	any       --UpdateDataset-->  state unchanged
//	any       --DeleteDataset-->  (none)
var Datasets = referenceable(NewKind("datasets", map[string]Event[Dataset]{
	"dataset.created.v1":  DatasetCreated{},
	"dataset.uploaded.v1": DatasetUploaded{},
	"dataset.accepted.v1": DatasetAccepted{},
	"dataset.rejected.v1": DatasetRejected{},
	"dataset.filled.v1":   DatasetFilled{},
	"dataset.unfilled.v1": DatasetUnfilled{},
	"dataset.updated.v1":  DatasetUpdated{},
	"dataset.deleted.v1":  DatasetDeleted{},

	"dataset.importRequested.v1": DatasetImportRequested{},
	"dataset.importFailed.v1":    DatasetImportFailed{},
	"dataset.exportRequested.v1": DatasetExportRequested{},
	"dataset.exported.v1":        DatasetExported{},
	"dataset.exportFailed.v1":    DatasetExportFailed{},
}), "dataset.", func(x *Dataset) *Deletion { return &x.Deletion })

// Dataset states and formats.
const (
	DatasetUploading = "UPLOADING"
	DatasetReady     = "READY"

	FormatChat       = "CHAT"
	FormatCompletion = "COMPLETION"
	FormatRL         = "RL"
)

// Shapes of rows. FormatOf returns the dataset format that each shape belongs to.
const (
	ShapeChat       = "chat"
	ShapePreference = "preference"
	ShapeCompletion = "completion"
	ShapePrompt     = "prompt"  // for reinforcement: messages and arbitrary fields, such as ground_truth
	ShapeSamples    = "samples" // samples for the steps of a trainer job
)

// DatasetSpec holds the fields of a dataset that the caller sets.
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
	// CredentialsSecret names the secret with the credentials for ExternalURL.
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// transfer returns the object store, with its credentials, that the spec names.
func (s DatasetSpec) transfer() TransferSpec { return TransferSpec{s.ExternalURL, s.CredentialsSecret} }

// DatasetEvaluationResult marks a dataset with the results of an evaluation job, which wrote it.
type DatasetEvaluationResult struct {
	EvaluationJobID string `json:"evaluationJobId"`
}

// DatasetTransformed marks a dataset that has those rows of another dataset that match a filter.
type DatasetTransformed struct {
	SourceDatasetID string `json:"sourceDatasetId"`
	Filter          string `json:"filter"`
	OriginalFormat  string `json:"originalFormat,omitempty"`
}

// DatasetSplitted marks a dataset that has one part of the rows of another dataset, its source. In
// a dataset with uploaded rows, or without a fraction (as earlier versions stored it),
// sourceDatasetId only records where the rows come from.
type DatasetSplitted struct {
	SourceDatasetID string  `json:"sourceDatasetId"`
	Fraction        float64 `json:"fraction,omitempty"` // fraction of the rows that are held out, below 1
	Seed            int     `json:"seed,omitempty"`     // seed that selects the rows that are held out
	Rest            bool    `json:"rest,omitempty"`     // the dataset has the rows that are not held out
}

// DatasetStats are statistics of the rows, computed when they are validated.
type DatasetStats struct {
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
	State     string `json:"state"`
	Status    Status `json:"status"`
	CreatedBy string `json:"createdBy"`
	Upload    int    `json:"upload"`    // number of the newest upload, 0 before the first
	Validated int    `json:"validated"` // number of the newest upload with a validation result
	// violations found in the newest upload; empty unless it was rejected
	Violations []Violation `json:"violations,omitempty"`
	Files      Files       `json:"files"`
	// how the rows are derived from another dataset; nil when they are uploaded or imported
	From                *Derivation `json:"from,omitempty"`
	Import              *Transfer   `json:"import,omitempty"` // the newest import; nil without one
	Export              *Transfer   `json:"export,omitempty"` // the newest export; nil without one
	Shape               string      `json:"shape"`
	EstimatedTokenCount Count       `json:"estimatedTokenCount"`
	AverageTurnCount    int         `json:"averageTurnCount"`
}

// Exists implements State.
func (d Dataset) Exists() bool { return d.State != "" }

// StateName implements StateNamer.
func (d Dataset) StateName() string { return d.State }

type DatasetCreated struct {
	DatasetSpec
	CreatedBy string      `json:"createdBy"`
	From      *Derivation `json:"from,omitempty"`
	// Import requests an import of the rows from the externalUrl. It is false in events of server
	// versions that could not import, even if the dataset has an externalUrl.
	Import bool `json:"import,omitempty"`
}

func (e DatasetCreated) Evolve(d *Dataset) {
	*d = Dataset{DatasetSpec: e.DatasetSpec, CreatedBy: e.CreatedBy, From: e.From, State: DatasetUploading,
		Status: StatusOf(nil)}
	if e.From != nil {
		d.Status.Message = "the rows are being derived from " + string(e.From.Source)
	}
	if e.Import {
		d.beginImport(1, e.transfer())
	}
}

type DatasetUploaded struct {
	Upload int   `json:"upload"`
	Files  Files `json:"files"`
}

func (e DatasetUploaded) Evolve(d *Dataset) {
	d.Upload, d.Files, d.Status, d.Violations = e.Upload, e.Files, Status{OK.String(), "the upload is being validated"},
		nil
	if d.Import.Running() { // an upload by a client replaces a running import
		d.Import = d.Import.ended(TransferCompleted, StatusOf(nil))
	}
}

type DatasetAccepted struct {
	Upload int `json:"upload"`
	DatasetStats
}

func (e DatasetAccepted) Evolve(d *Dataset) {
	d.State, d.Status, d.Validated = DatasetReady, StatusOf(nil), e.Upload
	d.setStats(e.DatasetStats)
}

func (d *Dataset) setStats(f DatasetStats) {
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

// CreateDataset creates a dataset whose rows will be uploaded, derived from another dataset, or,
// with an ExternalURL, imported.
type CreateDataset struct {
	DatasetSpec
	CreatedBy string
	From      *Derivation
}

func (c CreateDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.Exists() {
		return nil, alreadyExists("a dataset")
	}
	v := c.check()
	c.From.check(&v, c.DatasetSpec)
	imports := c.From == nil && c.ExternalURL != ""
	if _, ok := ParseObjectURL(c.ExternalURL); imports {
		v.Require(ok, "externalUrl", "%s", ObjectURLRule)
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DatasetCreated{c.DatasetSpec, c.CreatedBy, c.From, imports}, nil
}

// UploadDataset records that the files of an upload are stored and wait for validation. Upload is
// the number of the newest upload plus one.
type UploadDataset struct {
	Upload int
	Files  Files
}

func (c UploadDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case !d.Exists():
		return nil, notFound("dataset")
	case c.Upload == d.Upload && c.Files.Prefix == d.Files.Prefix:
		return nil, nil
	case d.State == DatasetReady:
		return nil, precondition("DATASET_READY",
			"the dataset is READY and its content cannot change: create another dataset")
	case d.From != nil:
		return nil, errDerived(d)
	case c.Upload != d.Upload+1:
		return nil, precondition("UPLOAD_SUPERSEDED",
			"upload %d was recorded before this upload: upload the files again", d.Upload)
	case len(c.Files.Sizes) == 0:
		return nil, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload a file, then validate the upload")
	}
	return DatasetUploaded(c), nil
}

// AcceptDataset records that every row of an upload is valid.
type AcceptDataset struct {
	Upload int
	DatasetStats
}

func (c AcceptDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if recorded, err := d.resultRecorded(c.Upload, DatasetReady); recorded || err != nil {
		return nil, err
	}
	return DatasetAccepted(c), nil
}

// RejectDataset records that an upload is invalid, and why.
type RejectDataset struct {
	Upload     int
	Status     Status
	Violations []Violation // violations by file and line; at most 100
}

func (c RejectDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if recorded, err := d.resultRecorded(c.Upload, DatasetUploading); recorded || err != nil {
		return nil, err
	}
	return DatasetRejected(c), nil
}

// resultRecorded reports whether the upload's validation result is already recorded, and is the
// given state. It returns an error when the dataset does not exist, the opposite result is
// recorded, or a newer upload has replaced this one.
func (d Dataset) resultRecorded(upload int, state string) (bool, error) {
	if !d.Exists() {
		return false, notFound("dataset")
	}
	return uploads{"dataset", d.State == DatasetReady, d.Upload, d.Validated}.resultRecorded(upload, state == DatasetReady)
}

// UpdateDataset replaces the dataset's DatasetSpec.
type UpdateDataset struct{ DatasetSpec }

func (c UpdateDataset) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case !d.Exists():
		return nil, notFound("dataset")
	case sameJSON(d.DatasetSpec, c.DatasetSpec):
		return nil, nil
	}
	if err := c.check().Err(); err != nil {
		return nil, err
	}
	if d.From != nil && !sameJSON(d.immutableOrigin(), c.immutableOrigin()) {
		return nil, errDerived(d)
	}
	if d.State == DatasetReady && (c.Format != d.Format || c.ExampleCount != d.ExampleCount) {
		return nil, precondition("DATASET_READY",
			"format and exampleCount of a READY dataset are computed from its rows and cannot change")
	}
	return DatasetUpdated(c), nil
}

// DeleteDataset deletes a dataset.
type DeleteDataset struct{}

func (DeleteDataset) Decide(d Dataset, now time.Time) (Event[Dataset], error) {
	if !d.Exists() {
		return nil, notFound("dataset")
	}
	return DatasetDeleted{}, d.mayDelete(now)
}

// errDerived returns the error for a change to the rows or the origin of d, which is a derived
// dataset.
func errDerived(d Dataset) error {
	return precondition("DATASET_DERIVED",
		"the dataset is derived from %s, so its rows and origin cannot be set: create another dataset", d.From.Source)
}

func (s DatasetSpec) check() Violations {
	var v Violations
	checkText(&v, s.DisplayName, "")
	oneOf(&v, "format", s.Format, "FORMAT_UNSPECIFIED", FormatChat, FormatCompletion, FormatRL)
	v.Require(s.ExampleCount >= 0, "exampleCount", "must not be negative")
	v.Require(len(s.ExternalURL) <= maxExternalURL, "externalUrl", "must have at most %d characters", maxExternalURL)
	s.transfer().checkSecret(&v)
	s.checkOrigin(&v)
	return v
}
