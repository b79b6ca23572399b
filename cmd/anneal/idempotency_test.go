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

// A repeatedCreate is a create with an ID that the server generates, sent repeatedly with one
// idempotency key until it succeeds.
type repeatedCreate struct {
	key, path string
	body      object
	status    int
	answer    string
}

// try sends the request once. done reports that it got a final response, and replayed that the
// response came from the idempotency store.
func (w *repeatedCreate) try(user caller) (replayed, done bool) {
	res, err := user.send(http.MethodPost, w.path, w.body, "Idempotency-Key", w.key)
	if err != nil {
		return false, false // the server was killed
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode == http.StatusConflict || res.StatusCode >= http.StatusInternalServerError {
		return false, false
	}
	w.status, w.answer = res.StatusCode, string(data)
	return res.Header.Get("Idempotent-Replayed") == "true", true
}

// TestRepeatedRequestsSurviveCrashes kills the control plane while requests are in progress, and
// repeats the requests until they get a response. It checks that each request is executed once, and
// that its response stays the same.
func TestRepeatedRequestsSurviveCrashes(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--listen", freePort(t), "--worker=false")
	const canary = "canary-77ab10"
	var creates []*repeatedCreate
	for i := range 12 {
		n := strconv.Itoa(i)
		creates = append(creates,
			&repeatedCreate{key: "dataset-" + n, path: "/datasets", body: object{"dataset": object{"displayName": "d" + n}}},
			&repeatedCreate{key: "key-" + n, path: "/apiKeys",
				body: object{"apiKey": object{"displayName": "k" + n, "role": "inference"}}},
			&repeatedCreate{key: "secret-" + n, path: "/secrets",
				body: object{"name": "s" + n, "keyName": "TOKEN", "value": canary + n}})
	}
	user := s.user()
	for crash := range 2 {
		batch := creates[crash*len(creates)/2 : (crash+1)*len(creates)/2]
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
		for range crash + 1 { // some requests get a response, and the others are in progress
			<-answered
		}
		s.kill()
		s.start()
		all.Wait()
	}
	for _, w := range creates {
		before := w.answer
		require.Equal(t, http.StatusOK, w.status, "%s: %s", w.key, w.answer)
		replayed, done := w.try(s.user())
		require.True(t, done && replayed, w.key)
		require.Equal(t, before, w.answer, w.key)
	}
	require.Len(t, s.user().list("/datasets", "datasets"), 12)
	require.Len(t, s.user().list("/secrets", "secrets"), 12)
	require.Len(t, s.user().list("/apiKeys", "apiKeys"), 12+2, "and the first keys of the account")
	minted := keysWork(t, s, creates)

	require.Zero(t, s.end())
	s.start()
	eventually(t, "the last use of keys is known after a restart", func() bool {
		return !slices.ContainsFunc(s.user().list("/apiKeys", "apiKeys"), func(key object) bool {
			// context-reader is the key of the connection to NATS
			return key["lastUsedTime"] == nil && key["name"] != "accounts/default/apiKeys/context-reader"
		})
	})
	require.Zero(t, s.end())
	require.NoError(t, filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, secret := range append(minted, canary) {
			require.False(t, strings.Contains(string(data), secret), "%s contains a secret in plain text", path)
		}
		return err
	}))
}

// keysWork uses each created key, and returns the texts of the keys.
func keysWork(t *testing.T, s *plane, creates []*repeatedCreate) (minted []string) {
	t.Helper()
	for _, w := range creates {
		if w.path != "/apiKeys" {
			continue
		}
		_, key, _ := strings.Cut(w.answer, `"key":"`)
		key, _, _ = strings.Cut(key, `"`)
		require.NotEmpty(t, key, w.answer)
		status, _, err := s.as("default", key).do(http.MethodGet, "//inference/v1/models", nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status)
		minted = append(minted, key)
	}
	return minted
}
