package eventlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"anneal/domain"
)

// DataVersion is how this program writes a data folder. It rises when an older
// program could no longer read one: version 2 keeps data keys and the answers
// under idempotency keys in files of their own.
const DataVersion = 2

// LockDir makes dir when it is missing, and keeps other servers out of it until
// release is called or the process ends, however it ends. It refuses a folder
// that a newer program wrote.
func LockDir(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the data folder cannot be made: %v", err)
	}
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the data folder cannot be locked: %v", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(path)
		_ = file.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, domain.Errorf(domain.FailedPrecondition, "the data folder %s cannot be locked: %v", dir, err)
		}
		who := strings.TrimSpace(string(owner))
		if who == "" {
			who = "unknown"
		}
		return nil, domain.Errorf(domain.FailedPrecondition, "the data folder %s is in use by process %s: stop it, or choose another folder", dir, who)
	}
	release = func() { _ = file.Close() }
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
		return writeDurably(path, []byte(strconv.Itoa(DataVersion)+"\n"))
	}
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition, "the version of the data folder cannot be read: %v", err)
	}
	version, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || version < 1 {
		return domain.Errorf(domain.FailedPrecondition, "%s does not hold a version: is %s a data folder of this program?", path, dir)
	}
	if version > DataVersion {
		return domain.Errorf(domain.FailedPrecondition, "the data folder %s has version %d, written by a newer program; this one reads up to %d: start the newer program", dir, version, DataVersion)
	}
	if version < DataVersion { // before anything is migrated, so that an older program does not miss it
		return writeDurably(path, []byte(strconv.Itoa(DataVersion)+"\n"))
	}
	return nil
}

// writeDurably puts a private file in place, whole or not at all, also when the
// power fails.
func writeDurably(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition, "%s cannot be written: %v", path, err)
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return domain.Errorf(domain.FailedPrecondition, "%s cannot be written: %v", path, err)
	}
	return syncPath(filepath.Dir(path))
}

// syncTree syncs every file and folder below dir to disk.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (entry.IsDir() || entry.Type().IsRegular()) {
			err = syncPath(path)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil // the server replaced it meanwhile
		}
		return err
	})
}

func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("syncing %s: %w", path, err)
	}
	return nil
}
