package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"anneal/domain"
	"anneal/projections"
)

func (s *Server) routeDatasets(r chi.Router) {
	one := "/v1/accounts/{account}/datasets/{id}"
	r.Post(one+":upload", s.manage(toWrite, uploadDataset))
	r.Post(one+":getUploadEndpoint", s.manage(toWrite, uploadEndpoints))
	r.Post(one+":validateUpload", s.manage(toWrite, datasets.verb(validateUpload)))
	r.Get(one+":getDownloadEndpoint", s.manage(toRead, datasets.verb(downloadEndpoints)))
	r.Get(one+":preview", s.manage(toRead, previewDataset))
}

// Rows arrive below arrivals, where whoever holds a signed URL can write. What
// is validated is a copy below contents that nobody outside can write, so that
// what was READY stays as it was.
func arrivals(name domain.Name) string { return "uploads/" + name.Account() + "/" + name.ID() + "/" }

func contents(name domain.Name, upload int) string {
	return "datasets/" + name.Account() + "/" + name.ID() + "/" + strconv.Itoa(upload) + "-" + uuid.NewString()[:8] + "/"
}

// maxFiles bounds how many files one dataset may have.
const maxFiles = 100

var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

const fileNameRule = "must be 1 to 128 letters, digits, dots, _ and -, and begin with a letter or digit"

// uploadDataset takes one file as multipart field "file" and answers when its
// rows have been checked.
func uploadDataset(c *call) (any, error) {
	if err := readParams(c.r.URL).err(); err != nil {
		return nil, err
	}
	row, err := datasets.row(c)
	if err != nil {
		return nil, err
	}
	if err := mayUpload(row); err != nil {
		return nil, err
	}
	if c.r.ContentLength > c.Limits.Upload+1<<20 { // the form around the file is smaller than that
		return nil, bodyTooLarge(c.Limits.Upload)
	}
	control := http.NewResponseController(c.w)
	_ = control.SetReadDeadline(time.Now().Add(uploadTime))
	defer control.SetReadDeadline(time.Time{}) //nolint:errcheck // a connection that cannot is a test's
	name, content, err := c.filePart()
	if err != nil {
		return nil, err
	}
	intake := newIntake(c, row)
	if err := intake.file(name, content); err != nil {
		intake.discard()
		return nil, err
	}
	return intake.record()
}

func mayUpload(row *projections.Row[domain.Dataset]) error {
	_, err := domain.UploadDataset{Upload: row.State.Upload + 1, Files: domain.Files{Sizes: map[string]int64{"x": 1}}}.Decide(row.State, time.Time{})
	return err
}

// filePart finds the field "file" of a multipart form, which must come first.
func (c *call) filePart() (string, io.Reader, error) {
	var v domain.Violations
	form, err := c.r.MultipartReader()
	if err != nil {
		v.Add("file", "send the file as the field \"file\" of a multipart/form-data body")
		return "", nil, v.Err()
	}
	part, err := form.NextPart()
	switch {
	case err != nil:
		v.Add("file", "the multipart body is broken or has no field: send the file as its field \"file\"")
	case part.FormName() != "file":
		v.Add("file", "the form's first field is %s: send the file as the field \"file\" and nothing else", quoted(part.FormName()))
	case part.FileName() != "" && !fileName.MatchString(part.FileName()):
		v.Add("file", "the file's name %s", fileNameRule)
	}
	if err := v.Err(); err != nil {
		return "", nil, err
	}
	name := part.FileName()
	if name == "" {
		name = "data.jsonl"
	}
	return name, part, nil
}

// An intake stores the files of one upload of a dataset. Its rows are checked
// by whoever follows the log for uploads.
type intake struct {
	*call
	row    *projections.Row[domain.Dataset]
	upload int
	files  domain.Files
}

func newIntake(c *call, row *projections.Row[domain.Dataset]) *intake {
	upload := row.State.Upload + 1
	return &intake{c, row, upload, domain.Files{Folder: contents(row.Name, upload), Sizes: map[string]int64{}}}
}

// file stores one file of at most Limits.Upload bytes.
func (in *intake) file(name string, content io.Reader) error {
	limited := &io.LimitedReader{R: content, N: in.Limits.Upload + 1}
	size, err := in.Blobs.Put(in.ctx, in.files.Folder+name, limited)
	var fault *domain.Fault
	switch {
	case err != nil && limited.N > 0 && !errors.As(err, &fault) && in.ctx.Err() == nil:
		in.Logger.Warn("an upload broke off", "request", in.id, "error", err)
		return domain.Faultf(domain.InvalidArgument, "the upload of %s broke off after %d bytes: send the file again", quoted(name), size)
	case err != nil:
		return err
	case limited.N == 0:
		return bodyTooLarge(in.Limits.Upload)
	}
	in.files.Sizes[name] = size
	return nil
}

func (in *intake) discard() { in.deleteFolder(in.files.Folder) }

// record makes the upload the dataset's newest, and answers its verdict.
func (in *intake) record() (any, error) {
	old := in.row.State.Files.Folder
	if err := in.do(domain.Intend(domain.Datasets, in.row.Name, domain.Command[domain.Dataset](domain.UploadDataset{Upload: in.upload, Files: in.files}))); err != nil {
		var refused *domain.Fault
		if errors.As(err, &refused) { // otherwise it may have been recorded
			in.discard()
		}
		return nil, err
	}
	in.deleteFolder(old)
	return in.verdict(in.row.Name, in.upload)
}

// verdict waits until the rows of an upload are judged: it answers the READY
// dataset, or every fault of its rows. A judge who takes longer than
// Limits.Verdict is not waited for: the dataset then says that it is being
// validated.
func (c *call) verdict(name domain.Name, upload int) (any, error) {
	timeout := time.NewTimer(c.Limits.Verdict)
	defer timeout.Stop()
	for {
		c.view = nil
		row, ok := c.snapshot().Datasets.Get(name)
		switch {
		case !ok:
			return nil, notFound("dataset", name)
		case row.State.Validated >= upload && row.State.State != domain.DatasetReady:
			return nil, rejected(row.State)
		case row.State.Validated >= upload:
			return datasets.wire(c, name)
		}
		select {
		case <-c.World.Changed(c.view.Position):
		case <-timeout.C:
			return datasets.wire(c, name)
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
	}
}

// rejected is the fault that a rejected upload's dataset carries.
func rejected(d domain.Dataset) error {
	code := domain.InvalidArgument
	if d.Status.Code != code.String() { // the check itself failed
		code = domain.Internal
	}
	return &domain.Fault{Code: code, Reason: "INVALID_ROWS", Message: d.Status.Message, Violations: d.Violations}
}

// announcedFiles reads the names and sizes, in bytes, of files to come.
func (c *call) announcedFiles() (map[string]domain.Count, error) {
	var asked struct {
		FilenameToSize map[string]domain.Count `json:"filenameToSize"`
	}
	if err := readVerb(c, &asked); err != nil {
		return nil, err
	}
	p := readParams(c.r.URL)
	p.violations.Require(len(asked.FilenameToSize) > 0 && len(asked.FilenameToSize) <= maxFiles, "filenameToSize", "must name 1 to %d files and their sizes in bytes", maxFiles)
	for _, name := range sortedKeys(asked.FilenameToSize) {
		size := asked.FilenameToSize[name].Int64()
		p.violations.Require(fileName.MatchString(name), "filenameToSize", "%s %s", quoted(name), fileNameRule)
		p.violations.Require(size > 0 && size <= c.Limits.Upload, "filenameToSize", "the size of %s must be from 1 to %d bytes", quoted(name), c.Limits.Upload)
	}
	return asked.FilenameToSize, p.err()
}

// signPuts answers a URL for each file, to which it can be PUT without a key.
func (c *call) signPuts(folder string, sizes map[string]domain.Count) (any, error) {
	urls := map[string]string{}
	for name, size := range sizes {
		url, err := c.Blobs.SignPut(c.ctx, folder+name, size.Int64(), c.Limits.SignedURL)
		if err != nil {
			return nil, err
		}
		urls[name] = url
	}
	return map[string]any{"filenameToSignedUrls": urls}, nil
}

func uploadEndpoints(c *call) (any, error) {
	sizes, err := c.announcedFiles()
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
	return c.signPuts(arrivals(row.Name), sizes)
}

// validateUpload takes in what was PUT to the signed URLs and answers its
// verdict. With nothing new it answers that of the last upload.
func validateUpload(c *call, row *projections.Row[domain.Dataset]) (any, error) {
	arrived, err := c.Blobs.Files(c.ctx, arrivals(row.Name))
	if err != nil {
		return nil, err
	}
	if len(arrived.Sizes) == 0 && row.State.Upload > 0 {
		return c.verdict(row.Name, row.State.Upload)
	}
	if err := mayUpload(row); err != nil {
		return nil, err
	}
	if err := arrivedFiles(len(arrived.Sizes)); err != nil {
		return nil, err
	}
	intake := newIntake(c, row)
	if err := intake.copy(arrived); err != nil {
		return nil, err
	}
	result, err := intake.record()
	if err == nil || domain.CodeOf(err) == domain.InvalidArgument {
		c.deleteFolder(arrivals(row.Name))
	}
	return result, err
}

// arrivedFiles refuses to take in nothing, or too much.
func arrivedFiles(n int) error {
	if n > 0 && n <= maxFiles {
		return nil
	}
	f := domain.Faultf(domain.FailedPrecondition, "%d files have been uploaded: PUT 1 to %d files to the URLs that :getUploadEndpoint gives, then validate", n, maxFiles)
	f.Reason = "NOTHING_UPLOADED"
	return f
}

// copy stores what has arrived, all of it or nothing.
func (in *intake) copy(arrived domain.Files) error {
	for _, name := range slices.Sorted(keysOf(arrived.Sizes)) {
		content, err := in.Blobs.Get(in.ctx, arrived.Folder+name)
		if err == nil {
			err = errors.Join(in.file(name, content), content.Close())
		}
		if err != nil {
			in.discard()
			return err
		}
	}
	return nil
}

func keysOf[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func downloadEndpoints(c *call, row *projections.Row[domain.Dataset]) (any, error) {
	if err := hasContent(row); err != nil {
		return nil, err
	}
	urls := map[string]string{}
	for name := range row.State.Files.Sizes {
		url, err := c.Blobs.SignGet(c.ctx, row.State.Files.Folder+name, c.Limits.SignedURL)
		if err != nil {
			return nil, err
		}
		urls[name] = url
	}
	return map[string]any{"filenameToSignedUrls": urls}, nil
}

func hasContent(row *projections.Row[domain.Dataset]) error {
	if len(row.State.Files.Sizes) > 0 {
		return nil
	}
	f := domain.Faultf(domain.FailedPrecondition, "%s has no rows yet: upload a file first", row.Name)
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
	p := readParams(c.r.URL)
	size := p.number("pageSize")
	p.violations.Require(size >= 0, "pageSize", "must not be negative")
	if size = min(size, projections.MaxPageSize); size == 0 {
		size = projections.DefaultPageSize
	}
	token := p.text("pageToken")
	row, err := datasets.row(c)
	if err != nil {
		return nil, err
	}
	var at previewPlace
	bound := binding(c.r.URL, p) + row.State.Files.Folder
	if token != "" && !openToken(c.Pepper, bound, token, &at) {
		p.violations.Add("pageToken", "is not a token of this preview: leave it out to begin again")
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	if err := hasContent(row); err != nil {
		return nil, err
	}
	examples, next, err := c.rowsFrom(row.State.Files, at, size)
	if err != nil {
		return nil, err
	}
	answer := map[string]any{"examples": examples, "totalCount": row.State.ExampleCount.Int64()}
	if next != nil {
		answer["nextPageToken"] = sealToken(c.Pepper, bound, next)
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
		content, err := c.Blobs.Get(c.ctx, files.Folder+name)
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
