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

	"anneal/domain"
	"anneal/workers/protocol"
)

// A cache keeps folders that were fetched. Whoever needs the same one at the
// same time shares it and waits for one download; what nobody uses stays until
// its room is needed. A folder appears in the cache whole or not at all.
type cache struct {
	dir   string
	limit int64 // bytes of what nobody uses
	files *transfer

	mu      sync.Mutex
	entries map[string]*entry // by the hash of the folder's key
}

type entry struct {
	size  int64
	users int
	used  time.Time     // when it was last let go
	ready chan struct{} // closed when it is there, or could not be fetched
	err   error
}

const unfinished = ".part" // ends the names of folders that are not whole

// open finds what earlier runs left.
func (c *cache) open() error {
	found, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, folder := range found {
		path := filepath.Join(c.dir, folder.Name())
		if strings.HasSuffix(folder.Name(), unfinished) {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			continue
		}
		info, err := folder.Info()
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
		c.entries[folder.Name()] = e
	}
	return nil
}

// acquire answers where the folder lies, fetching it when it is not there. It
// stays until release is called.
func (c *cache) acquire(ctx context.Context, folder protocol.FileSet) (dir string, release func(), err error) {
	sum := sha256.Sum256([]byte(folder.Key))
	id := hex.EncodeToString(sum[:16])
	path := filepath.Join(c.dir, id)
	for {
		c.mu.Lock()
		e, there := c.entries[id]
		if !there {
			e = &entry{size: folder.Size(), ready: make(chan struct{})}
			c.entries[id] = e
		}
		e.users++
		c.mu.Unlock()
		if !there {
			c.fetch(ctx, e, id, folder)
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
		// Whoever fetched it may have been stopped; that is no reason for us.
		if there && ctx.Err() == nil {
			continue
		}
		return "", nil, e.err
	}
}

// fetch downloads into a folder beside its place, then moves it there.
func (c *cache) fetch(ctx context.Context, e *entry, id string, folder protocol.FileSet) {
	c.evict(e.size)
	part := filepath.Join(c.dir, id+unfinished)
	whole := filepath.Join(c.dir, id)
	err := c.files.fetch(ctx, folder, part)
	if err == nil {
		err = errors.Join(os.RemoveAll(whole), os.Rename(part, whole))
	}
	if err == nil {
		err = syncDir(c.dir)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(part))
		if fault := domain.CodeOf(err); fault == domain.ResourceExhausted {
			c.evict(c.limit) // so that the next one finds room
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

// evict makes room for more bytes within the limit: what nobody uses goes, the
// longest unused first.
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
	slices.SortFunc(idle, func(a, b string) int { return cmp.Compare(c.entries[a].used.UnixNano(), c.entries[b].used.UnixNano()) })
	for _, id := range idle {
		if sum+more <= c.limit {
			return
		}
		sum -= c.entries[id].size
		delete(c.entries, id)
		_ = os.RemoveAll(filepath.Join(c.dir, id)) // what is left is found again at the next start
	}
}
