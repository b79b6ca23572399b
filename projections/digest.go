package projections

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"iter"
	"maps"
	"slices"

	"anneal/domain"
	"anneal/eventlog"
)

// A Digest is a hash of all tables, and of the history of job waits, at one position. Worlds that
// folded the same events have the same Digest, whether or not they were loaded from a snapshot.
type Digest struct {
	Position uint64 `json:"position"`
	EventID  string `json:"eventId"`
	// hash of each table by collection, and of the history of job waits with the key historyTable
	Tables map[string]TableDigest `json:"tables"`
	// SHA256 is the digest of the tables' names and SHA256 fields, ordered by name, in hexadecimal.
	SHA256 string `json:"sha256"`
}

// A TableDigest is the hash of one table.
type TableDigest struct {
	Rows   int    `json:"rows"`
	SHA256 string `json:"sha256"` // SHA-256 of the lines that table.lines yields
}

// Digest returns the digest of the view. It returns an error only when a state cannot be encoded as
// JSON.
func (v *View) Digest() (Digest, error) {
	sums := newSums(v)
	err := linesOf(v, func(table string, line []byte, deleted bool) error {
		sums.add(table, line, deleted)
		return nil
	})
	return sums.digest(v.Checkpoint), err
}

// A Reader reads a log, as eventlog.Log does. Read yields the events that match filter and whose
// position is greater than after.
type Reader interface {
	Read(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error]
}

// Verify folds the log from its first event up to the position upTo, or all events if upTo is 0,
// into a new world. It returns the world's digest.
func Verify(ctx context.Context, log Reader, upTo uint64) (Digest, error) {
	return verify(ctx, NewWorld(), log, upTo)
}

func verify(ctx context.Context, w *World, log Reader, upTo uint64) (Digest, error) {
	if err := w.catchUp(ctx, log, upTo); err != nil {
		return Digest{}, err
	}
	if at := w.Position(); at < upTo {
		return Digest{}, domain.Errorf(domain.OutOfRange, "the log ends at position %d and cannot be verified up to "+
			"position %d: verify it up to an earlier position", at, upTo)
	}
	return w.View().Digest()
}

// catchUp folds the events of the log after the world's position, up to the position upTo, or all
// if upTo is 0.
func (w *World) catchUp(ctx context.Context, log Reader, upTo uint64) error {
	for e, err := range log.Read(ctx, everything, w.Position()) {
		switch {
		case err != nil:
			return fmt.Errorf("read the log after event %d: %w", w.Position(), err)
		case upTo > 0 && e.Position > upTo:
			return nil
		}
		if err := w.Apply(e); err != nil {
			return err
		}
		if e.Position == upTo {
			return nil
		}
	}
	return ctx.Err()
}

// sums computes the TableDigest of each table from its lines, by collection.
type sums map[string]*tableSum

type tableSum struct {
	hash hash.Hash
	rows int
}

// newSums returns sums for the tables of the view, to which no lines were added.
func newSums(v *View) sums {
	s := sums{}
	for collection := range v.tables {
		s[collection] = &tableSum{hash: sha256.New()}
	}
	return s
}

// add adds a line of a table. deleted says that it is the line of a deleted resource, which counts
// as no row.
func (s sums) add(table string, line []byte, deleted bool) {
	sum := s[table]
	if sum == nil {
		sum = &tableSum{hash: sha256.New()}
		s[table] = sum
	}
	sum.hash.Write(line)
	sum.hash.Write([]byte{'\n'})
	if !deleted {
		sum.rows++
	}
}

func (s sums) digest(at eventlog.Checkpoint) Digest {
	d := Digest{at.Position, at.EventID, map[string]TableDigest{}, ""}
	all := sha256.New()
	for _, collection := range slices.Sorted(maps.Keys(s)) {
		table := TableDigest{s[collection].rows, hex.EncodeToString(s[collection].hash.Sum(nil))}
		d.Tables[collection] = table
		fmt.Fprintf(all, "%s %s\n", collection, table.SHA256)
	}
	d.SHA256 = hex.EncodeToString(all.Sum(nil))
	return d
}
