package api

import (
	"reflect"
	"time"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

// Evaluator is an evaluator on the wire.
type Evaluator struct {
	Name string `json:"name" api:"output"`
	domain.EvaluatorSpec
	CreateTime *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime *time.Time    `json:"updateTime,omitempty" api:"output"`
	State      string        `json:"state" api:"output"`
	Status     domain.Status `json:"status" api:"output"`
	CreatedBy  string        `json:"createdBy,omitempty" api:"output"`
	Revision   int           `json:"revision" api:"output"` // of its code, from 1

	ActiveRevision int                 `json:"activeRevision" api:"output"` // that jobs begin with; 0 before the first is built
	Revisions      []EvaluatorRevision `json:"revisions,omitempty" api:"output"`

	upload bool // an update prepares an upload
}

// EvaluatorRevision is a revision that was built, on the wire.
type EvaluatorRevision struct {
	Revision   int    `json:"revision"`
	CommitHash string `json:"commitHash,omitempty"`
	EntryPoint string `json:"entryPoint,omitempty"`
}

var evaluators = &resource[domain.Evaluator, Evaluator]{
	kind: domain.Evaluators, noun: "evaluator", wrapper: "evaluator", idParam: "evaluatorId", reads: request.Read, writes: request.Write, named: true,
	fields: storedFieldsOf[domain.Evaluator, Evaluator]("name", "displayName", "description", "defaultDataset", "secrets", "criteria", "requirements", "entryPoint",
		"commitHash", "source", "createTime", "updateTime", "state", "createdBy", "revision"),
	render: func(_ *projections.View, row *projections.Row[domain.Evaluator], out *Evaluator) {
		e := &row.State
		*out = Evaluator{Name: string(row.Name), EvaluatorSpec: e.EvaluatorSpec, CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
			State: e.State, Status: e.Status, CreatedBy: e.CreatedBy, Revision: e.Revision, ActiveRevision: e.Active}
		if e.State == domain.EvaluatorBuilding && len(e.Files.Sizes)+len(e.Criteria) == 0 {
			out.Status.Message += "; " + uploadsExpire
		}
		for _, build := range e.Built {
			out.Revisions = append(out.Revisions, EvaluatorRevision{build.Revision, build.Code.CommitHash, build.Code.EntryPoint})
		}
	},
	asksUpdate: []request.Parameter{{Name: "prepareCodeUpload", Kind: wire.Bool, Description: "Whether to begin a new revision, whose code is uploaded next."}},
	askUpdate:  func(p *request.Params, given *Evaluator) { given.upload = p.Flag("prepareCodeUpload") },
	prepare: func(c *call, name domain.Name, given *Evaluator, extra map[string]string, v *domain.Violations) error {
		field := "defaultDataset"
		if extra != nil { // a create: the evaluator is a field of the body
			field = "evaluator." + field
		}
		c.wantDataset(v, field, given.DefaultDataset)
		return c.mayGuardCode(name, given.Secrets)
	},
	create: func(c *call, _ domain.Name, given *Evaluator) domain.Command[domain.Evaluator] {
		return domain.CreateEvaluator{EvaluatorSpec: given.EvaluatorSpec, CreatedBy: string(c.Principal.Key)}
	},
	update: func(_ domain.Evaluator, merged, given *Evaluator, _ wire.Mask) (domain.Command[domain.Evaluator], error) {
		return domain.UpdateEvaluator{EvaluatorSpec: merged.EvaluatorSpec, Upload: given.upload}, nil
	},
	remove: func(c *call, row *projections.Row[domain.Evaluator], _ *request.Params) (domain.Command[domain.Evaluator], error) {
		return domain.DeleteEvaluator{}, nil
	},
}

// Code arrives in blobs.Arrivals, where whoever holds a signed URL can write;
// what is built is a copy in a folder for each upload.
func codeArrivals(row *projections.Row[domain.Evaluator]) string {
	return blobs.Arrivals(row.Name, row.CreateEvent, row.State.Uploads+1)
}

func newCodeFolder(row *projections.Row[domain.Evaluator]) string {
	return blobs.CodeFolder(row.Name, row.CreateEvent, uuid.NewString())
}

// mayGuardCode requires that who changes an evaluator that names secrets, or
// will, may see those too: its code can tell what it is given.
func (c *call) mayGuardCode(name domain.Name, secrets []string) error {
	row, ok := c.View().Evaluators.Get(name)
	if len(secrets) == 0 && (!ok || len(row.State.Secrets) == 0) {
		return nil
	}
	return c.Principal.Require(request.ManageSecrets)
}

func evaluatorOperations(s *Server) []request.Operation {
	const one = request.CollectionPath + "evaluators/{id}"
	all := []request.Operation{
		{ID: "uploadEvaluator", Method: "POST", Path: one + ":upload", Summary: "Upload the code of an evaluator", Permission: request.Write,
			Description: "Several files may come in one form, each as a field \"file\". The revision that is being built then has these files and no others.",
			Form:        reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[Evaluator](), Handle: s.handle(uploadCode)},
		{ID: "getEvaluatorUploadEndpoint", Method: "POST", Path: one + ":getUploadEndpoint", Summary: "Get URLs to which the code of an evaluator can be PUT", Permission: request.Write,
			Body: reflect.TypeFor[announcedFiles](), BodyOptional: true, Response: reflect.TypeFor[signedURLs](), Handle: s.handle(codeEndpoints)},
		{ID: "validateEvaluatorUpload", Method: "POST", Path: one + ":validateUpload", Summary: "Build the code that was PUT", Permission: request.Write,
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Evaluator](), Handle: s.handle(evaluators.verb(takeCode))},
		{ID: "getEvaluatorBuildLogEndpoint", Method: "GET", Path: one + ":getBuildLogEndpoint", Summary: "Get a URL of an evaluator's build log", Permission: request.Read,
			Response: reflect.TypeFor[buildLogURL](), Handle: s.handle(evaluators.verb(buildLog))},
		previewOperation(s),
	}
	for i := range all {
		all[i].Tag = "evaluators"
	}
	return all
}

// A buildLogURL leads to what a build said.
type buildLogURL struct {
	URL string `json:"buildLogSignedUri"`
}

// mayUploadCode is why code cannot be uploaded now; nil when it can.
func (c *call) mayUploadCode(row *projections.Row[domain.Evaluator]) error {
	if err := c.mayGuardCode(row.Name, nil); err != nil {
		return err
	}
	_, err := domain.UploadEvaluator{Revision: row.State.Revision, Files: domain.Files{Folder: "x", Sizes: map[string]int64{"x": 1}}}.Decide(row.State, time.Time{})
	return err
}

// codeEndpoints answers a URL for each file of code, to which it can be PUT
// without a key.
func codeEndpoints(c *call) (any, error) {
	sizes, err := c.announcedFiles(c.rowFiles())
	if err != nil {
		return nil, err
	}
	row, err := evaluators.row(c)
	if err == nil {
		err = c.mayUploadCode(row)
	}
	if err != nil {
		return nil, err
	}
	return c.signPuts(codeArrivals(row), sizes)
}

// uploadCode takes in files of a form as the code of the revision that is being
// built.
func uploadCode(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil { // a build begins with this
		return nil, err
	}
	row, err := evaluators.row(c)
	if err != nil {
		return nil, err
	}
	if again, err := tried(c, evaluators, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return evaluators.wire(c, again), nil
	}
	if err := c.mayUploadCode(row); err != nil {
		return nil, err
	}
	form, err := c.form()
	if err != nil {
		return nil, err
	}
	in := c.newIntake(newCodeFolder(row), c.rowFiles()).counting(row.State.Files)
	defer in.share.release()
	if err := in.announced(); err != nil {
		return nil, err
	}
	if err := in.form(form); err != nil {
		return nil, err
	}
	return in.code(row)
}

// code makes the files those of the revision that is being built.
func (in *intake) code(row *projections.Row[domain.Evaluator]) (any, error) {
	upload := domain.UploadEvaluator{Revision: row.State.Revision, Files: in.files}
	uploaded, err := recordFiles(in, evaluators, row.Name, upload)
	if err != nil {
		return nil, err
	}
	return evaluators.wire(in.call, uploaded), nil
}

// takeCode takes in what was PUT to the signed URLs as the code of the revision
// that is being built.
func takeCode(c *call, row *projections.Row[domain.Evaluator]) (any, error) {
	if err := c.RequireActive(c.Account); err != nil { // a build begins with this
		return nil, err
	}
	if again, err := tried(c, evaluators, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return evaluators.wire(c, again), nil
	}
	if err := c.mayUploadCode(row); err != nil {
		return nil, err
	}
	arrived, err := c.server.Blobs.Files(c.Ctx, codeArrivals(row))
	if err != nil {
		return nil, err
	}
	if err := c.rowFiles().arrived(len(arrived.Sizes)); err != nil {
		return nil, err
	}
	in := c.newIntake(newCodeFolder(row), c.rowFiles()).counting(row.State.Files)
	defer in.share.release()
	if err := in.take(arrived); err != nil {
		return nil, err
	}
	return in.code(row)
}

func buildLog(c *call, row *projections.Row[domain.Evaluator]) (any, error) {
	if row.State.BuildLog == "" {
		f := domain.Errorf(domain.FailedPrecondition, "revision %d of %s has no build log yet: it is %s", row.State.Revision, row.Name, row.State.State)
		f.Reason = "NO_BUILD_LOG"
		return nil, f
	}
	url, err := c.server.Blobs.SignGet(c.Ctx, row.State.BuildLog, c.server.Limits.SignedURL)
	return buildLogURL{url}, err
}

// wantEvaluator requires that a reference, when it is given and well formed,
// names an evaluator of the account.
func (c *call) wantEvaluator(v *domain.Violations, field, ref string) {
	name, ok := domain.ParseName(ref, domain.Evaluators.Collection)
	if !ok {
		return // the decision says what is wrong with its form
	}
	_, exists := c.View().Evaluators.Get(name)
	v.Require(exists && name.Account() == c.Account, field, "names no evaluator of accounts/%s: create it first, or correct the name", c.Account)
}
