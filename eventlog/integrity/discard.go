package integrity

import (
	"log/slog"
	"os"
	"path/filepath"
)

// DiscardDamaged removes a stream whose records may be lost, such as audit records, if one of its
// block files is damaged, because the NATS server would stop when it reads the damaged record. It
// must be called before the embedded server starts. store is the server's storage directory.
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
	log.Warn("the block files of a stream are damaged: removed the stream with all its records; it is created again, "+
		"empty", "stream", stream, "damage", damage)
	return os.RemoveAll(filepath.Dir(dir))
}
