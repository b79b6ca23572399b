package main_test

import (
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A wish is a create under an ID that the server makes up, sent again and
// again with one idempotency key until it is answered.
type wish struct {
	key, path string
	body      object
	status    int
	answer    string
}

// try sends the wish once; true means that it was answered for good.
func (w *wish) try(user caller) (replayed, done bool) {
	res, err := user.send(http.MethodPost, w.path, w.body, "Idempotency-Key", w.key)
	if err != nil {
		return false, false // killed
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode == http.StatusConflict || res.StatusCode >= http.StatusInternalServerError {
		return false, false
	}
	w.status, w.answer = res.StatusCode, string(data)
	return res.Header.Get("Idempotent-Replayed") == "true", true
}

// The control plane is killed while requests are on their way, and they are
// sent until they are answered: each happens once, and its answer stays.
func TestRepeatedRequestsOutliveCrashes(t *testing.T) {
	s := serve(t, t.TempDir(), "--listen", freePort(t), "--worker=false")
	const canary = "canary-77ab10"
	var wishes []*wish
	for i := range 12 {
		n := strconv.Itoa(i)
		wishes = append(wishes,
			&wish{key: "dataset-" + n, path: "/datasets", body: object{"dataset": object{"displayName": "d" + n}}},
			&wish{key: "key-" + n, path: "/apiKeys", body: object{"apiKey": object{"displayName": "k" + n, "role": "inference"}}},
			&wish{key: "secret-" + n, path: "/secrets", body: object{"name": "s" + n, "keyName": "TOKEN", "value": canary + n}})
	}
	user := s.user()
	for crash := range 2 {
		batch := wishes[crash*len(wishes)/2 : (crash+1)*len(wishes)/2]
		answered := make(chan struct{}, len(batch))
		var all sync.WaitGroup
		for _, w := range batch {
			all.Go(func() {
				defer func() { answered <- struct{}{} }()
				eventually(t, "the answer to "+w.key, func() bool {
					_, done := w.try(user)
					return done
				})
			})
		}
		for range crash + 1 { // now some are answered, and the others on their way
			<-answered
		}
		s.kill()
		s.start()
		all.Wait()
	}
	for _, w := range wishes {
		before := w.answer
		require.Equal(t, http.StatusOK, w.status, "%s: %s", w.key, w.answer)
		replayed, done := w.try(s.user())
		require.True(t, done && replayed, w.key)
		require.Equal(t, before, w.answer, w.key)
	}
	require.Len(t, s.user().list("/datasets", "datasets"), 12)
	require.Len(t, s.user().list("/secrets", "secrets"), 12)
	require.Len(t, s.user().list("/apiKeys", "apiKeys"), 12+2, "and the first keys of the account")
	minted := keysWork(t, s, wishes)

	require.Zero(t, s.end())
	s.start()
	eventually(t, "when keys were used is known after a restart", func() bool {
		return !slices.ContainsFunc(s.user().list("/apiKeys", "apiKeys"), func(key object) bool {
			return key["lastUsedTime"] == nil && key["name"] != "accounts/default/apiKeys/context-reader" // it is for NATS
		})
	})
	require.Zero(t, s.end())
	require.NoError(t, filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, secret := range append(minted, canary) {
			require.False(t, strings.Contains(string(data), secret), "%s holds a secret in the clear", path)
		}
		return err
	}))
}

// keysWork answers the text of each key that was made, once it has been used.
func keysWork(t *testing.T, s *plane, wishes []*wish) (minted []string) {
	t.Helper()
	for _, w := range wishes {
		if w.path != "/apiKeys" {
			continue
		}
		_, key, _ := strings.Cut(w.answer, `"key":"`)
		key, _, _ = strings.Cut(key, `"`)
		require.NotEmpty(t, key, w.answer)
		status, _, err := s.as("default", key).ask(http.MethodGet, "//inference/v1/models", nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status)
		minted = append(minted, key)
	}
	return minted
}
