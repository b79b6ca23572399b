package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"anneal/eventlog"
)

// A folder is where a server keeps everything:
//
//	context.json   address and admin key of account default, for users
//	operator.json  the same for account system, for the operator
//	keys/          random keys that never leave the machine
//	nats/          the embedded NATS server's streams: the log
//	datakeys/      the keys of sealed values, wrapped by keys/ring
//	answers/       what was answered under idempotency keys
//	blobs/         datasets, weights, checkpoints, metrics
//	snapshots/     the world, so that a start need not read the whole log
//	cache/         what the local worker has downloaded
type folder string

func (f folder) path(parts ...string) string {
	return filepath.Join(append([]string{string(f)}, parts...)...)
}

// ringPath is the file with the keys that wrap those of sealed values.
func (f folder) ringPath() string { return f.path("keys", "ring") }

// localStore is a store of the folder's own, apart from NATS.
func (f folder) localStore(name string, logger *slog.Logger) eventlog.LocalStore {
	return eventlog.LocalStore{Dir: f.path(name), Made: f.path("keys", name+".made"), Log: logger}
}

// key reads a random key of 32 bytes, or makes it at the first start.
func (f folder) key(name string) ([]byte, error) {
	path := f.path("keys", name)
	sum, err := os.ReadFile(path + ".sum")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && sum == nil {
		return f.makeKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("restore it from a backup: %w", err) // another key would be refused everywhere
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("%s must hold 64 hexadecimal digits: restore it from a backup", path)
	}
	switch {
	case sum == nil: // made by an older version, or lost
		return key, writePrivate(path+".sum", keySum(key))
	case string(sum) != string(keySum(key)):
		return nil, fmt.Errorf("%s is not the key that %s.sum was made of: one of them is damaged; restore it from a backup", path, path)
	}
	return key, nil
}

func (f folder) makeKey(path string) ([]byte, error) {
	key := make([]byte, 32)
	rand.Read(key)
	if err := os.MkdirAll(f.path("keys"), 0o700); err != nil {
		return nil, err
	}
	if err := writePrivate(path, []byte(hex.EncodeToString(key)+"\n")); err != nil {
		return nil, err
	}
	return key, writePrivate(path+".sum", keySum(key))
}

// keySum is the SHA-256 of a key, by which a damaged key is recognised.
func keySum(key []byte) []byte {
	sum := sha256.Sum256(key)
	return []byte(hex.EncodeToString(sum[:]) + "\n")
}

// writePrivate replaces a file that only its owner may read, whole or not at
// all, and so that it survives a power failure.
func writePrivate(path string, data []byte) error {
	temp := path + ".new"
	file, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

func (f folder) writeContext(name string, file contextFile) error {
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	return writePrivate(f.path(name), append(data, '\n'))
}

// nodeKeyPath is the file with the key of this server's own worker.
func (f folder) nodeKeyPath(node string) string { return f.path("keys", "node-"+node+".nkey") }

// operatorFolder is the server's folder that an operator's command means:
// --data, or the folder of the context file.
func operatorFolder(c *cobra.Command) folder {
	if dir, err := c.Flags().GetString("data"); err == nil && dir != "" {
		return folder(dir)
	}
	return folder(filepath.Dir(contextPath(c)))
}

// newOperator is a client with the operator's key; it works on the server's
// machine only, where the key lies.
func newOperator(c *cobra.Command) (*client, error) {
	path := operatorFolder(c).path("operator.json")
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("this is the operator's command: run it on the server's machine with --data DIR (no %s here)", path)
	}
	file, err := readContext(path)
	if err != nil {
		return nil, err
	}
	return clientOf(c, file)
}
