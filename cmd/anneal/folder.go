package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// A folder is where a server keeps everything:
//
//	context.json   address and admin key of account default, for users
//	operator.json  the same for account system, for the operator
//	keys/          random keys that never leave the machine
//	nats/          the embedded NATS server's streams: the log
//	blobs/         datasets, weights, checkpoints, metrics
//	snapshots/     the world, so that a start need not read the whole log
//	cache/         what the local worker has downloaded
type folder string

func (f folder) path(parts ...string) string {
	return filepath.Join(append([]string{string(f)}, parts...)...)
}

// ringPath is the file with the keys that wrap those of sealed values.
func (f folder) ringPath() string { return f.path("keys", "ring") }

// key reads a random key of 32 bytes, or makes it at the first start.
func (f folder) key(name string) ([]byte, error) {
	path := f.path("keys", name)
	text, err := os.ReadFile(path)
	if err == nil {
		key, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil || len(key) != 32 {
			return nil, fmt.Errorf("%s must hold 64 hexadecimal digits: restore it from a backup", path)
		}
		return key, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	key := make([]byte, 32)
	rand.Read(key)
	if err := os.MkdirAll(f.path("keys"), 0o700); err != nil {
		return nil, err
	}
	return key, writePrivate(path, []byte(hex.EncodeToString(key)+"\n"))
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

// nodeToken lets an agent join. It is good for the named node only, or, when
// id is "", for any node that has no token of its own.
func (f folder) nodeToken(id string) (string, error) {
	key, err := f.key("nodes")
	if err != nil {
		return "", err
	}
	return "ant_" + id + "_" + nodeMAC(key, id), nil
}

func nodeMAC(key []byte, id string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("node|" + id))
	return hex.EncodeToString(mac.Sum(nil))
}

// checkNodeToken tells whether token lets the node in.
func checkNodeToken(key []byte, node, token string) bool {
	rest, ok := strings.CutPrefix(token, "ant_")
	bound, mac, found := strings.Cut(rest, "_")
	if !ok || !found || bound != "" && bound != node {
		return false
	}
	return hmac.Equal([]byte(mac), []byte(nodeMAC(key, bound)))
}

var tokenForm = regexp.MustCompile(`^ant_([a-z0-9-]*)_[0-9a-f]{64}$`)

// readToken reads the token in a file, and the node that it is good for; "" is
// any. What else the file may hold is not shown.
func readToken(path string) (token, node string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	token = strings.TrimSpace(string(text))
	form := tokenForm.FindStringSubmatch(token)
	if form == nil {
		return "", "", fmt.Errorf("%s holds no node's token: `anneal node token` on the server's machine makes one", path)
	}
	return token, form[1], nil
}

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
	return clientOf(c, file), err
}
