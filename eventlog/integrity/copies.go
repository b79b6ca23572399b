package integrity

import (
	"log/slog"
	"os"
	"path/filepath"
)

// checkCopies checks the mirrors of a log that is complete up to a position. It removes a damaged
// mirror, which the server recreates, if the mirror has no later events, or if the log reaches its
// mark, so that no later event was acknowledged. Without a mark a mirror with later events is kept
// for a repair.
func checkCopies(store string, last uint64, marked bool, log *slog.Logger) error {
	dirs, err := copiesOf(store)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		all, err := blocksOf(dir)
		if err != nil || len(all) == 0 || sizeOf(all) > wholeCheck || foreign(dir) != "" {
			continue
		}
		found, err := surveyor{stream: logStream, first: 1}.survey(all)
		if err != nil {
			continue
		}
		why := ""
		for _, f := range found.flaws {
			if !f.last || f.path != all[len(all)-1].path { // else it was being written
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
			return Damagef("the mirror in %s is damaged (%s), and has events up to position %d, but the log ends at %d", dir, why, found.last, last)
		}
		log.Warn("a mirror of the log is damaged; the log itself is complete: recreating the mirror",
			"directory", dir, "damage", why, "mirror", found.last, "log", last)
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}
