package keyfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A disk accesses the files in the directory of a store. Tests replace it by a disk that loses
// unsynced changes.
type disk interface {
	// open opens the file with a name. For a missing file it returns fs.ErrNotExist, or creates an
	// empty file if create is set.
	open(name string, create bool) (file, error)
	rename(from, to string) error
	remove(name string) error
	// sync syncs the directory, which makes created, renamed and deleted files durable.
	sync() error
}

type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Size() (int64, error)
	Close() error
}

type directory string

type diskFile struct{ *os.File }

func (f diskFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (d directory) open(name string, create bool) (file, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(filepath.Join(string(d), name), flags, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

func (d directory) rename(from, to string) error {
	return os.Rename(filepath.Join(string(d), from), filepath.Join(string(d), to))
}

func (d directory) remove(name string) error {
	err := os.Remove(filepath.Join(string(d), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d directory) sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
