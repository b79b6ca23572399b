package transparency

import (
	"encoding/binary"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"anneal/domain"
)

// A Resource is a file of the format tlog-tiles of C2SP.
type Resource struct {
	Media     string
	Content   []byte
	Immutable bool // the content of its path never changes, so clients may cache it
}

// Media types of the format tlog-tiles.
const (
	checkpointMedia = "text/plain; charset=utf-8"
	tileMedia       = "application/octet-stream"
)

// Resource returns the checkpoint, a tile or an entry bundle by its path: checkpoint,
// tile/LEVEL/INDEX[.p/WIDTH], or tile/entries/INDEX[.p/WIDTH].
func (p *Publisher) Resource(path string) (r Resource, err error) {
	tree, head, err := p.current()
	if err != nil {
		return r, err
	}
	if path == "checkpoint" {
		return Resource{checkpointMedia, head.signed, false}, nil
	}
	level, index, width, ok := parseTile(path)
	if !ok {
		return r, noTile(path)
	}
	r = Resource{Media: tileMedia, Immutable: true}
	if level < 0 {
		if index*blockSize+width > head.Size {
			return r, noTile(path)
		}
		r.Content, err = entryBundle(tree, index*blockSize, width)
		return r, err
	}
	if !inTree(uint64(level), index*blockSize+width, head.Size) {
		return r, noTile(path)
	}
	r.Content, err = tlog.ReadTileData(tlog.Tile{H: blockHeight, L: level, N: int64(index), W: int(width)}, tree)
	return r, err
}

// inTree reports whether a tree of size entries has at least n hashes at a level of tiles.
func inTree(level, n, size uint64) bool {
	shift := level * blockHeight
	return shift < 64 && n <= size>>shift
}

func noTile(path string) error {
	return domain.Errorf(domain.NotFound, "unknown path %q: the log serves checkpoint, tile/LEVEL/INDEX and "+
		"tile/entries/INDEX, up to the size of the checkpoint", path)
}

const maxTilePath = 64

// parseTile parses the path of a tile or of an entry bundle, for which it returns the level -1.
func parseTile(path string) (level int, index, width uint64, ok bool) {
	rest, isTile := strings.CutPrefix(path, "tile/")
	if !isTile || len(path) > maxTilePath {
		return 0, 0, 0, false
	}
	entries, isEntries := strings.CutPrefix(rest, "entries/")
	if isEntries {
		rest = "data/" + entries // the name of entries in package tlog
	}
	tile, err := tlog.ParseTilePath("tile/8/" + rest)
	if err != nil || tile.N > 1<<48 || tile.L > 7 {
		return 0, 0, 0, false
	}
	return tile.L, uint64(tile.N), uint64(tile.W), isEntries == (tile.L < 0)
}

// entryBundle returns n encoded entries from an index on. Each is preceded by its length as a
// big-endian 16-bit integer.
func entryBundle(tree *Tree, index, n uint64) ([]byte, error) {
	records, err := tree.records(index, n)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, n*(2+EntrySize))
	for _, r := range records {
		b = r.Entry.Append(binary.BigEndian.AppendUint16(b, EntrySize))
	}
	return b, nil
}
