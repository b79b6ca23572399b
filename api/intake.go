package api

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"regexp"
	"slices"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Files arrive where whoever holds a signed URL can write. What is looked at
// and used is a copy in a folder of the upload's own that nobody outside can
// write, so that what was found right stays as it was.

var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

const fileNameRule = "must be 1 to 128 letters, digits, dots, _ and -, and begin with a letter or digit"

// A fileLimit bounds what one upload may hold.
type fileLimit struct {
	files   int
	bytes   int64 // of each file
	folders bool  // files may lie in one, as FOLDER/NAME
}

// name requires that of a file.
func (l fileLimit) name(v *domain.Violations, name string) {
	folder, base, in := strings.Cut(name, "/")
	if l.folders && in {
		v.Require(fileName.MatchString(folder) && fileName.MatchString(base), "filenameToSize", "%s: a folder's name and a file's in it, with one slash between, each %s", wire.Quote(name), fileNameRule)
		return
	}
	v.Require(fileName.MatchString(name), "filenameToSize", "%s %s", wire.Quote(name), fileNameRule)
}

// uploadsExpire is what becomes of files that nobody validates.
var uploadsExpire = fmt.Sprintf("files that are sent to upload URLs and not validated within %d days are deleted", domain.UploadTime/(24*time.Hour))

// waitsForFiles is the status of a resource before its first upload.
func waitsForFiles(s domain.Status) domain.Status {
	if s.Message == "" {
		s.Message = "waits for its files: upload them, or send them to upload URLs and validate the upload; " + uploadsExpire
	}
	return s
}

// An intake stores the files of one upload.
type intake struct {
	*call
	limit fileLimit
	files domain.Files
	share *storageShare // nil when it counts against no quota
}

func (c *call) newIntake(folder string, limit fileLimit) *intake {
	return &intake{call: c, limit: limit, files: domain.Files{Folder: folder, Sizes: map[string]int64{}}}
}

// form is the request's multipart body.
func (c *call) form() (form *multipart.Reader, err error) {
	kind, _, _ := mime.ParseMediaType(c.Request.Header.Get("Content-Type")) // what is none is "", or has no boundary
	if form, err = c.Request.MultipartReader(); err != nil || kind != "multipart/form-data" {
		var v domain.Violations
		v.Add("file", "send the file as the field \"file\" of a multipart/form-data body")
		return nil, v.Err()
	}
	return form, nil
}

// form stores the files of a form, of which each carries its name. When it
// fails nothing stays of the upload, also of what was taken before.
func (in *intake) form(form *multipart.Reader) error {
	for n := 0; ; n++ {
		name, content, err := filePart(form)
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return nil
		case errors.Is(err, io.EOF):
			err = nothingSent()
		case err == nil && name == "":
			err = noFileName()
		case err == nil:
			err = in.file(name, content)
		}
		if err == nil && len(in.files.Sizes) > in.limit.files {
			err = in.limit.arrived(len(in.files.Sizes))
		}
		if err != nil {
			in.discard()
			return err
		}
	}
}

func nothingSent() error {
	var v domain.Violations
	v.Add("file", "the form is empty: send each file as a field \"file\"")
	return v.Err()
}

func noFileName() error {
	var v domain.Violations
	v.Add("file", "each field must carry the name of its file, such as config.json")
	return v.Err()
}

// filePart is the next field "file" of a form; io.EOF when there is none left.
func filePart(form *multipart.Reader) (name string, content io.Reader, err error) {
	var v domain.Violations
	part, err := form.NextPart()
	var fault *domain.Error
	switch {
	case errors.As(err, &fault):
		return "", nil, fault
	case errors.Is(err, io.EOF):
		return "", nil, err
	case err != nil:
		v.Add("file", "the multipart body is broken or has no field: send the file as its field \"file\"")
		return "", nil, v.Err()
	case part.FormName() != "file":
		v.Add("file", "the form has a field %s: send files as fields \"file\" and nothing else", wire.Quote(part.FormName()))
	case part.FileName() != "" && !fileName.MatchString(part.FileName()):
		v.Add("file", "the file's name %s", fileNameRule)
	}
	return part.FileName(), part, v.Err()
}

// file stores one file.
func (in *intake) file(name string, content io.Reader) error {
	limited := &io.LimitedReader{R: content, N: in.limit.bytes + 1}
	size, err := in.server.Blobs.Put(in.Ctx, in.files.Folder+name, &countedBody{ReadCloser: io.NopCloser(limited), share: in.share})
	var fault *domain.Error
	switch {
	case err != nil && limited.N > 0 && !errors.As(err, &fault) && in.Ctx.Err() == nil:
		in.Logger.Warn("an upload broke off", "request", in.ID, "error", err)
		return domain.Errorf(domain.InvalidArgument, "the upload of %s broke off after %d bytes: send the file again", wire.Quote(name), size)
	case err != nil:
		return err
	case limited.N == 0:
		return request.BodyTooLarge(in.limit.bytes)
	}
	in.files.Sizes[name] = size
	return nil
}

// take stores copies of files that lie elsewhere, all of them or nothing. A
// file of the same name is replaced.
func (in *intake) take(files domain.Files) error {
	if err := in.share.take(files.Bytes()); err != nil {
		in.discard()
		return err
	}
	for _, name := range slices.Sorted(keysOf(files.Sizes)) {
		err := in.server.Blobs.Copy(in.Ctx, in.files.Folder+name, files.Folder+name)
		if err == nil {
			in.files.Sizes[name], err = in.server.Blobs.Size(in.Ctx, in.files.Folder+name)
		}
		if err == nil && in.files.Sizes[name] > in.limit.bytes { // an object store's signed URL cannot hold the limit
			err = request.BodyTooLarge(in.limit.bytes)
		}
		if err != nil {
			in.discard()
			return err
		}
	}
	return nil
}

// discard removes the intake's own folder, which no event refers to. What fails
// here is left to the reconciler.
func (in *intake) discard() {
	defer in.share.release()
	ctx, cancel := in.Detached()
	defer cancel()
	if err := in.server.Blobs.DeleteFolder(ctx, in.files.Folder); err != nil {
		in.Logger.Warn("files of a request that failed were left", "request", in.ID, "folder", in.files.Folder, "error", err)
	}
}

// recordFiles carries out the command that makes the files part of a resource,
// and returns the resource as that left it. When the command is refused the
// files are discarded; otherwise it may have been recorded.
func recordFiles[S domain.State, R any](in *intake, res *resource[S, R], name domain.Name, upload domain.Command[S]) (*projections.Row[S], error) {
	result, err := in.Do(domain.Intend(res.kind, name, upload))
	in.share.release()
	var refused *domain.Error
	switch {
	case errors.As(err, &refused):
		in.discard()
		return nil, err
	case err != nil:
		return nil, err
	}
	return res.changed(in.call, result)
}

// announcedFiles are files to come: their sizes in bytes, by name.
type announcedFiles struct {
	FilenameToSize map[string]domain.Count `json:"filenameToSize"`
}

// signedURLs lead to files without a key, by name.
type signedURLs struct {
	Files map[string]string `json:"filenameToSignedUrls"`
}

// announcedFiles reads the names and sizes, in bytes, of files to come.
func (c *call) announcedFiles(limit fileLimit) (map[string]domain.Count, error) {
	var asked announcedFiles
	if err := readVerb(c, &asked); err != nil {
		return nil, err
	}
	p := c.Params()
	p.Violations.Require(len(asked.FilenameToSize) > 0 && len(asked.FilenameToSize) <= limit.files, "filenameToSize", "must name 1 to %d files and their sizes in bytes", limit.files)
	for _, name := range wire.SortedKeys(asked.FilenameToSize) {
		size := asked.FilenameToSize[name].Int64()
		limit.name(&p.Violations, name)
		p.Violations.Require(size > 0 && size <= limit.bytes, "filenameToSize", "the size of %s must be from 1 to %d bytes", wire.Quote(name), limit.bytes)
	}
	return asked.FilenameToSize, p.Err()
}

// signPuts answers a URL for each file, to which it can be PUT without a key.
func (c *call) signPuts(folder string, sizes map[string]domain.Count) (any, error) {
	var sum int64
	for _, size := range sizes {
		sum += size.Int64()
	}
	if err := c.room(sum); err != nil {
		return nil, err
	}
	urls := map[string]string{}
	for name, size := range sizes {
		url, err := c.server.Blobs.SignPut(c.Ctx, folder+name, size.Int64(), c.server.Limits.SignedURL)
		if err != nil {
			return nil, err
		}
		urls[name] = url
	}
	return signedURLs{urls}, nil
}

// signGets answers a URL for each file, from which it can be read without a key.
func (c *call) signGets(files domain.Files) (any, error) {
	urls := map[string]string{}
	for name := range files.Sizes {
		url, err := c.server.Blobs.SignGet(c.Ctx, files.Folder+name, c.server.Limits.SignedURL)
		if err != nil {
			return nil, err
		}
		urls[name] = url
	}
	return signedURLs{urls}, nil
}

// arrived refuses to take in nothing, or too much.
func (l fileLimit) arrived(n int) error {
	if n > 0 && n <= l.files {
		return nil
	}
	f := domain.Errorf(domain.FailedPrecondition, "%d files have been uploaded: PUT 1 to %d files to the URLs that :getUploadEndpoint gives, then validate; %s", n, l.files, uploadsExpire)
	f.Reason = "NOTHING_UPLOADED"
	return f
}

// verdict waits until an upload is validated: judged tells whether it is, and
// with which fault. It answers the resource, or the fault. Validation that takes
// longer than Limits.Verdict is not waited for: the resource then says that it
// is being validated. So does the answer, uploaded, when another client deletes
// the resource meanwhile: that is what the upload itself led to.
func verdict[S domain.State, R any](c *call, res *resource[S, R], uploaded *projections.Row[S], judged func(S) (bool, error)) (any, error) {
	timeout := time.NewTimer(c.server.Limits.Verdict)
	defer timeout.Stop()
	for {
		c.Refresh()
		row, ok := res.table(c.View()).Get(uploaded.Name)
		if !ok || !row.CreateTime.Equal(uploaded.CreateTime) { // deleted since, and perhaps created again
			return res.wire(c, uploaded), nil
		}
		if done, err := judged(row.State); err != nil {
			return nil, err
		} else if done {
			return res.wire(c, row), nil
		}
		select {
		case <-c.World.Changed(c.View().Position):
		case <-timeout.C:
			return res.wire(c, row), nil
		case <-c.Ctx.Done():
			return nil, c.Ctx.Err()
		}
	}
}

// refusedUpload is the fault that the status of a rejected upload tells.
func refusedUpload(reason string, status domain.Status, violations []domain.Violation) error {
	code := domain.InvalidArgument
	if status.Code != code.String() { // the check itself failed
		code = domain.Internal
	}
	return &domain.Error{Code: code, Reason: reason, Message: status.Message, Violations: violations}
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
