package transparency

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	formats "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A Checkpoint is the head of the log's Merkle tree in the format tlog-checkpoint of C2SP. By
// signing it, the log commits itself to its first Size events.
type Checkpoint struct {
	Origin string // name of the log, the same in all its checkpoints
	Size   uint64 // number of events in the tree, which is the position of the last one
	Root   tlog.Hash
}

// Text returns the text of the note that is signed.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// ErrNotCheckpoint is returned for a text that does not have the format of a checkpoint.
var ErrNotCheckpoint = errors.New("not a checkpoint: it must have the lines ORIGIN, SIZE and ROOT HASH")

// ParseCheckpoint parses the text of a checkpoint's note. It ignores the signatures.
func ParseCheckpoint(text string) (c Checkpoint, err error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || lines[0] == "" {
		return c, ErrNotCheckpoint
	}
	size, err := strconv.ParseUint(lines[1], 10, 63)
	if err != nil || strconv.FormatUint(size, 10) != lines[1] {
		return c, ErrNotCheckpoint
	}
	root, err := decodeHash(lines[2])
	if err != nil {
		return c, ErrNotCheckpoint
	}
	return Checkpoint{Origin: lines[0], Size: size, Root: root}, nil
}

func decodeHash(text string) (h tlog.Hash, err error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(h) {
		return h, errors.New("the hash must be a SHA-256 in base64")
	}
	copy(h[:], b)
	return h, nil
}

// OpenCheckpoint verifies the log's signature of a checkpoint. It returns the checkpoint and the
// number of the given witnesses that cosigned it.
func OpenCheckpoint(signed []byte, log note.Verifier, witnesses ...note.Verifier) (c Checkpoint, cosigned int,
	err error) {
	n, err := note.Open(signed, note.VerifierList(append([]note.Verifier{log}, witnesses...)...))
	if err != nil {
		return c, 0, fmt.Errorf("verify the checkpoint with key %s: %w", log.Name(), err)
	}
	if c, err = ParseCheckpoint(n.Text); err != nil {
		return c, 0, err
	}
	own := false
	for _, sig := range n.Sigs {
		if sig.Name == log.Name() && sig.Hash == log.KeyHash() {
			own = true
		} else {
			cosigned++
		}
	}
	switch {
	case !own:
		return c, 0, fmt.Errorf("the checkpoint has no valid signature of the key %s: check that the key is that of this "+
			"log", log.Name())
	case c.Origin != log.Name():
		return c, 0, fmt.Errorf("the checkpoint is of log %q, but the key is of log %q", c.Origin, log.Name())
	}
	return c, cosigned, nil
}

// A Signer signs the checkpoints of one installation.
type Signer struct {
	Origin string // name of the log in its checkpoints, which is also the name of the key
	signer note.Signer
	key    ed25519.PublicKey
}

const (
	ed25519Algorithm = 1 // number of the algorithm in the signed-note format of C2SP
	originPrefix     = "anneal/"
)

// NewSigner returns a Signer whose Ed25519 key is derived from a secret that all control planes of
// an installation share. The origin is derived from the public key, so no other state has to be
// kept.
func NewSigner(secret []byte) (*Signer, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "anneal log checkpoint key 1", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	key := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	sum := sha256.Sum256(key)
	s := &Signer{Origin: originPrefix + hex.EncodeToString(sum[:8]), key: key}
	s.signer, err = note.NewSigner(fmt.Sprintf("PRIVATE+KEY+%s+%08x+%s", s.Origin, keyHash(s.Origin, key),
		base64.StdEncoding.EncodeToString(append([]byte{ed25519Algorithm}, seed...))))
	return s, err
}

func keyHash(name string, key ed25519.PublicKey) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"+string(rune(ed25519Algorithm))), key...))
	return uint32(sum[0])<<24 | uint32(sum[1])<<16 | uint32(sum[2])<<8 | uint32(sum[3])
}

// Key returns the public key as text, as the commands of the CLI accept it.
func (s *Signer) Key() string {
	text, err := note.NewEd25519VerifierKey(s.Origin, s.key)
	if err != nil {
		panic(err) // cannot happen: the key has the right size
	}
	return text
}

// Sign returns the signed note of a checkpoint.
func (s *Signer) Sign(c Checkpoint) ([]byte, error) {
	return note.Sign(&note.Note{Text: c.Text()}, s.signer)
}

// SignText returns a signed note with a text other than a checkpoint. The first line of the text
// must say what is signed, and must not be an origin of checkpoints.
func (s *Signer) SignText(text string) ([]byte, error) {
	if strings.HasPrefix(text, originPrefix) {
		return nil, errors.New("the first line of the text must not be the origin of the log's checkpoints")
	}
	return note.Sign(&note.Note{Text: text}, s.signer)
}

// ParseKey parses the public key of a log, as Signer.Key returns it.
func ParseKey(text string) (note.Verifier, error) {
	v, err := note.NewVerifier(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("%q is not the public key of a log (%w): it has the form NAME+HASH+KEY, and 'anneal log key' "+
			"prints it", text, err)
	}
	return v, nil
}

// ParseWitnessKey parses the public key of a witness, as `anneal witness` prints it.
func ParseWitnessKey(text string) (note.Verifier, error) {
	v, err := formats.NewVerifierForCosignatureV1(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("%q is not the public key of a witness (%w): it has the form NAME+HASH+KEY, and 'anneal "+
			"witness' prints it", text, err)
	}
	return v, nil
}
