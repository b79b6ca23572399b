package api

import (
	"cmp"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

func modelOperations(s *Server) []request.Operation {
	const one = request.CollectionPath + "models/{id}"
	all := []request.Operation{
		{ID: "uploadModel", Method: "POST", Path: one + ":upload", Summary: "Upload files of a model", Permission: request.Write,
			Description: "Each file is a field of the form. The answer waits until the files have been checked: it is the READY model, or everything that is wrong. " +
				"Files of an upload that was refused stay, so that only what is missing or wrong need be sent again.",
			Form: reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[Model](), Handle: s.handle(uploadModel)},
		{ID: "getModelUploadEndpoint", Method: "POST", Path: one + ":getUploadEndpoint", Summary: "Get URLs to which the files of a model can be PUT", Permission: request.Write,
			Body: reflect.TypeFor[announcedFiles](), BodyOptional: true, Response: reflect.TypeFor[signedURLs](), Handle: s.handle(modelEndpoints)},
		{ID: "validateModelUpload", Method: "POST", Path: one + ":validateUpload", Summary: "Check the files of a model that were PUT", Permission: request.Write,
			Description: "The answer is the READY model, or everything that is wrong. Files of an upload that was refused stay, so that only what is missing or wrong need be sent again.",
			Body:        request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Model](), Handle: s.handle(models.verb(validateModel))},
		{ID: "getModelDownloadEndpoint", Method: "GET", Path: one + ":getDownloadEndpoint", Summary: "Get URLs from which the files of a model can be read", Gate: request.WithKey, Permission: request.Read,
			Description: "Those of a public model are anybody's.",
			Query:       []request.Parameter{{Name: "precision", Kind: wire.Text, Description: "The precision of the copy to read; the model as it was made when it is left out."}},
			Response:    reflect.TypeFor[signedURLs](), Handle: s.handle(modelDownload)},
		{ID: "prepareModel", Method: "POST", Path: one + ":prepare", Summary: "Write a copy of a model in another precision", Permission: request.Write,
			Description: "The copy is written in the background: the model's copies say how far it is.",
			Body:        reflect.TypeFor[preparation](), Response: request.NoBody, Handle: s.handle(prepareCopy)},
	}
	for i := range all {
		all[i].Tag = "models"
	}
	return all
}

// Files of a model arrive in blobs.Arrivals; what is validated and used is a
// copy in an upload folder.
func modelArrivals(row *projections.Row[domain.Model]) string {
	return blobs.Arrivals(row.Name, row.CreateEvent, row.State.Upload+1)
}

func newModelFolder(row *projections.Row[domain.Model]) string {
	return blobs.UploadFolder(blobs.ModelRoot, row.Name, row.CreateEvent, row.State.Upload+1, uuid.NewString())
}

func (c *call) weightFiles() fileLimit {
	return fileLimit{files: c.server.Limits.ModelFiles, bytes: c.server.Limits.ModelFile}
}

// mayUploadModel is why files cannot be uploaded now; nil when they can.
func mayUploadModel(row *projections.Row[domain.Model]) error {
	next := domain.UploadModel{Upload: row.State.Upload + 1, Files: domain.Files{Sizes: map[string]int64{"x": 1}}}
	_, err := next.Decide(row.State, time.Time{})
	return err
}

// uploadModel takes files as multipart fields "file" and answers when they have
// been checked.
func uploadModel(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	row, err := models.row(c)
	if err != nil {
		return nil, err
	}
	if again, err := tried(c, models, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return c.modelVerdict(again)
	}
	if err := mayUploadModel(row); err != nil {
		return nil, err
	}
	form, err := c.form()
	if err != nil {
		return nil, err
	}
	in := c.newIntake(newModelFolder(row), c.weightFiles()).counting(row.State.Files)
	defer in.share.release()
	if err := in.announced(); err != nil {
		return nil, err
	}
	if err := in.take(row.State.Files); err != nil {
		return nil, err
	}
	if err := in.form(form); err != nil {
		return nil, err
	}
	return in.weights(row)
}

// weights makes the files a model's newest upload, and answers its verdict.
func (in *intake) weights(row *projections.Row[domain.Model]) (any, error) {
	upload := domain.UploadModel{Upload: row.State.Upload + 1, Files: in.files}
	uploaded, err := recordFiles(in, models, row.Name, upload)
	if err != nil {
		return nil, err
	}
	return in.modelVerdict(uploaded)
}

// modelVerdict answers the READY model, or everything that is wrong with its
// files.
func (c *call) modelVerdict(row *projections.Row[domain.Model]) (any, error) {
	upload := row.State.Upload
	return verdict(c, models, row, func(m domain.Model) (bool, error) {
		if m.Validated >= upload && m.State != domain.ModelReady {
			return true, refusedUpload("INVALID_MODEL", m.Status, m.Violations)
		}
		return m.Validated >= upload, nil
	})
}

func modelEndpoints(c *call) (any, error) {
	row, missing := models.row(c)
	limit := c.weightFiles()
	limit.folders = missing == nil && row.State.Kind == domain.SpeechModel
	sizes, err := c.announcedFiles(limit)
	if err = cmp.Or(err, missing); err != nil {
		return nil, err
	}
	if err := mayUploadModel(row); err != nil {
		return nil, err
	}
	if err := bothFileAndFolder(sizes, row.State.Files.Sizes); err != nil {
		return nil, err
	}
	return c.signPuts(modelArrivals(row), sizes)
}

// bothFileAndFolder refuses files to come in a folder of which a file has the
// name: one of them, or of those that stay from an upload before.
func bothFileAndFolder(sizes map[string]domain.Count, kept map[string]int64) error {
	var v domain.Violations
	names, folders := map[string]bool{}, map[string]bool{}
	for _, all := range []func(func(string) bool){keysOf(sizes), keysOf(kept)} {
		for name := range all {
			names[name] = true
			if folder, _, in := strings.Cut(name, "/"); in {
				folders[folder] = true
			}
		}
	}
	for _, folder := range wire.SortedKeys(folders) {
		v.Require(!names[folder], "filenameToSize", "%s is a file, and a folder of others: rename one of the two", wire.Quote(folder))
	}
	return v.Err()
}

// validateModel takes in what was PUT to the signed URLs, together with the
// files of the upload before if that was refused, and answers the verdict. With
// nothing new it answers that of the last upload.
func validateModel(c *call, row *projections.Row[domain.Model]) (any, error) {
	if again, err := tried(c, models, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return c.modelVerdict(again)
	}
	arrived, err := c.server.Blobs.Files(c.Ctx, modelArrivals(row))
	if err != nil {
		return nil, err
	}
	if len(arrived.Sizes) == 0 && row.State.Upload > 0 {
		return c.modelVerdict(row)
	}
	if err := mayUploadModel(row); err != nil {
		return nil, err
	}
	if err := c.weightFiles().arrived(len(arrived.Sizes)); err != nil {
		return nil, err
	}
	in := c.newIntake(newModelFolder(row), c.weightFiles()).counting(row.State.Files)
	defer in.share.release()
	for _, files := range []domain.Files{row.State.Files, arrived} {
		if err := in.take(files); err != nil {
			return nil, err
		}
	}
	if err := in.limit.arrived(len(in.files.Sizes)); err != nil {
		in.discard()
		return nil, err
	}
	return in.weights(row)
}

// modelDownload answers URLs of a model's files, or of its copy in a precision.
func modelDownload(c *call) (any, error) {
	if err := models.open(c, c.PathValue("id"), request.Read); err != nil {
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
	made, ok := row.State.Copies[precision]
	switch {
	case ok && made.State == domain.CopyReady:
		files = made.Files
	case precision != "" && precision != row.State.Precision:
		f := domain.Errorf(domain.FailedPrecondition, "precision: %s has no copy in %s that is READY: make one with :prepare, and wait until it is", row.Name, wire.Quote(precision))
		f.Reason = "NOT_PREPARED"
		return nil, f
	case len(files.Sizes) == 0:
		f := domain.Errorf(domain.FailedPrecondition, "%s has no files yet: upload its weights first", row.Name)
		f.Reason = "NOTHING_UPLOADED"
		return nil, f
	}
	return c.signGets(files)
}

// A preparation says in which precision a copy is wanted. ReadMask is taken and
// has nothing to choose from: the answer is empty.
type preparation struct {
	Precision string `json:"precision"`
	ReadMask  string `json:"readMask"`
}

func prepareCopy(c *call) (any, error) {
	p, asked := c.Params(), preparation{}
	if err := readVerbWith(c, &p.Violations, &asked); err != nil {
		return nil, err
	}
	row, err := models.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	intent := domain.Intend(domain.Models, row.Name, domain.Command[domain.Model](domain.PrepareModel{Precision: asked.Precision}))
	if err := refused(c, intent, p, func(err error) error { return err }); err != nil {
		return nil, err
	}
	if err := c.room(1); err != nil { // how large the copy will be is not known yet
		return nil, err
	}
	_, err = c.Do(intent)
	return request.Empty, err
}
