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

// maxStores is how often the same files are stored before it is given up.
const maxStores = 4

var errLater = errors.New("the desk asks to try later")

// store uploads a folder's files to where the desk says, and answers their
// sizes and SHA-256 sums. While nobody answers it waits; it fails when the files
// are refused, or ctx is done.
func (t *attempt) store(ctx context.Context, what string, step int, dir string) (sizes map[string]int64, sums map[string]string, err error) {
	if sizes, err = sizesOf(dir); err != nil {
		return nil, nil, err
	}
	if sums, err = sumsOf(ctx, dir, sizes); err != nil {
		return nil, nil, err
	}
	for try := 1; ; try++ {
		urls, err := t.sign(ctx, protocol.SignRequest{Version: protocol.Version, Job: t.order.Job, Attempt: t.order.Attempt, CreateTime: t.order.CreateTime, For: what, Step: step, Sizes: sizes})
		if err != nil {
			return nil, nil, err
		}
		err = each(ctx, t.agent.files.slots, slices.Sorted(maps.Keys(sizes)), func(ctx context.Context, name string) error {
			path := filepath.Join(dir, filepath.FromSlash(name))
			return persist(ctx, time.Time{}, func() error { return t.agent.files.put(ctx, name, path, urls[name], sizes[name]) })
		})
		if err == nil || ctx.Err() != nil || try == maxStores {
			return sizes, sums, err
		}
		t.log.Warn("files were refused; they are stored again", "error", err)
	}
}

// sizesOf lists the files below a folder.
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
		err = domain.Errorf(domain.Internal, "the engine left no files")
	case err == nil && len(sizes) > protocol.MaxFiles:
		err = domain.Errorf(domain.ResourceExhausted, "the engine left %d files: at most %d are stored", len(sizes), protocol.MaxFiles)
	}
	return sizes, err
}

// sumsOf are the SHA-256 sums of files below a folder, in hexadecimal.
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

// sign asks for the URLs to store files at.
func (t *attempt) sign(ctx context.Context, request protocol.SignRequest) (map[string]string, error) {
	var reply protocol.SignReply
	err := t.ask(ctx, protocol.SignSubject(t.agent.options.Node), request, &reply, func() (string, string) { return reply.Outcome, reply.Message })
	return reply.URLs, err
}

// report tells the desk until it has a receipt.
func (t *attempt) report(ctx context.Context, report protocol.Report) (verdict string, err error) {
	report.Version, report.Boot = protocol.Version, t.agent.boot
	report.Job, report.Attempt, report.CreateTime = t.order.Job, t.order.Attempt, t.order.CreateTime
	var receipt protocol.ReportReply
	err = t.ask(ctx, protocol.ReportSubject(t.agent.options.Node), report, &receipt, func() (string, string) { return receipt.Outcome, receipt.Message })
	if err == nil {
		t.agent.mu.Lock()
		t.agent.seen = max(t.agent.seen, receipt.Position)
		t.agent.mu.Unlock()
	}
	return receipt.Outcome, err
}

// ask repeats a question until it is answered. That the attempt is stale ends
// it; a refusal is final.
func (t *attempt) ask(ctx context.Context, subject string, question, answer any, verdict func() (verdict, message string)) error {
	return persist(ctx, time.Time{}, func() error {
		once, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		if err := t.agent.request(once, subject, question, answer); err != nil {
			if domain.CodeOf(err) != domain.Unknown {
				return errFinal{err}
			}
			return err
		}
		switch said, message := verdict(); said {
		case protocol.RetryLater:
			t.log.Debug("the desk asks to try later", "message", message)
			return errLater
		case protocol.Stale:
			t.log.Info("the attempt is over", "message", message)
			t.stop(errUnwanted)
			return errFinal{errUnwanted}
		}
		return nil
	})
}
