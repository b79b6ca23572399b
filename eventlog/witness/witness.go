// Package witness is a server that cosigns the checkpoints of logs by the protocol tlog-witness of
// C2SP. It cosigns a checkpoint only if the log has only grown since the last checkpoint that it
// cosigned.
package witness

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	formats "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"anneal/disk"
	"anneal/eventlog/transparency"
)

// Limits of a request to add a checkpoint.
const (
	maxRequest = 64 << 10
	maxHashes  = 63
)

// A Witness serves add-checkpoint requests for the logs whose keys it has.
type Witness struct {
	dir    string
	logs   map[string]note.Verifier // public keys of the logs, by the origin of their checkpoints
	signer *formats.Signer
	key    string // public key of the witness, as Key returns it
	logger *slog.Logger
	mu     sync.Mutex // held from reading the last checkpoint of a log until the next one is stored
}

// keyFile is the name of the file with the private key, in the format of package note.
const keyFile = "key"

// Open opens the witness whose key and checkpoints are in a directory. It creates the directory and
// a key with the given name if they do not exist. logs has the public keys of the logs whose
// checkpoints it cosigns.
func Open(dir, name string, logs []note.Verifier, logger *slog.Logger) (*Witness, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	secret, err := os.ReadFile(filepath.Join(dir, keyFile))
	if errors.Is(err, os.ErrNotExist) {
		var text string
		if text, _, err = note.GenerateKey(rand.Reader, name); err != nil {
			return nil, fmt.Errorf("create the key of witness %q: %w", name, err)
		}
		secret = []byte(text + "\n")
		err = disk.WriteFile(filepath.Join(dir, keyFile), secret)
	}
	if err != nil {
		return nil, err
	}
	w := &Witness{dir: dir, logs: map[string]note.Verifier{}, logger: logger}
	if w.signer, err = formats.NewSignerForCosignatureV1(strings.TrimSpace(string(secret))); err != nil {
		return nil, fmt.Errorf("%s is not the key of a witness: restore it from a backup: %w", filepath.Join(dir, keyFile),
			err)
	}
	if w.key, err = publicKey(strings.TrimSpace(string(secret))); err != nil {
		return nil, err
	}
	for _, log := range logs {
		w.logs[log.Name()] = log
	}
	return w, nil
}

// Key returns the witness's public key, for --witness URL=KEY of `anneal serve`.
func (w *Witness) Key() string { return w.key }

// ServeHTTP implements http.Handler. It serves POST …/add-checkpoint.
func (w *Witness) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/add-checkpoint") {
		http.Error(out, "a witness serves only POST …/add-checkpoint", http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(out, r.Body, maxRequest))
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	reply := w.add(body)
	if reply.status != http.StatusOK {
		w.logger.Warn("did not cosign a checkpoint", "status", reply.status, "origin", reply.origin, "why", reply.why)
	}
	if reply.media != "" {
		out.Header().Set("Content-Type", reply.media)
	}
	out.WriteHeader(reply.status)
	_, _ = io.WriteString(out, reply.body)
}

// A reply is the HTTP response to a request.
type reply struct {
	status      int
	media, body string
	origin, why string // origin of the log and reason of a refusal, for the witness's own log
}

func refuse(status int, origin, format string, args ...any) reply {
	why := fmt.Sprintf(format, args...)
	return reply{status: status, body: why + "\n", origin: origin, why: why}
}

// sizeMedia is the media type of a response with the size of the log's last cosigned checkpoint.
const sizeMedia = "text/x.tlog.size"

func conflict(origin string, size uint64, why string) reply {
	return reply{http.StatusConflict, sizeMedia, strconv.FormatUint(size, 10) + "\n", origin, why}
}

// add checks the checkpoint in a request and cosigns it.
func (w *Witness) add(body []byte) reply {
	old, proof, signed, err := parse(body)
	if err != nil {
		return refuse(http.StatusBadRequest, "", "%v", err)
	}
	origin, _, _ := strings.Cut(string(signed), "\n")
	log := w.logs[origin]
	if log == nil {
		return refuse(http.StatusNotFound, origin, "unknown log: start the witness with --log KEY, where KEY is the "+
			"public key of the log")
	}
	next, _, err := transparency.OpenCheckpoint(signed, log)
	if err != nil {
		return refuse(http.StatusForbidden, origin, "%v", err)
	}
	if old > next.Size {
		return refuse(http.StatusBadRequest, origin, "the size %d in the first line must not be greater than the size %d "+
			"of the checkpoint", old,
			next.Size)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	known, err := w.last(log)
	if err != nil {
		return refuse(http.StatusInternalServerError, origin, "%v", err)
	}
	switch {
	case known.Size != old:
		return conflict(origin, known.Size, fmt.Sprintf("the first line has the size %d, but the last cosigned "+
			"checkpoint has %d events", old, known.Size))
	case old == next.Size && old > 0 && known.Root != next.Root:
		return conflict(origin, known.Size, fmt.Sprintf("fork: the checkpoint and the last cosigned one have %d events, "+
			"but different root hashes", old))
	case old == next.Size && len(proof) > 0, old == 0 && len(proof) > 0:
		return refuse(http.StatusUnprocessableEntity, origin, "the proof from size %d to %d must be empty", old, next.Size)
	case old > 0 && old < next.Size &&
		tlog.CheckTree(proof, int64(next.Size), next.Root, int64(old), known.Root) != nil:
		return refuse(http.StatusUnprocessableEntity, origin, "fork: the proof does not show that the log of %d events "+
			"begins with the cosigned one of %d", next.Size, old)
	}
	return w.sign(origin, signed, log)
}

// sign stores a checkpoint that was checked and returns its cosignature.
func (w *Witness) sign(origin string, signed []byte, log note.Verifier) reply {
	n, err := note.Open(signed, note.VerifierList(log))
	if err == nil {
		n.UnverifiedSigs = nil
		var own []byte
		if own, err = note.Sign(n); err == nil {
			err = disk.WriteFile(w.path(origin), own)
		}
	}
	if err != nil {
		return refuse(http.StatusInternalServerError, origin, "%v", err)
	}
	cosigned, err := note.Sign(&note.Note{Text: n.Text}, w.signer)
	if err != nil {
		return refuse(http.StatusInternalServerError, origin, "%v", err)
	}
	lines := strings.TrimPrefix(string(cosigned), n.Text+"\n")
	return reply{status: http.StatusOK, media: "text/plain; charset=utf-8", body: lines, origin: origin}
}

func (w *Witness) path(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return filepath.Join(w.dir, "log-"+hex.EncodeToString(sum[:])+".checkpoint")
}

// last returns the last checkpoint of a log that the witness cosigned; its size is 0 when there is
// none.
func (w *Witness) last(log note.Verifier) (c transparency.Checkpoint, err error) {
	signed, err := os.ReadFile(w.path(log.Name()))
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	c, _, err = transparency.OpenCheckpoint(signed, log)
	if err != nil {
		err = fmt.Errorf("%s is damaged: restore it from a backup: %w", w.path(log.Name()), err)
	}
	return c, err
}

// parse parses a request: the line "old SIZE", the hashes of the proof from that size, an empty
// line, and the signed checkpoint.
func parse(body []byte) (old uint64, proof tlog.TreeProof, signed []byte, err error) {
	head, signed, ok := bytes.Cut(body, []byte("\n\n"))
	if !ok {
		return 0, nil, nil, errors.New("the request must have an empty line before the checkpoint")
	}
	lines := bufio.NewScanner(bytes.NewReader(head))
	lines.Scan()
	size, ok := strings.CutPrefix(lines.Text(), "old ")
	old, err = strconv.ParseUint(size, 10, 63)
	if !ok || err != nil || strconv.FormatUint(old, 10) != size {
		return 0, nil, nil, fmt.Errorf("the first line must be \"old SIZE\", not %q", lines.Text())
	}
	for lines.Scan() {
		var h tlog.Hash
		if err := h.UnmarshalJSON([]byte(`"` + lines.Text() + `"`)); err != nil || len(proof) == maxHashes {
			return 0, nil, nil, fmt.Errorf("line %d must be a hash in base64, and at most %d lines may be hashes", len(proof)+2,
				maxHashes)
		}
		proof = append(proof, h)
	}
	return old, proof, signed, nil
}

// publicKey returns the public key that verifies the cosignatures of a private key.
func publicKey(secret string) (string, error) {
	parts := strings.SplitN(secret, "+", 5) // the private key has the format PRIVATE+KEY+NAME+HASH+KEY
	if len(parts) != 5 {
		return "", errNoKey
	}
	seed, err := base64.StdEncoding.DecodeString(parts[4])
	if err != nil || len(seed) != 1+ed25519.SeedSize {
		return "", errNoKey
	}
	public := ed25519.NewKeyFromSeed(seed[1:]).Public().(ed25519.PublicKey)
	key, err := note.NewEd25519VerifierKey(parts[2], public)
	if err != nil {
		return "", err
	}
	return formats.VKeyToCosignatureV1(key)
}

var errNoKey = errors.New("the key is not an Ed25519 key")
