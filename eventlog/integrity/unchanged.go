package integrity

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// startCheckBytes is the size up to which a log is read completely before each start. Of a larger
// log whose files have not changed since a clean shutdown, only the blocks from the mark's position
// on are read before the start. Scrub reads all blocks while the server runs. If the server stops
// before Scrub has finished, the next start reads the whole log.
const startCheckBytes = 64 << 20

// FilesHash returns a hash of the block files of the log and its mirrors in the server's directory
// store: of their names, sizes, modification times and inodes, and of the contents of the NATS
// server's index files. It changes whenever a program changes a file, even if the program sets the
// modification time back. It does not change when a disk corrupts a block file. The hash is zero
// when a file cannot be read, or an index is missing.
func FilesHash(store string) (h Hash) {
	dirs, err := copiesOf(store, logStream)
	if err != nil {
		return Hash{}
	}
	sum := sha256.New()
	for _, dir := range append([]string{BlockDir(store, "CONTROL", logStream)}, dirs...) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return Hash{}
		}
		relative, err := filepath.Rel(store, dir)
		if err != nil {
			return Hash{}
		}
		fmt.Fprintf(sum, "%q\n", relative)
		indexed := 0
		for _, entry := range entries {
			switch {
			case strings.HasSuffix(entry.Name(), ".blk"):
				info, err := entry.Info()
				if err != nil {
					return Hash{}
				}
				fmt.Fprintf(sum, "%q %d %d %s\n", entry.Name(), info.Size(), info.ModTime().UnixNano(), inodeOf(info))
			case entry.Name() == "index.db":
				content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
				if err != nil {
					return Hash{}
				}
				_ = binary.Write(sum, binary.BigEndian, sha256.Sum256(content)) // writing to a hash never fails
				indexed++
			}
		}
		if indexed == 0 && len(entries) > 0 { // without an index, the NATS server would cut off damaged blocks
			return Hash{}
		}
	}
	sum.Sum(h[:0])
	return h
}
