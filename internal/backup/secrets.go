package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"filippo.io/age"
	"golang.org/x/mod/sumdb/note"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/transparency"
	"anneal/internal/datadir"
)

// confidential is the encrypted part of a backup.
type confidential struct {
	Files    map[string][]byte `json:"files"`    // of the data directory, by path
	DataKeys map[string][]byte `json:"dataKeys"` // wrapped by the master keys in Files
	Answers  map[string][]byte `json:"answers"`
}

// keyPrefix begins the line of an identity file with the public key that verifies manifests.
const keyPrefix = "# log key: "

// NewIdentity returns the content of a new identity file, and the recipient of what it can decrypt. logKey
// is the public key of the installation, which a restore with the file then requires; "" for none.
func NewIdentity(logKey string) (content, recipient string, err error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", err
	}
	recipient = identity.Recipient().String()
	content = "# public key: " + recipient + "\n"
	if logKey != "" {
		content += keyPrefix + logKey + "\n"
	}
	return content + identity.String() + "\n", recipient, nil
}

func parseRecipients(texts []string) (all []age.Recipient, err error) {
	if len(texts) == 0 {
		return nil, domain.Errorf(domain.InvalidArgument, "recipients: a backup has the keys of the installation, and needs "+
			"a recipient to encrypt them for: create one with `anneal backup key FILE`")
	}
	for _, text := range texts {
		recipient, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, domain.Errorf(domain.InvalidArgument, "recipient %q is not an age recipient (age1…): create one with "+
				"`anneal backup key FILE`", text)
		}
		all = append(all, recipient)
	}
	return all, nil
}

// ReadIdentities reads an identity file, as NewIdentity or the program age-keygen writes it.
func ReadIdentities(path string) ([]age.Identity, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all, err := age.ParseIdentities(file)
	if err != nil {
		return nil, fmt.Errorf("%s is not an age identity file: give the file of `anneal backup key FILE`", path)
	}
	return all, nil
}

// ReadKey returns the public key that an identity file has for the verification of manifests; nil if it
// has none.
func ReadKey(path string) (note.Verifier, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(content)) {
		if key, found := strings.CutPrefix(line, keyPrefix); found {
			return transparency.ParseKey(key)
		}
	}
	return nil, nil
}

// createdSuffix is the suffix of files that say that a store of the data directory exists. A restore
// creates the stores again.
const createdSuffix = ".made"

// contextFiles are the contexts in the data directory that a backup has.
var contextFiles = []string{"context.json", "operator.json"}

// isKeyFile reports whether a path is one that keyFiles returns: a context, or a file below keys.
func isKeyFile(path string) bool {
	return slices.Contains(contextFiles, path) || fs.ValidPath(path) && strings.HasPrefix(path, "keys/")
}

// keyFiles returns the contents of the keys and contexts in the data directory.
func keyFiles(dir datadir.Dir) (map[string][]byte, error) {
	all := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(string(dir)), "keys", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasSuffix(path, createdSuffix) ||
			strings.HasSuffix(path, ".new") {
			return err
		}
		all[path], err = os.ReadFile(dir.Path(path))
		return err
	})
	for _, path := range contextFiles {
		content, readErr := os.ReadFile(dir.Path(path))
		err = errors.Join(err, readErr)
		all[path] = content
	}
	return all, err
}

func (r *run) putSecrets(ctx context.Context, recipients []age.Recipient) (o Object, err error) {
	c := confidential{DataKeys: r.keys}
	if c.Files, err = keyFiles(r.Dir); err != nil {
		return o, fmt.Errorf("read the keys of the installation: %w", err)
	}
	if c.Answers, err = records(ctx, r.Answers); err != nil {
		return o, err
	}
	o, err = put(ctx, r.target, "secrets/"+r.id+".age", func(w io.Writer) error {
		encrypted, err := age.Encrypt(w, recipients...)
		if err != nil {
			return err
		}
		return errors.Join(json.NewEncoder(encrypted).Encode(c), encrypted.Close())
	})
	r.add(o)
	return o, err
}

func readSecrets(ctx context.Context, target *blobs.Store, m Manifest, identities []age.Identity) (c confidential,
	err error) {
	content, err := openObject(ctx, target, m.Secrets)
	if err != nil {
		return c, err
	}
	defer content.Close()
	var wrong *age.NoIdentityMatchError
	plain, err := age.Decrypt(content, identities...)
	if errors.As(err, &wrong) {
		return c, domain.Errorf(domain.FailedPrecondition, "the identity cannot decrypt backup %s, whose recipients are %s: "+
			"give the identity file of one of them with --identity", m.ID, strings.Join(m.Recipients, ", "))
	}
	if err == nil {
		err = json.NewDecoder(plain).Decode(&c)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, plain) // age authenticates the end
	}
	if err != nil {
		return c, domain.Errorf(domain.DataLoss, "%s of the backup cannot be decrypted: %v", m.Secrets.Key, err)
	}
	for path := range c.Files {
		if !isKeyFile(path) {
			return c, domain.Errorf(domain.DataLoss, "%s of the backup has the invalid path %q", m.Secrets.Key, path)
		}
	}
	return c, nil
}

// objectKey returns the key below a prefix for the copy of a file.
func objectKey(prefix, file string) string {
	if key := prefix + file; len(key) <= blobs.MaxKey {
		return key
	}
	sum := sha256.Sum256([]byte(file))
	return prefix + hex.EncodeToString(sum[:])
}
