package integrity

import (
	"log/slog"
	"os"
	"path/filepath"
)

// DiscardDamaged removes a stream whose contents can be lost, if a record in its block files is damaged.
// The embedded server would start with the stream, and stop when it reads the record. It must be called
// before the server starts; store is the server's directory.
func DiscardDamaged(store, stream string, log *slog.Logger) error {
	dir := BlockDir(store, "CONTROL", stream)
	if foreign(dir) != "" {
		return nil
	}
	blocks, err := blocksOf(dir)
	if err != nil {
		return err
	}
	damage := ""
	for _, b := range blocks {
		if _, err := b.scan(stream, 0, func(record) {}, func(f flaw) { damage = f.String() }); err != nil {
			return err
		}
	}
	if damage == "" {
		return nil
	}
	log.Warn("a stream was damaged: it is created again, without its records", "stream", stream, "damage", damage)
	return os.RemoveAll(filepath.Dir(dir))
}
