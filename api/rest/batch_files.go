package rest

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"

	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// filePurposes lists the purposes for which clients may upload files. A file for fine-tune becomes
// a dataset, and a file for batch a batch file.
var filePurposes = []string{purposeFineTune, domain.PurposeBatch}

// batchFiles declares the kind of batch files. They have no operations except those of the OpenAI
// API.
var batchFiles = &resource[domain.BatchFile, FileObject]{kind: domain.BatchFiles, noun: "file"}

type batchFileRow = projections.Row[domain.BatchFile]

// ofEither returns the handler of an operation on a file of the OpenAI API: ofBatch handles it if
// the path names a batch file, otherwise ofDataset.
func ofEither(ofDataset handler, ofBatch func(*call, *batchFileRow) (any, error)) handler {
	return func(c *call) (any, error) {
		row, ok := c.View().BatchFiles.Get(domain.NewName(c.Account, domain.BatchFiles.Collection, c.PathValue("id")))
		if !ok {
			return ofDataset(c)
		}
		if err := c.Params().Err(); err != nil {
			return nil, err
		}
		return ofBatch(c, row)
	}
}

// createBatchFile records the file of an upload as a batch file. The requests in the file are
// validated only by the batches that use the file.
func createBatchFile(c *call, in *upload.Intake, id, filename string) (any, error) {
	spec := domain.BatchFileSpec{Filename: filename, Purpose: domain.PurposeBatch, Files: in.Files,
		CreatedBy: string(c.Principal.Key)}
	change, err := in.Commit(domain.Intend(domain.BatchFiles, domain.NewName(c.Account, domain.BatchFiles.Collection, id),
		domain.Command[domain.BatchFile](domain.CreateBatchFile{BatchFileSpec: spec})))
	if err != nil {
		return nil, err
	}
	row, err := batchFiles.changed(c, change)
	if err != nil {
		return nil, err
	}
	return batchFileOf(row), nil
}

func batchFileOf(row *batchFileRow) FileObject {
	return FileObject{ID: row.Name.ID(), Object: fileObject, Bytes: row.State.Files.Bytes(),
		CreatedAt: row.CreateTime.Unix(), Filename: row.State.Filename, Purpose: row.State.Purpose, Status: fileProcessed}
}

func getBatchFile(_ *call, row *batchFileRow) (any, error) { return batchFileOf(row), nil }

func deleteBatchFile(c *call, row *batchFileRow) (any, error) {
	if err := batchFiles.deleteRow(c, row, domain.DeleteBatchFile{}); err != nil {
		return nil, err
	}
	return FileDeletion{row.Name.ID(), fileObject, true}, nil
}

// getBatchFileContent sends the content of a batch file.
func getBatchFileContent(c *call, row *batchFileRow) (any, error) {
	files := row.State.Files
	content, err := c.Uploads.Blobs.Get(c.Ctx, files.Prefix+wire.SortedKeys(files.Sizes)[0])
	if err != nil {
		return nil, c.missingFiles(err, batchFiles.noun, row.Name, files,
			func(v *projections.View, name domain.Name) (domain.Files, bool) {
				now, ok := v.BatchFiles.Get(name)
				if !ok {
					return domain.Files{}, false
				}
				return now.State.Files, true
			})
	}
	header := c.Writer.Header()
	header.Set("Content-Type", rowsMedia)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Disposition", mime.FormatMediaType("attachment",
		map[string]string{"filename": row.State.Filename}))
	c.Writer.WriteHeader(http.StatusOK)
	_, err = io.Copy(c.Writer, content)
	if err = errors.Join(err, content.Close()); err == nil {
		return nil, nil
	}
	if c.Ctx.Err() == nil {
		c.Logger.Warn("a file was not sent completely; the connection to the client is "+
			"closed", "request", c.ID, "file", row.Name, "error", err)
	}
	// closing the connection is the only way to show the client that the response is incomplete
	panic(http.ErrAbortHandler)
}

// A listedFile is a dataset or a batch file in a list of files of the OpenAI API.
type listedFile struct {
	id      string
	created time.Time
	object  func() FileObject
}

// listedFiles returns the files of an account with a purpose, newest first; all files if the
// purpose is "".
func listedFiles(c *call, purpose string) (files []listedFile) {
	if purpose == "" || purpose == purposeFineTune {
		for row := range c.View().Datasets.Newest(c.Account) {
			files = append(files, listedFile{row.Name.ID(), row.CreateTime, func() FileObject { return fileOf(row) }})
		}
	}
	before := len(files)
	for row := range c.View().BatchFiles.Newest(c.Account) {
		if purpose == "" || purpose == row.State.Purpose {
			files = append(files, listedFile{row.Name.ID(), row.CreateTime,
				func() FileObject { return batchFileOf(row) }})
		}
	}
	if before > 0 && len(files) > before {
		slices.SortStableFunc(files, func(a, b listedFile) int { return b.created.Compare(a.created) })
	}
	return files
}
