package keyfile

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A memoryDisk is a disk in memory. It records all operations, so that tests can simulate a power
// failure after any step, which loses any part of the unsynced changes.
type memoryDisk struct {
	mu    sync.Mutex
	names map[string]*inode
	steps []step
	fail  func(op, name string) error
}

type inode struct{ data []byte }

// A step is one change or one sync of a file or of the directory.
type step struct {
	op       string // operation: write, truncate, sync, create, rename, remove or syncdir
	on       *inode
	at       int64
	data     []byte
	from, to string
}

func newMemoryDisk(data [copies][]byte) *memoryDisk {
	d := &memoryDisk{names: map[string]*inode{}}
	for i, content := range data {
		if content != nil {
			d.names[copyName(i)] = &inode{slices.Clone(content)}
		}
	}
	return d
}

func (d *memoryDisk) note(s step) { d.steps = append(d.steps, s) }

func (d *memoryDisk) failing(op, name string) error {
	if d.fail != nil {
		return d.fail(op, name)
	}
	return nil
}

func (d *memoryDisk) open(name string, create bool) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in := d.names[name]
	switch {
	case create:
		in = &inode{}
		d.names[name] = in
		d.note(step{op: "create", on: in, to: name})
	case in == nil:
		return nil, fs.ErrNotExist
	}
	return &memoryFile{d, in, name}, nil
}

func (d *memoryDisk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[to] = d.names[from]
	delete(d.names, from)
	d.note(step{op: "rename", from: from, to: to})
	return nil
}

func (d *memoryDisk) remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
	d.note(step{op: "remove", from: name})
	return nil
}

func (d *memoryDisk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(step{op: "syncdir"})
	return d.failing("syncdir", "")
}

type memoryFile struct {
	d    *memoryDisk
	in   *inode
	name string
}

func (f *memoryFile) ReadAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if at >= int64(len(f.in.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.in.data[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (in *inode) write(b []byte, at int64) {
	if need := int(at) + len(b); need > len(in.data) {
		in.data = append(in.data, make([]byte, need-len(in.data))...)
	}
	copy(in.data[at:], b)
}

func (f *memoryFile) WriteAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.failing("write", f.name); err != nil {
		f.in.write(b[:len(b)/2], at) // the failed write leaves half of the bytes
		return len(b) / 2, err
	}
	f.in.write(b, at)
	f.d.note(step{op: "write", on: f.in, at: at, data: slices.Clone(b)})
	return len(b), nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.in.data = f.in.data[:min(int(size), len(f.in.data))]
	f.d.note(step{op: "truncate", on: f.in, at: size})
	return nil
}

func (f *memoryFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.note(step{op: "sync", on: f.in})
	return f.d.failing("sync", f.name)
}

func (f *memoryFile) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.in.data)), nil
}

func (f *memoryFile) Close() error { return nil }

// afterPowerFailure returns the disk after some steps and a power failure. All synced changes are
// present. choose, which returns a number below n, determines for each sector of an unsynced write
// whether the sector is present, and how many of the unsynced changes of the directory are present,
// from the first on.
func afterPowerFailure(steps []step, choose func(n int) int) *memoryDisk {
	const sector = 512
	files, names := map[*inode]*inode{}, map[string]*inode{}
	pending, directory := map[*inode][]step{}, []step(nil)
	apply := func(s step) {
		switch s.op {
		case "write":
			files[s.on].write(s.data, s.at)
		case "truncate":
			files[s.on].data = files[s.on].data[:min(int(s.at), len(files[s.on].data))]
		case "create":
			names[s.to] = files[s.on]
		case "rename":
			names[s.to] = names[s.from]
			delete(names, s.from)
		case "remove":
			delete(names, s.from)
		}
	}
	for _, s := range steps {
		switch s.op {
		case "create":
			files[s.on] = &inode{}
			directory = append(directory, s)
		case "rename", "remove":
			directory = append(directory, s)
		case "write", "truncate":
			pending[s.on] = append(pending[s.on], s)
		case "sync":
			for _, one := range pending[s.on] {
				apply(one)
			}
			pending[s.on] = nil
		case "syncdir":
			for _, one := range directory {
				apply(one)
			}
			directory = nil
		}
	}
	for in := range files {
		for _, one := range pending[in] {
			if one.op == "truncate" {
				if choose(2) == 1 {
					apply(one)
				}
				continue
			}
			for at := 0; at < len(one.data); at += sector {
				if choose(2) == 1 {
					piece := one
					piece.at += int64(at)
					piece.data = one.data[at:min(at+sector, len(one.data))]
					apply(piece)
				}
			}
		}
	}
	for _, one := range directory[:choose(len(directory)+1)] {
		apply(one)
	}
	after := &memoryDisk{names: map[string]*inode{}}
	for name, in := range names {
		after.names[name] = &inode{slices.Clone(in.data)}
	}
	return after
}

// A promise is the content that must be present after a number of steps.
type promise struct {
	steps   int
	held    map[string]string // acknowledged values by key
	under   string            // key that is being changed; "" for none
	changed string            // value of that key after the change; "" when it is erased
}

// TestPowerFailureAtEveryStep checks that after a power failure at any step, with any part of the
// unsynced changes lost, every acknowledged value is present and no erased value is on the disk.
func TestPowerFailureAtEveryStep(t *testing.T) {
	d := newMemoryDisk([copies][]byte{})
	held, revisions := map[string]string{}, map[string]uint64{}
	var promises []promise
	opts := Options{Wipe: true}
	s, err := open(d, "memory", opts)
	require.NoError(t, err)
	begin := len(d.steps)
	change := func(key, value string) {
		promises = append(promises, promise{len(d.steps), maps.Clone(held), key, value})
		if value == "" {
			require.NoError(t, s.Erase(t.Context(), key))
			delete(held, key)
			delete(revisions, key)
			return
		}
		revisions[key] = mustPut(t, s, key, value, revisions[key])
		held[key] = value
	}
	for i := range 6 {
		change(fmt.Sprint("k", i), fmt.Sprintf("value-%d-%s", i, strings.Repeat("v", 300)))
	}
	change("k1", "")
	change("k2", "replaced-"+strings.Repeat("r", 700))
	promises = append(promises, promise{len(d.steps), maps.Clone(held), "", ""})
	s.compact()
	change("k6", "after compaction")
	change("k3", "")
	promises = append(promises, promise{len(d.steps), maps.Clone(held), "", ""})
	require.NoError(t, s.Close())

	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	choices := []func(n int) int{func(int) int { return 0 }, func(n int) int { return n - 1 }}
	for range 6 {
		choices = append(choices, random.IntN)
	}
	for cut := begin; cut <= len(d.steps); cut++ {
		at := 0
		for at+1 < len(promises) && promises[at+1].steps <= cut {
			at++
		}
		p := promises[at]
		for i, choose := range choices {
			after := afterPowerFailure(d.steps[:cut], choose)
			again, err := open(after, "memory", Options{Wipe: true, Exists: true})
			require.NoError(t, err, "cut %d, state %d", cut, i)
			found := content(t, again)
			changed := maps.Clone(p.held)
			if changed[p.under] = p.changed; p.changed == "" {
				delete(changed, p.under)
			}
			if !maps.Equal(found, changed) {
				require.Equal(t, p.held, found, "cut %d, state %d", cut, i)
			}
			for name, in := range after.names {
				for i := range 6 {
					key := fmt.Sprint("k", i)
					if value := fmt.Sprintf("value-%d-", i); found[key] == "" || !strings.HasPrefix(found[key], value) {
						require.NotContains(t, string(in.data), value, "cut %d: %s", cut, name)
					}
				}
			}
			mustPut(t, again, "new", "x", 0)
			require.NoError(t, again.Close())
		}
	}
}
