// Package install has the files with which systemd runs anneal: units of a control plane and of an
// agent, their settings, and the user under which they run.
package install

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Services that can be installed.
const (
	Server = "server"
	Agent  = "agent"
)

// Program is the path of the installed program, which the units start.
const Program = "/usr/local/bin/anneal"

// ManDir is the directory of the manual pages.
const ManDir = "/usr/local/share/man/man1"

//go:embed units
var units embed.FS

// A File is a file of an installation.
type File struct {
	Path    string
	Mode    fs.FileMode
	Content []byte
	// Keep states that an existing file is not replaced, and that it remains after an uninstallation,
	// because the operator changes it.
	Keep bool
}

// Unit returns the name of the unit of a service.
func Unit(service string) string {
	if service == Server {
		return "anneal.service"
	}
	return "anneal-agent.service"
}

// StateDir returns the directory with all data of a service. systemd creates it.
func StateDir(service string) string {
	if service == Server {
		return "/var/lib/anneal"
	}
	return "/var/lib/anneal-agent"
}

// Files returns the unit, the user and the settings of a service. The program, the manual pages and
// the completions are not among them.
func Files(service string) []File {
	read := func(name string) []byte {
		content, err := units.ReadFile("units/" + name)
		if err != nil {
			panic(err) // the file is part of the program
		}
		return content
	}
	unit := Unit(service)
	return []File{
		{Path: "/etc/systemd/system/" + unit, Mode: 0o644,
			Content: append(read(unit), read("common.service")...)},
		{Path: "/etc/sysusers.d/anneal.conf", Mode: 0o644, Content: read("sysusers.conf")},
		{Path: "/etc/anneal/" + service + ".yaml", Mode: 0o644, Content: read(service + ".yaml"), Keep: true},
		{Path: "/etc/anneal/" + service + ".env", Mode: 0o600, Content: read("secrets.env"), Keep: true},
	}
}

// Write writes a file below root, and reports whether it was written: not if it exists and Keep is
// set, or if it has the content already. It replaces a file, or a symbolic link, in one step, so
// that a running program can be replaced. Links to directories are followed as if root were "/".
// The directories that Write creates can be read by all users, whatever the umask is.
func (f File) Write(root string) (written bool, err error) {
	path, err := resolve(root, f.Path)
	if err != nil {
		return false, err
	}
	switch info, err := os.Lstat(path); {
	case err == nil && f.Keep:
		return false, nil
	case err == nil && info.Mode().IsRegular():
		existing, err := os.ReadFile(path)
		if err != nil || bytes.Equal(existing, f.Content) {
			return false, err
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if err := makeDirs(filepath.Dir(path)); err != nil {
		return false, err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".anneal-*")
	if err != nil {
		return false, err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(f.Content)
	if err = errors.Join(err, temporary.Chmod(f.Mode), temporary.Sync(), temporary.Close()); err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	return true, os.Rename(temporary.Name(), path)
}

// Remove removes a file below root, and reports whether there was one. It keeps files with Keep.
func (f File) Remove(root string) (removed bool, err error) {
	if f.Keep {
		return false, nil
	}
	path, err := resolve(root, f.Path)
	if err != nil {
		return false, err
	}
	err = os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// maxLinks is the maximum number of symbolic links in a path.
const maxLinks = 40

// resolve returns the path of a file below root. It follows the links to its directories as if root
// were "/": a link in an image, such as one to /usr, refers to a directory of the image.
func resolve(root, path string) (string, error) {
	dir, links := "/", 0
	for parts := split(filepath.Dir(path)); len(parts) > 0; {
		next := filepath.Join(dir, parts[0])
		parts = parts[1:]
		target, err := os.Readlink(filepath.Join(root, next))
		if err != nil { // it is not a link
			dir = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("too many symbolic links in the path %s below %s", path, root)
		}
		if filepath.IsAbs(target) {
			dir = "/"
		}
		parts = append(split(target), parts...)
	}
	return filepath.Join(root, dir, filepath.Base(path)), nil
}

func split(path string) []string { return strings.Split(filepath.ToSlash(path), "/") }

// makeDirs is os.MkdirAll with mode 0755 regardless of the umask.
func makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	switch {
	case err == nil:
		return os.Chmod(dir, 0o755)
	case errors.Is(err, fs.ErrExist):
		return nil // if it is not a directory, creating a file in it fails
	}
	return err
}
