package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/api/request"
)

// isFile returns an error unless path is a regular file.
func isFile(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	return err
}

// canUploadInto reports whether err, of a request that creates the resource id, means that the
// resource already exists but an earlier upload into it failed. A new upload can then use it.
func canUploadInto(ctx context.Context, c *client, collection, id string, err error) bool {
	var response *apiError
	if !errors.As(err, &response) || response.Status != http.StatusConflict {
		return false
	}
	var item map[string]any
	err = c.call(ctx, http.MethodGet, "/v1/"+c.name(collection, id), nil, nil, &item)
	return err == nil && item["state"] == "UPLOADING"
}

// upload uploads the file at path into a dataset, waits for its validation, and returns the
// dataset.
func upload(ctx context.Context, c *client, dataset, path string) (map[string]any, error) {
	if err := isFile(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := newForm(nil, path, f)
	if err != nil {
		return nil, err
	}
	hint := fmt.Sprintf("upload the corrected file with `anneal dataset upload %s FILE`", id(dataset))
	res, err := c.request(ctx, http.MethodPost, "/v1/"+c.name("datasets", dataset)+":upload", nil, body.contentType, body)
	var refused *apiError
	if errors.As(err, &refused) && refused.Reason == "INVALID_ROWS" {
		return nil, withHint(err, hint)
	}
	if err != nil {
		return nil, withHint(err, uploadAgain(err, "dataset", id(dataset), path))
	}
	res.Body.Close()
	return awaitUpload(ctx, c, c.name("datasets", dataset), hint)
}

// uploadAgain returns a hint with the command that repeats an upload, if err is the refusal of a
// quota; otherwise "". The resource then exists without files.
func uploadAgain(err error, command, id, path string) string {
	var refused *apiError
	if !errors.As(err, &refused) || refused.Reason != "QUOTA_EXCEEDED" && refused.Reason != request.ReasonQuotaTooSmall {
		return ""
	}
	return fmt.Sprintf("%s %s exists without files: upload them later with `anneal %s upload %s %s`, or delete it",
		command, id, command, id, path)
}

// awaitUpload waits until the files uploaded into a resource are validated, and returns the
// resource. If they are invalid, it returns an error with the hint, which may be "".
func awaitUpload(ctx context.Context, c *client, name, hint string) (map[string]any, error) {
	for {
		var item map[string]any
		if err := c.call(ctx, http.MethodGet, "/v1/"+name, nil, nil, &item); err != nil {
			return nil, err
		}
		switch {
		case item["state"] == "READY":
			return item, nil
		case cell(item, "status.code") != "OK" && cell(item, "status.code") != "-":
			err := fmt.Errorf("%s is not READY: %s", name, cell(item, statusMessage))
			return item, withHint(err, hint)
		}
		if err := sleep(ctx, watchPoll); err != nil {
			return nil, err
		}
	}
}

// printFiles prints the paths of written files.
func printFiles(c *cobra.Command, files []string) error {
	if inJSON, err := wantsJSON(c); err != nil || inJSON {
		return errors.Join(err, printJSON(c.OutOrStdout(), map[string]any{"files": files}))
	}
	for _, file := range files {
		note(c, "%s", file)
	}
	return nil
}

// A download writes files of the server into a directory. Unless overwrite is set, it fails if one
// of the files exists.
type download struct {
	dir       string
	query     url.Values
	only      func(name string) bool // reports whether to download a file; nil downloads all files
	progress  *progress              // shows the progress; nil shows none
	overwrite bool
}

func (d *download) flags(f *pflag.FlagSet, noun string) {
	f.StringVar(&d.dir, "dir", "", "directory to write to (default: the "+noun+"'s ID)")
	f.BoolVar(&d.overwrite, "overwrite", false, "replace files of the directory that have the names of downloaded files")
}

// run downloads the files whose signed URLs the API returns at path, and returns the paths of the
// written files. Each file is written completely or not at all.
func (d *download) run(cmd *cobra.Command, c *client, path string) (files []string, err error) {
	var endpoint struct {
		URLs map[string]string `json:"filenameToSignedUrls"`
	}
	if err := c.call(cmd.Context(), http.MethodGet, path, d.query, nil, &endpoint); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(endpoint.URLs))
	if d.only != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return !d.only(name) })
	}
	files = []string{}
	for _, name := range names {
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, fmt.Errorf("the server sent the file name %q, which is outside of %s", name, d.dir)
		}
		target := filepath.Join(d.dir, filepath.FromSlash(name))
		if files = append(files, target); d.overwrite {
			continue
		}
		if err := requireNew(cmd, target, "choose another directory, or replace the files with --overwrite"); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(d.dir, ".anneal-download-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	for i, name := range names {
		if err := d.file(cmd, c, endpoint.URLs[name], name, filepath.Join(work, "part"), files[i]); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// file downloads a file to the path part, and then renames it to target.
func (d *download) file(cmd *cobra.Command, c *client, link, name, part, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	res, err := c.openURL(cmd.Context(), link)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	body := io.Reader(res.Body)
	if d.progress != nil {
		body = d.progress.of(name, body)
	}
	_, err = io.Copy(f, body)
	if err := errors.Join(err, f.Close()); err != nil {
		if d.progress != nil {
			d.progress.clear()
		}
		return diskFull(err, target)
	}
	if d.progress != nil {
		d.progress.done(name)
	}
	if d.overwrite {
		return os.Rename(part, target)
	}
	return publish(cmd, part, target)
}

// diskFull adds a hint to err if it means that the disk of the file at path is full.
func diskFull(err error, path string) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return withHint(fmt.Errorf("the disk of %s is full: %w", path, err),
		"free some space, or write to another disk; the incomplete file was removed")
}

// redrawInterval is the minimum time between two redraws of a line of progress.
const redrawInterval = 100 * time.Millisecond

// A progress shows how many bytes were transferred. On a terminal it redraws a line; otherwise it
// prints a line for each file.
type progress struct {
	out      io.Writer
	terminal bool
	total    int64 // total size of all files, in bytes
	moved    int64
	shown    time.Time
}

func newProgress(c *cobra.Command, sizes map[string]int64) *progress {
	out := c.ErrOrStderr()
	p := &progress{out: out, terminal: onTerminal(out)}
	for _, size := range sizes {
		p.total += size
	}
	return p
}

// of returns a reader of a file that counts the bytes that are read.
func (p *progress) of(name string, r io.Reader) io.Reader {
	return io.TeeReader(r, counting(func(n int) { p.add(name, int64(n)) }))
}

// add adds n transferred bytes of a file. A file that total does not contain increases total.
func (p *progress) add(name string, n int64) {
	p.moved += n
	p.total = max(p.total, p.moved)
	if now := time.Now(); p.terminal && now.Sub(p.shown) > redrawInterval {
		p.shown = now
		redraw(p.out, fmt.Sprintf("%s of %s  %s", inBytes(p.moved), inBytes(p.total), name))
	}
}

// clear removes the line of progress from the terminal.
func (p *progress) clear() {
	if p.terminal {
		redraw(p.out, "")
	}
}

func (p *progress) done(name string) {
	p.clear()
	fmt.Fprintf(p.out, "%s of %s  %s\n", inBytes(p.moved), inBytes(p.total), name)
}

// A counting is an io.Writer that calls the function with the number of bytes of each write.
type counting func(n int)

func (c counting) Write(p []byte) (int, error) {
	c(len(p))
	return len(p), nil
}

// inBytes formats a number of bytes with a unit.
func inBytes(n int64) string {
	unit, rest := 0, float64(n)
	for ; rest >= 1000 && unit < 4; unit++ {
		rest /= 1000
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %cB", rest, "kMGT"[unit-1])
}
