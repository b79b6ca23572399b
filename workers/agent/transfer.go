package agent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"anneal/disk"
	"anneal/domain"
	"anneal/workers/protocol"
)

const (
	maxTransfers    = 4                // maximum number of files that are downloaded or uploaded concurrently
	downloadTimeout = 5 * time.Minute  // how long a failing download is retried
	maxPause        = 10 * time.Second // maximum pause between two attempts of a transfer
	minRate         = 64 << 10         // minimum bytes per second; a slower transfer is canceled and retried
)

// A transfer copies files between signed URLs and the local disk. At most maxTransfers copies run
// at a time.
type transfer struct {
	client *http.Client
	slots  chan struct{}
}

func newTransfer(client *http.Client) *transfer {
	if client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.ResponseHeaderTimeout = time.Minute
		transport.MaxIdleConnsPerHost = 4 * maxTransfers // with the default of 2, most uploads would open a new connection
		transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
		client = &http.Client{Transport: transport}
	}
	return &transfer{client, make(chan struct{}, maxTransfers)}
}

// An errFinal wraps an error that would be the same in every attempt, so that it is not retried.
type errFinal struct{ error }

func (e errFinal) Unwrap() error { return e.error }

// each calls a function for every item, with at most cap(slots) calls at a time. It stops at the
// first error and returns it.
func each[T any](ctx context.Context, slots chan struct{}, items []T, one func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, item := range items {
		running.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
				return
			}
			if err := one(ctx, item); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// download downloads the files of a file set into the directory dir, which it creates.
func (t *transfer) download(ctx context.Context, files protocol.FileSet, dir string) error {
	for _, file := range files.Files {
		if !filepath.IsLocal(filepath.FromSlash(file.Name)) {
			return domain.Errorf(domain.InvalidArgument, "the file set has the file name %q, which is not a relative path "+
				"below the download directory",
				file.Name)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return diskError(err)
	}
	return each(ctx, t.slots, files.Files, func(ctx context.Context, file protocol.File) error {
		target := filepath.Join(dir, filepath.FromSlash(file.Name))
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return diskError(err)
		}
		return retry(ctx, time.Now().Add(downloadTimeout), func() error { return t.get(ctx, file, target) })
	})
}

// get downloads one file to the path target, verifies its SHA-256 sum and syncs it to disk.
func (t *transfer) get(ctx context.Context, file protocol.File, target string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(file.Size/minRate)*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, file.URL, nil)
	if err != nil {
		return errFinal{domain.Errorf(domain.Internal, "the signed URL of file %s is invalid", file.Name)}
	}
	res, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("transfer file %s: %w", file.Name, withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refused(file.Name, res)
	}
	f, err := disk.Create(target)
	if err != nil {
		return errFinal{diskError(err)}
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(res.Body, file.Size+1))
	if err == nil && n != file.Size {
		err = fmt.Errorf("the download of file %s does not have the expected %d bytes", file.Name, file.Size)
	}
	if err == nil && file.Sum != "" && hex.EncodeToString(hash.Sum(nil)) != file.Sum {
		err = errFinal{damaged(file.Name, "the SHA-256 sum is not the one that was recorded when the file was stored")}
	}
	if digest := res.Header.Get("Repr-Digest"); err == nil && digest != "" &&
		digest != "sha-256=:"+base64.StdEncoding.EncodeToString(hash.Sum(nil))+":" {
		err = fmt.Errorf("the download of file %s is damaged: its SHA-256 sum differs from that in the store's "+
			"response", file.Name)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		if failure := diskError(err); domain.CodeOf(failure) != domain.Unknown {
			return errFinal{failure}
		}
		return err
	}
	return nil
}

// put uploads the file at path, which has size bytes, to url. name is the name of the file in error
// messages.
func (t *transfer) put(ctx context.Context, name, path, url string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return errFinal{err}
	}
	defer f.Close()
	return t.send(ctx, name, f, url, size)
}

// send uploads size bytes from body to url. name is the name of the file in error messages.
func (t *transfer) send(ctx context.Context, name string, body io.Reader, url string, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(size/minRate)*time.Second)
	defer cancel()
	if size == 0 {
		body = http.NoBody // object stores refuse a body whose length is unknown
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, body)
	if err != nil {
		return errFinal{domain.Errorf(domain.Internal, "the signed URL of file %s is invalid", name)}
	}
	req.ContentLength = size
	res, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("transfer file %s: %w", name, withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return refused(name, res)
	}
	return nil
}

// damaged returns the error for a file whose content in the file store has changed since it was
// stored. why describes the difference.
func damaged(name, why string) error {
	return domain.Errorf(domain.DataLoss,
		"file %s is damaged in the file store (%s): upload the file again, or run again the job that wrote it", name, why)
}

// refused returns the error for a response of the store other than success. It contains only the
// status and the error code, because the rest of the response may contain signed URLs.
func refused(name string, res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	var body struct{ Code domain.Code }
	_ = json.Unmarshal(text, &body) // when the response has another format, there is no error code
	err := fmt.Errorf("file %s: the file store responded with %s", name, res.Status)
	switch {
	case res.StatusCode == http.StatusInternalServerError && body.Code == domain.DataLoss:
		return errFinal{damaged(name, "the content has changed, or the digest is lost")}
	case res.StatusCode == http.StatusInsufficientStorage:
		return errFinal{domain.Errorf(domain.ResourceExhausted, "file %s: the file store is full: delete "+
			"what is not needed, or have the operator free some space or add a larger disk, and try again", name)}
	case res.StatusCode == http.StatusRequestTimeout, res.StatusCode == http.StatusTooManyRequests,
		res.StatusCode >= 500:
		return err
	}
	return errFinal{err}
}

// withoutURL returns the cause of a failed HTTP request without its URL, which is a secret.
func withoutURL(err error) error {
	type wrapper interface{ Unwrap() error }
	if w, ok := err.(wrapper); ok && w.Unwrap() != nil {
		return w.Unwrap()
	}
	return errors.New("the file store does not respond")
}

// diskError returns an error with advice if err means that the disk is full, otherwise err.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return domain.Errorf(domain.ResourceExhausted, "the node's disk is full: free space in the agent's directory")
	}
	return err
}

// retry calls try until it succeeds, returns an errFinal, ctx is done, or the deadline has passed.
// A zero deadline never passes.
func retry(ctx context.Context, deadline time.Time, try func() error) error {
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, maxPause) {
		err := try()
		var final errFinal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return final.error
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !deadline.IsZero() && time.Now().Add(pause).After(deadline):
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}
