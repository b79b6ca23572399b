package domain

import "time"

// A batch file holds the requests of batches, or the results of one. Its content never changes.
// Files of training rows are datasets instead.
//
//	(none) --CreateBatchFile--> stored --DeleteBatchFile--> (none)
var BatchFiles = referenceable(NewKind("batchFiles", map[string]Event[BatchFile]{
	"batchFile.created.v1": BatchFileCreated{},
	"batchFile.deleted.v1": BatchFileDeleted{},
}), "batchFile.", func(x *BatchFile) *Deletion { return &x.Deletion })

// Purposes of batch files.
const (
	PurposeBatch       = "batch"        // the file has the requests of batches
	PurposeBatchOutput = "batch_output" // the file has the results of one batch
)

// BatchFileSpec holds the metadata of a batch file.
type BatchFileSpec struct {
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Files     Files  `json:"files"` // the content: exactly one file
	Batch     Name   `json:"batch,omitempty"`
	CreatedBy string `json:"createdBy"`
}

// BatchFile is the state of one batch file.
type BatchFile struct {
	BatchFileSpec
	Deletion
}

// Exists implements State.
func (f BatchFile) Exists() bool { return f.Purpose != "" }

type BatchFileCreated struct{ BatchFileSpec }

func (e BatchFileCreated) Evolve(f *BatchFile) { *f = BatchFile{BatchFileSpec: e.BatchFileSpec} }

type BatchFileDeleted struct{}

func (BatchFileDeleted) Evolve(f *BatchFile) { *f = BatchFile{} }

// CreateBatchFile creates a batch file whose content is stored already.
type CreateBatchFile struct{ BatchFileSpec }

func (c CreateBatchFile) Decide(f BatchFile, _ time.Time) (Event[BatchFile], error) {
	switch {
	case f.Exists() && f.Files.Prefix == c.Files.Prefix:
		return nil, nil
	case f.Exists():
		return nil, alreadyExists("a file")
	}
	var v Violations
	oneOf(&v, "purpose", c.Purpose, PurposeBatch, PurposeBatchOutput)
	v.Require(c.Purpose != "", "purpose", "is required")
	v.Require(len(c.Files.Sizes) == 1, "file", "must hold exactly one file")
	if err := v.Err(); err != nil {
		return nil, err
	}
	return BatchFileCreated(c), nil
}

// DeleteBatchFile deletes a batch file.
type DeleteBatchFile struct{}

func (DeleteBatchFile) Decide(f BatchFile, now time.Time) (Event[BatchFile], error) {
	if !f.Exists() {
		return nil, notFound("file")
	}
	return BatchFileDeleted{}, f.mayDelete(now)
}

// Usage implements Metered.
func (f BatchFile) Usage() Usage { return Usage{StorageBytes: f.Files.Bytes()} }
