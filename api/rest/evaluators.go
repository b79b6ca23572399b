package rest

import (
	"reflect"
	"time"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

// Evaluator is the wire type of an evaluator.
type Evaluator struct {
	Name string `json:"name" api:"output"`
	domain.EvaluatorSpec
	CreateTime *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime *time.Time    `json:"updateTime,omitempty" api:"output"`
	State      string        `json:"state" api:"output"`
	Status     domain.Status `json:"status" api:"output"`
	CreatedBy  string        `json:"createdBy,omitempty" api:"output"`
	Revision   int           `json:"revision" api:"output"` // number of the newest revision of the code, from 1

	// ActiveRevision is the number of the revision that new jobs use; 0 before the first successful
	// build.
	ActiveRevision int                 `json:"activeRevision" api:"output"`
	Revisions      []EvaluatorRevision `json:"revisions,omitempty" api:"output"`
}

// EvaluatorRevision is the wire type of a revision that was built.
type EvaluatorRevision struct {
	Revision   int    `json:"revision"`
	CommitHash string `json:"commitHash,omitempty"`
	EntryPoint string `json:"entryPoint,omitempty"`
}

var evaluators = &resource[domain.Evaluator, Evaluator]{
	kind: domain.Evaluators, noun: "evaluator", wrapper: "evaluator", idParam: "evaluatorId", reads: request.Read,
	writes: request.Write, named: true,
	fields: storedFieldsOf[domain.Evaluator, Evaluator]("name", "displayName", "description", "defaultDataset", "secrets",
		"criteria", "requirements", "entryPoint",
		"commitHash", "source", "createTime", "updateTime", "state", "revision"),
	creator:   func(e *domain.Evaluator) string { return e.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.Evaluator]) bool{},
	render: func(v *projections.View, row *projections.Row[domain.Evaluator], out *Evaluator) {
		e := &row.State
		*out = Evaluator{Name: string(row.Name), EvaluatorSpec: e.EvaluatorSpec,
			CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
			State: e.State, Status: e.Status, CreatedBy: creatorOf(v, e.CreatedBy),
			Revision: e.Revision, ActiveRevision: e.Active}
		if e.State == domain.EvaluatorBuilding && len(e.Files.Sizes)+len(e.Criteria) == 0 {
			out.Status.Message += "; " + upload.Expiry
		}
		for _, build := range e.Built {
			out.Revisions = append(out.Revisions,
				EvaluatorRevision{build.Revision, build.Code.CommitHash, build.Code.EntryPoint})
		}
	},
	updateParameters: []request.Parameter{{Name: "prepareCodeUpload", Kind: wire.Bool,
		Description: "Whether to begin a new revision of the code, whose files are then uploaded."}},
	create: func(c *call, q *creation[Evaluator]) (plan[domain.Evaluator, Evaluator], error) {
		c.requireDataset(&q.p.Violations, "evaluator.defaultDataset", q.given.DefaultDataset)
		return plan[domain.Evaluator, Evaluator]{command: domain.CreateEvaluator{EvaluatorSpec: q.given.EvaluatorSpec,
			CreatedBy: string(c.Principal.Key)}}, mayChangeCode(c, q.name, q.given.Secrets)
	},
	update: func(c *call, q *update[domain.Evaluator, Evaluator]) (plan[domain.Evaluator, Evaluator], error) {
		upload := q.p.Flag("prepareCodeUpload")
		c.requireDataset(&q.p.Violations, "defaultDataset", q.given.DefaultDataset)
		return plan[domain.Evaluator, Evaluator]{command: domain.UpdateEvaluator{EvaluatorSpec: q.merged.EvaluatorSpec,
			PrepareCodeUpload: upload}}, mayChangeCode(c, q.name, q.given.Secrets)
	},
	remove: func(c *call, row *projections.Row[domain.Evaluator], _ *request.Params) (domain.Command[domain.Evaluator],
		error) {
		return domain.DeleteEvaluator{}, nil
	},
}

var _ = register(evaluators.operations, evaluatorOperations)

// codeStaging returns the directory into which signed URLs write. Its files are copied to another
// directory before they are built, so that a signed URL cannot change code that is built.
func codeStaging(row *projections.Row[domain.Evaluator]) string {
	return blobs.StagingPrefix(row.Name, row.CreateEvent, row.State.Uploads+1)
}

func newCodeDirectory(row *projections.Row[domain.Evaluator]) string {
	return blobs.CodePrefix(row.Name, row.CreateEvent, uuid.NewString())
}

// mayChangeCode returns an error if a request changes the code of an evaluator with secrets, or
// gives secrets to an evaluator, but the principal may not manage secrets. Otherwise the principal
// could read the secrets' values with code that prints them.
func mayChangeCode(c *call, name domain.Name, secrets []string) error {
	row, ok := c.View().Evaluators.Get(name)
	if len(secrets) == 0 && (!ok || len(row.State.Secrets) == 0) {
		return nil
	}
	return c.Principal.Require(request.ManageSecrets)
}

func evaluatorOperations(s *Service) []request.Operation {
	const one = request.CollectionPath + "evaluators/{id}"
	all := []request.Operation{
		{ID: "uploadEvaluator", Method: "POST", Path: one + ":upload", Summary: "Upload the code of an evaluator",
			Permission: request.Write,
			Description: "A form may have several files, each as a field \"file\". They replace all files of the newest " +
				"revision, which is then built.",
			Form: reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[Evaluator](),
			Handle: s.handle(evaluatorFiles.post)},
		{ID: "getEvaluatorUploadEndpoint", Method: "POST", Path: one + ":getUploadEndpoint",
			Summary: "Get signed URLs for uploading the code of an evaluator", Permission: request.Write,
			Body: reflect.TypeFor[upload.AnnouncedFiles](), BodyOptional: true, Response: reflect.TypeFor[upload.SignedURLs](),
			Handle: s.handle(evaluatorFiles.endpoints)},
		{ID: "validateEvaluatorUpload", Method: "POST", Path: one + ":validateUpload",
			Summary: "Build the code of an evaluator that was uploaded to signed URLs", Permission: request.Write,
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Evaluator](),
			Handle: s.handle(evaluators.verb(evaluatorFiles.validate))},
		{ID: "getEvaluatorBuildLogEndpoint", Method: "GET", Path: one + ":getBuildLogEndpoint",
			Summary: "Get a signed URL of the build log of an evaluator", Permission: request.Read,
			Response: reflect.TypeFor[buildLogURL](), Handle: s.handle(evaluators.verb(buildLog))},
		previewOperation(s),
	}
	return withTag("evaluators", all)
}

// A buildLogURL has the signed URL of a build log.
type buildLogURL struct {
	URL string `json:"buildLogSignedUri"`
}

var evaluatorFiles = &uploadable[domain.Evaluator, Evaluator]{
	resource: evaluators, active: true, // suspended accounts may not upload, because each upload starts a build
	limit:   func(c *call, _ *projections.Row[domain.Evaluator]) upload.Limit { return rowFiles(c) },
	staging: codeStaging, directory: newCodeDirectory,
	files: func(e *domain.Evaluator) domain.Files { return e.Files },
	mayUpload: func(c *call, row *projections.Row[domain.Evaluator]) error {
		if err := mayChangeCode(c, row.Name, nil); err != nil {
			return err
		}
		_, err := uploadCode(&row.State, domain.Files{Prefix: "x", Sizes: map[string]int64{"x": 1}}).
			Decide(row.State, time.Time{})
		return err
	},
	command: uploadCode,
}

func uploadCode(e *domain.Evaluator, files domain.Files) domain.Command[domain.Evaluator] {
	return domain.UploadEvaluator{Revision: e.Revision, Files: files}
}

func buildLog(c *call, row *projections.Row[domain.Evaluator]) (any, error) {
	if row.State.BuildLog == "" {
		f := domain.Errorf(domain.FailedPrecondition, "revision %d of %s has no build log yet, because its state is %s: "+
			"upload its code, or wait until the build has ended", row.State.Revision, row.Name, row.State.State)
		f.Reason = "NO_BUILD_LOG"
		return nil, f
	}
	url, err := c.Uploads.Blobs.SignGet(c.Ctx, row.State.BuildLog, c.Limits.SignedURL)
	return buildLogURL{url}, err
}

// requireEvaluator adds a violation if ref names an evaluator that does not exist in the account.
// It ignores a malformed ref.
func (c *call) requireEvaluator(v *domain.Violations, field, ref string) {
	name, ok := domain.ParseName(ref, domain.Evaluators.Collection)
	if !ok {
		return // the command's Decide rejects a malformed ref
	}
	_, exists := c.View().Evaluators.Get(name)
	v.Require(exists && name.Account() == c.Account, field,
		"%s is not an evaluator of accounts/%s: create it first, or correct the name", name, c.Account)
}
