package transparency

import (
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// ProveGrowth returns a bundle which proves that the log of another server has only grown: from
// oldSize to newSize, and then to the size of its newest checkpoint. If newSize is 0, it is the
// size of that checkpoint. fetch returns the content of a path in the format tlog-tiles of C2SP;
// the proofs are computed from the tiles.
func ProveGrowth(fetch func(path string) ([]byte, error), oldSize, newSize uint64) (Bundle, error) {
	signed, err := fetch("checkpoint")
	if err != nil {
		return Bundle{}, err
	}
	c, err := ParseCheckpoint(string(signed)) // the signature is verified by Bundle.Verify
	if err != nil {
		return Bundle{}, err
	}
	if newSize == 0 {
		newSize = c.Size
	}
	if oldSize == 0 || oldSize > newSize || newSize > c.Size {
		return Bundle{}, fmt.Errorf("the log has %d events, so its growth from size %d to %d cannot be "+
			"proven", c.Size, oldSize, newSize)
	}
	tree := tlog.TileHashReader(tlog.Tree{N: int64(c.Size), Hash: c.Root}, remoteTiles(fetch))
	b := Bundle{Format: BundleFormat, Proof: string(signed)}
	for _, sizes := range [][2]uint64{{oldSize, newSize}, {newSize, c.Size}} {
		if sizes[0] == sizes[1] && len(b.Growth) > 0 {
			break
		}
		step, err := stepOf(tree, sizes[0], sizes[1])
		if err != nil {
			return Bundle{}, err
		}
		b.Growth = append(b.Growth, step)
	}
	return b, nil
}

// stepOf returns the Step from one size of a log to a larger one.
func stepOf(tree tlog.HashReader, oldSize, newSize uint64) (s Step, err error) {
	s = Step{From: oldSize, To: newSize, Hashes: []Hash{}}
	if s.FromRoot, err = tlog.TreeHash(int64(oldSize), tree); err != nil {
		return s, err
	}
	if s.ToRoot, err = tlog.TreeHash(int64(newSize), tree); err != nil || oldSize == newSize {
		return s, err
	}
	hashes, err := tlog.ProveTree(int64(newSize), int64(oldSize), tree)
	s.Hashes = append(s.Hashes, hashes...)
	return s, err
}

// remoteTiles reads tiles with a function that returns the content of a path. It implements
// tlog.TileReader.
type remoteTiles func(path string) ([]byte, error)

// Height implements tlog.TileReader.
func (remoteTiles) Height() int { return blockHeight }

// ReadTiles implements tlog.TileReader.
func (fetch remoteTiles) ReadTiles(tiles []tlog.Tile) (data [][]byte, err error) {
	for _, tile := range tiles {
		content, err := fetch("tile/" + strings.TrimPrefix(tile.Path(), "tile/8/"))
		if err != nil {
			return nil, err
		}
		data = append(data, content)
	}
	return data, nil
}

// SaveTiles implements tlog.TileReader.
func (remoteTiles) SaveTiles([]tlog.Tile, [][]byte) {}
