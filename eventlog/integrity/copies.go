package integrity

import (
	"log/slog"
	"os"
	"path/filepath"
)

// checkCopies looks at the readers' copies of a log that is whole up to a
// position. A damaged copy is removed when it holds nothing beyond, or when the
// log has a mark and reaches it, so that nothing beyond was acknowledged: the
// server makes the copy anew. Without a mark one that holds more is left for a
// repair.
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
			return Damagef("the readers' copy in %s is damaged (%s), and holds events up to position %d where the log ends at %d", dir, why, found.last, last)
		}
		log.Warn("a readers' copy of the log is damaged; the log itself is whole: the copy is made anew",
			"folder", dir, "damage", why, "copy", found.last, "log", last)
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}
