package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Grant lets the programs of this runner read files of ours that came below a folder of Read after
// the program was started.
func (r *Runner) Grant(path string) error {
	if r == nil {
		r = standard
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil || r.made.first == 0 {
		return nil // plain, or our own user
	}
	return mayRead(path, r.made.first)
}

// grant gives a program's user the files that are made for it. Where it is our own user it has them.
func (m *made) grant(p *Program, user int) error {
	if m.first == 0 {
		return nil
	}
	for _, path := range p.Read {
		if err := mayRead(path, m.first); err != nil {
			return err
		}
	}
	for _, file := range p.Files {
		if err := handOver(file, user, m.first); err != nil {
			return err
		}
	}
	if p.Socket != "" {
		if err := os.Lchown(p.Socket, user, m.first); err != nil {
			return err
		}
	}
	if p.Write == "" {
		return nil
	}
	return filepath.WalkDir(p.Write, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, user, m.first)
	})
}

// handOver lets a user open a descriptor again by its name below /proc/self/fd, which takes rights
// on what it leads to: a pipe becomes the user's, a file is read by the group.
func handOver(file *os.File, user, group int) error {
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case info.Mode()&fs.ModeNamedPipe != 0:
		return file.Chown(user, group)
	case info.Mode().IsRegular() && info.Mode()&0o004 == 0:
		if err := file.Chown(-1, group); err != nil {
			return err
		}
		return file.Chmod(info.Mode().Perm() | 0o040)
	}
	return nil
}

// mayRead lets a group read what lies below a path, but for links, and what everybody may read.
func mayRead(path string, group int) error {
	return filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		need := fs.FileMode(0o040)
		switch {
		case entry.IsDir():
			need = 0o050
		case !entry.Type().IsRegular():
			return nil
		}
		if open := need >> 3; info.Mode()&open == open {
			return nil
		}
		if err := os.Lchown(path, -1, group); err != nil {
			return err
		}
		return os.Chmod(path, info.Mode().Perm()|need)
	})
}
