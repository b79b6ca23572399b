package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"anneal/disk"
	"anneal/domain"
	"anneal/workers/protocol"
)

// A cache stores downloaded file sets, each in a directory. Users of the same file set share one
// download. An unused file set stays until its space is needed. A download has a temporary
// directory name until it is complete.
type cache struct {
	dir    string
	limit  int64 // maximum total size of the unused file sets in bytes
	files  *transfer
	meters *meters

	mu      sync.Mutex
	entries map[string]*entry // file sets in the cache, by the hash of FileSet.Key
}

type entry struct {
	size  int64
	users int           // number of users of the file set: calls of acquire whose release was not called yet
	used  time.Time     // when users became 0; the file set that is unused for the longest time is removed first
	ready chan struct{} // closed when the download has succeeded or failed
	err   error
}

const partSuffix = ".part" // suffix of a directory whose download is not complete

// open adds the file sets that earlier processes downloaded to the cache.
func (c *cache) open() error {
	found, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, directory := range found {
		path := filepath.Join(c.dir, directory.Name())
		if strings.HasSuffix(directory.Name(), partSuffix) {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			continue
		}
		info, err := directory.Info()
		if err != nil {
			return err
		}
		sizes, err := sizesOf(path)
		if err != nil {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			continue
		}
		e := &entry{used: info.ModTime(), ready: make(chan struct{})}
		for _, size := range sizes {
			e.size += size
		}
		close(e.ready)
		c.entries[directory.Name()] = e
	}
	return nil
}

// acquire returns the directory of a file set, after downloading the files if they are not cached.
// The directory stays in the cache at least until release is called.
func (c *cache) acquire(ctx context.Context, files protocol.FileSet) (dir string, release func(), err error) {
	sum := sha256.Sum256([]byte(files.Key))
	id := hex.EncodeToString(sum[:16])
	path := filepath.Join(c.dir, id)
	for {
		c.mu.Lock()
		e, cached := c.entries[id]
		if !cached {
			e = &entry{size: files.Size(), ready: make(chan struct{})}
			c.entries[id] = e
		}
		e.users++
		c.mu.Unlock()
		if !cached {
			c.download(ctx, e, id, files)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			c.release(e)
			return "", nil, context.Cause(ctx)
		}
		if e.err == nil {
			return path, sync.OnceFunc(func() { c.release(e) }), nil
		}
		// The caller that began the download canceled it, but this caller needs the files: download them
		// again.
		if cached && ctx.Err() == nil {
			continue
		}
		return "", nil, e.err
	}
}

// download downloads a file set into a temporary directory and then renames it. It closes e.ready
// when it ends.
func (c *cache) download(ctx context.Context, e *entry, id string, files protocol.FileSet) {
	c.evict(e.size)
	part := filepath.Join(c.dir, id+partSuffix)
	final := filepath.Join(c.dir, id)
	err := c.downloadInSpan(ctx, files, part)
	if err == nil {
		err = errors.Join(os.RemoveAll(final), os.Rename(part, final))
	}
	if err == nil {
		err = disk.Sync(c.dir)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(part))
		if domain.CodeOf(err) == domain.ResourceExhausted {
			c.evict(c.limit) // the disk is full: remove all unused file sets
		}
		c.mu.Lock()
		delete(c.entries, id)
		c.mu.Unlock()
	}
	e.err = err
	close(e.ready)
}

func (c *cache) release(e *entry) {
	c.mu.Lock()
	e.users--
	e.used = time.Now()
	c.mu.Unlock()
	c.evict(0)
}

// evict removes unused file sets, the least recently used first, until their bytes plus more are
// within the limit. more is the size of files that are about to be added.
func (c *cache) evict(more int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var idle []string
	var sum int64
	for id, e := range c.entries {
		if e.users == 0 {
			idle = append(idle, id)
			sum += e.size
		}
	}
	slices.SortFunc(idle, func(a, b string) int {
		return cmp.Compare(c.entries[a].used.UnixNano(),
			c.entries[b].used.UnixNano())
	})
	for _, id := range idle {
		if sum+more <= c.limit {
			return
		}
		sum -= c.entries[id].size
		delete(c.entries, id)
		_ = os.RemoveAll(filepath.Join(c.dir, id)) // when the removal fails, open finds the directory at the next start
	}
}
