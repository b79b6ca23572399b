package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"anneal/domain"
)

// DataVersion is the format version of a data directory. It increases with each change that older
// programs cannot read: since version 2, data keys and idempotency records are kept in separate
// files; since version 3, small results of jobs are stored in bundles (package blobs).
const DataVersion = 3

// LockDir creates dir if it does not exist, and locks it against other servers until release is
// called or the process exits. It returns an error for a directory with a format version above
// DataVersion.
func LockDir(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot create the data directory: %v", err)
	}
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot lock the data directory: %v", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(path)
		_ = file.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, domain.Errorf(domain.FailedPrecondition, "cannot lock the data directory %s: %v", dir, err)
		}
		who := strings.TrimSpace(string(owner))
		if who == "" {
			who = "unknown"
		}
		return nil, domain.Errorf(domain.FailedPrecondition,
			"the data directory %s is in use by process %s: stop it, or choose another directory", dir, who)
	}
	release = func() { _ = file.Close() }
	own, err := file.Stat()
	now, missing := os.Stat(path)
	if err != nil || missing != nil || !os.SameFile(own, now) { // a restore has renamed the directory before the lock
		release()
		return nil, domain.Errorf(domain.FailedPrecondition, "the data directory %s was moved while it was opened: try again",
			dir)
	}
	if err := checkVersion(dir); err != nil {
		release()
		return nil, err
	}
	if err := file.Truncate(0); err == nil {
		_, _ = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return release, nil
}

func checkVersion(dir string) error {
	path := filepath.Join(dir, "version")
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return WriteFile(path, []byte(strconv.Itoa(DataVersion)+"\n"))
	}
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition, "cannot read the version of the data directory: %v", err)
	}
	version, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || version < 1 {
		return domain.Errorf(domain.FailedPrecondition, "%s does not contain a version: is %s a data directory of anneal?",
			path, dir)
	}
	if version > DataVersion {
		return domain.Errorf(domain.FailedPrecondition,
			"the data directory %s has version %d, written by a newer program; this one reads up to %d: start the newer program",
			dir, version, DataVersion)
	}
	if version < DataVersion { // before any migration, so that an older program refuses the directory
		return WriteFile(path, []byte(strconv.Itoa(DataVersion)+"\n"))
	}
	return nil
}
