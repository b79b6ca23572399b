package projections

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"

	"anneal/domain"
)

// A Comparison is the result of comparing two views at the same position: the state that was
// served, and the state that was folded again from the log.
type Comparison struct {
	Served Digest `json:"served"`
	Folded Digest `json:"folded"`
	// Differences are the resources that differ, ordered by collection and name; at most maxDifferences.
	Differences []Difference `json:"differences,omitempty"`
	// DifferenceCount is the number of resources that differ.
	DifferenceCount int `json:"differenceCount"`
}

// Equal reports whether the views have the same rows.
func (c Comparison) Equal() bool { return c.DifferenceCount == 0 && c.Served.SHA256 == c.Folded.SHA256 }

// Ways in which the served state of a resource differs from the log.
const (
	DiffersChanged = "CHANGED" // both states have a row of the resource, with different content
	DiffersMissing = "MISSING" // the served state lacks the row that follows from the log
	DiffersExtra   = "EXTRA"   // the served state has a row that does not follow from the log
)

// A Difference is a resource whose served row differs from the row that follows from the log.
type Difference struct {
	Name string `json:"name"` // name of the resource; the constant historyTable ("waits") for the history of job waits
	Kind string `json:"kind"`
}

const maxDifferences = 1_000

// An entry is a line of a table (see line), with the name of its resource.
type entry struct {
	name    domain.Name
	deleted bool
	text    []byte
}

// compare orders entries in the order in which table.lines yields lines.
func (e entry) compare(o entry) int {
	switch {
	case e.deleted != o.deleted && o.deleted:
		return -1
	case e.deleted != o.deleted:
		return 1
	}
	return strings.Compare(string(e.name), string(o.name))
}

var errStopped = errors.New("stopped")

// entries yields an entry for each line of a table; none for a nil table.
func (t *table) entries() iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		if t == nil {
			return
		}
		err := t.lines(func(name domain.Name, text []byte, deleted bool) error {
			if !yield(entry{name, deleted, text}, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(entry{}, err)
		}
	}
}

// comparedRows is the number of rows that Compare compares between two checks of its context.
const comparedRows = 1024

// Compare compares the rows and the histories of waits of two views at one position.
func Compare(ctx context.Context, served, folded *View) (Comparison, error) {
	c := Comparison{}
	servedSums, foldedSums := newSums(served), newSums(folded)
	collections := maps.Clone(served.tables)
	maps.Copy(collections, folded.tables)
	for _, collection := range slices.Sorted(maps.Keys(collections)) {
		rows := 0
		err := merge(served.tables[collection].entries(), folded.tables[collection].entries(), func(was, is *entry) error {
			if was != nil {
				servedSums.add(collection, was.text, was.deleted)
			}
			if is != nil {
				foldedSums.add(collection, is.text, is.deleted)
			}
			c.add(served.tables[collection], folded.tables[collection], was, is)
			if rows++; rows%comparedRows == 0 {
				return ctx.Err()
			}
			return nil
		})
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return c, err
		}
	}
	was, err := addHistory(served, servedSums)
	if err != nil {
		return c, err
	}
	is, err := addHistory(folded, foldedSums)
	if err != nil {
		return c, err
	}
	if !bytes.Equal(was, is) {
		c.differs(historyTable, DiffersChanged)
	}
	c.Served, c.Folded = servedSums.digest(served.Checkpoint), foldedSums.digest(folded.Checkpoint)
	return c, nil
}

// addHistory adds the lines of the history of job waits to the sums, and returns them. They are at
// most a few MB.
func addHistory(v *View, s sums) (all []byte, err error) {
	err = historyLines(v, func(line []byte) error {
		s.add(historyTable, line, false)
		all = append(append(all, line...), '\n')
		return nil
	})
	return all, err
}

// add records a difference between the served line, was, and the folded line, is, of one resource;
// nil stands for an absent line. It does not count the line of a deleted resource if the other
// table has a row of the resource, because that row is counted.
func (c *Comparison) add(served, folded *table, was, is *entry) {
	switch {
	case is == nil && !(was.deleted && folded.has(was.name)):
		c.differs(string(was.name), DiffersExtra)
	case was == nil && !(is.deleted && served.has(is.name)):
		c.differs(string(is.name), DiffersMissing)
	case was != nil && is != nil && !bytes.Equal(was.text, is.text):
		c.differs(string(is.name), DiffersChanged)
	}
}

// has reports whether the table has a row of a resource; false for a nil table.
func (t *table) has(name domain.Name) bool {
	if t == nil {
		return false
	}
	_, ok := t.rows.Get(name)
	return ok
}

func (c *Comparison) differs(name, kind string) {
	if c.DifferenceCount++; len(c.Differences) < maxDifferences {
		c.Differences = append(c.Differences, Difference{name, kind})
	}
}

// merge calls visit for every resource with an entry in one of two ordered sequences. It passes the
// entry of each sequence, valid during the call; nil if the sequence has none. It returns the first
// error of visit.
func merge(a, b iter.Seq2[entry, error], visit func(a, b *entry) error) error {
	nextA, stopA := iter.Pull2(a)
	defer stopA()
	nextB, stopB := iter.Pull2(b)
	defer stopB()
	one, errA, moreA := nextA()
	two, errB, moreB := nextB()
	for moreA || moreB {
		if err := errors.Join(errA, errB); err != nil {
			return err
		}
		order := 0
		switch {
		case !moreB:
			order = -1
		case !moreA:
			order = 1
		default:
			order = one.compare(two)
		}
		was, is := &one, &two
		if order < 0 {
			is = nil
		} else if order > 0 {
			was = nil
		}
		if err := visit(was, is); err != nil {
			return err
		}
		if order <= 0 {
			one, errA, moreA = nextA()
		}
		if order >= 0 {
			two, errB, moreB = nextB()
		}
	}
	return nil
}
