package sandbox

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// copyPrefix is the prefix of the names of directories that hold copies of the code of evaluators.
const copyPrefix = "anneal-evaluator-"

// minAge is the minimum age of an unlocked directory that is removed. The process that created a
// younger directory may not have locked it yet.
const minAge = time.Minute

// lockDir marks a directory as in use until the returned file is closed or this process exits. It
// returns an error if another process uses the directory.
func lockDir(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // the first error is returned
		return nil, err
	}
	return file, nil
}

// removeLeftovers removes unlocked copies of code, which processes leave behind when they are
// killed.
func removeLeftovers(dir string, now time.Time) {
	copies, _ := filepath.Glob(filepath.Join(dir, copyPrefix+"*")) // the pattern is a constant
	for _, one := range copies {
		info, err := os.Lstat(one)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < minAge {
			continue
		}
		if file, err := lockDir(one); err == nil {
			_ = os.RemoveAll(one) // fails for the directory of another user
			_ = file.Close()
		}
	}
}
