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

// A Checkpoint is a tree head in the sense of C2SP's tlog-checkpoint: a signature over it commits
// the log to its first Size events.
type Checkpoint struct {
	Origin string // names the log
	Size   uint64 // number of events, which is the position of the last one
	Root   tlog.Hash
}

// Text returns the text of the checkpoint's note.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// ErrNotCheckpoint reports a text that is not a checkpoint.
var ErrNotCheckpoint = errors.New("not a checkpoint: it must have the lines ORIGIN, SIZE and ROOT HASH")

// ParseCheckpoint parses the text of a checkpoint's note. It does not verify signatures.
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
		return h, errors.New("not a SHA-256 in base64")
	}
	copy(h[:], b)
	return h, nil
}

// OpenCheckpoint verifies the signature of the log and the cosignatures of the given witnesses, and
// returns the checkpoint with the number of witnesses that signed it.
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
		return c, 0, fmt.Errorf("the checkpoint is not signed with key %s", log.Name())
	case c.Origin != log.Name():
		return c, 0, fmt.Errorf("the checkpoint is of log %q, but the key is of log %q", c.Origin, log.Name())
	}
	return c, cosigned, nil
}

// A Signer signs the checkpoints of one installation.
type Signer struct {
	Origin string // ORIGIN in the sense of Checkpoint: the name of the key
	signer note.Signer
	key    ed25519.PublicKey
}

const (
	ed25519Algorithm = 1 // of C2SP's signed-note
	originPrefix     = "anneal/"
)

// NewSigner returns the signer whose Ed25519 key is derived from a secret that all control planes
// of the installation share. The origin is derived from the public key, so that it names the
// installation without further state.
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

// Key returns the public key in the form that the commands of the command line accept.
func (s *Signer) Key() string {
	text, err := note.NewEd25519VerifierKey(s.Origin, s.key)
	if err != nil {
		panic(err) // the key has the right size
	}
	return text
}

// Sign returns the signed note of a checkpoint.
func (s *Signer) Sign(c Checkpoint) ([]byte, error) {
	return note.Sign(&note.Note{Text: c.Text()}, s.signer)
}

// SignText returns the signed note of a text, whose first line states what is signed. That line must not
// be an origin of checkpoints.
func (s *Signer) SignText(text string) ([]byte, error) {
	if strings.HasPrefix(text, originPrefix) {
		return nil, errors.New("the text of a note may not begin like a checkpoint")
	}
	return note.Sign(&note.Note{Text: text}, s.signer)
}

// ParseKey parses the public key of a log.
func ParseKey(text string) (note.Verifier, error) {
	v, err := note.NewVerifier(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("%q is not the public key of a log (NAME+HASH+KEY): %w", text, err)
	}
	return v, nil
}

// ParseWitnessKey parses the public key of a witness.
func ParseWitnessKey(text string) (note.Verifier, error) {
	v, err := formats.NewVerifierForCosignatureV1(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("%q is not the public key of a witness (NAME+HASH+KEY): %w", text, err)
	}
	return v, nil
}
