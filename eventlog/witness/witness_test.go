package witness_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"anneal/eventlog/integrity"
	"anneal/eventlog/transparency"
	"anneal/eventlog/witness"
	"anneal/internal/testutil"
)

// A fakeLog is a log in memory whose events contain a text, so that two texts make a fork.
type fakeLog struct {
	mu   sync.Mutex
	text string
	n    uint64
}

func (l *fakeLog) message(position uint64) integrity.Message {
	return integrity.NewMessage(position, "events.acme.datasets.d", nil, []byte(l.text+strconv.FormatUint(position, 10)))
}

func (l *fakeLog) Last(context.Context) (integrity.Checkpoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return integrity.Checkpoint{Position: l.n}, nil
}

func (l *fakeLog) Each(_ context.Context, after, upTo uint64, each func(integrity.Message) error) error {
	for position := after + 1; position <= upTo; position++ {
		if err := each(l.message(position)); err != nil {
			return err
		}
	}
	return nil
}

func (l *fakeLog) At(_ context.Context, position uint64) (integrity.Message, error) {
	return l.message(position), nil
}

func (l *fakeLog) SaltKey(context.Context, string) ([]byte, error) {
	return make([]byte, 32), nil
}

// checkpoint returns a checkpoint of the first n events, signed with the test's key, and cosigned
// by the witnesses.
func (l *fakeLog) checkpoint(t *testing.T, dir string, n uint64, witnesses ...transparency.Witness) []byte {
	signer, err := transparency.NewSigner([]byte("secret"))
	require.NoError(t, err)
	l.mu.Lock()
	l.n = n
	l.mu.Unlock()
	p := transparency.NewPublisher(transparency.Options{Dir: dir, Messages: l, Keys: l, Signer: signer,
		Witnesses: witnesses, Pause: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	require.NoError(t, p.WaitFor(ctx, n))
	cancel()
	<-done
	signed := testutil.ReadFile(t, filepath.Join(dir, "checkpoint"))
	return signed
}

func logKey(t *testing.T) note.Verifier {
	signer, err := transparency.NewSigner([]byte("secret"))
	require.NoError(t, err)
	key, err := transparency.ParseKey(signer.Key())
	require.NoError(t, err)
	return key
}

// start serves the witness in a directory.
func start(t *testing.T, dir string) (url string, w *witness.Witness) {
	w, err := witness.Open(dir, "witness.example", []note.Verifier{logKey(t)}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	return server.URL, w
}

func submit(t *testing.T, url, body string) (int, string) {
	res, err := http.Post(url+"/add-checkpoint", "", strings.NewReader(body))
	require.NoError(t, err)
	defer res.Body.Close()
	text := testutil.ReadAll(t, res.Body)
	return res.StatusCode, string(text)
}

// TestCheckpointsAreCosigned checks that a log that grows is cosigned, also after the witness and
// the log restart.
func TestCheckpointsAreCosigned(t *testing.T) {
	state, tree, log := t.TempDir(), t.TempDir(), &fakeLog{text: "a"}
	for _, size := range []uint64{10, 300, 301} {
		url, w := start(t, state)
		ours, err := transparency.ParseWitness(url + "=" + w.Key())
		require.NoError(t, err)
		signed := log.checkpoint(t, tree, size, ours)
		key, err := transparency.ParseWitnessKey(w.Key())
		require.NoError(t, err)
		c, cosigned, err := transparency.OpenCheckpoint(signed, logKey(t), key)
		require.NoError(t, err)
		require.Equal(t, size, c.Size)
		require.Equal(t, 1, cosigned)
	}
}

// TestForksAndRewindsAreRefused submits checkpoints that contradict one that is cosigned.
func TestForksAndRewindsAreRefused(t *testing.T) {
	state := t.TempDir()
	log, fork := &fakeLog{text: "a"}, &fakeLog{text: "b"}
	url, _ := start(t, state)
	tree, forked := t.TempDir(), t.TempDir()
	ten, bad := string(log.checkpoint(t, tree, 10)), string(fork.checkpoint(t, forked, 10))
	status, lines := submit(t, url, "old 0\n\n"+ten)
	require.Equal(t, http.StatusOK, status, lines)
	require.True(t, strings.HasPrefix(lines, "— witness.example "), lines)

	url, _ = start(t, state) // the witness is started again, and must still know the checkpoint
	older := string((&fakeLog{text: "a"}).checkpoint(t, t.TempDir(), 5))
	longer := string(fork.checkpoint(t, forked, 20))
	hash := "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
	other := "example.com/log\n" + strings.SplitN(ten, "\n", 2)[1]
	changed := strings.Replace(ten, "\n10\n", "\n11\n", 1)
	for name, x := range map[string]struct {
		body   string
		status int
		reply  string
	}{
		"fork of the same size":   {"old 10\n\n" + bad, http.StatusConflict, "10\n"},
		"fork from the beginning": {"old 0\n\n" + bad, http.StatusConflict, "10\n"},
		"longer fork":             {"old 10\n" + hash + hash + hash + "\n" + longer, http.StatusUnprocessableEntity, "fork"},
		"longer without a proof":  {"old 10\n\n" + longer, http.StatusUnprocessableEntity, "fork"},
		"rewind":                  {"old 10\n\n" + older, http.StatusBadRequest, "greater"},
		"rewind to the beginning": {"old 0\n\n" + older, http.StatusConflict, "10\n"},
		"same size with a proof":  {"old 10\n" + hash + "\n" + ten, http.StatusUnprocessableEntity, "must be empty"},
		"unknown log":             {"old 0\n\n" + other, http.StatusNotFound, "unknown"},
		"changed root":            {"old 10\n\n" + changed, http.StatusForbidden, "verify"},
		"no signature":            {"old 10\n\n" + strings.SplitN(ten, "\n\n", 2)[0] + "\n", http.StatusForbidden, ""},
		"no old size":             {"\n\n" + ten, http.StatusBadRequest, "old SIZE"},
		"padded old size":         {"old 010\n\n" + ten, http.StatusBadRequest, "old SIZE"},
		"bad hash":                {"old 10\nxyz\n\n" + ten, http.StatusBadRequest, "base64"},
		"too many hashes":         {"old 10\n" + strings.Repeat(hash, 64) + "\n" + ten, http.StatusBadRequest, "63"},
		"no checkpoint":           {"old 10\n", http.StatusBadRequest, "empty line"},
	} {
		status, reply := submit(t, url, x.body)
		require.Equal(t, x.status, status, "%s: %s", name, reply)
		require.Contains(t, reply, x.reply, name)
	}
	status, lines = submit(t, url, "old 10\n\n"+ten)
	require.Equal(t, http.StatusOK, status, "the same checkpoint is cosigned again: %s", lines)
}

// TestForkedLogGetsNoCosignature checks that a forked log still publishes, without cosignature.
func TestForkedLogGetsNoCosignature(t *testing.T) {
	url, w := start(t, t.TempDir())
	ours, err := transparency.ParseWitness(url + "=" + w.Key())
	require.NoError(t, err)
	(&fakeLog{text: "a"}).checkpoint(t, t.TempDir(), 10, ours)
	key, err := transparency.ParseWitnessKey(w.Key())
	require.NoError(t, err)
	for _, size := range []uint64{10, 20} {
		signed := (&fakeLog{text: "b"}).checkpoint(t, t.TempDir(), size, ours)
		_, cosigned, err := transparency.OpenCheckpoint(signed, logKey(t), key)
		require.NoError(t, err)
		require.Zero(t, cosigned)
	}
}
