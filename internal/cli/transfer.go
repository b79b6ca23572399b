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
	"time"

	"github.com/spf13/cobra"
)

func isFile(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	return err
}

// unfinished tells whether something could not be created because an earlier
// attempt left it without a valid upload.
func (c *client) unfinished(ctx context.Context, collection, id string, err error) bool {
	var refused *apiError
	if !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		return false
	}
	var item map[string]any
	err = c.call(ctx, http.MethodGet, "/v1/"+c.name(collection, id), nil, nil, &item)
	return err == nil && item["state"] == "UPLOADING"
}

// upload sends a file and waits for the verdict on its rows.
func (c *client) upload(ctx context.Context, dataset, path string) (map[string]any, error) {
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
	res, err := c.request(ctx, http.MethodPost, "/v1/"+c.name("datasets", dataset)+":upload", nil, body.contentType, body)
	if err != nil {
		return nil, err
	}
	res.Body.Close()
	return c.awaitUpload(ctx, c.name("datasets", dataset))
}

// awaitUpload waits for the verdict on what was uploaded into a resource.
func (c *client) awaitUpload(ctx context.Context, name string) (map[string]any, error) {
	for {
		var item map[string]any
		if err := c.call(ctx, http.MethodGet, "/v1/"+name, nil, nil, &item); err != nil {
			return nil, err
		}
		switch {
		case item["state"] == "READY":
			return item, nil
		case cell(item, "status.code") != "OK" && cell(item, "status.code") != "-":
			return item, fmt.Errorf("%s is not READY: %s", name, cell(item, "status.message"))
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// printFiles tells which files were written.
func printFiles(c *cobra.Command, files []string) error {
	if inJSON, err := wantsJSON(c); err != nil || inJSON {
		return errors.Join(err, printJSON(c.OutOrStdout(), map[string]any{"files": files}))
	}
	for _, file := range files {
		note(c, "%s", file)
	}
	return nil
}

// download reads all files to which an endpoint gives URLs into a folder, and
// answers where each lies.
func (c *client) download(cmd *cobra.Command, endpoint string, query url.Values, folder string) ([]string, error) {
	var answer struct {
		URLs map[string]string `json:"filenameToSignedUrls"`
	}
	if err := c.call(cmd.Context(), http.MethodGet, endpoint, query, nil, &answer); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	files := []string{}
	for _, name := range slices.Sorted(maps.Keys(answer.URLs)) {
		target := filepath.Join(folder, filepath.FromSlash(name))
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, fmt.Errorf("the server names a file %q: it would lie outside of %s", name, folder)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return nil, err
		}
		if err := c.fetch(cmd.Context(), answer.URLs[name], target); err != nil {
			return nil, err
		}
		files = append(files, target)
	}
	return files, nil
}

// fetch writes a file, whole or not at all.
func (c *client) fetch(ctx context.Context, link, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return err
	}
	res, err := c.send(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return readError(res)
	}
	part := target + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, res.Body)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Rename(part, target)
}

// A progress tells how much of many bytes has moved: a line that is drawn over
// again on a terminal, else a line for each file.
type progress struct {
	out      io.Writer
	terminal bool
	total    int64 // bytes; 0 when it is not known
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

// of is a reader of a file that counts.
func (p *progress) of(name string, r io.Reader) io.Reader {
	return io.TeeReader(r, counting(func(n int) {
		p.moved += int64(n)
		if now := time.Now(); p.terminal && now.Sub(p.shown) > 100*time.Millisecond {
			p.shown = now
			redraw(p.out, fmt.Sprintf("%s of %s  %s", inBytes(p.moved), inBytes(p.total), name))
		}
	}))
}

// clear takes the line that is drawn over away.
func (p *progress) clear() {
	if p.terminal {
		redraw(p.out, "")
	}
}

func (p *progress) done(name string) {
	p.clear()
	fmt.Fprintf(p.out, "%s of %s  %s\n", inBytes(p.moved), inBytes(p.total), name)
}

type counting func(n int)

func (c counting) Write(p []byte) (int, error) {
	c(len(p))
	return len(p), nil
}

// inBytes is a size for people.
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
