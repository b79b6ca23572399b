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
			Description: "Each file is a field of the form. The request waits up to a minute for the validation of the files. " +
				"The response is the READY model, an error that lists all violations, or the UPLOADING model if the validation " +
				"takes longer. A rejected upload keeps its files: send only the missing and invalid ones again.",
			Form: reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[Model](), Handle: s.handle(modelFiles.post)},
		{ID: "getModelUploadEndpoint", Method: "POST", Path: one + ":getUploadEndpoint",
			Summary: "Get signed URLs for uploading the files of a model", Permission: request.Write,
			Body: reflect.TypeFor[upload.AnnouncedFiles](), BodyOptional: true, Response: reflect.TypeFor[upload.SignedURLs](),
			Handle: s.handle(modelFiles.endpoints)},
		{ID: "validateModelUpload", Method: "POST", Path: one + ":validateUpload",
			Summary: "Validate the files of a model uploaded to signed URLs", Permission: request.Write,
			Description: "The response is as for uploadModel: the READY model, an error that lists all violations, or the " +
				"UPLOADING model after a minute. A rejected upload keeps its files: send only the missing and invalid ones " +
				"again.",
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Model](),
			Handle: s.handle(models.verb(modelFiles.validate))},
		{ID: "getModelDownloadEndpoint", Method: "GET", Path: one + ":getDownloadEndpoint",
			Summary: "Get signed URLs for downloading the files of a model", Gate: request.WithKey, Permission: request.Read,
			Description: "Every account may download a public model. The files of an adapter include those of its base " +
				"model's tokenizer, if the caller may download the base model.",
			Query: []request.Parameter{{Name: "precision", Kind: wire.Text,
				Description: "The precision of the copy to download. The default is the model as it was uploaded or trained."}},
			Response: reflect.TypeFor[upload.SignedURLs](), Handle: s.handle(modelDownload)},
		{ID: "prepareModel", Method: "POST", Path: one + ":prepare", Summary: "Write a copy of a model in another precision",
			Permission:  request.Write,
			Description: "The copy is written in the background; the field copies of the model shows its state.",
			Body:        reflect.TypeFor[preparation](), Response: request.NoBody, Handle: s.handle(prepareCopy)},
	}
	return withTag("models", all)
}

// modelStaging returns the directory that signed URLs write to. The files that are validated and
// served are copies in another directory, so that a signed URL cannot change them.
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

// modelDownload responds with signed URLs of the files of a model, or of the model's copy in the
// requested precision.
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
			"precision: %s has no READY copy in %s: create one with :prepare, and wait until it is READY", row.Name,
			wire.Quote(precision))
		f.Reason = "NOT_PREPARED"
		return nil, f
	case len(files.Sizes) == 0:
		f := domain.Errorf(domain.FailedPrecondition, "%s has no files yet: upload its weights first", row.Name)
		f.Reason = "NOTHING_UPLOADED"
		return nil, f
	}
	return c.Uploads.SignGets(c.Call, files, baseTokenizer(c, &row.State))
}

// baseTokenizer returns the tokenizer files of an adapter's base model, so that the downloaded
// directory has a tokenizer, as a Hugging Face Trainer would save it. It returns none for a full
// model, and when the base model does not exist any more or the caller may not read it.
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

// A preparation is the body of prepareModel.
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
		err = c.Uploads.Reserve(c.Call, 1) // 1 byte, because the size of the copy is not known yet
	}
	if err != nil {
		return nil, err
	}
	_, err = c.Do(intent)
	return request.Empty, err
}
