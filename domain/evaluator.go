package domain

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// An evaluator is code that scores completions. Each build creates a revision; a job keeps the
// revision that its first attempt started with.
//
//	(none)   --CreateEvaluator--> BUILDING, revision 1
//	any      --UpdateEvaluator--> state unchanged, or BUILDING the next revision when the code
//	                              changes or will be uploaded (prepare_code_upload)
//	BUILDING --UploadEvaluator--> BUILDING, with the uploaded code
//	BUILDING --AcceptBuild-->     ACTIVE
//	BUILDING --RejectBuild-->     BUILD_FAILED
//	any      --DeleteEvaluator--> (none)
var Evaluators = referenceable(NewKind("evaluators", map[string]Event[Evaluator]{
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
	State     string `json:"state"`
	Status    Status `json:"status"`
	CreatedBy string `json:"createdBy"`
	Revision  int    `json:"revision"` // number of the newest build, from 1
	Active    int    `json:"active"`   // newest revision whose build succeeded, 0 before the first
	// uploaded files with the code of the newest revision; empty if none were uploaded
	Files    Files   `json:"files"`
	Uploads  int     `json:"uploads,omitempty"`  // number of uploads of all revisions together
	BuildLog string  `json:"buildLog,omitempty"` // blob key of the log of the newest build
	Built    []Build `json:"built,omitempty"`    // successful builds, oldest first; at most MaxBuilds
}

// MaxBuilds is how many builds an evaluator keeps. A job that started with an older revision cannot
// resume and must be created again.
const MaxBuilds = 16

// A Build is the built code of one revision. It is immutable.
type Build struct {
	Revision int           `json:"revision"`
	Code     EvaluatorCode `json:"code"`
	Files    Files         `json:"files"` // files of code that the attempts of jobs run
	Entry
}

// BuildOf returns the build of a revision; false when the revision has no successful build, or when
// the build is not stored any more (see MaxBuilds).
func (e Evaluator) BuildOf(revision int) (Build, bool) {
	at := slices.IndexFunc(e.Built, func(b Build) bool { return b.Revision == revision })
	if at < 0 {
		return Build{}, false
	}
	return e.Built[at], true
}

// Exists implements State.
func (e Evaluator) Exists() bool { return e.State != "" }

// StateName implements StateNamer.
func (e Evaluator) StateName() string { return e.State }

const awaitsCode = "waiting for its code: upload it to the URLs of :getUploadEndpoint, then call :validateUpload"

// build sets the state to BUILDING the next revision.
func (e *Evaluator) build() {
	e.State, e.Revision, e.BuildLog = EvaluatorBuilding, e.Revision+1, ""
	e.Status = Status{OK.String(), "the revision is being built"}
	if len(e.Files.Sizes) == 0 && len(e.Criteria) == 0 {
		e.Status.Message = awaitsCode
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
	Rebuild  bool `json:"rebuild"`            // the update starts the build of a new revision
	Upload   bool `json:"upload"`             // the code of the new revision will be uploaded
	Revision int  `json:"revision,omitempty"` // number of the new revision
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
		v.Status.Message = awaitsCode
	}
}

type EvaluatorUploaded struct {
	Revision int   `json:"revision"`
	Files    Files `json:"files"`
}

func (e EvaluatorUploaded) Evolve(v *Evaluator) {
	v.Files, v.Uploads, v.Status = e.Files, v.Uploads+1, Status{OK.String(), "the code is uploaded and is being built"}
}

type EvaluatorBuilt struct {
	Revision int    `json:"revision"`
	BuildLog string `json:"buildLog,omitempty"`
	Trial    string `json:"trial,omitempty"`
	Files    Files  `json:"files,omitzero"` // files of code that the attempts of jobs run
	Entry
}

func (e EvaluatorBuilt) Evolve(v *Evaluator) {
	v.State, v.Status, v.Active, v.BuildLog = EvaluatorActive, StatusOf(nil), e.Revision, e.BuildLog
	if e.Trial != "" {
		v.Status = Status{FailedPrecondition.String(), fmt.Sprintf("the trial call with an example row returned no valid "+
			"score (%s): preview the evaluator on rows of your own, and correct the code if that fails too", e.Trial)}
	}
	files := e.Files
	if len(files.Sizes) == 0 { // an event of an earlier version, whose jobs ran the uploaded files
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

// CreateEvaluator creates an evaluator. Its code is in its criteria, or will be uploaded.
type CreateEvaluator struct {
	EvaluatorSpec
	CreatedBy string
}

func (c CreateEvaluator) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	if e.Exists() {
		return nil, alreadyExists("an evaluator")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return EvaluatorCreated(c), nil
}

// UpdateEvaluator replaces the evaluator's EvaluatorSpec. If PrepareCodeUpload is true, it
// also starts a revision whose code will be uploaded, even if the spec is the same, unless the
// current revision is BUILDING and has no files yet.
type UpdateEvaluator struct {
	EvaluatorSpec
	PrepareCodeUpload bool
}

func (c UpdateEvaluator) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	if !e.Exists() {
		return nil, notFound("evaluator")
	}
	prepared := e.State == EvaluatorBuilding && len(e.Files.Sizes) == 0
	same := sameJSON(c.EvaluatorSpec, e.EvaluatorSpec)
	if same && (!c.PrepareCodeUpload || prepared) {
		return nil, nil
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	rebuild := !sameJSON(c.EvaluatorCode, e.EvaluatorCode) || c.PrepareCodeUpload && !prepared
	updated := EvaluatorUpdated{EvaluatorSpec: c.EvaluatorSpec, Rebuild: rebuild, Upload: c.PrepareCodeUpload,
		Revision: e.Revision}
	if rebuild {
		updated.Revision++
	}
	return updated, nil
}

// UploadEvaluator records the code that was uploaded for the revision that is BUILDING.
type UploadEvaluator struct {
	Revision int
	Files    Files
}

func (c UploadEvaluator) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	switch {
	case !e.Exists():
		return nil, notFound("evaluator")
	case e.Revision == c.Revision && e.Files.Prefix == c.Files.Prefix && maps.Equal(e.Files.Sizes, c.Files.Sizes) &&
		len(c.Files.Sizes) > 0:
		return nil, nil
	case e.State != EvaluatorBuilding || e.Revision != c.Revision:
		return nil, precondition("UPLOAD_NOT_PREPARED",
			"the evaluator is %s at revision %d: PATCH it with prepare_code_upload true, then upload", e.State, e.Revision)
	case len(c.Files.Sizes) == 0:
		return nil, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload a file, then validate the upload")
	}
	return EvaluatorUploaded(c), nil
}

// AcceptBuild records that a revision is built. A build calls the code once with an example row;
// Trial is why this trial call returned no valid score, or "" if it returned one.
type AcceptBuild struct {
	Revision int
	BuildLog string
	Trial    string
	Files    Files
	Entry
}

func (c AcceptBuild) Decide(e Evaluator, _ time.Time) (Event[Evaluator], error) {
	if recorded, err := e.built(c.Revision, EvaluatorActive); recorded || err != nil {
		return nil, err
	}
	return EvaluatorBuilt(c), nil
}

// RejectBuild records that the build of a revision failed, and why.
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

// built reports whether the result of the revision's build is already recorded, and is the given
// state. It returns an error when another result is recorded, or a newer revision has replaced
// this one.
func (e Evaluator) built(revision int, state string) (bool, error) {
	switch {
	case !e.Exists():
		return false, notFound("evaluator")
	case revision != e.Revision:
		return false, precondition("BUILD_SUPERSEDED", "revision %d of the evaluator was replaced by revision %d", revision,
			e.Revision)
	case e.State == state:
		return true, nil
	case e.State != EvaluatorBuilding:
		return false, precondition("BUILD_JUDGED",
			"another result of the build of revision %d is already recorded: the evaluator is %s", revision, e.State)
	}
	return false, nil
}

// DeleteEvaluator deletes the evaluator. The caller checks that no job uses it.
type DeleteEvaluator struct{}

func (DeleteEvaluator) Decide(e Evaluator, now time.Time) (Event[Evaluator], error) {
	if !e.Exists() {
		return nil, notFound("evaluator")
	}
	return EvaluatorDeleted{}, e.mayDelete(now)
}

// EvaluatorSpec holds the fields of an evaluator that the caller sets.
type EvaluatorSpec struct {
	DisplayName    string `json:"displayName"`
	Description    string `json:"description"`
	DefaultDataset string `json:"defaultDataset,omitempty"`
	// names of secrets; their values are passed to the code in environment variables, which are
	// named by the secrets' keyNames
	Secrets []string `json:"secrets,omitempty"`
	EvaluatorCode
}

// EvaluatorCode is the input of an evaluator's build, besides uploaded files.
type EvaluatorCode struct {
	Criteria     []Criterion      `json:"criteria,omitempty"`
	Requirements string           `json:"requirements,omitempty"` // packages to install, in pip's format
	EntryPoint   string           `json:"entryPoint,omitempty"`
	CommitHash   string           `json:"commitHash,omitempty"`
	Source       *EvaluatorSource `json:"source,omitempty"`
}

// A Criterion is one aspect of a completion that an evaluator scores.
type Criterion struct {
	Type         string        `json:"type,omitempty"`
	Name         string        `json:"name,omitempty"`
	Description  string        `json:"description,omitempty"`
	CodeSnippets *CodeSnippets `json:"codeSnippets,omitempty"`
}

// CodeSnippets are code files and their entry point.
type CodeSnippets struct {
	Language     string            `json:"language,omitempty"`
	FileContents map[string]string `json:"fileContents,omitempty"` // content of each code file, by file name
	EntryFile    string            `json:"entryFile,omitempty"`
	EntryFunc    string            `json:"entryFunc,omitempty"`
}

// EvaluatorSource describes where an evaluator's code came from.
type EvaluatorSource struct {
	Type                   string `json:"type,omitempty"`
	CodeHostRepositoryName string `json:"codeHostRepositoryName,omitempty"`
}

// Limits of an evaluator's inline code; larger code must be uploaded.
const (
	MaxCriteria    = 100
	MaxInlineFiles = 100
	MaxCodeSecrets = 8
	MaxInlineCode  = 256 << 10 // maximum bytes of all snippets and requirements together
)

func (s EvaluatorSpec) check() error {
	var v Violations
	checkText(&v, s.DisplayName, s.Description)
	reference(&v, "defaultDataset", s.DefaultDataset, "datasets")
	v.Require(len(s.Secrets) <= MaxCodeSecrets, "secrets", "must have at most %d entries", MaxCodeSecrets)
	for i, name := range s.Secrets {
		v.Require(name != "", indexed("secrets", i), "must not be empty")
		reference(&v, indexed("secrets", i), name, Secrets.Collection)
		v.Require(!slices.Contains(s.Secrets[:i], name), indexed("secrets", i), "duplicates the entry %.300q", name)
	}
	short := func(field, text string) {
		v.Require(len(text) <= 1024, field, "must have at most 1024 bytes")
	}
	short("entryPoint", s.EntryPoint)
	short("commitHash", s.CommitHash)
	if s.Source != nil {
		oneOf(&v, "source.type", s.Source.Type, "TYPE_UNSPECIFIED", "TYPE_UPLOAD", "TYPE_CODE_HOST", "TYPE_TEMPORARY")
		v.Require(s.Source.Type != "TYPE_CODE_HOST" || s.Source.CodeHostRepositoryName != "", "source.codeHostRepositoryName",
			"is required with TYPE_CODE_HOST")
		short("source.codeHostRepositoryName", s.Source.CodeHostRepositoryName)
	}
	v.Require(len(s.Criteria) <= MaxCriteria, "criteria", "must have at most %d entries", MaxCriteria)
	code, files := len(s.Requirements), 0
	for i, criterion := range s.Criteria {
		size, n := criterion.check(&v, indexed("criteria", i))
		code, files = code+size, files+n
	}
	v.Require(code <= MaxInlineCode && files <= MaxInlineFiles, "criteria",
		"code and requirements must have at most %d bytes in %d files together: upload larger code", MaxInlineCode,
		MaxInlineFiles)
	return v.Err()
}

// check adds the violations of the criterion to v, and returns how many bytes and files of code the
// criterion has. path is the path of the criterion in the request.
func (c Criterion) check(v *Violations, path string) (code, files int) {
	oneOf(v, path+".type", c.Type, "TYPE_UNSPECIFIED", "CODE_SNIPPETS")
	v.Require(len(c.Name) <= 256, path+".name", "must have at most 256 bytes")
	v.Require(len(c.Description) <= 4096, path+".description", "must have at most 4096 bytes")
	s := c.CodeSnippets
	v.Require(c.Type != "CODE_SNIPPETS" || s != nil && len(s.FileContents) > 0, path+".codeSnippets",
		"is required with CODE_SNIPPETS and must contain a file")
	if s == nil {
		return 0, 0
	}
	for _, name := range slices.Sorted(maps.Keys(s.FileContents)) {
		v.Require(CheckCodePath(name), path+".codeSnippets.fileContents", "%.64q %s", name, CodePathRule)
		code += len(name) + len(s.FileContents[name])
	}
	_, given := s.FileContents[s.EntryFile]
	v.Require(s.EntryFile == "" || given, path+".codeSnippets.entryFile",
		"%.256q must be one of the files in fileContents", s.EntryFile)
	v.Require(len(s.Language) <= 64, path+".codeSnippets.language", "must have at most 64 bytes")
	v.Require(len(s.EntryFunc) <= 256, path+".codeSnippets.entryFunc", "must have at most 256 bytes")
	return code, len(s.FileContents)
}
