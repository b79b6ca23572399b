package rest

import (
	"cmp"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// purposeFineTune is the purpose of a file that is a dataset, on whose rows jobs train.
const purposeFineTune = "fine-tune"

const (
	fileObject  = "file"
	listObject  = "list"
	rowsMedia   = "application/octet-stream"
	defaultFile = "data.jsonl"
)

// A fileForm is the multipart form with which a file of the OpenAI API is uploaded.
type fileForm struct {
	File    request.File `json:"file"`
	Purpose string       `json:"purpose"`
}

func fileOperations(s *Service) []request.Operation {
	const all, one = "/v1/files", "/v1/files/{id}"
	operations := []request.Operation{
		{ID: "createFile", Method: "POST", Path: all, Summary: "Upload a file (OpenAI-compatible)",
			Permission: request.Write,
			Description: "With the purpose fine-tune, the file becomes a dataset with the same ID. The response is sent " +
				"once the rows are validated; a file with invalid rows is rejected with an error that lists them, and is " +
				"deleted. With the purpose batch, the file contains requests; each batch that uses it validates them.",
			Form: reflect.TypeFor[fileForm](), Response: reflect.TypeFor[FileObject](), Handle: s.handle(createFile)},
		{ID: "listFiles", Method: "GET", Path: all, Summary: "List the files (OpenAI-compatible)",
			Permission:  request.Read,
			Description: "The files are the datasets of the caller's account, and the files of its batches.",
			Query: []request.Parameter{afterParameter(), limitParameter("The default and the maximum are 10000."),
				{Name: "order", Kind: wire.Text, Description: "Order by creation time: desc (newest first, the default) or asc."},
				{Name: "purpose", Kind: wire.Text,
					Description: "Lists only files with this purpose: fine-tune, batch or batch_output."}},
			Response: reflect.TypeFor[FileList](), Handle: s.handle(listFiles)},
		{ID: "getFile", Method: "GET", Path: one, Summary: "Read a file's properties (OpenAI-compatible)",
			Permission: request.Read, Response: reflect.TypeFor[FileObject](),
			Handle: s.handle(ofEither(getFile, getBatchFile))},
		{ID: "getFileContent", Method: "GET", Path: one + "/content", Summary: "Download a file (OpenAI-compatible)",
			Permission: request.Read, Media: rowsMedia,
			Description: "The response has the rows as they were uploaded. If the dataset has several files, they are sent " +
				"one after the other in the order of their names.", Handle: s.handle(ofEither(getFileContent,
				getBatchFileContent))},
		{ID: "deleteFile", Method: "DELETE", Path: one, Summary: "Delete a file (OpenAI-compatible)",
			Permission: request.Write, Description: "A file that is used by a job or batch that has not ended cannot be " +
				"deleted.",
			Response: reflect.TypeFor[FileDeletion](), Handle: s.handle(ofEither(deleteFile, deleteBatchFile))},
	}
	for i := range operations {
		operations[i].Tag, operations[i].Gate = "files", request.InOwnAccount
	}
	return operations
}

var _ = register(fileOperations, fineTuningOperations)

// compatibleID returns an ID for a new resource of the OpenAI API: prefix followed by 32
// hexadecimal digits.
func compatibleID(c *call, prefix string) string {
	return prefix + strings.ReplaceAll(c.NewUUID("ID"), "-", "")
}

// createFile stores the file in a form as a dataset or, with the purpose batch, as a batch file. It
// reads the whole form first, so that a rejected form creates nothing.
func createFile(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	limit := rowFiles(c)
	if c.Request.ContentLength > limit.Bytes+1<<20 { // the multipart encoding adds less than 1 MiB to the file
		return nil, request.BodyTooLarge(limit.Bytes)
	}
	form, err := upload.Form(c.Call)
	if err != nil {
		return nil, err
	}
	name := domain.NewName(c.Account, domain.Datasets.Collection, compatibleID(c, "file-"))
	in := c.Uploads.NewIntake(c.Call, blobs.UploadPrefix(blobs.DatasetRoot, name, uuid.NewString(), 1, uuid.NewString()),
		limit).Counting(domain.Files{})
	defer in.Release()
	if err := in.Announced(); err != nil {
		return nil, err
	}
	display, purpose, err := readFile(form, in)
	if err != nil {
		in.Discard()
		return nil, err
	}
	if purpose == domain.PurposeBatch {
		return createBatchFile(c, in, name.ID(), display)
	}
	create := domain.CreateDataset{DatasetSpec: domain.DatasetSpec{DisplayName: display},
		CreatedBy: string(c.Principal.Key)}
	earlier, err := c.Recorded(name)
	if err != nil {
		return nil, err
	}
	created, err := c.Do(domain.Intend(domain.Datasets, name, domain.Command[domain.Dataset](create)))
	if err != nil {
		in.Discard()
		return nil, err
	}
	uploaded, err := in.Commit(domain.Intend(domain.Datasets, name, domain.Command[domain.Dataset](
		domain.UploadDataset{Upload: 1, Files: in.Files})))
	switch {
	case domain.CodeOf(err) == domain.NotFound && earlier.Position() > 0:
		f := domain.Errorf(domain.Aborted, "the file of an earlier attempt of this request was rejected and deleted: "+
			"send the file with another %s", request.IdempotencyHeader)
		f.Reason = "FILE_DELETED"
		return nil, f
	case domain.CodeOf(err) == domain.NotFound: // another client has deleted the file after its creation
		row, err := datasets.changed(c, created)
		if err != nil {
			return nil, err
		}
		domain.DatasetUploaded{Upload: 1, Files: in.Files}.Evolve(&row.State)
		return fileOf(row), nil
	case err != nil:
		deleteEmptyFile(c, created, err)
		return nil, err
	}
	row, err := datasets.changed(c, uploaded)
	if err != nil {
		return nil, err
	}
	return validatedFile(c, row)
}

// deleteEmptyFile deletes the dataset of a file whose upload was rejected with the error rejected.
// If rejected is not a *domain.Error, it does nothing, because the upload may be recorded.
func deleteEmptyFile(c *call, created eventlog.Change, rejected error) {
	var f *domain.Error
	row, ok := c.View().Datasets.Get(created.Name)
	if !errors.As(rejected, &f) || !ok || row.CreateEvent != created.Event.ID || row.State.Upload > 0 {
		return
	}
	if err := datasets.deleteRow(c, row, domain.DeleteDataset{}); err != nil {
		c.Logger.Warn("the dataset of a rejected file was not deleted, and remains without "+
			"rows", "request", c.ID, "dataset", row.Name, "error", err)
	}
}

// validatedFile waits until a new file is validated, and returns it. If its rows are invalid, it
// deletes the file and returns the error that lists them. It returns the same error if an earlier
// attempt of the request has deleted the file.
func validatedFile(c *call, uploaded *projections.Row[domain.Dataset]) (any, error) {
	_, invalid := datasetFiles.awaitValidation(c, uploaded)
	if row, ok := c.View().Datasets.Get(uploaded.Name); ok && row.CreateEvent == uploaded.CreateEvent {
		uploaded = row
	} else if invalid == nil {
		deletion, err := c.Recorded(uploaded.Name)
		if err != nil {
			return nil, err
		}
		if deletion.Position() > 0 {
			rejected, err := datasets.changed(c, deletion)
			if err == nil {
				_, err = datasetFiles.outcome(&uploaded.State, &rejected.State)
			}
			return nil, ofFile(err)
		}
	}
	if invalid == nil {
		return fileOf(uploaded), nil
	}
	if domain.CodeOf(invalid) == domain.InvalidArgument {
		if err := datasets.deleteRow(c, uploaded, domain.DeleteDataset{}); err != nil {
			c.Logger.Warn("a file with invalid rows was not deleted, and remains "+
				"listed", "request", c.ID, "dataset", uploaded.Name, "error", err)
		}
	}
	return nil, ofFile(invalid)
}

// ofFile returns the validation error of a dataset as the error of a form: violations of the whole
// dataset become violations of the field file.
func ofFile(err error) error {
	const whole = "dataset" // field of a violation that concerns the whole dataset
	var f *domain.Error
	if !errors.As(err, &f) {
		return err
	}
	renamed := *f
	renamed.Message = strings.Replace(f.Message, whole+": ", "file: ", 1)
	renamed.Violations = slices.Clone(f.Violations)
	for i := range renamed.Violations {
		if renamed.Violations[i].Field == whole {
			renamed.Violations[i].Field = "file"
		}
	}
	return &renamed
}

// maxFormFields is the maximum number of fields of a form, and maxFormField the maximum size of
// each field except the file, in bytes.
const (
	maxFormFields = 16
	maxFormField  = 1 << 10
)

// readFile stores the file of a form in the intake, validates the other fields, and returns the
// file's name (display) and purpose.
func readFile(form *multipart.Reader, in *upload.Intake) (display, purpose string, err error) {
	var v domain.Violations
	files := 0
	for range maxFormFields {
		part, err := form.NextPart()
		var fault *domain.Error
		switch {
		case errors.Is(err, io.EOF):
			v.Require(files == 1, "file", "the form has %d files: send one file as the field \"file\"", files)
			checkPurpose(&v, purpose)
			return display, purpose, v.Err()
		case errors.As(err, &fault):
			return "", "", fault
		case err != nil:
			v.Add("file", "the multipart body is malformed: send the fields file and purpose")
			return "", "", v.Err()
		case part.FormName() == "file" && part.FileName() == "":
			v.Add("file", "has no file name: send a file with a name, such as rows.jsonl")
		case part.FormName() == "file":
			if files++; files == 1 {
				display = part.FileName()
				v.RequireText("file", display, false)
				v.Require(len([]rune(display)) <= domain.MaxDisplayName, "file", "must have a file name of at most %d characters",
					domain.MaxDisplayName)
				if len(v) > 0 {
					return "", "", v.Err()
				}
				if err := in.File(storedName(display), part); err != nil {
					return "", "", err
				}
			}
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, maxFormField+1))
		switch {
		case err != nil || len(value) > maxFormField:
			v.Add(wire.Join("", part.FormName()), "must have at most %d bytes", maxFormField)
			return "", "", v.Err()
		case part.FormName() == "purpose":
			purpose = string(value)
		case strings.HasPrefix(part.FormName(), "expires_after"):
			v.Add("expires_after", "is not supported, because files do not expire: leave it out, and delete the file when "+
				"it is no longer needed")
		case part.FormName() != "file":
			v.Add(wire.Join("", part.FormName()), "is not a field of this form%s",
				domain.UnknownName(part.FormName(), "valid fields: ", []string{"file", "purpose"}))
		}
	}
	v.Add("file", "the form has more than %d fields: send the fields file and purpose", maxFormFields)
	return "", "", v.Err()
}

func checkPurpose(v *domain.Violations, purpose string) {
	switch {
	case slices.Contains(filePurposes, purpose):
	case purpose == "":
		v.Add("purpose", "is required: send %s", strings.Join(filePurposes, " or "))
	default:
		v.Add("purpose", "%s is not supported: the purpose must be %s", wire.Quote(purpose),
			strings.Join(filePurposes, " or "))
	}
}

// storedName returns the name under which a file is stored: the client's name for the file, with
// each character that is not allowed replaced by _.
func storedName(name string) string {
	stored := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, name)
	stored = strings.TrimLeft(stored, "._-")
	return cmp.Or(stored[:min(len(stored), 128)], defaultFile)
}

// filenameOf returns the name that a file of the OpenAI API shows: the client's name for the file
// or, if that is not known, the name under which it is stored. For a dataset with several files it
// is the dataset's ID with the suffix .jsonl.
func filenameOf(row *projections.Row[domain.Dataset]) string {
	stored := wire.SortedKeys(row.State.Files.Sizes)
	switch {
	case len(stored) == 1 && storedName(row.State.DisplayName) == stored[0] && row.State.DisplayName != "":
		return row.State.DisplayName
	case len(stored) == 1:
		return stored[0]
	}
	return row.Name.ID() + ".jsonl"
}

// Values of FileObject.Status.
const (
	fileUploaded  = "uploaded"
	fileProcessed = "processed"
	fileError     = "error"
)

// fileOf returns a dataset in the format of the OpenAI API's files.
func fileOf(row *projections.Row[domain.Dataset]) FileObject {
	d := &row.State
	out := FileObject{ID: row.Name.ID(), Object: fileObject, Bytes: d.Files.Bytes(), CreatedAt: row.CreateTime.Unix(),
		Filename: filenameOf(row), Purpose: purposeFineTune, Status: fileUploaded}
	switch {
	case d.State == domain.DatasetReady:
		out.Status = fileProcessed
	case d.Status.Code != domain.OK.String():
		out.Status, out.StatusDetails = fileError, d.Status.Message
	default:
		out.StatusDetails = upload.AwaitsFiles(d.Status).Message
	}
	return out
}

// fileRow returns the row of the dataset that the path names.
func fileRow(c *call) (*projections.Row[domain.Dataset], error) {
	row, ok := c.View().Datasets.Get(domain.NewName(c.Account, domain.Datasets.Collection, c.PathValue("id")))
	if !ok {
		return nil, request.NotFoundReason("NOT_FOUND", "there is no file %s: list the existing ones with GET /v1/files",
			wire.Quote(c.PathValue("id")))
	}
	return row, nil
}

// readRequest returns the result of find, or an error that lists the invalid parameters of the
// request.
func readRequest[T any](c *call, find func(*call) (T, error)) (found T, err error) {
	if err := c.Params().Err(); err != nil {
		return found, err
	}
	return find(c)
}

func getFile(c *call) (any, error) {
	row, err := readRequest(c, fileRow)
	if err != nil {
		return nil, err
	}
	return fileOf(row), nil
}

func deleteFile(c *call) (any, error) {
	row, err := readRequest(c, fileRow)
	if err == nil {
		err = datasets.deleteRow(c, row, domain.DeleteDataset{})
	}
	if err != nil {
		return nil, err
	}
	return FileDeletion{row.Name.ID(), fileObject, true}, nil
}

func listFiles(c *call) (any, error) {
	p := c.Params()
	order, purpose := p.Text("order"), p.Text("purpose")
	p.Violations.Require(slices.Contains([]string{"", "asc", "desc"}, order), "order", "must be asc or desc, not %s",
		wire.Quote(order))
	files := listedFiles(c, purpose)
	if order == "asc" {
		slices.Reverse(files)
	}
	page, more := pageOf(p, files, func(f listedFile) string { return f.id }, maxListedFiles, maxListedFiles)
	if err := p.Err(); err != nil {
		return nil, err
	}
	list := FileList{Object: listObject, Data: []FileObject{}, HasMore: more}
	for _, file := range page {
		list.Data = append(list.Data, file.object())
	}
	list.FirstID, list.LastID = ends(list.Data, func(f FileObject) string { return f.ID })
	return list, nil
}

// getFileContent sends the rows of the dataset that the path names.
func getFileContent(c *call) (any, error) {
	row, err := readRequest(c, fileRow)
	if err == nil {
		err = hasContent(row)
	}
	if err != nil {
		return nil, err
	}
	files, out := row.State.Files, &rowWriter{to: c.Writer}
	for i, name := range wire.SortedKeys(files.Sizes) {
		content, err := c.Uploads.Blobs.Get(c.Ctx, files.Prefix+name)
		if err != nil && i == 0 {
			return nil, c.missingFiles(err, datasets.noun, row.Name, files, datasetRows)
		}
		if i == 0 {
			header := c.Writer.Header()
			header.Set("Content-Type", rowsMedia)
			header.Set("X-Content-Type-Options", "nosniff")
			header.Set("Content-Disposition", mime.FormatMediaType("attachment",
				map[string]string{"filename": filenameOf(row)}))
			c.Writer.WriteHeader(http.StatusOK)
		}
		if err == nil {
			err = errors.Join(out.copy(content), content.Close())
		}
		if err == nil {
			continue
		}
		if c.Ctx.Err() == nil {
			c.Logger.Warn("a file was not sent completely; the connection to the client is closed",
				"request", c.ID, "dataset", row.Name, "error", err)
		}
		// closing the connection is the only way to show the client that the response is incomplete
		panic(http.ErrAbortHandler)
	}
	return nil, nil
}

// A rowWriter writes several files of rows one after the other.
type rowWriter struct {
	to   io.Writer
	last byte // the last byte that was written; 0 before the first one
}

// copy writes the content of a file. If the previous file does not end with a newline, copy first
// writes one, so that rows of two files are not joined.
func (w *rowWriter) copy(from io.Reader) error {
	if w.last != 0 && w.last != '\n' {
		if _, err := w.Write([]byte{'\n'}); err != nil {
			return err
		}
	}
	_, err := io.Copy(w, from)
	return err
}

// Write implements io.Writer.
func (w *rowWriter) Write(p []byte) (int, error) {
	if len(p) > 0 {
		w.last = p[len(p)-1]
	}
	return w.to.Write(p)
}
