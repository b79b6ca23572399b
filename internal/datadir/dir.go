// Package datadir reads and writes the files of a server's data directory: its keys, context files
// and join tokens.
package datadir

import (
	"bytes"
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
	"time"

	"anneal/blobs/reconcile"
	"anneal/eventlog/kv"
)

// Dir is the data directory of a server:
//
//	context.json   address of the server and an admin key of the account default, for users
//	operator.json  the same for the account system, for the operator
//	version        format version of the directory
//	keys/          random keys, and the master keys in keys/ring
//	nats/          streams of the embedded NATS server: the log
//	tree/          entries of the log's Merkle tree, and the newest signed checkpoint
//	datakeys/      data keys of sealed values, wrapped by the master keys
//	answers/       the idempotency store: stored responses by idempotency key
//	blobs/         datasets, weights, checkpoints, metrics
//	usage/         usage records that the stream USAGE has not acknowledged yet
//	snapshots/     snapshots of the world; a start continues from the newest one
//	archive/       compressed copy of the events, for reads of earlier states
//	rebuilds.json  results of the last rebuilds of the world
//	worker/        downloads of the local worker
type Dir string

// Path returns the path of a file in the directory: parts are joined by slashes.
func (d Dir) Path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// ClusterMark is the name of the file with a control plane's high-water mark, if the log is in a
// NATS cluster.
const ClusterMark = "log.mark"

// Archive is the name of the subdirectory with the archive of earlier states.
const Archive = "archive"

// CheckExists returns an error unless the directory is the data directory of a server that has
// started at least once.
func (d Dir) CheckExists() error {
	if _, err := os.Stat(d.Path("version")); err != nil {
		return fmt.Errorf("%s is not a server's data directory: give the directory with --data DIR", d)
	}
	return nil
}

// RingPath returns the path of the file with the master keys, which wrap the data keys of sealed
// values.
func (d Dir) RingPath() string { return d.Path("keys", "ring") }

// LocalStore returns the options of a key-value store in files of the subdirectory name, which does
// not use NATS.
func (d Dir) LocalStore(name string, logger *slog.Logger) kv.LocalOptions {
	return kv.LocalOptions{Dir: d.Path(name), CreatedFile: d.Path("keys", name+".made"), Log: logger}
}

// Key returns the random 32-byte key with a name. The first call for a new directory creates the
// key. If the key's file is damaged, or lost after its creation, Key returns an error.
func (d Dir) Key(name string) ([]byte, error) {
	path := d.Path("keys", name)
	sum, err := os.ReadFile(path + ".sum")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && sum == nil {
		return d.createKey(path)
	}
	if err != nil {
		// A new key does not replace a lost one: it cannot verify or decrypt what the lost key
		// signed or encrypted.
		return nil, fmt.Errorf("read key %s: %w: restore the file from a backup", name, err)
	}
	key, err := parseKey(string(text), sum)
	if err != nil {
		return nil, fmt.Errorf("key file %s %w: restore it from a backup", path, err)
	}
	if sum == nil { // an older version of anneal wrote no .sum file, or the file was lost
		return key, WritePrivate(path+".sum", keySum(key))
	}
	return key, nil
}

// parseKey returns the key in the text of its file, after it has compared the key with sum, the
// content of the .sum file. If sum is nil, it compares nothing.
func parseKey(text string, sum []byte) ([]byte, error) {
	key, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(key) != 32 {
		return nil, errors.New("must contain 64 hexadecimal digits")
	}
	if sum != nil && !bytes.Equal(sum, keySum(key)) {
		return nil, errors.New("does not match its .sum file: one of the two files is damaged")
	}
	return key, nil
}

// createKey writes a random key and its checksum, and returns the key.
func (d Dir) createKey(path string) ([]byte, error) {
	key := make([]byte, 32)
	rand.Read(key)
	if err := os.MkdirAll(d.Path("keys"), 0o700); err != nil {
		return nil, err
	}
	if err := WritePrivate(path, []byte(hex.EncodeToString(key)+"\n")); err != nil {
		return nil, err
	}
	return key, WritePrivate(path+".sum", keySum(key))
}

// keySum returns the content of a key's .sum file: the SHA-256 of the key, which detects damage.
func keySum(key []byte) []byte {
	sum := sha256.Sum256(key)
	return []byte(hex.EncodeToString(sum[:]) + "\n")
}

// WriteContext writes the context file with a name to the directory.
func (d Dir) WriteContext(name string, file Context) error {
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	return WritePrivate(d.Path(name), append(data, '\n'))
}

// NodeKeyPath returns the path of the file with the private key of the local worker that is a node.
func (d Dir) NodeKeyPath(node string) string { return d.Path("keys", "node-"+node+".nkey") }

// SuspendDeletions writes a file that stops the reconciler from deleting files and data keys, until
// an operator removes it. format and args are the reason, which the file contains.
func (d Dir) SuspendDeletions(format string, args ...any) error {
	reason := time.Now().UTC().Format(time.RFC3339) + " " + fmt.Sprintf(format, args...) + "\n"
	return WritePrivate(d.Path(reconcile.HoldFile), []byte(reason))
}
