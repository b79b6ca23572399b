package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Grant lets the running programs of this runner read path. It must be below a path in the
// programs' field Read, and created after their start: a path that exists at the start needs no
// Grant.
func (r *Runner) Grant(path string) error {
	if r == nil {
		r = standard
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.launcher == nil || r.launcher.first == 0 {
		return nil // the programs run as the user of this process
	}
	return grantRead(path, r.launcher.first)
}

// grant gives a user access to the files of the program p. It does nothing if the program runs as
// the user of this process.
func (m *launcher) grant(p *Program, user int) error {
	if m.first == 0 {
		return nil
	}
	for _, path := range p.Read {
		if err := grantRead(path, m.first); err != nil {
			return err
		}
	}
	for _, file := range p.Files {
		if err := grantDescriptor(file, user, m.first); err != nil {
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

// grantDescriptor lets a user open a descriptor by its path in /proc/self/fd, for which the system
// checks the file's permissions. The user becomes the owner of a pipe; a regular file becomes
// readable by the group.
func grantDescriptor(file *os.File, user, group int) error {
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

// grantRead makes the files and directories below a path readable by a group. It skips links, and
// files that all users can read.
func grantRead(path string, group int) error {
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
