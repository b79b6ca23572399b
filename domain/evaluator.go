package domain

import (
	"maps"
	"slices"
	"time"
)

// An evaluator is code that scores answers. Each build is a revision of it; a
// job keeps to the revision that it begins with.
//
//	(none)   --CreateEvaluator--> BUILDING, revision 1
//	any      --UpdateEvaluator--> the same, or BUILDING the next revision when its code changes or will be uploaded
//	BUILDING --UploadEvaluator--> BUILDING, with the code that was uploaded
//	BUILDING --AcceptBuild-->     ACTIVE
//	BUILDING --RejectBuild-->     BUILD_FAILED
//	any      --DeleteEvaluator--> (none)
var Evaluators = usable(NewKind("evaluators", map[string]Event[Evaluator]{
	"evaluator.created.v1":     EvaluatorCreated{},
	"evaluator.updated.v1":     EvaluatorUpdated{},
	"evaluator.uploaded.v1":    EvaluatorUploaded{},
	"evaluator.built.v1":       EvaluatorBuilt{},
	"evaluator.buildFailed.v1": EvaluatorBuildFailed{},
	"evaluator.deleted.v1":     EvaluatorDeleted{},
}), "evaluator.", func(x *Evaluator) *Deletion { return &x.Deletion })

// Evaluator states.
const (
	EvaluatorBuilding = "BUILDING"
	EvaluatorActive   = "ACTIVE"
	EvaluatorFailed   = "BUILD_FAILED"
)

// Evaluator is the state of one evaluator.
type Evaluator struct {
	EvaluatorSpec
	Deletion
	State     string  `json:"state"`
	Status    Status  `json:"status"`
	CreatedBy string  `json:"createdBy"`
	Revision  int     `json:"revision"`           // number of the newest build, from 1
	Active    int     `json:"active"`             // the newest revision that was built, 0 before the first
	Files     Files   `json:"files"`              // uploaded code of the newest revision
	Uploads   int     `json:"uploads,omitempty"`  // how often code was uploaded, over all revisions
	BuildLog  string  `json:"buildLog,omitempty"` // key in the blob bucket of the newest build's log
	Built     []Build `json:"built,omitempty"`    // what was built, oldest first; at most MaxBuilds
}

// MaxBuilds is how many built revisions an evaluator remembers; a job that
// began with an older one is to be created again.
const MaxBuilds = 16

// A Build is the code of a revision that was built. It never changes.
type Build struct {
	Revision int           `json:"revision"`
	Code     EvaluatorCode `json:"code"`
	Files    Files         `json:"files"` // as they run
	Entry
}

// BuildOf is a revision that was built; false when it was not, or is no longer
// remembered.
func (e Evaluator) BuildOf(revision int) (Build, bool) {
	at := slices.IndexFunc(e.Built, func(b Build) bool { return b.Revision == revision })
	if at < 0 {
		return Build{}, false
	}
	return e.Built[at], true
}

// Exists implements State.
func (e Evaluator) Exists() bool { return e.State != "" }

// Stage implements Staged.
func (e Evaluator) Stage() string { return e.State }

// build begins the next revision.
func (e *Evaluator) build() {
	e.State, e.Revision, e.BuildLog = EvaluatorBuilding, e.Revision+1, ""
	e.Status = Status{OK.String(), "is being built"}
	if len(e.Files.Sizes) == 0 && len(e.Criteria) == 0 {
		e.Status.Message = "waits for its code: upload it to the URLs of :getUploadEndpoint, then :validateUpload"
	}
}

type EvaluatorCreated struct {
	EvaluatorSpec
	CreatedBy string `json:"createdBy"`
}

func (e EvaluatorCreated) Evolve(v *Evaluator) {
	*v = Evaluator{EvaluatorSpec: e.EvaluatorSpec, CreatedBy: e.CreatedBy}
	v.build()
}

type EvaluatorUpdated struct {
	EvaluatorSpec
	Rebuild  bool `json:"rebuild"`            // it is another revision
	Upload   bool `json:"upload"`             // whose code will be uploaded
	Revision int  `json:"revision,omitempty"` // that is built next
}

func (e EvaluatorUpdated) Evolve(v *Evaluator) {
	v.EvaluatorSpec = e.EvaluatorSpec
	if e.Upload {
		v.Files = Files{}
	}
	if e.Rebuild {
		v.build()
	}
	if e.Upload {
		v.Status.Message = "waits for its code: upload it to the URLs of :getUploadEndpoint, then :validateUpload"
	}
}

type EvaluatorUploaded struct {
	Revision int   `json:"revision"`
	Files    Files `json:"files"`
}

func (e EvaluatorUploaded) Evolve(v *Evaluator) {
	v.Files, v.Uploads, v.Status = e.Files, v.Uploads+1, Status{OK.String(), "its code is uploaded and is being built"}
}

type EvaluatorBuilt struct {
	Revision int    `json:"revision"`
	BuildLog string `json:"buildLog,omitempty"`
	Files    Files  `json:"files,omitzero"` // as they run
	Entry
}

func (e EvaluatorBuilt) Evolve(v *Evaluator) {
	v.State, v.Status, v.Active, v.BuildLog = EvaluatorActive, StatusOf(nil), e.Revision, e.BuildLog
	files := e.Files
	if len(files.Sizes) == 0 { // as earlier versions recorded it: the files that were uploaded
		files = v.Files
	}
	v.Built = append(slices.Clone(v.Built), Build{e.Revision, v.EvaluatorCode, files, e.Entry})
	v.Built = v.Built[max(len(v.Built)-MaxBuilds, 0):]
}

type EvaluatorBuildFailed struct {
	Revision int    `json:"revision"`
	Status   Status `json:"status"`
	BuildLog string `json:"buildLog,omitempty"`
}

func (e EvaluatorBuildFailed) Evolve(v *Evaluator) {
	v.State, v.Status, v.BuildLog = EvaluatorFailed, e.Status, e.BuildLog
}

type EvaluatorDeleted struct{}

func (EvaluatorDeleted) Evolve(v *Evaluator) { *v = Evaluator{} }

// CreateEvaluator announces an evaluator; its code is in its criteria, or will
// be uploaded.
type CreateEvaluator struct {
	EvaluatorSpec
	CreatedBy string
}

func (c CreateEvaluator) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	if e.Exists() {
		return nil, exists("an evaluator")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return EvaluatorCreated(c), nil
}

// UpdateEvaluator replaces what the caller sets. Upload asks for a revision
// whose code will be uploaded.
type UpdateEvaluator struct {
	EvaluatorSpec
	Upload bool
}

func (c UpdateEvaluator) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	if !e.Exists() {
		return nil, gone("evaluator")
	}
	prepared := e.State == EvaluatorBuilding && len(e.Files.Sizes) == 0
	same := sameJSON(c.EvaluatorSpec, e.EvaluatorSpec)
	if same && (!c.Upload || prepared) {
		return nil, nil
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rebuild := !sameJSON(c.EvaluatorCode, e.EvaluatorCode) || c.Upload && !prepared
	updated := EvaluatorUpdated{EvaluatorSpec: c.EvaluatorSpec, Rebuild: rebuild, Upload: c.Upload, Revision: e.Revision}
	if rebuild {
		updated.Revision++
	}
	return updated, nil
}

// UploadEvaluator records the code of the revision that is being built.
type UploadEvaluator struct {
	Revision int
	Files    Files
}

func (c UploadEvaluator) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	switch {
	case !e.Exists():
		return nil, gone("evaluator")
	case e.Revision == c.Revision && e.Files.Folder == c.Files.Folder && maps.Equal(e.Files.Sizes, c.Files.Sizes) && len(c.Files.Sizes) > 0:
		return nil, nil
	case e.State != EvaluatorBuilding || e.Revision != c.Revision:
		return nil, precondition("UPLOAD_NOT_PREPARED", "the evaluator is %s at revision %d: PATCH it with prepare_code_upload true, then upload", e.State, e.Revision)
	case len(c.Files.Sizes) == 0:
		return nil, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload one, then validate")
	}
	return EvaluatorUploaded(c), nil
}

// AcceptBuild records that a revision was built.
type AcceptBuild struct {
	Revision int
	BuildLog string
	Files    Files
	Entry
}

func (c AcceptBuild) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	if recorded, err := e.built(c.Revision, EvaluatorActive); recorded || err != nil {
		return nil, err
	}
	return EvaluatorBuilt(c), nil
}

// RejectBuild records why a revision could not be built.
type RejectBuild struct {
	Revision int
	Status   Status
	BuildLog string
}

func (c RejectBuild) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	if recorded, err := e.built(c.Revision, EvaluatorFailed); recorded || err != nil {
		return nil, err
	}
	return EvaluatorBuildFailed(c), nil
}

// built reports whether the validation result that leads to a state is already recorded,
// and refuses one on a revision that is not being built.
func (e Evaluator) built(revision int, verdict string) (bool, error) {
	switch {
	case !e.Exists():
		return false, gone("evaluator")
	case revision != e.Revision:
		return false, precondition("BUILD_SUPERSEDED", "revision %d was replaced by revision %d", revision, e.Revision)
	case e.State == verdict:
		return true, nil
	case e.State != EvaluatorBuilding:
		return false, precondition("BUILD_JUDGED", "another verdict on revision %d is already recorded: the evaluator is %s", revision, e.State)
	}
	return false, nil
}

// DeleteEvaluator removes the evaluator. The caller makes sure that no job needs it.
type DeleteEvaluator struct{}

func (DeleteEvaluator) Decide(e Evaluator, now time.Time) (Event[Evaluator], error) {
	if !e.Exists() {
		return nil, gone("evaluator")
	}
	return EvaluatorDeleted{}, e.mayDelete(now)
}

// EvaluatorSpec is what the caller sets.
type EvaluatorSpec struct {
	DisplayName    string   `json:"displayName"`
	Description    string   `json:"description"`
	DefaultDataset string   `json:"defaultDataset,omitempty"`
	Secrets        []string `json:"secrets,omitempty"` // that the code is given as environment variables, by their keyNames
	EvaluatorCode
}

// EvaluatorCode is what a build is made of, beside uploaded files.
type EvaluatorCode struct {
	Criteria     []Criterion      `json:"criteria,omitempty"`
	Requirements string           `json:"requirements,omitempty"` // what the code needs installed
	EntryPoint   string           `json:"entryPoint,omitempty"`
	CommitHash   string           `json:"commitHash,omitempty"`
	Source       *EvaluatorSource `json:"source,omitempty"`
}

// A Criterion is one thing that is scored.
type Criterion struct {
	Type         string        `json:"type,omitempty"`
	Name         string        `json:"name,omitempty"`
	Description  string        `json:"description,omitempty"`
	CodeSnippets *CodeSnippets `json:"codeSnippets,omitempty"`
}

// CodeSnippets are files of code, and where in them scoring begins.
type CodeSnippets struct {
	Language     string            `json:"language,omitempty"`
	FileContents map[string]string `json:"fileContents,omitempty"` // by file name
	EntryFile    string            `json:"entryFile,omitempty"`
	EntryFunc    string            `json:"entryFunc,omitempty"`
}

// EvaluatorSource says where the code came from.
type EvaluatorSource struct {
	Type                   string `json:"type,omitempty"`
	CodeHostRepositoryName string `json:"codeHostRepositoryName,omitempty"`
}

// Limits of an evaluator's inline code; what is larger is uploaded.
const (
	MaxCriteria    = 100
	MaxInlineFiles = 100
	MaxCodeSecrets = 8
	MaxInlineCode  = 256 << 10 // bytes, of all snippets and requirements together
)

func (s EvaluatorSpec) check() error {
	var v Violations
	checkText(&v, s.DisplayName, s.Description)
	reference(&v, "defaultDataset", s.DefaultDataset, "datasets")
	v.Require(len(s.Secrets) <= MaxCodeSecrets, "secrets", "must have at most %d entries", MaxCodeSecrets)
	for i, name := range s.Secrets {
		v.Require(name != "", indexed("secrets", i), "must not be empty")
		reference(&v, indexed("secrets", i), name, Secrets.Collection)
		v.Require(!slices.Contains(s.Secrets[:i], name), indexed("secrets", i), "is there twice")
	}
	short := func(field, text string) {
		v.Require(len(text) <= 1024, field, "must have at most 1024 bytes")
	}
	short("entryPoint", s.EntryPoint)
	short("commitHash", s.CommitHash)
	if s.Source != nil {
		oneOf(&v, "source.type", s.Source.Type, "TYPE_UNSPECIFIED", "TYPE_UPLOAD", "TYPE_CODE_HOST", "TYPE_TEMPORARY")
		v.Require(s.Source.Type != "TYPE_CODE_HOST" || s.Source.CodeHostRepositoryName != "", "source.codeHostRepositoryName", "is required with TYPE_CODE_HOST")
		short("source.codeHostRepositoryName", s.Source.CodeHostRepositoryName)
	}
	v.Require(len(s.Criteria) <= MaxCriteria, "criteria", "must have at most %d entries", MaxCriteria)
	code, files := len(s.Requirements), 0
	for i, one := range s.Criteria {
		bytes, n := one.check(&v, indexed("criteria", i))
		code, files = code+bytes, files+n
	}
	v.Require(code <= MaxInlineCode && files <= MaxInlineFiles, "criteria",
		"code and requirements must have at most %d bytes in %d files together: upload larger code", MaxInlineCode, MaxInlineFiles)
	return v.Err()
}

// check answers the size of the criterion's code, in bytes and in files.
func (c Criterion) check(v *Violations, at string) (code, files int) {
	oneOf(v, at+".type", c.Type, "TYPE_UNSPECIFIED", "CODE_SNIPPETS")
	v.Require(len(c.Name) <= 256, at+".name", "must have at most 256 bytes")
	v.Require(len(c.Description) <= 4096, at+".description", "must have at most 4096 bytes")
	s := c.CodeSnippets
	v.Require(c.Type != "CODE_SNIPPETS" || s != nil && len(s.FileContents) > 0, at+".codeSnippets", "is required with CODE_SNIPPETS and must hold a file")
	if s == nil {
		return 0, 0
	}
	for _, name := range slices.Sorted(maps.Keys(s.FileContents)) {
		v.Require(CheckCodePath(name), at+".codeSnippets.fileContents", "%.64q %s", name, CodePathRule)
		code += len(name) + len(s.FileContents[name])
	}
	_, given := s.FileContents[s.EntryFile]
	v.Require(s.EntryFile == "" || given, at+".codeSnippets.entryFile", "must be one of the files in fileContents")
	v.Require(len(s.Language) <= 64, at+".codeSnippets.language", "must have at most 64 bytes")
	v.Require(len(s.EntryFunc) <= 256, at+".codeSnippets.entryFunc", "must have at most 256 bytes")
	return code, len(s.FileContents)
}
