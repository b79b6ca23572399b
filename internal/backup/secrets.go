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
	"maps"
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

// confidential is the encrypted part of a backup, as JSON.
type confidential struct {
	// contents of the key files and context files, by path in the data directory
	Files    map[string][]byte `json:"files"`
	DataKeys map[string][]byte `json:"dataKeys"` // data keys, by ID, wrapped by the master keys in Files
	// Answers are the records of the idempotency store in backups of earlier versions: see
	// Manifest.Answers
	Answers map[string][]byte `json:"answers,omitempty"`
}

// An answer is a record of the idempotency store. The decrypted object Manifest.Answers has one in
// each line, as JSON.
type answer struct {
	Key    string `json:"k"`
	Record []byte `json:"r"`
}

// keyPrefix is the beginning of the line of an identity file that has the public key of the log,
// which verifies manifests.
const keyPrefix = "# log key: "

// NewIdentity returns the content of a new identity file (a private key of age), and the recipient
// (its public key). If logKey, the public key of the installation's log, is not "", the file
// contains it, and a restore with the file accepts only backups that this key has signed.
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
		return nil, domain.Errorf(domain.InvalidArgument, "recipients: a backup contains the keys of the "+
			"installation, and needs a recipient for which it encrypts them: create one with `anneal backup key FILE`")
	}
	for _, text := range texts {
		recipient, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, domain.Errorf(domain.InvalidArgument, "recipients: %q is not a public key of age, "+
				"such as age1…: create one with `anneal backup key FILE`", text)
		}
		all = append(all, recipient)
	}
	return all, nil
}

// ReadIdentities reads the private keys in an identity file, which NewIdentity or the program
// age-keygen has written.
func ReadIdentities(path string) ([]age.Identity, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all, err := age.ParseIdentities(file)
	if err != nil {
		return nil, fmt.Errorf("%s contains no private key of age: give the file that `anneal backup key FILE` wrote",
			path)
	}
	return all, nil
}

// ReadKey returns the log's public key in an identity file, which verifies manifests; nil if the
// file has none.
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

// createdSuffix is the suffix of files that record that a store in the data directory exists. A
// restore does not copy them, because it creates the stores again.
const createdSuffix = ".made"

// contextFiles are the context files of the data directory that a backup contains.
var contextFiles = []string{"context.json", "operator.json"}

// isKeyFile reports whether a path is one that keyFiles returns: a context file, or a file below
// keys.
func isKeyFile(path string) bool {
	return slices.Contains(contextFiles, path) || fs.ValidPath(path) && strings.HasPrefix(path, "keys/")
}

// keyFiles returns the contents of the key files and context files of the data directory, by path.
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
	return r.putEncrypted(ctx, "secrets/", recipients, func(w io.Writer) error { return json.NewEncoder(w).Encode(c) })
}

// putEncrypted stores what write writes as an object whose key begins with prefix, encrypted for
// the recipients.
func (r *run) putEncrypted(ctx context.Context, prefix string, recipients []age.Recipient,
	write func(io.Writer) error) (Object, error) {
	o, err := put(ctx, r.target, prefix+r.id+".age", func(w io.Writer) error {
		encrypted, err := age.Encrypt(w, recipients...)
		if err != nil {
			return err
		}
		return errors.Join(write(encrypted), encrypted.Close())
	})
	r.add(o)
	return o, err
}

// putAnswers stores the records of the idempotency store, one after the other, because the
// responses of all accounts need not fit in memory. It reads them after the view was taken, so that
// the backup has the record of each request whose events it has: without it, a repetition would be
// executed again. A restore removes the responses of requests with later events.
func (r *run) putAnswers(ctx context.Context, recipients []age.Recipient) (*Object, error) {
	keys, err := r.Answers.Keys(ctx)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	o, err := r.putEncrypted(ctx, "answers/", recipients, func(w io.Writer) error {
		encoder := json.NewEncoder(w)
		for _, key := range keys {
			record, revision, err := r.Answers.Get(ctx, key)
			if err == nil && revision > 0 {
				err = encoder.Encode(answer{key, record})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return &o, err
}

// decrypt returns a reader of the decrypted content of an object of backup m. Only a reader that
// reads up to io.EOF has verified the content.
func decrypt(ctx context.Context, target *blobs.Store, m Manifest, o Object, identities []age.Identity) (
	plain io.Reader, closeObject func() error, err error) {
	content, err := openObject(ctx, target, o)
	if err != nil {
		return nil, nil, err
	}
	plain, err = age.Decrypt(content, identities...)
	if err == nil {
		return plain, content.Close, nil
	}
	_ = content.Close()
	var wrong *age.NoIdentityMatchError
	if errors.As(err, &wrong) {
		return nil, nil, domain.Errorf(domain.FailedPrecondition, "the identity file cannot decrypt backup %s, which is "+
			"encrypted for %s: give the identity file of one of these recipients with --identity",
			m.ID, strings.Join(m.Recipients, ", "))
	}
	return nil, nil, undecryptable(o, err)
}

func undecryptable(o Object, err error) error {
	return domain.Errorf(domain.DataLoss, "%s of the backup cannot be decrypted: %v", o.Key, err)
}

// answers calls visit with the records of the idempotency store in a backup, whose secrets are c.
func (c confidential) answers(ctx context.Context, target *blobs.Store, m Manifest, identities []age.Identity,
	visit func(key string, record []byte) error) error {
	for _, key := range slices.Sorted(maps.Keys(c.Answers)) {
		if err := visit(key, c.Answers[key]); err != nil {
			return err
		}
	}
	if m.Answers == nil {
		return nil
	}
	plain, closeObject, err := decrypt(ctx, target, m, *m.Answers, identities)
	if err != nil {
		return err
	}
	defer func() { _ = closeObject() }()
	for decoder := json.NewDecoder(plain); ; {
		var a answer
		if err := decoder.Decode(&a); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return undecryptable(*m.Answers, err)
		}
		if err := visit(a.Key, a.Record); err != nil {
			return err
		}
	}
}

func readSecrets(ctx context.Context, target *blobs.Store, m Manifest, identities []age.Identity) (c confidential,
	err error) {
	plain, closeObject, err := decrypt(ctx, target, m, m.Secrets, identities)
	if err != nil {
		return c, err
	}
	defer func() { _ = closeObject() }()
	if err = json.NewDecoder(plain).Decode(&c); err == nil {
		_, err = io.Copy(io.Discard, plain) // age verifies the last block only when it is read
	}
	if err != nil {
		return c, undecryptable(m.Secrets, err)
	}
	for path := range c.Files {
		if !isKeyFile(path) {
			return c, domain.Errorf(domain.DataLoss, "%s of the backup has the invalid path %q", m.Secrets.Key, path)
		}
	}
	return c, nil
}

// objectKey returns the key of the copy of a file: prefix and the file's key, whose hash replaces
// it if the result is too long.
func objectKey(prefix, file string) string {
	if key := prefix + file; len(key) <= blobs.MaxKey {
		return key
	}
	sum := sha256.Sum256([]byte(file))
	return prefix + hex.EncodeToString(sum[:])
}
