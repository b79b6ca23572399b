package api

import (
	"errors"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

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

	upload bool // an update prepares an upload
}

var evaluators = &resource[domain.Evaluator, Evaluator]{
	kind: domain.Evaluators, noun: "evaluator", wrapper: "evaluator", idParam: "evaluatorId", reads: toRead, writes: toWrite, named: true,
	fields: projections.FieldsOf[Evaluator](),
	render: func(_ *projections.View, row *projections.Row[domain.Evaluator], out *Evaluator) {
		e := &row.State
		*out = Evaluator{Name: string(row.Name), EvaluatorSpec: e.EvaluatorSpec, CreateTime: stamp(row.CreateTime), UpdateTime: stamp(row.UpdateTime),
			State: e.State, Status: e.Status, CreatedBy: e.CreatedBy, Revision: e.Revision}
	},
	askUpdate: func(p *params, given *Evaluator) { given.upload = p.flag("prepareCodeUpload") },
	prepare: func(c *call, _ domain.Name, given *Evaluator, extra map[string]string, v *domain.Violations) error {
		field := "defaultDataset"
		if extra != nil { // a create: the evaluator is a field of the body
			field = "evaluator." + field
		}
		c.wantDataset(v, field, given.DefaultDataset)
		return nil
	},
	create: func(c *call, _ domain.Name, given *Evaluator) domain.Command[domain.Evaluator] {
		return domain.CreateEvaluator{EvaluatorSpec: given.EvaluatorSpec, CreatedBy: string(c.caller.key)}
	},
	update: func(_ domain.Evaluator, merged, given *Evaluator, _ mask) (domain.Command[domain.Evaluator], error) {
		return domain.UpdateEvaluator{EvaluatorSpec: merged.EvaluatorSpec, Upload: given.upload}, nil
	},
	remove: func(c *call, row *projections.Row[domain.Evaluator], _ *params) (domain.Command[domain.Evaluator], error) {
		var users []string
		for use := range uses(c.snapshot()) {
			if use.evaluator == string(row.Name) {
				users = append(users, string(use.name))
			}
		}
		return domain.DeleteEvaluator{}, inUse("evaluator", row.Name, users)
	},
	after: func(c *call, row *projections.Row[domain.Evaluator]) {
		c.deleteFolder(codeArrivals(row.Name))
		c.deleteFolder(codeFolder(row.Name))
	},
}

// Code arrives below codeArrivals, where whoever holds a signed URL can write;
// what is built is a copy below codeFolder, a folder for each upload.
func codeArrivals(name domain.Name) string {
	return "code-uploads/" + name.Account() + "/" + name.ID() + "/"
}

func codeFolder(name domain.Name) string {
	return "evaluators/" + name.Account() + "/" + name.ID() + "/"
}

func (s *Server) routeEvaluators(r chi.Router) {
	one := "/v1/accounts/{account}/evaluators/{id}"
	r.Post(one+":getUploadEndpoint", s.manage(toWrite, codeEndpoints))
	r.Post(one+":validateUpload", s.manage(toWrite, evaluators.verb(takeCode)))
	r.Get(one+":getBuildLogEndpoint", s.manage(toRead, evaluators.verb(buildLog)))
}

// mayUploadCode is why code cannot be uploaded now; nil when it can.
func mayUploadCode(row *projections.Row[domain.Evaluator]) error {
	_, err := domain.UploadEvaluator{Revision: row.State.Revision, Files: domain.Files{Folder: "x", Sizes: map[string]int64{"x": 1}}}.Decide(row.State, time.Time{})
	return err
}

// codeEndpoints answers a URL for each file of code, to which it can be PUT
// without a key.
func codeEndpoints(c *call) (any, error) {
	sizes, err := c.announcedFiles()
	if err != nil {
		return nil, err
	}
	row, err := evaluators.row(c)
	if err == nil {
		err = mayUploadCode(row)
	}
	if err != nil {
		return nil, err
	}
	return c.signPuts(codeArrivals(row.Name), sizes)
}

// takeCode takes in what was PUT to the signed URLs as the code of the revision
// that is being built.
func takeCode(c *call, row *projections.Row[domain.Evaluator]) (any, error) {
	if err := c.mayWork(c.account); err != nil { // a build begins with this
		return nil, err
	}
	if err := mayUploadCode(row); err != nil {
		return nil, err
	}
	arrived, err := c.Blobs.Files(c.ctx, codeArrivals(row.Name))
	if err != nil {
		return nil, err
	}
	if err := arrivedFiles(len(arrived.Sizes)); err != nil {
		return nil, err
	}
	in := &intake{call: c, files: domain.Files{Folder: codeFolder(row.Name) + uuid.NewString() + "/", Sizes: map[string]int64{}}}
	if err := in.copy(arrived); err != nil {
		return nil, err
	}
	upload := domain.UploadEvaluator{Revision: row.State.Revision, Files: in.files}
	if err := c.do(domain.Intend(domain.Evaluators, row.Name, domain.Command[domain.Evaluator](upload))); err != nil {
		var refused *domain.Fault
		if errors.As(err, &refused) { // otherwise it may have been recorded
			in.discard()
		}
		return nil, err
	}
	c.deleteFolder(codeArrivals(row.Name))
	return evaluators.wire(c, row.Name)
}

func buildLog(c *call, row *projections.Row[domain.Evaluator]) (any, error) {
	if row.State.BuildLog == "" {
		f := domain.Faultf(domain.FailedPrecondition, "revision %d of %s has no build log yet: it is %s", row.State.Revision, row.Name, row.State.State)
		f.Reason = "NO_BUILD_LOG"
		return nil, f
	}
	url, err := c.Blobs.SignGet(c.ctx, row.State.BuildLog, c.Limits.SignedURL)
	return map[string]string{"buildLogSignedUri": url}, err
}

// wantEvaluator requires that a reference, when it is given and well formed,
// names an evaluator of the account.
func (c *call) wantEvaluator(v *domain.Violations, field, ref string) {
	name, ok := domain.ParseName(ref, domain.Evaluators.Collection)
	if !ok {
		return // the decision says what is wrong with its form
	}
	_, exists := c.snapshot().Evaluators.Get(name)
	v.Require(exists && name.Account() == c.account, field, "names no evaluator of accounts/%s: create it first, or correct the name", c.account)
}
