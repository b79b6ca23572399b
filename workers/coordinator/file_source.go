package coordinator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"

	"anneal/blobs"
	"anneal/domain"
	"anneal/workers/protocol"
)

// A fileSource reads the files of a checkpoint or of results. The files are either in the store, or
// in the report itself and about to be stored.
type fileSource struct {
	domain.Files
	store   *blobs.Store
	inline  map[string][]byte // content by file name, when the report has the files; nil when they are in the store
	pending map[string][]byte // files that flush will store: content by blob key; nil when inline is nil
}

// open opens length bytes of a file, from offset on. With a negative length it opens all of the
// file.
func (s fileSource) open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if s.inline == nil {
		return s.store.Range(ctx, s.Prefix+name, offset, length)
	}
	content, ok := s.inline[name] // inline also has the metrics file, which Files does not have
	if !ok {
		return nil, domain.Errorf(domain.NotFound, "the report has no file %s", name)
	}
	r := io.NewSectionReader(bytes.NewReader(content), offset, int64(len(content))-offset)
	if length >= 0 {
		return io.NopCloser(io.LimitReader(r, length)), nil
	}
	return io.NopCloser(r), nil
}

// put stores a file: immediately when the files are in the store, otherwise when flush is called.
func (s fileSource) put(ctx context.Context, key string, content []byte) error {
	if s.inline == nil {
		_, err := s.store.Put(ctx, key, bytes.NewReader(content))
		return err
	}
	s.pending[key] = content
	return nil
}

// flush durably stores the files of the report and those that were passed to put.
func (s fileSource) flush(ctx context.Context) error {
	if len(s.pending) == 0 {
		return nil
	}
	return s.store.PutAll(ctx, s.pending)
}

// resultFiles returns the files of a job's results. It returns errIncomplete when neither the
// report nor the store has all of them.
func resultFiles(ctx context.Context, store *blobs.Store, j job, report protocol.Report) (fileSource, error) {
	if len(report.Files) == 0 {
		files, err := storedFiles(ctx, store, blobs.ResultPrefix(j.Name, j.Event, report.Attempt), report)
		return fileSource{Files: files, store: store}, err
	}
	prefix := blobs.InlinePrefix(j.Name, j.Event, report.Attempt)
	if size := sizeOf(report.Files); size > protocol.MaxInline || len(report.Log) > protocol.MaxInline {
		// A later version of anneal may allow larger reports. After this error, its agents upload
		// the files.
		return fileSource{}, fmt.Errorf("%w: the report has %d bytes of files and %d bytes of a log, and may have at "+
			"most %d of each", errIncomplete, size, len(report.Log), protocol.MaxInline)
	}
	s := fileSource{Files: domain.Files{Prefix: prefix, Sizes: map[string]int64{}, Sums: map[string]string{}},
		store: store, inline: maps.Clone(report.Files), pending: map[string][]byte{}}
	for name, content := range s.inline {
		if name == metricsFile { // not a result file: its rows are stored in the job's own metrics file
			continue
		}
		sum := sha256.Sum256(content)
		s.Sizes[name], s.Sums[name] = int64(len(content)), hex.EncodeToString(sum[:])
		s.pending[prefix+name] = content
	}
	if len(report.Log) > 0 {
		s.pending[blobs.TrainerLog(j.Name, j.Event, report.Attempt)] = report.Log
	}
	return s, nil
}

func sizeOf(files map[string][]byte) (total int) {
	for _, content := range files {
		total += len(content)
	}
	return total
}
