package datadir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"anneal/disk"
	"anneal/eventlog/secrets"
)

// SharedKeys are the names of the keys that all control planes of an installation share; see Dir.Key.
var SharedKeys = []string{"pepper", "nodes", "blobs"}

// A Bundle holds what a further control plane of an installation needs from the data directory of
// another one: the shared keys, the master keys, and the context files with the keys of the accounts
// default and system. It is stored as a file with mode 0600.
type Bundle struct {
	Format int               `json:"format"`
	Files  map[string]string `json:"files"` // contents by path in the data directory
}

const (
	bundleFormat = 1
	maxBundle    = 1 << 20 // bytes
)

// bundled returns the paths in the data directory of the files in a bundle.
func bundled() []string {
	paths := []string{"context.json", "operator.json", "keys/ring"}
	for _, name := range SharedKeys {
		paths = append(paths, "keys/"+name, "keys/"+name+".sum")
	}
	return paths
}

// Bundle returns the bundle of the directory of a server that has started at least once. It returns an
// error if the server stores its log in its embedded NATS server, which only one control plane can use.
func (d Dir) Bundle() (Bundle, error) {
	if err := d.CheckExists(); err != nil {
		return Bundle{}, err
	}
	_, embedded := os.Stat(d.Path("nats"))
	if _, cluster := os.Stat(d.Path(ClusterMark)); embedded == nil && cluster != nil {
		return Bundle{}, fmt.Errorf("%s has the log of an embedded NATS server, which only one control plane can use: "+
			"for several, start an installation in a new directory with `anneal serve --nats-url URL`, the URL of a "+
			"NATS cluster", d)
	}
	b := Bundle{Format: bundleFormat, Files: map[string]string{}}
	for _, path := range bundled() {
		content, err := os.ReadFile(d.Path(path))
		if err != nil {
			return Bundle{}, fmt.Errorf("read what control planes share: %w: start the server once, or restore the file from "+
				"a backup", err)
		}
		b.Files[path] = string(content)
	}
	return b, nil
}

// Content returns the content of the bundle's file.
func (b Bundle) Content() ([]byte, error) {
	content, err := json.Marshal(b)
	return append(content, '\n'), err
}

// ReadBundle reads and checks the bundle in the file at path. Its errors contain no key.
func ReadBundle(path string) (b Bundle, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return b, err
	}
	if info.Size() > maxBundle {
		return b, fmt.Errorf("%s has %d bytes, but a bundle has at most %d", path, info.Size(), maxBundle)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return b, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	if decoder.Decode(&b) != nil || b.Format != bundleFormat {
		return b, fmt.Errorf("%s is not a bundle of format %d: create it with `anneal server bundle FILE` on the machine "+
			"of a control plane, with the same version of anneal", path, bundleFormat)
	}
	return b, b.check(path)
}

// check returns an error unless the bundle has exactly the files of bundled, and its keys are
// valid.
func (b Bundle) check(path string) error {
	want := bundled()
	for name := range b.Files {
		if !slices.Contains(want, name) {
			return fmt.Errorf("%s has the unknown file %q: create it again with `anneal server bundle FILE` on "+
				"the machine of a control plane", path, name)
		}
	}
	for _, name := range want {
		if b.Files[name] == "" {
			return fmt.Errorf("%s lacks %s: create it again with `anneal server bundle FILE` on the machine of a control "+
				"plane", path, name)
		}
	}
	for _, name := range SharedKeys {
		if _, err := parseKey(b.Files["keys/"+name], []byte(b.Files["keys/"+name+".sum"])); err != nil {
			return fmt.Errorf("%s: keys/%s %w: create the bundle again on the machine of a control plane", path, name, err)
		}
	}
	if _, err := secrets.ParseKeyRing(b.Files["keys/ring"]); err != nil {
		return fmt.Errorf("%s: keys/ring: %w: create the bundle again on the machine of a control plane", path, err)
	}
	return nil
}

// Install writes the files of the bundle to the data directory of a further control plane, which it
// creates if necessary. It writes nothing and returns an error if the directory has other keys, is in
// use, or has its own log. The same bundle can be installed again.
func (b Bundle) Install(d Dir) error {
	release, err := disk.LockDir(string(d))
	if err != nil {
		return err
	}
	defer release()
	if _, err := os.Stat(d.Path("nats")); err == nil {
		return fmt.Errorf("%s has the log of another installation: choose an empty directory with --data", d)
	}
	pepper, _ := os.ReadFile(d.Path("keys", "pepper"))
	sameInstallation := string(pepper) == b.Files["keys/pepper"] // but the ring may have changed: see RotateKeyRing
	var other []string
	for _, name := range bundled() {
		content, err := os.ReadFile(d.Path(name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		replaceable := !strings.HasPrefix(name, "keys/") || name == "keys/ring" && sameInstallation
		if err == nil && string(content) != b.Files[name] && !replaceable {
			other = append(other, name)
		}
	}
	if len(other) > 0 {
		return fmt.Errorf("%s has other keys (%s): choose an empty directory with --data, or delete %s if no control plane "+
			"was ever started with this directory", d, strings.Join(other, ", "), d.Path("keys"))
	}
	if err := os.MkdirAll(filepath.Dir(d.RingPath()), 0o700); err != nil {
		return err
	}
	for _, name := range bundled() {
		if err := WritePrivate(d.Path(name), []byte(b.Files[name])); err != nil {
			return err
		}
	}
	return nil
}
