package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/mod/sumdb/note"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/transparency"
)

// The object of a manifest is the manifest as a line of JSON, and a signed note of C2SP with the ID and
// the SHA-256 of that line. Earlier versions of anneal read the first line only.
func noteText(id, digest string) string {
	return fmt.Sprintf("anneal backup manifest\n%s\n%s\n", id, digest)
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// putManifest signs a manifest and stores it, or replaces the one with its ID.
func putManifest(ctx context.Context, target *blobs.Store, signer *transparency.Signer, m *Manifest) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	m.digest = digestOf(body)
	if m.signature, err = signer.SignText(noteText(m.ID, m.digest)); err != nil {
		return err
	}
	_, err = put(ctx, target, manifestPrefix+m.ID+manifestSuffix, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s\n%s", body, m.signature)
		return err
	})
	return err
}

func (r *run) putManifest(ctx context.Context, m *Manifest) error {
	return putManifest(ctx, r.target, r.Signer, m)
}

const reasonUnsigned = "UNSIGNED_BACKUP"

// isUnsigned reports whether an error of verify states that the manifest has no signature.
func isUnsigned(err error) bool {
	var e *domain.Error
	return errors.As(err, &e) && e.Reason == reasonUnsigned
}

// verify returns an error unless the manifest has the signature of a key.
func (m *Manifest) verify(key note.Verifier) error {
	if len(m.signature) == 0 {
		return &domain.Error{Code: domain.FailedPrecondition, Reason: reasonUnsigned, Message: fmt.Sprintf("the manifest of "+
			"backup %s is not signed: an earlier version of anneal made it, or its signature was removed", m.ID)}
	}
	n, err := note.Open(m.signature, note.VerifierList(key))
	if err != nil || n.Text != noteText(m.ID, m.digest) {
		return domain.Errorf(domain.DataLoss, "the manifest of backup %s was changed, or another installation made it: it "+
			"has no signature of the key %s: restore another backup, or move it away", m.ID, key.Name())
	}
	return nil
}
