package rest

import (
	"cmp"
	"io"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// An uploadable is a resource with files. Clients send the files in a form, or send them with PUT
// to signed URLs and then request their validation. Signed URLs write into a staging directory;
// before files are validated and used, they are copied to the directory of the upload.
type uploadable[S domain.State, R any] struct {
	*resource[S, R]
	active bool // suspended accounts may not upload
	// single is the default name of the file if a form must have exactly one file; "" if it may
	// have several
	single string
	// files of earlier uploads are kept, unless the upload replaces them
	additive  bool
	limit     func(c *call, row *projections.Row[S]) upload.Limit // limits of an upload; row may be nil
	staging   func(row *projections.Row[S]) string
	directory func(row *projections.Row[S]) string // returns a different, new directory in each call
	files     func(state *S) domain.Files
	mayUpload func(c *call, row *projections.Row[S]) error
	command   func(state *S, files domain.Files) domain.Command[S]
	// hasUpload reports whether files were uploaded. outcome reports whether the validation of an
	// upload is done, and returns the validation error: uploaded is the state directly after the
	// upload, and state the present state. For a kind without validation, both functions are nil.
	hasUpload func(state *S) bool
	outcome   func(uploaded, state *S) (done bool, err error)
}

// post stores the files of a form, and makes them part of the resource.
func (u *uploadable[S, R]) post(c *call) (any, error) {
	err := c.Params().Err()
	if err == nil && u.active {
		err = c.RequireActive(c.Account)
	}
	if err != nil {
		return nil, err
	}
	row, err := u.row(c)
	if err != nil {
		return nil, err
	}
	if again, err := recordedRow(c, u.resource, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return u.awaitValidation(c, again)
	}
	if err := u.mayUpload(c, row); err != nil {
		return nil, err
	}
	limit := u.limit(c, row)
	// the multipart encoding adds less than 1 MiB to the file
	if u.single != "" && c.Request.ContentLength > limit.Bytes+1<<20 {
		return nil, request.BodyTooLarge(limit.Bytes)
	}
	form, err := upload.Form(c.Call)
	if err != nil {
		return nil, err
	}
	var name string
	var content io.Reader
	if u.single != "" {
		if name, content, err = upload.OnlyFile(form, u.single); err != nil {
			return nil, err
		}
	}
	in := c.Uploads.NewIntake(c.Call, u.directory(row), limit).Counting(u.files(&row.State))
	defer in.Release()
	if err := in.Announced(); err != nil {
		return nil, err
	}
	if u.additive {
		if err := u.take(c, in, row, u.files(&row.State)); err != nil {
			return nil, err
		}
	}
	if u.single != "" {
		if err = in.File(name, content); err != nil {
			in.Discard()
		}
	} else {
		err = in.Form(form)
	}
	if err != nil {
		return nil, err
	}
	return u.record(c, in, row)
}

// endpoints responds with a signed URL for each file that the request announces.
func (u *uploadable[S, R]) endpoints(c *call) (any, error) {
	row, missing := u.row(c)
	sizes, err := upload.ReadAnnounced(c.Call, u.limit(c, row))
	if err = cmp.Or(err, missing); err != nil {
		return nil, err
	}
	if err := u.mayUpload(c, row); err != nil {
		return nil, err
	}
	if err := checkDirectories(sizes, u.files(&row.State).Sizes); err != nil {
		return nil, err
	}
	return c.Uploads.SignPuts(c.Call, u.staging(row), sizes)
}

// checkDirectories returns an error if the name of a file is also the name of another file's
// directory. sizes has the announced files, and kept the stored ones.
func checkDirectories(sizes map[string]domain.Count, kept map[string]int64) error {
	var v domain.Violations
	names, directories := map[string]bool{}, map[string]bool{}
	for _, all := range [][]string{wire.SortedKeys(sizes), wire.SortedKeys(kept)} {
		for _, name := range all {
			names[name] = true
			if directory, _, in := strings.Cut(name, "/"); in {
				directories[directory] = true
			}
		}
	}
	for _, directory := range wire.SortedKeys(directories) {
		v.Require(!names[directory], "filenameToSize",
			"%s is both a file and the directory of another file: rename one of the two",
			wire.Quote(directory))
	}
	return v.Err()
}

// validate makes the files that were uploaded to signed URLs part of the resource, and responds
// with the result of their validation. If there are none, it responds with the result of the
// previous upload.
func (u *uploadable[S, R]) validate(c *call, row *projections.Row[S]) (any, error) {
	if u.active {
		if err := c.RequireActive(c.Account); err != nil {
			return nil, err
		}
	}
	if again, err := recordedRow(c, u.resource, row.Name); again != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return u.awaitValidation(c, again)
	}
	if u.hasUpload == nil {
		if err := u.mayUpload(c, row); err != nil {
			return nil, err
		}
	}
	arrived, err := c.Uploads.Blobs.Files(c.Ctx, u.staging(row))
	if err != nil {
		return nil, err
	}
	if len(arrived.Sizes) == 0 && u.hasUpload != nil && u.hasUpload(&row.State) {
		return u.awaitValidation(c, row)
	}
	if err := u.mayUpload(c, row); err != nil {
		return nil, err
	}
	limit := u.limit(c, row)
	if err := limit.Arrived(len(arrived.Sizes)); err != nil {
		return nil, err
	}
	in := c.Uploads.NewIntake(c.Call, u.directory(row), limit).Counting(u.files(&row.State))
	defer in.Release()
	if u.additive {
		err = u.take(c, in, row, u.files(&row.State))
	}
	if err == nil {
		err = u.take(c, in, row, arrived)
	}
	if err != nil {
		return nil, err
	}
	if err := limit.Arrived(len(in.Files.Sizes)); err != nil {
		in.Discard()
		return nil, err
	}
	return u.record(c, in, row)
}

// take copies files of the resource into the intake: those of earlier uploads, or those in the
// staging directory. If another request changes or deletes the resource at the same time, the
// reconciler may delete the files before they are copied; then take returns the error of
// missingFiles.
func (u *uploadable[S, R]) take(c *call, in *upload.Intake, row *projections.Row[S], files domain.Files) error {
	return c.missingFiles(in.Take(files), u.noun, row.Name, files,
		func(v *projections.View, name domain.Name) (domain.Files,
			bool) {
			now, ok := u.table(v).Get(name)
			switch {
			case !ok:
				return domain.Files{}, false
			case files.Prefix == u.staging(row):
				return domain.Files{Prefix: u.staging(now)}, true
			}
			return u.files(&now.State), true
		})
}

// record makes the files of the intake part of the resource, and responds with the result of their
// validation.
func (u *uploadable[S, R]) record(c *call, in *upload.Intake, row *projections.Row[S]) (any, error) {
	result, err := in.Commit(domain.Intend(u.kind, row.Name, u.command(&row.State, in.Files)))
	if err != nil {
		return nil, err
	}
	uploaded, err := u.changed(c, result)
	if err != nil {
		return nil, err
	}
	return u.awaitValidation(c, uploaded)
}

// awaitValidation waits until an upload is validated, and responds with the resource or the
// validation error. After Limits.Validation it responds with the resource in its present state. If
// another client deletes the resource during the wait, it responds with uploaded, the row after the
// upload.
func (u *uploadable[S, R]) awaitValidation(c *call, uploaded *projections.Row[S]) (any, error) {
	if u.outcome == nil {
		return u.rendered(c, uploaded), nil
	}
	timeout := time.NewTimer(c.Limits.Validation)
	defer timeout.Stop()
	for {
		c.Refresh()
		row, ok := u.table(c.View()).Get(uploaded.Name)
		// the resource was deleted, and perhaps created again
		if !ok || !row.CreateTime.Equal(uploaded.CreateTime) {
			return u.rendered(c, uploaded), nil
		}
		if done, err := u.outcome(&uploaded.State, &row.State); err != nil {
			return nil, err
		} else if done {
			return u.rendered(c, row), nil
		}
		select {
		case <-c.World.Changed(c.View().Position):
		case <-timeout.C:
			return u.rendered(c, row), nil
		case <-c.Ctx.Done():
			return nil, c.Ctx.Err()
		}
	}
}
