package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/note"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/transparency"
)

// noteText returns the text that is signed for a manifest: its ID and the digest of its JSON. The
// object of a manifest consists of the JSON, as one line, and of the signed note (C2SP
// signed-note). Earlier versions of anneal read only the first line.
func noteText(id, digest string) string {
	return fmt.Sprintf("anneal backup manifest\n%s\n%s\n", id, digest)
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// signManifest signs a manifest, and returns the content of the manifest's object.
func signManifest(signer *transparency.Signer, m *Manifest) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	m.digest = digestOf(body)
	if m.signature, err = signer.SignText(noteText(m.ID, m.digest)); err != nil {
		return nil, err
	}
	content := slices.Concat(body, []byte("\n"), m.signature)
	if len(content) > maxManifest {
		return nil, domain.Errorf(domain.FailedPrecondition, "the manifest of backup %s would have %d bytes, and the limit "+
			"is %d: back up to a new target, whose first backup has fewer segments, or keep more backups when you "+
			"prune",
			m.ID, len(content), maxManifest)
	}
	return content, nil
}

// storeManifest stores a manifest's object under the manifest's ID, and replaces an earlier one.
func storeManifest(ctx context.Context, target *blobs.Store, id string, content []byte) error {
	_, err := putContent(ctx, target, manifestPrefix+id+manifestSuffix, bytes.NewReader(content))
	return err
}

func putManifest(ctx context.Context, target *blobs.Store, signer *transparency.Signer, m *Manifest) error {
	content, err := signManifest(signer, m)
	if err != nil {
		return err
	}
	return storeManifest(ctx, target, m.ID, content)
}

func (r *run) putManifest(ctx context.Context, m *Manifest) error {
	return putManifest(ctx, r.target, r.Signer, m)
}

// checkLog returns an error unless the log of the manifest begins with the event whose ID is first.
// Otherwise the backup belongs to another installation.
func (m *Manifest) checkLog(first string) error {
	if m.Log == first {
		return nil
	}
	return domain.Errorf(domain.FailedPrecondition, "the target has backups of another installation (its log begins "+
		"with event %s, this one with %s): choose another target", m.Log, first)
}

const reasonUnsigned = "UNSIGNED_BACKUP"

// isUnsigned reports whether err is the error of verify for a manifest without a signature.
func isUnsigned(err error) bool { return hasReason(err, reasonUnsigned) }

func hasReason(err error, reason string) bool {
	var e *domain.Error
	return errors.As(err, &e) && e.Reason == reason
}

// verify returns an error unless the manifest has a valid signature of key.
func (m *Manifest) verify(key note.Verifier) error {
	if len(m.signature) == 0 {
		return &domain.Error{Code: domain.FailedPrecondition, Reason: reasonUnsigned, Message: fmt.Sprintf("the manifest of "+
			"backup %s is not signed: an earlier version of anneal made it, or its signature was removed", m.ID)}
	}
	n, err := note.Open(m.signature, note.VerifierList(key))
	if err != nil || n.Text != noteText(m.ID, m.digest) {
		return damaged(m.ID, "the manifest of backup %s was changed, or another installation made it: it has no signature "+
			"of the key %s", m.ID, key.Name())
	}
	return nil
}
