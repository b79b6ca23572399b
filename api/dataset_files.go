package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

func datasetOperations(s *Server) []request.Operation {
	const one = request.CollectionPath + "datasets/{id}"
	all := []request.Operation{
		{ID: "uploadDataset", Method: "POST", Path: one + ":upload", Summary: "Upload the file of a dataset", Permission: request.Write,
			Description: "The answer waits until the rows have been checked: it is the READY dataset, or every fault of its rows.",
			Form:        reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[Dataset](), Handle: s.handle(uploadDataset)},
		{ID: "getDatasetUploadEndpoint", Method: "POST", Path: one + ":getUploadEndpoint", Summary: "Get URLs to which the files of a dataset can be PUT", Permission: request.Write,
			Body: reflect.TypeFor[announcedFiles](), BodyOptional: true, Response: reflect.TypeFor[signedURLs](), Handle: s.handle(uploadEndpoints)},
		{ID: "validateDatasetUpload", Method: "POST", Path: one + ":validateUpload", Summary: "Check the files that were PUT", Permission: request.Write,
			Description: "The answer is the READY dataset, or every fault of its rows.",
			Body:        request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Dataset](), Handle: s.handle(datasets.verb(validateUpload))},
		{ID: "getDatasetDownloadEndpoint", Method: "GET", Path: one + ":getDownloadEndpoint", Summary: "Get URLs from which the files of a dataset can be read", Permission: request.Read,
			Response: reflect.TypeFor[signedURLs](), Handle: s.handle(datasets.verb(downloadEndpoints))},
		{ID: "previewDataset", Method: "GET", Path: one + ":preview", Summary: "Read rows of a dataset", Permission: request.Read,
			Query: []request.Parameter{request.PageSizeParameter, request.PageTokenParameter}, Response: reflect.TypeFor[preview](), Handle: s.handle(previewDataset)},
	}
	for i := range all {
		all[i].Tag = "datasets"
	}
	return all
}

// An uploadForm is how a file is uploaded.
type uploadForm struct {
	File request.File `json:"file"`
}

// A preview is some rows of a dataset, as they are stored.
type preview struct {
	Examples      []json.RawMessage `json:"examples"`
	NextPageToken string            `json:"nextPageToken,omitempty"`
	TotalCount    int64             `json:"totalCount"`
}

// Rows arrive in blobs.Arrivals; what is validated is a copy in an upload folder.
func rowArrivals(row *projections.Row[domain.Dataset]) string {
	return blobs.Arrivals(row.Name, row.CreateEvent, row.State.Upload+1)
}

func newRowFolder(row *projections.Row[domain.Dataset]) string {
	return blobs.UploadFolder(blobs.DatasetRoot, row.Name, row.CreateEvent, row.State.Upload+1, uuid.NewString())
}

// maxFiles bounds how many files one dataset or evaluator may have.
const maxFiles = 100

// rowFiles bounds the files of one dataset.
func (c *call) rowFiles() fileLimit { return fileLimit{files: maxFiles, bytes: c.server.Limits.Upload} }

// uploadDataset takes one file as multipart field "file" and answers when its
// rows have been checked.
func uploadDataset(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	row, err := datasets.row(c)
	if err != nil {
		return nil, err
	}
	if again, err := tried(c, datasets, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return c.rowsVerdict(again)
	}
	if err := mayUpload(row); err != nil {
		return nil, err
	}
	if c.Request.ContentLength > c.server.Limits.Upload+1<<20 { // the form around the file is smaller than that
		return nil, request.BodyTooLarge(c.server.Limits.Upload)
	}
	form, err := c.form()
	if err != nil {
		return nil, err
	}
	name, content, err := filePart(form)
	switch {
	case errors.Is(err, io.EOF):
		var v domain.Violations
		v.Add("file", "the form is empty: send the file as its field \"file\"")
		return nil, v.Err()
	case err != nil:
		return nil, err
	case name == "":
		name = "data.jsonl"
	}
	intake := c.newIntake(newRowFolder(row), c.rowFiles()).counting(row.State.Files)
	defer intake.share.release()
	if err := intake.announced(); err != nil {
		return nil, err
	}
	if err := intake.file(name, content); err != nil {
		intake.discard()
		return nil, err
	}
	return intake.rows(row)
}

func mayUpload(row *projections.Row[domain.Dataset]) error {
	_, err := domain.UploadDataset{Upload: row.State.Upload + 1, Files: domain.Files{Sizes: map[string]int64{"x": 1}}}.Decide(row.State, time.Time{})
	return err
}

// rows makes the files a dataset's newest upload, and answers its verdict.
func (in *intake) rows(row *projections.Row[domain.Dataset]) (any, error) {
	upload := domain.UploadDataset{Upload: row.State.Upload + 1, Files: in.files}
	uploaded, err := recordFiles(in, datasets, row.Name, upload)
	if err != nil {
		return nil, err
	}
	return in.rowsVerdict(uploaded)
}

// rowsVerdict answers the READY dataset, or every fault of its rows.
func (c *call) rowsVerdict(row *projections.Row[domain.Dataset]) (any, error) {
	upload := row.State.Upload
	return verdict(c, datasets, row, func(d domain.Dataset) (bool, error) {
		if d.Validated >= upload && d.State != domain.DatasetReady {
			return true, refusedUpload("INVALID_ROWS", d.Status, d.Violations)
		}
		return d.Validated >= upload, nil
	})
}

func uploadEndpoints(c *call) (any, error) {
	sizes, err := c.announcedFiles(c.rowFiles())
	if err != nil {
		return nil, err
	}
	row, err := datasets.row(c)
	if err == nil {
		err = mayUpload(row)
	}
	if err != nil {
		return nil, err
	}
	return c.signPuts(rowArrivals(row), sizes)
}

// validateUpload takes in what was PUT to the signed URLs and answers its
// verdict. With nothing new it answers that of the last upload.
func validateUpload(c *call, row *projections.Row[domain.Dataset]) (any, error) {
	if again, err := tried(c, datasets, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return c.rowsVerdict(again)
	}
	arrived, err := c.server.Blobs.Files(c.Ctx, rowArrivals(row))
	if err != nil {
		return nil, err
	}
	if len(arrived.Sizes) == 0 && row.State.Upload > 0 {
		return c.rowsVerdict(row)
	}
	if err := mayUpload(row); err != nil {
		return nil, err
	}
	if err := c.rowFiles().arrived(len(arrived.Sizes)); err != nil {
		return nil, err
	}
	intake := c.newIntake(newRowFolder(row), c.rowFiles()).counting(row.State.Files)
	defer intake.share.release()
	if err := intake.take(arrived); err != nil {
		return nil, err
	}
	return intake.rows(row)
}

func downloadEndpoints(c *call, row *projections.Row[domain.Dataset]) (any, error) {
	if err := hasContent(row); err != nil {
		return nil, err
	}
	return c.signGets(row.State.Files)
}

func hasContent(row *projections.Row[domain.Dataset]) error {
	if len(row.State.Files.Sizes) > 0 {
		return nil
	}
	f := domain.Errorf(domain.FailedPrecondition, "%s has no rows yet: upload a file first", row.Name)
	if row.State.From != nil {
		f.Message = fmt.Sprintf("%s has no rows yet: %s", row.Name, row.State.Status.Message)
	}
	f.Reason = "NOTHING_UPLOADED"
	return f
}

// A previewPlace is where the next page of a preview begins.
type previewPlace struct {
	File   string `json:"f"`
	Offset int64  `json:"o"` // bytes
}

// previewDataset shows rows as they are stored.
func previewDataset(c *call) (any, error) {
	p := c.Params()
	size := request.PageSize(&p.Violations, p.Number("pageSize"))
	token := p.Text("pageToken")
	row, err := datasets.row(c)
	if err != nil {
		return nil, err
	}
	var at previewPlace
	bound := request.TokenBinding(c.Request.URL, p) + row.State.Files.Folder
	if token != "" && !request.OpenToken(c.Pepper, bound, token, &at) {
		p.Violations.Add("pageToken", "is not a token of this preview: leave it out to begin again")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if err := hasContent(row); err != nil {
		return nil, err
	}
	examples, next, err := c.rowsFrom(row.State.Files, at, size)
	if err != nil {
		return nil, err
	}
	answer := preview{Examples: examples, TotalCount: row.State.ExampleCount.Int64()}
	if next != nil {
		answer.NextPageToken = request.SealToken(c.Pepper, bound, next)
	}
	return answer, nil
}

// maxPreview bounds the rows of one page of a preview, in bytes: it ends before
// the row that exceeds it, unless that is its first.
const maxPreview = 4 << 20

// readRow reads a line of any length and keeps at most maxPreview bytes of it.
func readRow(r *bufio.Reader) (line []byte, length int64, err error) {
	for {
		var part []byte
		part, err = r.ReadSlice('\n')
		length += int64(len(part))
		line = append(line, part[:min(len(part), maxPreview-len(line))]...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, length, err
		}
	}
}

// rowsFrom reads rows at a place of a dataset's files, and where it goes on.
func (c *call) rowsFrom(files domain.Files, at previewPlace, most int) (rows []json.RawMessage, next *previewPlace, err error) {
	rows = []json.RawMessage{}
	room := int64(maxPreview)
	for _, name := range slices.Sorted(keysOf(files.Sizes)) {
		if name < at.File {
			continue
		}
		if name != at.File {
			at = previewPlace{File: name}
		}
		content, err := c.server.Blobs.Get(c.Ctx, files.Folder+name)
		if err != nil {
			return nil, nil, err
		}
		_, err = content.Seek(at.Offset, io.SeekStart)
		for r := bufio.NewReader(content); err == nil; {
			var line []byte
			var length int64
			line, length, err = readRow(r)
			if text := bytes.TrimSpace(line); len(text) > 0 {
				if len(rows) == most || len(rows) > 0 && room < length {
					return rows, &at, content.Close()
				}
				rows, room = append(rows, exampleOf(text)), room-length
			}
			at.Offset += length
		}
		if err := errors.Join(content.Close(), notEOF(err)); err != nil {
			return nil, nil, err
		}
	}
	return rows, nil, nil
}

// exampleOf is a row as an answer can carry it: text in quotes when it is not
// JSON.
func exampleOf(line []byte) json.RawMessage {
	if json.Valid(line) {
		return line
	}
	quoted, _ := json.Marshal(string(line)) // a string always can
	return quoted
}

func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
