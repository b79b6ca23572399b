package integrity

import (
	"log/slog"
	"os"
	"path/filepath"
)

// checkCopies checks the mirrors of a log that is complete and ends at the position last. It
// removes a damaged mirror, so that the server creates the mirror again. Without a high-water mark
// (marked is false), it does not remove a damaged mirror that has events after last, but returns an
// error: these events may have been acknowledged, and the mirror may have their only copy.
func checkCopies(store string, last uint64, marked bool, log *slog.Logger) error {
	dirs, err := copiesOf(store, logStream)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		all, err := blocksOf(dir)
		if err != nil || len(all) == 0 || sizeOf(all) > fullCheckBytes || foreign(dir) != "" {
			continue
		}
		found, err := surveyor{stream: logStream, first: 1}.survey(all)
		if err != nil {
			continue
		}
		why := ""
		for _, f := range found.flaws {
			// a damaged part at the end of the last block file is an interrupted write
			if !f.last || f.path != all[len(all)-1].path {
				why = f.String()
			}
		}
		if len(found.gaps) > 0 && dir == BlockDir(store, "READERS", logStream) {
			why = found.gaps[0].String()
		}
		if why == "" {
			continue
		}
		if found.last > last && !marked {
			return Damagef("the mirror in %s is damaged (%s), and has events up to position %d, but the log ends at %d", dir,
				why, found.last, last)
		}
		log.Warn("a mirror of the log is damaged; the log itself is complete: removed the mirror, which the server "+
			"creates again",
			"directory", dir, "damage", why, "mirror", found.last, "log", last)
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}
