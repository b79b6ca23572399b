package datadir

import (
	"os"

	"anneal/disk"
	"anneal/domain"
)

// restoringFile exists in a directory until a restore to it is complete.
const restoringFile = "restoring"

// BeginRestore locks the directory, empties it, and marks it, so that no server starts with it
// until CompleteRestore. The lock is held until release is called or the process exits.
func (d Dir) BeginRestore() (release func(), err error) {
	if release, err = disk.LockDir(string(d)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	if err := WritePrivate(d.Path(restoringFile), nil); err != nil {
		return nil, err
	}
	for _, e := range entries { // of a restore that was interrupted
		if name := e.Name(); name != "lock" && name != "version" && name != restoringFile {
			if err := os.RemoveAll(d.Path(name)); err != nil {
				return nil, err
			}
		}
	}
	return release, nil
}

// CompleteRestore removes the mark of BeginRestore.
func (d Dir) CompleteRestore() error {
	if err := os.Remove(d.Path(restoringFile)); err != nil {
		return err
	}
	return disk.Sync(string(d))
}

// CheckRestored returns an error if the directory has the mark of BeginRestore.
func (d Dir) CheckRestored() error {
	if _, err := os.Stat(d.Path(restoringFile)); err != nil { // a directory that cannot be read fails later
		return nil
	}
	return domain.Errorf(domain.FailedPrecondition, "%s is the temporary directory of a restore that is not complete, so "+
		"events, keys or files can be missing: run the same `anneal restore` command again, and start with the directory "+
		"of its --data", d)
}
