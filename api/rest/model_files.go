package rest

import (
	"reflect"
	"time"

	"github.com/google/uuid"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/weights"
	"anneal/projections"
)

func modelOperations(s *Service) []request.Operation {
	const one = request.CollectionPath + "models/{id}"
	all := []request.Operation{
		{ID: "uploadModel", Method: "POST", Path: one + ":upload", Summary: "Upload files of a model",
			Permission: request.Write,
			Description: "Each file is a field of the form. The request waits for the validation of the files, for at most " +
				"a minute. The response is the model in the state READY, an error that lists all violations or, if the " +
				"validation takes longer, the model in the state UPLOADING. The valid files of a rejected upload are kept: " +
				"send only the missing and invalid ones again.",
			Form: reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[Model](), Handle: s.handle(modelFiles.post)},
		{ID: "getModelUploadEndpoint", Method: "POST", Path: one + ":getUploadEndpoint",
			Summary: "Get signed URLs for uploading the files of a model", Permission: request.Write,
			Body: reflect.TypeFor[upload.AnnouncedFiles](), BodyOptional: true, Response: reflect.TypeFor[upload.SignedURLs](),
			Handle: s.handle(modelFiles.endpoints)},
		{ID: "validateModelUpload", Method: "POST", Path: one + ":validateUpload",
			Summary: "Validate the files of a model that were uploaded to signed URLs", Permission: request.Write,
			Description: "The response is that of uploadModel: the model in the state READY, an error that lists all " +
				"violations or, after a minute, the model in the state UPLOADING. The valid files of a rejected upload are " +
				"kept: send only the missing and invalid ones again.",
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Model](),
			Handle: s.handle(models.verb(modelFiles.validate))},
		{ID: "getModelDownloadEndpoint", Method: "GET", Path: one + ":getDownloadEndpoint",
			Summary: "Get signed URLs for downloading the files of a model", Gate: request.WithKey, Permission: request.Read,
			Description: "All accounts may download a public model. The files of an adapter include the tokenizer of its " +
				"base model, if the caller may download the base model.",
			Query: []request.Parameter{{Name: "precision", Kind: wire.Text,
				Description: "Precision of the copy to download. By default, the model is downloaded as it was uploaded or " +
					"trained."}},
			Response: reflect.TypeFor[upload.SignedURLs](), Handle: s.handle(modelDownload)},
		{ID: "prepareModel", Method: "POST", Path: one + ":prepare", Summary: "Write a copy of a model in another precision",
			Permission:  request.Write,
			Description: "The response is sent before the copy is written; the field copies of the model shows its state.",
			Body:        reflect.TypeFor[preparation](), Response: request.NoBody, Handle: s.handle(prepareCopy)},
	}
	return withTag("models", all)
}

// modelStaging returns the directory into which signed URLs write. Its files are copied to another
// directory before they are validated and served, so that a signed URL cannot change them.
func modelStaging(row *projections.Row[domain.Model]) string {
	return blobs.StagingPrefix(row.Name, row.CreateEvent, row.State.Upload+1)
}

func newModelDirectory(row *projections.Row[domain.Model]) string {
	return blobs.UploadPrefix(blobs.ModelRoot, row.Name, row.CreateEvent, row.State.Upload+1, uuid.NewString())
}

var modelFiles = &uploadable[domain.Model, Model]{
	resource: models, additive: true,
	limit: func(c *call, row *projections.Row[domain.Model]) upload.Limit {
		directories := upload.ModuleDirectory
		if row != nil && row.State.Kind == domain.SpeechModel {
			directories = upload.AnyDirectory
		}
		return upload.Limit{Files: c.Limits.ModelFiles, Bytes: c.Limits.ModelFile, Directories: directories}
	},
	staging: modelStaging, directory: newModelDirectory,
	files: func(m *domain.Model) domain.Files { return m.Files },
	mayUpload: func(_ *call, row *projections.Row[domain.Model]) error {
		_, err := uploadWeights(&row.State, domain.Files{Sizes: map[string]int64{"x": 1}}).Decide(row.State, time.Time{})
		return err
	},
	command:   uploadWeights,
	hasUpload: func(m *domain.Model) bool { return m.Upload > 0 },
	outcome: func(uploaded, m *domain.Model) (bool, error) {
		if m.Validated >= uploaded.Upload && m.State != domain.ModelReady {
			return true, upload.Rejected("INVALID_MODEL", m.Status, m.Violations)
		}
		return m.Validated >= uploaded.Upload, nil
	},
}

func uploadWeights(m *domain.Model, files domain.Files) domain.Command[domain.Model] {
	return domain.UploadModel{Upload: m.Upload + 1, Files: files}
}

// modelDownload responds with signed URLs of the files of a model, or of its copy in the requested
// precision.
func modelDownload(c *call) (any, error) {
	if err := models.authorize(c, c.PathValue("id"), request.Read); err != nil {
		return nil, err
	}
	p := c.Params()
	precision := p.Text("precision")
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := models.row(c)
	if err != nil {
		return nil, err
	}
	files := row.State.Files
	prepared, ok := row.State.Copies[precision]
	switch {
	case ok && prepared.State == domain.CopyReady:
		files = prepared.Files
	case precision != "" && precision != row.State.Precision:
		f := domain.Errorf(domain.FailedPrecondition,
			"precision: %s has no READY copy in the precision %s: create one with :prepare, and wait until it is "+
				"READY", row.Name,
			wire.Quote(precision))
		f.Reason = "NOT_PREPARED"
		return nil, f
	case len(files.Sizes) == 0:
		f := domain.Errorf(domain.FailedPrecondition, "%s has no files yet: upload its files first", row.Name)
		f.Reason = "NOTHING_UPLOADED"
		return nil, f
	}
	return c.Uploads.SignGets(c.Call, files, baseTokenizer(c, &row.State))
}

// baseTokenizer returns the tokenizer files of an adapter's base model, so that the download has a
// tokenizer, as a directory that a Hugging Face Trainer saves. It returns none for a model that is
// not an adapter, and if the base model was deleted or the caller may not read it.
func baseTokenizer(c *call, m *domain.Model) domain.Files {
	name := domain.Name(m.BaseModel)
	base, ok := c.View().Models.Get(name)
	if m.Kind != domain.PEFTAddon || !ok ||
		!base.State.Public && c.Principal.Authorize(name.Account(), request.Read) != nil {
		return domain.Files{}
	}
	files := domain.Files{Prefix: base.State.Files.Prefix, Sizes: map[string]int64{}}
	for _, file := range weights.TokenizerFiles {
		if size, ok := base.State.Files.Sizes[file]; ok {
			files.Sizes[file] = size
		}
	}
	return files
}

// A preparation is the request body of prepareModel.
type preparation struct {
	Precision string `json:"precision"`
	ReadMask  string `json:"readMask"`
}

func prepareCopy(c *call) (any, error) {
	p, body := c.Params(), preparation{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	row, err := models.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	intent := domain.Intend(domain.Models, row.Name,
		domain.Command[domain.Model](domain.PrepareModel{Precision: body.Precision}))
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	c.warnInert(inert.Of(c.Operation.ID), body, row.State)
	earlier, err := c.Recorded(row.Name)
	if err == nil && earlier.Position() == 0 {
		// checks that the quota is not exhausted; the size of the copy is not known yet
		err = c.Uploads.Reserve(c.Call, 1)
	}
	if err != nil {
		return nil, err
	}
	_, err = c.Do(intent)
	return request.Empty, err
}
