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

// SharedKeys are the names, for Dir.Key, of the keys that all control planes of an installation
// share.
var SharedKeys = []string{"pepper", "nodes", "blobs"}

// A Bundle has the files that a further control plane of an installation needs from the data
// directory of another control plane: the shared keys, the master keys, and the context files of
// the accounts default and system. It is stored in a file that only its owner can read.
type Bundle struct {
	Format int               `json:"format"`
	Files  map[string]string `json:"files"` // contents of the files, by path in the data directory
}

const (
	bundleFormat = 1
	maxBundle    = 1 << 20 // maximum size of a bundle's file, in bytes
)

// bundled returns the paths, in the data directory, of the files that a bundle has.
func bundled() []string {
	paths := []string{"context.json", "operator.json", "keys/ring"}
	for _, name := range SharedKeys {
		paths = append(paths, "keys/"+name, "keys/"+name+".sum")
	}
	return paths
}

// Bundle returns the bundle of a server's data directory. The server must have started at least
// once. Bundle returns an error if the log is in an embedded NATS server, which only one control
// plane can use.
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
			return Bundle{}, fmt.Errorf("read the keys that control planes share: %w: start the server once, or "+
				"restore the file from a backup", err)
		}
		b.Files[path] = string(content)
	}
	return b, nil
}

// Content returns the bundle as the content of its file.
func (b Bundle) Content() ([]byte, error) {
	content, err := json.Marshal(b)
	return append(content, '\n'), err
}

// ReadBundle reads and checks the bundle in a file. Its errors contain no key.
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

// check returns an error if files are missing from the bundle or unknown, or if a key is invalid.
// path is the bundle's file, for messages.
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

// Install writes the files of the bundle to the data directory of a further control plane, and
// creates the directory if necessary. If the directory is in use, or has other keys or a log of its
// own, Install returns an error and writes nothing. The same bundle can be installed again.
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
	// Only the ring of master keys may differ, because RotateKeyRing changes it.
	sameInstallation := string(pepper) == b.Files["keys/pepper"]
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
