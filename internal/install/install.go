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
	}
}

// Write writes a file below root. It writes nothing, and returns false, if the file exists and Keep is
// set, or if the file has the content already. It replaces a file in one step, so that a running
// program can be replaced.
func (f File) Write(root string) (written bool, err error) {
	path := filepath.Join(root, f.Path)
	existing, err := os.ReadFile(path)
	if err == nil && (f.Keep || bytes.Equal(existing, f.Content)) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
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
	err = os.Remove(filepath.Join(root, f.Path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
