package disk

import (
	"path/filepath"
	"sync"
)

// A Syncer calls fsync for directories, so that the files created or renamed in them keep their
// names after a power failure. Concurrent calls for one directory share an fsync (group commit).
// The zero value is ready to use.
type Syncer struct {
	sync func(path string) error // syncs a directory; nil stands for Sync, tests set another

	mu     sync.Mutex
	dirs   map[string]*dirSync
	linked map[string]identity // directories whose entries in their parents, up to a root, are durable
}

// maxLinked is the maximum size of Syncer.linked. Beyond it the map is cleared, and the next
// SyncDir of a directory syncs its parents again.
const maxLinked = 1 << 16

// A dirSync holds the fsyncs of one directory: the one that is running, and the next one, which has
// not begun and which new callers wait for.
type dirSync struct{ running, next *syncRound }

type syncRound struct {
	done chan struct{} // closed when the fsync has returned err
	err  error
}

// SyncDir makes the entries of a directory durable. It returns after an fsync that began after the
// call.
func (s *Syncer) SyncDir(path string) error {
	s.mu.Lock()
	if s.dirs == nil {
		s.dirs = map[string]*dirSync{}
	}
	d := s.dirs[path]
	if d == nil {
		d = &dirSync{}
		s.dirs[path] = d
	}
	if r := d.next; r != nil {
		s.mu.Unlock()
		<-r.done
		return r.err
	}
	r, before := &syncRound{done: make(chan struct{})}, d.running
	if before == nil {
		d.running = r
	} else {
		d.next = r
	}
	s.mu.Unlock()
	if before != nil {
		<-before.done
		s.mu.Lock()
		d.running, d.next = r, nil
		s.mu.Unlock()
	}
	r.err = s.run(path)
	s.mu.Lock()
	if d.next == nil {
		delete(s.dirs, path)
	}
	s.mu.Unlock()
	close(r.done)
	return r.err
}

func (s *Syncer) run(path string) error {
	if s.sync != nil {
		return s.sync(path)
	}
	return Sync(path)
}

// SyncUp makes the entries of dir durable, and the entries of its parents up to root that lead to
// it. It skips the parents if an earlier call has synced them for the same directory (see
// identity). dir must contain a file, so that nothing removes dir during the call.
func (s *Syncer) SyncUp(dir, root string) error {
	if err := s.SyncDir(dir); err != nil {
		return err
	}
	synced := map[string]identity{}
	for at := dir; at != root; at = filepath.Dir(at) {
		id, known := identify(at)
		if known && s.isLinked(at, id) {
			break
		}
		if err := s.SyncDir(filepath.Dir(at)); err != nil {
			return err
		}
		if known {
			synced[at] = id
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.linked == nil || len(s.linked)+len(synced) > maxLinked {
		s.linked = map[string]identity{}
	}
	for at, id := range synced {
		s.linked[at] = id
	}
	return nil
}

func (s *Syncer) isLinked(path string, id identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linked[path] == id
}

// An identity distinguishes a directory from every other directory that had or will have its path.
// An inode number can be reused, so the identity also contains the time of creation.
type identity struct {
	device, inode uint64
	born          int64 // nanoseconds of Unix time
}
