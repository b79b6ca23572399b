package sandbox

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// copyPrefix begins the names of folders with copies of code.
const copyPrefix = "anneal-evaluator-"

// freshFor is how long a folder may be there before whoever made it holds it.
const freshFor = time.Minute

// hold marks a folder as in use for as long as this process lives, or until the
// file is closed.
func hold(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // the first error is told
		return nil, err
	}
	return file, nil
}

// sweep removes copies of code that nobody holds: those of processes that were
// killed.
func sweep(dir string, now time.Time) {
	copies, _ := filepath.Glob(filepath.Join(dir, copyPrefix+"*")) // the pattern is a constant
	for _, one := range copies {
		info, err := os.Lstat(one)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < freshFor {
			continue
		}
		if file, err := hold(one); err == nil {
			_ = os.RemoveAll(one) // of another user, it is that one's
			_ = file.Close()
		}
	}
}
