package sandbox

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// copyPrefix is the prefix of the names of the directories with copies of evaluators' code.
const copyPrefix = "anneal-evaluator-"

// minAge is the minimum age of an unlocked directory that is removed: the process that created a
// younger one may not have locked it yet.
const minAge = time.Minute

// lockDir locks a directory until the returned file is closed or this process exits. It returns an
// error if another process has locked the directory.
func lockDir(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // the error of the lock is returned instead
		return nil, err
	}
	return file, nil
}

// removeLeftovers removes copies of code in dir that no process has locked: processes that are
// killed leave their copies behind.
func removeLeftovers(dir string, now time.Time) {
	copies, _ := filepath.Glob(filepath.Join(dir, copyPrefix+"*")) // cannot fail, because the pattern is a constant
	for _, one := range copies {
		info, err := os.Lstat(one)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < minAge {
			continue
		}
		if file, err := lockDir(one); err == nil {
			_ = os.RemoveAll(one) // returns an error for the directory of another user, which stays
			_ = file.Close()
		}
	}
}
