// Package upload receives the files of datasets, evaluators, models and recordings, in request
// bodies or through signed URLs, and counts them against the storage quota of their account.
package upload

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"regexp"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
)

var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Values of Limit.Directories.
var (
	AnyDirectory = regexp.MustCompile("") // allows every directory; checkName checks the characters of its name
	// ModuleDirectory allows the directories of the modules of a sentence-transformers model, such
	// as 1_Pooling.
	ModuleDirectory = regexp.MustCompile(`^[0-9]{1,3}_[A-Za-z0-9._-]{1,64}$`)
)

const FileNameRule = "must be 1 to 128 letters, digits, dots, _ and -, and begin with a letter or digit"

// A Limit bounds the files of one upload: their number, size and names.
type Limit struct {
	Files int
	Bytes int64 // maximum size of each file, in bytes
	// Directories matches the directories that file names of the form DIRECTORY/NAME may have. nil
	// allows no directories.
	Directories *regexp.Regexp
}

// checkName adds a violation if a file name is invalid.
func (l Limit) checkName(v *domain.Violations, name string) {
	directory, base, in := strings.Cut(name, "/")
	if l.Directories != nil && in && l.Directories.MatchString(directory) {
		v.Require(fileName.MatchString(directory) && fileName.MatchString(base), "filenameToSize",
			"%s must be a directory and a file name separated by one slash; each of the two %s", wire.Quote(name),
			FileNameRule)
		return
	}
	v.Require(fileName.MatchString(name), "filenameToSize", "%s %s", wire.Quote(name), FileNameRule)
}

// Expiry is the last part of messages to users. It states after how many days files that were not
// validated are deleted.
var Expiry = fmt.Sprintf("files that are sent to upload URLs and not validated within %d days are deleted",
	domain.UploadTime/(24*time.Hour))

// awaitsFiles is concatenated once, because lists call AwaitsFiles for each resource.
var awaitsFiles = "waits for its files: upload them, or send them to upload URLs and validate the upload; " + Expiry

// AwaitsFiles returns the status s of a resource that has no files yet. If s has no message, the
// returned status has a message that states how to upload files.
func AwaitsFiles(s domain.Status) domain.Status {
	if s.Message == "" {
		s.Message = awaitsFiles
	}
	return s
}

// An Intake stores the files of one upload in a directory to which no signed URL can write, so that
// the files do not change after their validation.
type Intake struct {
	*request.Call
	Limit Limit
	Files domain.Files
	store *Store
	share *reservation // counts the files against the quota; nil if they do not count
}

// NewIntake returns an Intake that stores files in directory, which must not have files yet.
func (s *Store) NewIntake(c *request.Call, directory string, limit Limit) *Intake {
	return &Intake{Call: c, Limit: limit, Files: domain.Files{Prefix: directory, Sizes: map[string]int64{}}, store: s}
}

// Form returns a reader of the request's multipart/form-data body, or an error if the body has
// another media type.
func Form(c *request.Call) (form *multipart.Reader, err error) {
	kind, _, _ := mime.ParseMediaType(c.Request.Header.Get("Content-Type"))
	if form, err = c.Request.MultipartReader(); err != nil || kind != "multipart/form-data" {
		var v domain.Violations
		v.Add("file", "send the file as the field \"file\" of a multipart/form-data body")
		return nil, v.Err()
	}
	return form, nil
}

// Form stores the files of a form, each under its file name. If it fails, it removes all files of
// the intake.
func (in *Intake) Form(form *multipart.Reader) error {
	for n := 0; ; n++ {
		name, content, err := Part(form)
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return nil
		case errors.Is(err, io.EOF):
			err = nothingSent()
		case err == nil && name == "":
			err = noFileName()
		case err == nil:
			err = in.File(name, content)
		}
		if err == nil && len(in.Files.Sizes) > in.Limit.Files {
			err = in.Limit.Arrived(len(in.Files.Sizes))
		}
		if err != nil {
			in.Discard()
			return err
		}
	}
}

// OnlyFile returns the name and the content of the first file in a form. If the file has no name,
// it returns defaultName. If the form has no file, it returns an error.
func OnlyFile(form *multipart.Reader, defaultName string) (name string, content io.Reader, err error) {
	name, content, err = Part(form)
	if errors.Is(err, io.EOF) {
		var v domain.Violations
		v.Add("file", "the form is empty: send the file as a field \"file\"")
		err = v.Err()
	}
	return cmp.Or(name, defaultName), content, err
}

func nothingSent() error {
	var v domain.Violations
	v.Add("file", "the form is empty: send each file as a field \"file\"")
	return v.Err()
}

func noFileName() error {
	var v domain.Violations
	v.Add("file", "each field \"file\" must have a file name, such as config.json")
	return v.Err()
}

// Part returns the file name and the content of the next field "file" of a form. err is io.EOF
// after the last field.
func Part(form *multipart.Reader) (name string, content io.Reader, err error) {
	var v domain.Violations
	part, err := form.NextPart()
	var fault *domain.Error
	switch {
	case errors.As(err, &fault):
		return "", nil, fault
	case errors.Is(err, io.EOF):
		return "", nil, err
	case err != nil:
		v.Add("file", "the multipart body is malformed or has no field: send the file as a field \"file\"")
		return "", nil, v.Err()
	case part.FormName() != "file":
		v.Add("file", "the form has a field %s: send only fields \"file\" with the files", wire.Quote(part.FormName()))
	case part.FileName() != "" && !fileName.MatchString(part.FileName()):
		v.Add("file", "the file's name %s", FileNameRule)
	}
	return part.FileName(), part, v.Err()
}

// File stores one file of the upload under the name.
func (in *Intake) File(name string, content io.Reader) error {
	limited := &io.LimitedReader{R: content, N: in.Limit.Bytes + 1}
	size, err := in.store.Blobs.Put(in.Ctx, in.Files.Prefix+name,
		&countedBody{ReadCloser: io.NopCloser(limited), share: in.share})
	var fault *domain.Error
	switch {
	case err != nil && limited.N > 0 && !errors.As(err, &fault) && in.Ctx.Err() == nil:
		in.Logger.Warn("the upload of a file was interrupted; the request was rejected", "request", in.ID, "error", err)
		return domain.Errorf(domain.InvalidArgument, "the upload of %s was interrupted after %d bytes: send the file again",
			wire.Quote(name), size)
	case err != nil:
		return err
	case limited.N == 0:
		return request.BodyTooLarge(in.Limit.Bytes)
	}
	in.Files.Sizes[name] = size
	return nil
}

// Take copies files from another directory into the intake: all of them, or none. A copied file
// replaces a file of the intake with the same name.
func (in *Intake) Take(files domain.Files) error {
	if err := in.share.take(files.Bytes()); err != nil {
		in.Discard()
		return err
	}
	for _, name := range wire.SortedKeys(files.Sizes) {
		err := in.store.Blobs.Copy(in.Ctx, in.Files.Prefix+name, files.Prefix+name)
		if err == nil {
			in.Files.Sizes[name], err = in.store.Blobs.Size(in.Ctx, in.Files.Prefix+name)
		}
		// an object store cannot enforce the size limit for its signed URLs
		if err == nil && in.Files.Sizes[name] > in.Limit.Bytes {
			err = request.BodyTooLarge(in.Limit.Bytes)
		}
		if err != nil {
			in.Discard()
			return err
		}
	}
	return nil
}

// Commit records the intent that makes the intake's files part of a resource. It removes the files
// if the intent is rejected. After any other error, the intent may be recorded, so Commit keeps the
// files; the reconciler deletes them if no event refers to them.
func (in *Intake) Commit(intent domain.Intent) (eventlog.Change, error) {
	change, err := in.Do(intent)
	in.Release()
	var rejected *domain.Error
	if errors.As(err, &rejected) && change.Position() == 0 {
		in.Discard()
	}
	return change, err
}

// Discard removes the intake's directory, to which no event refers. The reconciler deletes what
// Discard cannot remove.
func (in *Intake) Discard() {
	defer in.share.release()
	ctx, cancel := in.Detached()
	defer cancel()
	if err := in.store.Blobs.DeletePrefix(ctx, in.Files.Prefix); err != nil {
		in.Logger.Warn("the files of a failed upload were not deleted; the reconciler deletes them "+
			"later", "request", in.ID, "directory", in.Files.Prefix, "error",
			err)
	}
}

// AnnouncedFiles has the files that a client is about to upload: their sizes in bytes by name.
type AnnouncedFiles struct {
	FilenameToSize map[string]domain.Count `json:"filenameToSize"`
}

// SignedURLs has the URLs with which a client accesses files without an API key, by file name.
type SignedURLs struct {
	Files map[string]string `json:"filenameToSignedUrls"`
}

// ReadAnnounced reads and validates the names and sizes of the files that a client is about to
// upload.
func ReadAnnounced(c *request.Call, limit Limit) (map[string]domain.Count, error) {
	p, body := c.Params(), AnnouncedFiles{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	p.Violations.Require(len(body.FilenameToSize) > 0 && len(body.FilenameToSize) <= limit.Files, "filenameToSize",
		"must have the names of 1 to %d files and their sizes in bytes", limit.Files)
	for _, name := range wire.SortedKeys(body.FilenameToSize) {
		size := body.FilenameToSize[name].Int64()
		limit.checkName(&p.Violations, name)
		p.Violations.Require(size > 0 && size <= limit.Bytes, "filenameToSize", "the size of %s must be from 1 to %d bytes",
			wire.Quote(name), limit.Bytes)
	}
	return body.FilenameToSize, p.Err()
}

// SignPuts returns the URLs to which a client can send the files with PUT. It returns an error if
// the files exceed the storage quota.
func (s *Store) SignPuts(c *request.Call, directory string, sizes map[string]domain.Count) (any, error) {
	var sum int64
	for _, size := range sizes {
		sum += size.Int64()
	}
	if err := s.Reserve(c, sum); err != nil {
		return nil, err
	}
	urls := map[string]string{}
	for name, size := range sizes {
		url, err := s.Blobs.SignPut(c.Ctx, directory+name, size.Int64(), c.Limits.SignedURL)
		if err != nil {
			return nil, err
		}
		urls[name] = url
	}
	return SignedURLs{urls}, nil
}

// SignGets returns the URLs from which a client can read the files. If several directories have a
// file with the same name, the URL is that of the file in the first of them.
func (s *Store) SignGets(c *request.Call, directories ...domain.Files) (any, error) {
	urls := map[string]string{}
	for _, files := range directories {
		for name := range files.Sizes {
			if urls[name] != "" {
				continue
			}
			url, err := s.Blobs.SignGet(c.Ctx, files.Prefix+name, c.Limits.SignedURL)
			if err != nil {
				return nil, err
			}
			urls[name] = url
		}
	}
	return SignedURLs{urls}, nil
}

// Arrived returns an error unless n, the number of uploaded files, is at least 1 and at most
// l.Files.
func (l Limit) Arrived(n int) error {
	if n > 0 && n <= l.Files {
		return nil
	}
	f := domain.Errorf(domain.FailedPrecondition,
		"%d files have been uploaded: send 1 to %d files with PUT to the URLs that :getUploadEndpoint returns, then "+
			"validate the upload; %s", n,
		l.Files, Expiry)
	f.Reason = "NOTHING_UPLOADED"
	return f
}

// Rejected returns the error of a rejected upload, with the message of its resource's status.
func Rejected(reason string, status domain.Status, violations []domain.Violation) error {
	code := domain.InvalidArgument
	if status.Code != code.String() { // the validation failed for another reason than invalid files
		code = domain.Internal
	}
	return &domain.Error{Code: code, Reason: reason, Message: status.Message, Violations: violations}
}
