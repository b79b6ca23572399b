package transparency

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	// cosignTimeout is how long a checkpoint waits for cosignatures. A witness that takes longer is
	// skipped for witnessPause, so that it does not delay every checkpoint.
	cosignTimeout = 400 * time.Millisecond
	witnessPause  = 10 * time.Second
	maxReply      = 64 << 10
)

// A Witness is a service that cosigns checkpoints by the protocol tlog-witness of C2SP.
type Witness struct {
	URL   string // URL prefix to which checkpoints are submitted
	Key   note.Verifier
	state *witnessState
}

type witnessState struct {
	size    atomic.Uint64 // size of the last checkpoint that the witness cosigned
	skipped atomic.Pointer[time.Time]
	logged  atomic.Bool
}

// ParseWitness parses a witness in the form URL=KEY.
func ParseWitness(text string) (Witness, error) {
	url, key, ok := strings.Cut(text, "=")
	if !ok || !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return Witness{}, fmt.Errorf("%q must be URL=KEY, where KEY is what 'anneal witness' prints", text)
	}
	v, err := ParseWitnessKey(key)
	return Witness{URL: strings.TrimRight(url, "/"), Key: v, state: &witnessState{}}, err
}

// cosign submits a signed checkpoint to all witnesses. It returns the checkpoint with the
// cosignatures that arrive in time.
func (p *Publisher) cosign(ctx context.Context, tree *Tree, c Checkpoint, signed []byte) []byte {
	if len(p.Witnesses) == 0 {
		return signed
	}
	ctx, cancel := context.WithTimeout(ctx, cosignTimeout)
	defer cancel()
	lines := make([]string, len(p.Witnesses))
	var all sync.WaitGroup
	for i, w := range p.Witnesses {
		if until := w.state.skipped.Load(); until != nil && time.Now().Before(*until) {
			continue
		}
		all.Go(func() {
			line, err := w.cosign(ctx, tree, c, signed)
			if err != nil {
				until := time.Now().Add(witnessPause)
				w.state.skipped.Store(&until)
			}
			w.state.log(p.Logger, w.URL, err)
			lines[i] = line
		})
	}
	all.Wait()
	return append(bytes.Clone(signed), strings.Join(lines, "")...)
}

// cosign submits a signed checkpoint to the witness and returns the witness's signature line.
func (w Witness) cosign(ctx context.Context, tree *Tree, c Checkpoint, signed []byte) (string, error) {
	for range 2 { // a witness with another last checkpoint replies with its size, from which the second request begins
		old := w.state.size.Load()
		body, err := submission(tree, old, c, signed)
		if err != nil {
			return "", err
		}
		status, reply, err := post(ctx, w.URL+"/add-checkpoint", body)
		switch {
		case err != nil:
			return "", err
		case status == http.StatusConflict:
			known, err := strconv.ParseUint(strings.TrimSpace(reply), 10, 63)
			if err != nil || known > c.Size {
				return "", fmt.Errorf("the witness has cosigned a checkpoint with more events than the log has, or of another "+
					"log (reply %q)", reply)
			}
			if known == old {
				return "", fmt.Errorf("the witness has cosigned another root hash for the first %d events: the log was "+
					"rewritten", known)
			}
			w.state.size.Store(known)
		case status != http.StatusOK:
			return "", fmt.Errorf("%s: %.200q", http.StatusText(status), reply)
		default:
			line, err := verifiedLine(signed, reply, w.Key)
			if err == nil {
				w.state.size.Store(c.Size)
			}
			return line, err
		}
	}
	return "", fmt.Errorf("another control plane submits checkpoints at the same time: the next checkpoint is " +
		"submitted again")
}

// submission returns the body of an add-checkpoint request: the size that the witness has cosigned,
// the proof that the log has only grown since, and the checkpoint.
func submission(tree *Tree, old uint64, c Checkpoint, signed []byte) ([]byte, error) {
	if old > c.Size {
		return nil, fmt.Errorf("the witness has cosigned %d events, but the log has only %d: the log has lost "+
			"events", old, c.Size)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "old %d\n", old)
	if old > 0 && old < c.Size {
		hashes, err := tlog.ProveTree(int64(c.Size), int64(old), tree)
		if err != nil {
			return nil, err
		}
		for _, h := range hashes {
			b.WriteString(base64.StdEncoding.EncodeToString(h[:]) + "\n")
		}
	}
	b.WriteByte('\n')
	b.Write(signed)
	return b.Bytes(), nil
}

func post(ctx context.Context, url string, body []byte) (status int, reply string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	return res.StatusCode, string(text), err
}

// verifiedLine returns the signature line of key in the reply of a witness, if the signature is
// valid.
func verifiedLine(signed []byte, reply string, key note.Verifier) (string, error) {
	n, err := note.Open(append(bytes.Clone(signed), reply...), note.VerifierList(key))
	if err != nil {
		return "", fmt.Errorf("the witness did not sign with key %s: %w", key.Name(), err)
	}
	return fmt.Sprintf("— %s %s\n", n.Sigs[0].Name, n.Sigs[0].Base64), nil
}

// log logs the first failure of a witness after a success, and the first success after a failure.
func (s *witnessState) log(logger *slog.Logger, url string, err error) {
	switch failed := err != nil; {
	case failed && !s.logged.Swap(true):
		logger.Warn("a witness does not cosign the log's checkpoints: they are published without its "+
			"signature", "witness", url, "error", err)
	case !failed && s.logged.Swap(false):
		logger.Info("a witness cosigns the log's checkpoints again", "witness", url)
	}
}
