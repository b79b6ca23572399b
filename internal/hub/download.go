package hub

import (
	"context"
	"crypto/sha1" //nolint:gosec // the hub identifies small files by git's SHA-1
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Maximum number of consecutive attempts without data, and the wait after the first of them.
const (
	maxAttempts = 5
	firstPause  = 500 * time.Millisecond
)

// Download downloads a file of a model into the directory dir, and compares it with the digest in
// the hub's list. It calls moved with the number of bytes received since the last call; the number
// is negative if bytes must be downloaded again. Until the file is complete, its name has the
// suffix .part, and a later call continues an interrupted download.
func (h *Hub) Download(ctx context.Context, m Model, f File, dir string, moved func(n int64)) error {
	target := filepath.Join(dir, filepath.FromSlash(f.Name))
	if info, err := os.Stat(target); err == nil && info.Size() == f.Size {
		moved(f.Size)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	part, err := os.OpenFile(target+".part", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer part.Close()
	d := download{hub: h, model: m, file: f, part: part, moved: moved}
	if err := d.run(ctx); err != nil {
		return fmt.Errorf("download %s: %w", f.Name, err)
	}
	if err := d.verify(); err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	if err := part.Close(); err != nil {
		return err
	}
	return os.Rename(part.Name(), target)
}

// A download is a file that is being downloaded to the path part.
type download struct {
	hub   *Hub
	model Model
	file  File
	part  *os.File
	have  int64 // number of bytes that the file at the path part has so far
	moved func(n int64)
}

// run requests the rest of the file until it is complete. It returns an error after maxAttempts
// consecutive requests that returned no data.
func (d *download) run(ctx context.Context) error {
	info, err := d.part.Stat()
	if err != nil {
		return err
	}
	d.have = info.Size()
	d.moved(d.have)
	if d.have > d.file.Size {
		if err := d.restart(); err != nil {
			return err
		}
	}
	pause := firstPause
	for failed := 0; d.have < d.file.Size; {
		before := d.have
		err := d.request(ctx)
		if d.have > before {
			failed, pause = 0, firstPause
			continue
		}
		if err == nil {
			err = fmt.Errorf("the connection ended before data arrived: %w", errTryAgain)
		}
		if failed++; failed == maxAttempts || !errors.Is(err, errTryAgain) {
			return err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// request requests the rest of the file, and appends the data of the response to part.
func (d *download) request(ctx context.Context) error {
	path := "/" + d.model.Repo + "/resolve/" + d.model.Commit + "/" + (&url.URL{Path: d.file.Name}).EscapedPath()
	res, err := d.hub.get(ctx, path, d.have)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", err, errTryAgain)
	}
	defer res.Body.Close()
	if err := d.hub.responseError(res, Ref{d.model.Repo, d.model.Commit}); err != nil {
		return err
	}
	// The server ignores the range and sends the whole file.
	if d.have > 0 && res.StatusCode != http.StatusPartialContent {
		if err := d.restart(); err != nil {
			return err
		}
	}
	rest := io.LimitReader(res.Body, d.file.Size-d.have)
	n, err := io.Copy(io.NewOffsetWriter(d.part, d.have), io.TeeReader(rest, counter(d.moved)))
	d.have += n
	var disk *os.PathError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &disk):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", err, errTryAgain)
	}
	return nil
}

func (d *download) restart() error {
	d.moved(-d.have)
	d.have = 0
	return d.part.Truncate(0)
}

// verify compares the digest of the downloaded file with the one in the hub's list. If they differ,
// it removes the file.
func (d *download) verify() error {
	if _, err := d.part.Seek(0, io.SeekStart); err != nil {
		return err
	}
	var digest hash.Hash
	want := d.file.SHA256
	switch {
	case want != "":
		digest = sha256.New()
	case d.file.GitID != "":
		digest, want = sha1.New(), d.file.GitID //nolint:gosec // detects damage, not an attack
		fmt.Fprintf(digest, "blob %d\x00", d.file.Size)
	default:
		return fmt.Errorf("%s lists the file %s without a digest, so it cannot be verified", d.hub.URL, d.file.Name)
	}
	if _, err := io.Copy(digest, d.part); err != nil {
		return err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != want {
		return fmt.Errorf("%s: the downloaded content has the digest %s, and the hub's list has %s: the content "+
			"was discarded; try again",
			d.file.Name, got, want)
	}
	return nil
}

// A counter is an io.Writer that calls the function with the number of bytes of each write.
type counter func(n int64)

func (c counter) Write(p []byte) (int, error) {
	c(int64(len(p)))
	return len(p), nil
}
