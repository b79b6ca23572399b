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
	transfersAtOnce = 4
	patience        = 5 * time.Minute // with a store that does not answer, when reading
	longestPause    = 10 * time.Second
	slowest         = 64 << 10 // bytes per second; a transfer below is begun anew
)

// A transfer moves files between signed URLs and this disk, a few at a time.
type transfer struct {
	client *http.Client
	slots  chan struct{}
}

func newTransfer(client *http.Client) *transfer {
	if client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.ResponseHeaderTimeout = time.Minute
		transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
		client = &http.Client{Transport: transport}
	}
	return &transfer{client, make(chan struct{}, transfersAtOnce)}
}

// errFinal marks what trying again would not mend.
type errFinal struct{ error }

func (e errFinal) Unwrap() error { return e.error }

// each runs one for every item, a few at a time, and stops at the first error.
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

// fetch downloads a folder into dir, which is made.
func (t *transfer) fetch(ctx context.Context, folder protocol.FileSet, dir string) error {
	for _, file := range folder.Files {
		if !filepath.IsLocal(filepath.FromSlash(file.Name)) {
			return domain.Errorf(domain.InvalidArgument, "file name %q: does not lie in its folder", file.Name)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return diskFault(err)
	}
	return each(ctx, t.slots, folder.Files, func(ctx context.Context, file protocol.File) error {
		target := filepath.Join(dir, filepath.FromSlash(file.Name))
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return diskFault(err)
		}
		return persist(ctx, time.Now().Add(patience), func() error { return t.get(ctx, file, target) })
	})
}

// get downloads one file, holds it to its sum, and makes its content durable.
func (t *transfer) get(ctx context.Context, file protocol.File, target string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(file.Size/slowest)*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, file.URL, nil)
	if err != nil {
		return errFinal{domain.Errorf(domain.Internal, "the file %s has no usable address", file.Name)}
	}
	res, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("file %s: %w", file.Name, withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return refused(file.Name, res)
	}
	f, err := disk.Create(target)
	if err != nil {
		return errFinal{diskFault(err)}
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(res.Body, file.Size+1))
	if err == nil && n != file.Size {
		err = fmt.Errorf("file %s: has not the %d bytes that it should have", file.Name, file.Size)
	}
	if err == nil && file.Sum != "" && hex.EncodeToString(hash.Sum(nil)) != file.Sum {
		err = errFinal{damaged(file.Name, "its SHA-256 sum is another than when it was stored")}
	}
	if said := res.Header.Get("Repr-Digest"); err == nil && said != "" && said != "sha-256=:"+base64.StdEncoding.EncodeToString(hash.Sum(nil))+":" {
		err = fmt.Errorf("file %s: arrived with another SHA-256 sum than the store has of it", file.Name)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		if fault := diskFault(err); domain.CodeOf(fault) != domain.Unknown {
			return errFinal{fault}
		}
		return err
	}
	return nil
}

// put uploads one file.
func (t *transfer) put(ctx context.Context, name, path, url string, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(size/slowest)*time.Second)
	defer cancel()
	f, err := os.Open(path)
	if err != nil {
		return errFinal{err}
	}
	defer f.Close()
	var body io.Reader = f
	if size == 0 {
		body = http.NoBody // a body of unknown length is refused by object stores
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, body)
	if err != nil {
		return errFinal{domain.Errorf(domain.Internal, "the file %s has no usable address", name)}
	}
	req.ContentLength = size
	res, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("file %s: %w", name, withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return refused(name, res)
	}
	return nil
}

// damaged is the fault of a file that is not any more what was stored.
func damaged(name, why string) error {
	return domain.Errorf(domain.DataLoss, "file %s: is damaged in the store for files (%s): upload it again, or run again what made it", name, why)
}

// refused is what a store's answer means. What it says is for people who may
// not see signed URLs, so only its status and code are told.
func refused(name string, res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	var said struct{ Code domain.Code }
	_ = json.Unmarshal(text, &said) // an object store may say something else
	err := fmt.Errorf("file %s: the store answers %s", name, res.Status)
	switch {
	case res.StatusCode == http.StatusInternalServerError && said.Code == domain.DataLoss:
		return errFinal{damaged(name, "its content is not what was stored, or its digest is lost")}
	case res.StatusCode == http.StatusInsufficientStorage:
		return errFinal{domain.Errorf(domain.ResourceExhausted, "file %s: the store for files is full", name)}
	case res.StatusCode == http.StatusRequestTimeout, res.StatusCode == http.StatusTooManyRequests, res.StatusCode >= 500:
		return err
	}
	return errFinal{err}
}

// withoutURL is the cause of a request's error: the URL is a secret.
func withoutURL(err error) error {
	type wrapper interface{ Unwrap() error }
	if w, ok := err.(wrapper); ok && w.Unwrap() != nil {
		return w.Unwrap()
	}
	return errors.New("the store does not answer")
}

// diskFault explains a full disk.
func diskFault(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return domain.Errorf(domain.ResourceExhausted, "the node's disk is full: make room in the agent's folder")
	}
	return err
}

// persist tries until it works, the error is final, ctx is done or it is late;
// a zero time is never.
func persist(ctx context.Context, late time.Time, try func() error) error {
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, longestPause) {
		err := try()
		var final errFinal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return final.error
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !late.IsZero() && time.Now().Add(pause).After(late):
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
