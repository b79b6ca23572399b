package transparency

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// Beginnings collects what several verified bundles prove about one log: the root hash that it had
// at each size, and which of these sizes are proven to be beginnings of which.
type Beginnings struct {
	roots map[uint64]tlog.Hash
	steps map[uint64][]uint64 // by size: smaller sizes whose events are the first ones of this size
}

// Add adds what a verified bundle proves. It returns an error if the log has another root hash at a
// size that was added before: then its key has signed two different histories.
func (b *Beginnings) Add(v Verified) error {
	if err := b.add(v.Checkpoint.Size, v.Checkpoint.Root); err != nil {
		return err
	}
	for _, s := range v.Growth {
		if err := b.add(s.From, s.FromRoot); err != nil {
			return err
		}
		if err := b.add(s.To, s.ToRoot); err != nil {
			return err
		}
		b.steps[s.To] = append(b.steps[s.To], s.From)
	}
	return nil
}

func (b *Beginnings) add(size uint64, root tlog.Hash) error {
	if b.roots == nil {
		b.roots, b.steps = map[uint64]tlog.Hash{}, map[uint64][]uint64{}
	}
	if other, ok := b.roots[size]; ok && other != root {
		return fmt.Errorf("the log signed two different histories: its first %d events have root hash %s here, but %s in an "+
			"earlier bundle", size, root, other)
	}
	b.roots[size] = root
	return nil
}

// Root returns the root hash of the log at a size; false if no bundle proves it.
func (b *Beginnings) Root(size uint64) (root tlog.Hash, ok bool) {
	root, ok = b.roots[size]
	return root, ok
}

// Of returns the sizes that are proven to be beginnings of the log with the given size, and that
// size itself. It returns the root hash at each.
func (b *Beginnings) Of(size uint64) map[uint64]tlog.Hash {
	found := map[uint64]tlog.Hash{}
	for next := []uint64{size}; len(next) > 0; {
		last := next[len(next)-1]
		next = next[:len(next)-1]
		if _, seen := found[last]; seen {
			continue
		}
		found[last] = b.roots[last]
		next = append(next, b.steps[last]...)
	}
	return found
}
