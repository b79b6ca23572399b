// Package compat runs other implementations of C2SP's specifications, unmodified, against the tree
// of the log. It is a module of its own, so that anneal does not depend on them.
package compat

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	formats "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/tessera/api"
	"github.com/transparency-dev/tessera/client"
	"github.com/transparency-dev/tessera/fsck"
	"github.com/transparency-dev/witness/persistence/inmemory"
	"github.com/transparency-dev/witness/witness"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"anneal/eventlog/integrity"
	"anneal/eventlog/transparency"
)

// A fakeLog is a log of n events whose data begin with a text.
type fakeLog struct {
	text string
	n    uint64
}

func (l fakeLog) message(position uint64) integrity.Message {
	return integrity.NewMessage(position, fmt.Sprintf("events.account-%d.datasets.d", position%5), nil,
		fmt.Append(nil, l.text, position))
}

func (l fakeLog) Last(context.Context) (integrity.Checkpoint, error) {
	return integrity.Checkpoint{Position: l.n}, nil
}

func (l fakeLog) Each(_ context.Context, after, upTo uint64, each func(integrity.Message) error) error {
	for position := after + 1; position <= upTo; position++ {
		if err := each(l.message(position)); err != nil {
			return err
		}
	}
	return nil
}

func (l fakeLog) At(_ context.Context, position uint64) (integrity.Message, error) {
	return l.message(position), nil
}

func (fakeLog) SaltKey(_ context.Context, account string) ([]byte, error) {
	return []byte(account), nil
}

func newSigner(t *testing.T) (*transparency.Signer, note.Verifier) {
	signer, err := transparency.NewSigner([]byte("secret"))
	require.NoError(t, err)
	key, err := transparency.ParseKey(signer.Key())
	require.NoError(t, err)
	return signer, key
}

// publish returns a publisher that has published the whole log.
func publish(t *testing.T, dir string, l fakeLog, witnesses ...transparency.Witness) *transparency.Publisher {
	signer, _ := newSigner(t)
	p := transparency.NewPublisher(transparency.Options{Dir: dir, Messages: l, Keys: l, Signer: signer,
		Witnesses: witnesses})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	require.NoError(t, p.WaitFor(t.Context(), l.n))
	return p
}

// check runs Tessera's fsck over HTTP. change may change the files that are served.
func check(t *testing.T, p *transparency.Publisher, change func(path string, content []byte)) error {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, err := p.Resource(strings.TrimPrefix(r.URL.Path, "/log/"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		content := bytes.Clone(found.Content)
		change(r.URL.Path, content)
		_, _ = w.Write(content)
	}))
	defer server.Close()
	root, err := url.Parse(server.URL + "/log/")
	require.NoError(t, err)
	fetcher, err := client.NewHTTPFetcher(root, server.Client())
	require.NoError(t, err)
	signer, key := newSigner(t)
	return fsck.New(signer.Origin, key, fetcher, leavesOf, fsck.Opts{N: 4}).Check(t.Context())
}

// leavesOf returns the leaf hashes of an entry bundle.
func leavesOf(bundle []byte) (leaves [][]byte, err error) {
	var b api.EntryBundle
	if err := b.UnmarshalText(bundle); err != nil {
		return nil, err
	}
	for _, entry := range b.Entries {
		leaf := tlog.RecordHash(entry)
		leaves = append(leaves, leaf[:])
	}
	return leaves, nil
}

// TestFsckAcceptsTheLog runs fsck on logs of several sizes, and on changed files, which it refuses.
func TestFsckAcceptsTheLog(t *testing.T) {
	unchanged := func(string, []byte) {}
	for _, size := range []uint64{1, 255, 256, 257, 70_000} {
		p := publish(t, t.TempDir(), fakeLog{"a", size})
		require.NoError(t, check(t, p, unchanged), "%d events", size)
		for _, changed := range []string{"/log/tile/entries/000", "/log/tile/0/000", "/log/checkpoint"} {
			err := check(t, p, func(path string, content []byte) {
				if strings.HasPrefix(path, changed) {
					content[len(content)-20] ^= 1
				}
			})
			require.Error(t, err, "%d events, %s is changed", size, changed)
		}
	}
}

// TestWitnessCosignsTheLog submits checkpoints to the witness of transparency-dev. It cosigns a log
// that grows, and refuses a fork.
func TestWitnessCosignsTheLog(t *testing.T) {
	secret, public, err := note.GenerateKey(rand.Reader, "witness.example")
	require.NoError(t, err)
	cosigner, err := formats.NewSignerForCosignatureV1(secret)
	require.NoError(t, err)
	public, err = formats.VKeyToCosignatureV1(public)
	require.NoError(t, err)
	signer, logKey := newSigner(t)
	w, err := witness.New(t.Context(), witness.Opts{Persistence: inmemory.New(), Signers: []note.Signer{cosigner},
		VerifierForLog: func(_ context.Context, origin string) (note.Verifier, bool, error) {
			return logKey, origin == signer.Origin, nil
		}})
	require.NoError(t, err)
	handler := witness.NewHTTPHandler(w)
	server := httptest.NewServer(http.HandlerFunc(handler.AddCheckpoint))
	t.Cleanup(server.Close)
	key, err := transparency.ParseWitnessKey(public)
	require.NoError(t, err)
	cosigned := func(dir string, l fakeLog) int {
		ours, err := transparency.ParseWitness(server.URL + "=" + public)
		require.NoError(t, err)
		signed, _, err := publish(t, dir, l, ours).Checkpoint()
		require.NoError(t, err)
		_, n, err := transparency.OpenCheckpoint(signed, logKey, key)
		require.NoError(t, err)
		return n
	}
	for _, size := range []uint64{10, 300, 301} {
		require.Equal(t, 1, cosigned(t.TempDir(), fakeLog{"a", size}), "%d events", size)
	}
	require.Zero(t, cosigned(t.TempDir(), fakeLog{"b", 400}), "a fork")
	require.Zero(t, cosigned(t.TempDir(), fakeLog{"b", 301}), "a fork of the same size")
	require.Zero(t, cosigned(t.TempDir(), fakeLog{"a", 200}), "a rewind")
	require.Equal(t, 1, cosigned(t.TempDir(), fakeLog{"a", 500}))
}
