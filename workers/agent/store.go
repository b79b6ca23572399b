package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"anneal/domain"
	"anneal/workers/protocol"
)

const maxStores = 4 // maximum number of attempts to upload the same files when the store refuses or lacks them

var errRetryLater = errors.New("the control plane cannot process the request yet: trying again")

// store uploads the files in dir to URLs that the coordinator signs. what is the purpose in
// protocol.SignRequest, such as protocol.ForResults. It returns the sizes and SHA-256 sums of the
// files. While the store is unreachable it tries again; it fails when the store refuses the files
// maxStores times or ctx is done.
func (t *attempt) store(ctx context.Context, what string, step int, dir string) (sizes map[string]int64,
	sums map[string]string, err error) {
	stored, err := storeFiles(ctx, t, protocol.SignRequest{For: what, Step: step}, dir)
	return stored.sizes, stored.sums, err
}

// storedFiles describes files that were uploaded. prefix is protocol.SignReply.Prefix.
type storedFiles struct {
	sizes  map[string]int64
	sums   map[string]string
	prefix string
}

// storeFiles is like store for any SignRequest. It sets the fields of the attempt and of the files.
func storeFiles(ctx context.Context, t *attempt, request protocol.SignRequest, dir string) (stored storedFiles,
	err error) {
	if stored.sizes, err = sizesOf(dir); err != nil {
		return stored, err
	}
	if stored.sums, err = sumsOf(ctx, dir, stored.sizes); err != nil {
		return stored, err
	}
	request.Version, request.Job, request.Attempt = protocol.Version, t.assignment.Job, t.assignment.Attempt
	request.CreateTime, request.Sizes = t.assignment.CreateTime, stored.sizes
	for try := 1; ; try++ {
		reply, err := t.sign(ctx, request)
		if err != nil {
			return stored, err
		}
		stored.prefix = reply.Prefix
		err = each(ctx, t.agent.files.slots, slices.Sorted(maps.Keys(stored.sizes)),
			func(ctx context.Context, name string) error {
				path := filepath.Join(dir, filepath.FromSlash(name))
				return retry(ctx, time.Time{}, func() error {
					return t.agent.files.put(ctx, name, path, reply.URLs[name],
						stored.sizes[name])
				})
			})
		if err == nil || ctx.Err() != nil || try == maxStores {
			return stored, err
		}
		t.log.Warn("the file store refused files of an attempt: uploading them again", "error", err)
	}
}

// sizesOf returns the sizes of the files below a directory, by relative path. It returns an error
// when there are none, or more than protocol.MaxFiles.
func sizesOf(dir string) (map[string]int64, error) {
	sizes := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		sizes[filepath.ToSlash(name)] = info.Size()
		return err
	})
	switch {
	case err == nil && len(sizes) == 0:
		err = domain.Errorf(domain.Internal, "the engine wrote no files for the checkpoint or the results")
	case err == nil && len(sizes) > protocol.MaxFiles:
		err = domain.Errorf(domain.ResourceExhausted, "the engine wrote %d files for the checkpoint or the results: at "+
			"most %d are allowed", len(sizes),
			protocol.MaxFiles)
	}
	return sizes, err
}

// sumsOf returns the SHA-256 sums, in hexadecimal, of the files below dir that sizes names.
func sumsOf(ctx context.Context, dir string, sizes map[string]int64) (map[string]string, error) {
	sums := make(map[string]string, len(sizes))
	for name := range sizes {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		f, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		_, err = io.Copy(hash, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		sums[name] = hex.EncodeToString(hash.Sum(nil))
	}
	return sums, nil
}

// sign requests signed URLs for uploading files (HTTP PUT).
func (t *attempt) sign(ctx context.Context, request protocol.SignRequest) (reply protocol.SignReply, err error) {
	err = t.request(ctx, protocol.SignSubject(t.agent.options.Node), request, &reply,
		func() (string, string) { return reply.Outcome, reply.Message })
	return reply, err
}

// report sends a report to the coordinator until it replies, and returns the outcome in the reply.
func (t *attempt) report(ctx context.Context, report protocol.Report) (outcome string, err error) {
	reply, err := t.send(ctx, report)
	return reply.Outcome, err
}

// send sends a report to the coordinator until it replies, and returns the reply.
func (t *attempt) send(ctx context.Context, report protocol.Report) (reply protocol.ReportReply, err error) {
	report.Version, report.Boot = protocol.Version, t.agent.boot
	report.Job, report.Attempt, report.CreateTime = t.assignment.Job, t.assignment.Attempt, t.assignment.CreateTime
	err = t.request(ctx, protocol.ReportSubject(t.agent.options.Node), report, &reply,
		func() (string, string) { return reply.Outcome, reply.Message })
	if err == nil {
		t.agent.mu.Lock()
		t.agent.seen = max(t.agent.seen, reply.Position)
		t.agent.mu.Unlock()
	}
	return reply, err
}

// request sends a request to the coordinator until it replies. outcome returns the outcome and the
// message of the decoded reply. The outcome Stale stops the attempt. A request that the coordinator
// refuses is not repeated.
func (t *attempt) request(
	ctx context.Context, subject string, request, reply any, outcome func() (outcome, message string),
) error {
	return retry(ctx, time.Time{}, func() error {
		once, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		if err := t.agent.request(once, subject, request, reply); err != nil {
			if domain.CodeOf(err) != domain.Unknown {
				return errFinal{err}
			}
			return err
		}
		switch outcome, message := outcome(); outcome {
		case protocol.RetryLater:
			t.log.Debug("the control plane cannot process the request yet: trying again", "message", message)
			return errRetryLater
		case protocol.Stale:
			t.log.Info("the attempt is no longer assigned to this node: stopping it", "message", message)
			t.stop(errUnwanted)
			return errFinal{errUnwanted}
		}
		return nil
	})
}
