package blobs

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// lock locks keys, so that no other goroutine or process changes their files or records until
// unlock is called. It takes the locks of several keys in the order of the lock files, to prevent
// deadlocks.
func (f *fileStore) lock(keys ...string) (unlock func(), err error) {
	var numbers [keyLocks]bool
	for _, key := range keys {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(key))
		numbers[hash.Sum32()%keyLocks] = true
	}
	var held []*keyLock
	unlock = func() {
		for _, l := range held {
			l.release()
		}
	}
	for number, wanted := range numbers {
		if !wanted {
			continue
		}
		l := &f.locks[number]
		if err := l.acquire(filepath.Join(f.dir, digests, fmt.Sprintf("lock-%02d", number))); err != nil {
			unlock()
			return nil, err
		}
		held = append(held, l)
	}
	return unlock, nil
}

// keyLocks is the number of locks; each key uses one of them.
const keyLocks = 32

// A keyLock is a mutex for goroutines and, with a lock on its file, for processes. The file stays
// open.
type keyLock struct {
	mu   sync.Mutex
	file *os.File
}

func (l *keyLock) acquire(path string) (err error) {
	l.mu.Lock()
	if l.file == nil {
		l.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err == nil {
		err = flock(l.file, syscall.LOCK_EX)
	}
	if err != nil {
		l.mu.Unlock()
	}
	return err
}

func (l *keyLock) release() {
	defer l.mu.Unlock()
	if flock(l.file, syscall.LOCK_UN) != nil {
		_ = l.file.Close() // closing the file also releases its lock
		l.file = nil
	}
}

func (l *keyLock) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

func flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
