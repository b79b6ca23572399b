package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

func datasetOperations(s *Service) []request.Operation {
	const one = request.CollectionPath + "datasets/{id}"
	all := []request.Operation{
		{ID: "uploadDataset", Method: "POST", Path: one + ":upload", Summary: "Upload the file of a dataset",
			Permission: request.Write,
			Description: "The request waits for the validation of the rows, for at most a minute. The response is the " +
				"dataset in the state READY, an error that lists invalid rows or, if the validation takes longer, the dataset " +
				"in the state UPLOADING.",
			Form: reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[Dataset](),
			Handle: s.handle(datasetFiles.post)},
		{ID: "getDatasetUploadEndpoint", Method: "POST", Path: one + ":getUploadEndpoint",
			Summary: "Get signed URLs for uploading the files of a dataset", Permission: request.Write,
			Body: reflect.TypeFor[upload.AnnouncedFiles](), BodyOptional: true, Response: reflect.TypeFor[upload.SignedURLs](),
			Handle: s.handle(datasetFiles.endpoints)},
		{ID: "validateDatasetUpload", Method: "POST", Path: one + ":validateUpload",
			Summary:    "Validate the files of a dataset that were uploaded to signed URLs",
			Permission: request.Write,
			Description: "The response is that of uploadDataset: the dataset in the state READY, an error that lists " +
				"invalid rows or, after a minute, the dataset in the state UPLOADING.",
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Dataset](),
			Handle: s.handle(datasets.verb(datasetFiles.validate))},
		{ID: "getDatasetDownloadEndpoint", Method: "GET", Path: one + ":getDownloadEndpoint",
			Summary: "Get signed URLs for downloading the files of a dataset", Permission: request.Read,
			Response: reflect.TypeFor[upload.SignedURLs](), Handle: s.handle(datasets.verb(downloadEndpoints))},
		{ID: "previewDataset", Method: "GET", Path: one + ":preview", Summary: "Read rows of a dataset",
			Permission: request.Read,
			Query:      []request.Parameter{request.PageSizeParameter, request.PageTokenParameter},
			Response:   reflect.TypeFor[preview](), Handle: s.handle(previewDataset)},
	}
	return withTag("datasets", all)
}

// An uploadForm is the multipart form with which a file is uploaded.
type uploadForm struct {
	File request.File `json:"file"`
}

// A preview is a page of the rows of a dataset.
type preview struct {
	Examples      []json.RawMessage `json:"examples"`
	NextPageToken string            `json:"nextPageToken,omitempty"`
	TotalCount    int64             `json:"totalCount"`
}

// rowStaging returns the directory into which signed URLs write. Its files are copied to another
// directory before they are validated, so that a signed URL cannot change validated files.
func rowStaging(row *projections.Row[domain.Dataset]) string {
	return blobs.StagingPrefix(row.Name, row.CreateEvent, row.State.Upload+1)
}

func newRowDirectory(row *projections.Row[domain.Dataset]) string {
	return blobs.UploadPrefix(blobs.DatasetRoot, row.Name, row.CreateEvent, row.State.Upload+1, uuid.NewString())
}

// maxFiles is the maximum number of files of a dataset or an evaluator.
const maxFiles = 100

// rowFiles returns the limits for the files of a dataset or an evaluator.
func rowFiles(c *call) upload.Limit { return upload.Limit{Files: maxFiles, Bytes: c.Limits.Upload} }

var datasetFiles = &uploadable[domain.Dataset, Dataset]{
	resource: datasets, single: "data.jsonl",
	limit:   func(c *call, _ *projections.Row[domain.Dataset]) upload.Limit { return rowFiles(c) },
	staging: rowStaging, directory: newRowDirectory,
	files: func(d *domain.Dataset) domain.Files { return d.Files },
	mayUpload: func(_ *call, row *projections.Row[domain.Dataset]) error {
		_, err := uploadRows(&row.State, domain.Files{Sizes: map[string]int64{"x": 1}}).Decide(row.State, time.Time{})
		return err
	},
	command:   uploadRows,
	hasUpload: func(d *domain.Dataset) bool { return d.Upload > 0 },
	outcome: func(uploaded, d *domain.Dataset) (bool, error) {
		if d.Validated >= uploaded.Upload && d.State != domain.DatasetReady {
			return true, upload.Rejected("INVALID_ROWS", d.Status, d.Violations)
		}
		return d.Validated >= uploaded.Upload, nil
	},
}

func uploadRows(d *domain.Dataset, files domain.Files) domain.Command[domain.Dataset] {
	return domain.UploadDataset{Upload: d.Upload + 1, Files: files}
}

func downloadEndpoints(c *call, row *projections.Row[domain.Dataset]) (any, error) {
	if err := hasContent(row); err != nil {
		return nil, err
	}
	return c.Uploads.SignGets(c.Call, row.State.Files)
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

// A previewCursor is the content of a preview's page token: where the next page begins.
type previewCursor struct {
	File   string `json:"f"`
	Offset int64  `json:"o"` // offset of the next page in File, in bytes
}

// previewDataset responds with a page of the rows of a dataset.
func previewDataset(c *call) (any, error) {
	p := c.Params()
	size := request.PageSize(&p.Violations, p.Number("pageSize"))
	token := p.Text("pageToken")
	row, err := datasets.row(c)
	if err != nil {
		return nil, err
	}
	var at previewCursor
	bound := request.TokenBinding(c.Request.URL, p) + row.State.Files.Prefix
	if token != "" && !request.OpenToken(c.Pepper, bound, token, &at) {
		p.Violations.Add("pageToken", "is not a page token of this preview: leave it out to get the first page")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if err := hasContent(row); err != nil {
		return nil, err
	}
	examples, next, err := rowsFrom(c, row, at, size)
	if err != nil {
		return nil, err
	}
	answer := preview{Examples: examples, TotalCount: row.State.ExampleCount.Int64()}
	if next != nil {
		answer.NextPageToken = request.SealToken(c.Pepper, bound, next)
	}
	return answer, nil
}

// maxPreview is the maximum size of the rows on a page of a preview, in bytes. A page ends before
// the row that would exceed it; only the first row of a page may be larger.
const maxPreview = 4 << 20

// readRow reads a line of any length. It returns the first maxPreview bytes of the line, and the
// length of the whole line in bytes.
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

// rowsFrom returns up to maxRows rows of a dataset from a cursor on, and the cursor of the next
// page; nil if there are no more rows.
func rowsFrom(c *call, d *projections.Row[domain.Dataset], cursor previewCursor, maxRows int) (rows []json.RawMessage,
	next *previewCursor, err error) {
	files := d.State.Files
	rows = []json.RawMessage{}
	remaining := int64(maxPreview)
	for _, name := range wire.SortedKeys(files.Sizes) {
		if name < cursor.File {
			continue
		}
		if name != cursor.File {
			cursor = previewCursor{File: name}
		}
		content, err := c.Uploads.Blobs.Get(c.Ctx, files.Prefix+name)
		if err != nil {
			return nil, nil, c.missingFiles(err, datasets.noun, d.Name, files, datasetRows)
		}
		_, err = content.Seek(cursor.Offset, io.SeekStart)
		for r := bufio.NewReader(content); err == nil; {
			var line []byte
			var length int64
			line, length, err = readRow(r)
			if text := bytes.TrimSpace(line); len(text) > 0 {
				if len(rows) == maxRows || len(rows) > 0 && remaining < length {
					return rows, &cursor, content.Close()
				}
				rows, remaining = append(rows, exampleOf(text)), remaining-length
			}
			cursor.Offset += length
		}
		if err := errors.Join(content.Close(), wire.NotEOF(err)); err != nil {
			return nil, nil, err
		}
	}
	return rows, nil, nil
}

// datasetRows returns the files with the rows of a dataset; false if the dataset does not exist.
func datasetRows(v *projections.View, name domain.Name) (domain.Files, bool) {
	row, ok := v.Datasets.Get(name)
	if !ok {
		return domain.Files{}, false
	}
	return row.State.Files, true
}

// exampleOf returns a row as JSON: the row itself or, if it is not valid JSON, a JSON string with
// its text.
func exampleOf(line []byte) json.RawMessage {
	if json.Valid(line) {
		return line
	}
	quoted, _ := json.Marshal(string(line)) // encoding a string never fails
	return quoted
}
