package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"

	"anneal/disk"
	"anneal/domain"
)

// OpenKey reads the NKey with which an agent authenticates from the file at path, which contains
// the key's seed. When the file does not exist, OpenKey creates a key. It returns an error when
// other users can read the file.
func OpenKey(path string) (nkeys.KeyPair, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the node's key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, domain.Errorf(domain.FailedPrecondition, "the node's key %s has mode %04o, so other users can "+
			"read the file: set mode 0600, and revoke the node if another user has read the key", path, mode)
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("open the node's key: %w", err)
	}
	key, err := nkeys.ParseDecoratedNKey(seed)
	if err == nil {
		_, err = publicOf(key)
	}
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the file %s does not contain a node's key: restore it, or "+
			"revoke the node on the server, delete the file and join with a new token", path)
	}
	return key, nil
}

// publicOf returns the public key of an agent's NKey.
func publicOf(key nkeys.KeyPair) (string, error) {
	public, err := key.PublicKey()
	if err == nil && !nkeys.IsValidPublicUserKey(public) {
		err = errors.New("the key is not an NKey of the type user")
	}
	return public, err
}

func createKey(path string) (nkeys.KeyPair, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("create the node's key: %w", err)
	}
	seed, err := key.Seed()
	if err != nil {
		return nil, fmt.Errorf("create the node's key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open the node's key: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".node-key-*") // CreateTemp creates the file with mode 0600
	if err != nil {
		return nil, fmt.Errorf("open the node's key: %w", err)
	}
	_, err = file.Write(append(seed, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return nil, fmt.Errorf("open the node's key: %w", err)
	}
	return key, disk.Sync(filepath.Dir(path))
}
