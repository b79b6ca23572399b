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

const maxStores = 4 // attempts to store the same files

var errRetryLater = errors.New("the coordinator asks to retry later")

// store uploads the files of a directory to the URLs that the coordinator signs, and returns their
// sizes and SHA-256 sums. It retries while the store is unreachable, and fails when the files are
// refused or ctx is done.
func (t *attempt) store(ctx context.Context, what string, step int, dir string) (sizes map[string]int64,
	sums map[string]string, err error) {
	if sizes, err = sizesOf(dir); err != nil {
		return nil, nil, err
	}
	if sums, err = sumsOf(ctx, dir, sizes); err != nil {
		return nil, nil, err
	}
	for try := 1; ; try++ {
		urls, err := t.sign(ctx, protocol.SignRequest{Version: protocol.Version, Job: t.order.Job,
			Attempt: t.order.Attempt, CreateTime: t.order.CreateTime, For: what, Step: step, Sizes: sizes})
		if err != nil {
			return nil, nil, err
		}
		err = each(ctx, t.agent.files.slots, slices.Sorted(maps.Keys(sizes)),
			func(ctx context.Context, name string) error {
				path := filepath.Join(dir, filepath.FromSlash(name))
				return retry(ctx, time.Time{}, func() error {
					return t.agent.files.put(ctx, name, path, urls[name],
						sizes[name])
				})
			})
		if err == nil || ctx.Err() != nil || try == maxStores {
			return sizes, sums, err
		}
		t.log.Warn("files refused, will store them again", "error", err)
	}
}

// sizesOf returns the sizes of the files below a directory.
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
		err = domain.Errorf(domain.Internal, "the engine wrote no files")
	case err == nil && len(sizes) > protocol.MaxFiles:
		err = domain.Errorf(domain.ResourceExhausted, "the engine wrote %d files: the limit is %d", len(sizes),
			protocol.MaxFiles)
	}
	return sizes, err
}

// sumsOf returns the SHA-256 sums of files below a directory, in hexadecimal.
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

// sign requests the URLs to store files at.
func (t *attempt) sign(ctx context.Context, request protocol.SignRequest) (map[string]string, error) {
	var reply protocol.SignReply
	err := t.request(ctx, protocol.SignSubject(t.agent.options.Node), request, &reply,
		func() (string, string) { return reply.Outcome, reply.Message })
	return reply.URLs, err
}

// report sends a report until it receives a reply.
func (t *attempt) report(ctx context.Context, report protocol.Report) (outcome string, err error) {
	report.Version, report.Boot = protocol.Version, t.agent.boot
	report.Job, report.Attempt, report.CreateTime = t.order.Job, t.order.Attempt, t.order.CreateTime
	var reply protocol.ReportReply
	err = t.request(ctx, protocol.ReportSubject(t.agent.options.Node), report, &reply,
		func() (string, string) { return reply.Outcome, reply.Message })
	if err == nil {
		t.agent.mu.Lock()
		t.agent.seen = max(t.agent.seen, reply.Position)
		t.agent.mu.Unlock()
	}
	return reply.Outcome, err
}

// request repeats a request until it receives a reply. The outcome Stale ends the attempt; a refusal
// is final.
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
			t.log.Debug("the coordinator asks to retry later", "message", message)
			return errRetryLater
		case protocol.Stale:
			t.log.Info("attempt is over", "message", message)
			t.stop(errUnwanted)
			return errFinal{errUnwanted}
		}
		return nil
	})
}
