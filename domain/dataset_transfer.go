package domain

import "time"

// A Transfer is an import of a dataset's rows from an object store, or an export to one. A control
// plane runs the transfer once the event that requests it is recorded.
//
//	UPLOADING --RequestImport--> import RUNNING --CompleteImport--> UPLOADING, the rows are validated
//	                                            --FailImport-->     UPLOADING, with the reason in its status
//	READY     --RequestExport--> export RUNNING --CompleteExport--> export COMPLETED
//	                                            --FailExport-->     export FAILED, with the reason
type Transfer struct {
	TransferSpec
	Number int    `json:"number"` // number of the import or export of this dataset, from 1
	State  string `json:"state"`
	Status Status `json:"status"`
}

// TransferSpec names the address in an object store to import from or export to, and the secret
// with the credentials for it.
type TransferSpec struct {
	ExternalURL       string `json:"externalUrl"`
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// States of a transfer.
const (
	TransferRunning   = "RUNNING"
	TransferCompleted = "COMPLETED"
	TransferFailed    = "FAILED"
)

const maxExternalURL = 2048 // maximum characters of an externalUrl

// Running reports whether a transfer has been requested and has not ended. t may be nil.
func (t *Transfer) Running() bool { return t != nil && t.State == TransferRunning }

// number returns the number of the transfer; 0 for nil.
func (t *Transfer) number() int {
	if t == nil {
		return 0
	}
	return t.Number
}

// isEnded reports whether t is the transfer with this number, and has ended in this state.
func (t *Transfer) isEnded(number int, state string) bool {
	return t != nil && t.Number == number && t.State == state
}

// ended returns a copy of the transfer with another state and status.
func (t *Transfer) ended(state string, status Status) *Transfer {
	after := *t
	after.State, after.Status = state, status
	return &after
}

func begun(number int, s TransferSpec) *Transfer {
	return &Transfer{TransferSpec: s, Number: number, State: TransferRunning, Status: StatusOf(nil)}
}

type DatasetImportRequested struct {
	Import int `json:"import"`
	TransferSpec
}

func (e DatasetImportRequested) Evolve(d *Dataset) { d.beginImport(e.Import, e.TransferSpec) }

func (d *Dataset) beginImport(number int, s TransferSpec) {
	d.Import, d.ExternalURL, d.CredentialsSecret = begun(number, s), s.ExternalURL, s.CredentialsSecret
	d.Status, d.Violations = Status{OK.String(), "the rows are being imported from " + s.ExternalURL}, nil
}

type DatasetImportFailed struct {
	Import int    `json:"import"`
	Status Status `json:"status"`
}

func (e DatasetImportFailed) Evolve(d *Dataset) {
	d.Import, d.Status = d.Import.ended(TransferFailed, e.Status), e.Status
}

type DatasetExportRequested struct {
	Export int `json:"export"`
	TransferSpec
}

func (e DatasetExportRequested) Evolve(d *Dataset) { d.Export = begun(e.Export, e.TransferSpec) }

type DatasetExported struct {
	Export int `json:"export"`
}

func (DatasetExported) Evolve(d *Dataset) {
	d.Export = d.Export.ended(TransferCompleted, StatusOf(nil))
}

type DatasetExportFailed struct {
	Export int    `json:"export"`
	Status Status `json:"status"`
}

func (e DatasetExportFailed) Evolve(d *Dataset) { d.Export = d.Export.ended(TransferFailed, e.Status) }

// check adds the violations of a transfer to v, and returns its parsed ExternalURL. An export
// requires credentials.
func (s TransferSpec) check(v *Violations, export bool) ObjectURL {
	at, ok := ParseObjectURL(s.ExternalURL)
	v.Require(ok, "externalUrl", "%s", ObjectURLRule)
	s.checkSecret(v)
	v.Require(!export || s.CredentialsSecret != "", "credentialsSecret",
		"is required: name a secret with the credentials of the object store")
	return at
}

func (s TransferSpec) checkSecret(v *Violations) {
	if s.CredentialsSecret == "" {
		return
	}
	_, ok := ParseName(s.CredentialsSecret, Secrets.Collection)
	v.Require(ok, "credentialsSecret", "must be the resource name of a secret, like accounts/ACCOUNT/secrets/ID")
}

// RequestImport starts an import of the rows of a dataset that is not READY.
type RequestImport struct{ TransferSpec }

func (c RequestImport) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case !d.Exists():
		return nil, notFound("dataset")
	case d.State == DatasetReady:
		return nil, precondition("DATASET_READY",
			"the dataset is READY and its content cannot change: create another dataset")
	case d.From != nil:
		return nil, errDerived(d)
	case d.Import.Running() && d.Import.TransferSpec == c.TransferSpec:
		return nil, nil
	case d.Import.Running():
		return nil, precondition("IMPORT_RUNNING", "the rows are being imported from %s: wait until the import ends, or "+
			"delete the dataset", d.Import.ExternalURL)
	case d.Upload > d.Validated:
		return nil, precondition("UPLOAD_PENDING", "an upload is being validated: wait until it is validated")
	}
	var v Violations
	c.check(&v, false)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DatasetImportRequested{d.Import.number() + 1, c.TransferSpec}, nil
}

// CompleteImport records that the imported files are stored and wait for validation.
type CompleteImport struct {
	Import int
	Files  Files
}

func (c CompleteImport) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.Exists() && d.Import.number() == c.Import && d.Files.Prefix == c.Files.Prefix {
		return nil, nil
	}
	if err := mustRun("import", d, d.Import, c.Import); err != nil {
		return nil, err
	}
	return DatasetUploaded{Upload: d.Upload + 1, Files: c.Files}, nil
}

// FailImport records that an import failed, and why.
type FailImport struct {
	Import int
	Status Status
}

func (c FailImport) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.Exists() && d.Import.isEnded(c.Import, TransferFailed) {
		return nil, nil
	}
	if err := mustRun("import", d, d.Import, c.Import); err != nil {
		return nil, err
	}
	return DatasetImportFailed(c), nil
}

// RequestExport starts an export of the rows of a READY dataset.
type RequestExport struct{ TransferSpec }

func (c RequestExport) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	switch {
	case !d.Exists():
		return nil, notFound("dataset")
	case d.State != DatasetReady:
		return nil, precondition("DATASET_NOT_READY", "the dataset is %s: upload its rows, or wait until it is READY",
			d.State)
	case d.Export.Running() && d.Export.TransferSpec == c.TransferSpec:
		return nil, nil
	case d.Export.Running():
		return nil, precondition("EXPORT_RUNNING", "the rows are being exported to %s: wait until the export ends",
			d.Export.ExternalURL)
	}
	var v Violations
	if at := c.check(&v, true); len(v) == 0 {
		v.Require(at.Directory() || len(d.Files.Sizes) == 1, "externalUrl",
			"must end in a slash, because the dataset has %d files", len(d.Files.Sizes))
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	return DatasetExportRequested{d.Export.number() + 1, c.TransferSpec}, nil
}

// CompleteExport records that all files of the dataset are exported.
type CompleteExport struct{ Export int }

func (c CompleteExport) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.Exists() && d.Export.isEnded(c.Export, TransferCompleted) {
		return nil, nil
	}
	if err := mustRun("export", d, d.Export, c.Export); err != nil {
		return nil, err
	}
	return DatasetExported(c), nil
}

// FailExport records that an export failed, and why.
type FailExport struct {
	Export int
	Status Status
}

func (c FailExport) Decide(d Dataset, _ time.Time) (Event[Dataset], error) {
	if d.Exists() && d.Export.isEnded(c.Export, TransferFailed) {
		return nil, nil
	}
	if err := mustRun("export", d, d.Export, c.Export); err != nil {
		return nil, err
	}
	return DatasetExportFailed(c), nil
}

// mustRun returns an error unless t, the newest import or export of d, is the transfer with this
// number and is running. noun is "import" or "export".
func mustRun(noun string, d Dataset, t *Transfer, number int) error {
	switch {
	case !d.Exists():
		return notFound("dataset")
	case !t.Running() || t.Number != number:
		return precondition("TRANSFER_ENDED", "%s %d is not running: it has ended, or a newer %s has replaced it", noun,
			number, noun)
	}
	return nil
}
