package blobs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
	"anneal/internal/testutil"
)

// TestFullDisk checks that Put leaves no part of a file when the disk becomes full during the
// write, and stores the file once there is space again.
func TestFullDisk(t *testing.T) {
	f, err := openFileStore(t.TempDir(), time.Now(), nil)
	require.NoError(t, err)
	checks, full := 0, true
	f.space = disk.New(func() (uint64, error) {
		if checks++; full && checks > 1 {
			return uint64(disk.Files), nil
		}
		return 1 << 40, nil
	})
	content := bytes.Repeat([]byte("x"), 3<<20)
	_, err = f.put(t.Context(), "a/b", bytes.NewReader(content), f.commit)
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(explain(err, "a/b")))
	require.NoFileExists(t, filepath.Join(f.dir, "a", "b"))
	unfinished := testutil.ReadDir(t, filepath.Join(f.dir, staging))
	require.Empty(t, unfinished)

	full = false
	n, err := f.put(t.Context(), "a/b", bytes.NewReader(content), f.commit)
	require.NoError(t, err)
	require.EqualValues(t, len(content), n)
	stored := testutil.ReadFile(t, filepath.Join(f.dir, "a", "b"))
	require.Equal(t, content, stored)
}

// TestDeletePrefixWhileItIsWritten checks that DeletePrefix succeeds while files are put below the
// prefix.
func TestDeletePrefixWhileItIsWritten(t *testing.T) {
	store, written := open(t, ""), make(chan struct{})
	go func() {
		defer close(written)
		for i := range 40 { // a Put whose directory is removed concurrently may fail
			_, _ = store.Put(t.Context(), fmt.Sprintf("evaluators/e/%d/code/main.py", i), strings.NewReader("code"))
		}
	}()
	for writing := true; writing; {
		select {
		case <-written:
			writing = false
		default:
		}
		require.NoError(t, store.DeletePrefix(t.Context(), "evaluators/e/"))
	}
	left, err := store.Files(t.Context(), "evaluators/e/")
	require.NoError(t, err)
	require.Empty(t, left.Sizes)
}

// A slowWriter closes started in its first Write, waits until goOn is closed, and then appends the
// bytes to received.
type slowWriter struct {
	started, goOn chan struct{}
	received      []byte
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.received == nil {
		close(w.started)
		<-w.goOn
	}
	w.received = append(w.received, p...)
	return len(p), nil
}

// TestCloseDuringWriteTo checks that a content which is closed while a writer reads its buffer does
// not give the buffer to another reader.
func TestCloseDuringWriteTo(t *testing.T) {
	store := open(t, "")
	content := map[string][]byte{"a": bytes.Repeat([]byte("a"), 2*blockSize), "b": bytes.Repeat([]byte("b"), blockSize)}
	for key, bytes := range content {
		_, err := store.Put(t.Context(), key, strings.NewReader(string(bytes)))
		require.NoError(t, err)
	}
	a, err := store.Get(t.Context(), "a")
	require.NoError(t, err)
	w := &slowWriter{started: make(chan struct{}), goOn: make(chan struct{})}
	written := make(chan error)
	go func() {
		_, err := a.(io.WriterTo).WriteTo(w)
		written <- err
	}()
	<-w.started
	require.NoError(t, a.Close())
	for range 8 {
		b, err := read(store, "b")
		require.NoError(t, err)
		require.True(t, bytes.Equal(content["b"], b))
	}
	close(w.goOn)
	require.ErrorIs(t, <-written, os.ErrClosed)
	require.True(t, bytes.Equal(content["a"][:blockSize], w.received), "another reader used the buffer")
}
