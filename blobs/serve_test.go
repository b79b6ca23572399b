package blobs

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
	"anneal/internal/testutil"
)

// serving is a store behind a real server, with a clock that the test sets.
type serving struct {
	*Store
	clock atomic.Int64 // seconds since the epoch
}

func serve(t *testing.T) *serving {
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s := &serving{}
	store, err := Open(t.Context(),
		Options{Dir: t.TempDir(), BaseURL: server.URL + "/blobs", Key: []byte("0123456789abcdef"),
			Now: func() time.Time { return epoch.Add(time.Duration(s.clock.Load()) * time.Second) }})
	require.NoError(t, err)
	s.Store = store
	mux.Handle("/blobs/", store.Handler())
	return s
}

// do sends a request and returns the status and the body of the response. For an error response it
// returns the message instead of the body.
func do(t *testing.T, method, url, body string, header ...string) (int, string) {
	var reader io.Reader = strings.NewReader(body)
	if method == "CHUNKED" { // a PUT without Content-Length
		method, reader = http.MethodPut, io.MultiReader(reader)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, reader)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	data := testutil.ReadAll(t, res.Body)
	if res.StatusCode >= 400 && res.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		var answer struct {
			Code    int
			Message string
		}
		require.NoError(t, json.Unmarshal(data, &answer), "%s", data)
		require.NotZero(t, answer.Code)
		require.NotEmpty(t, answer.Message)
		return res.StatusCode, answer.Message
	}
	return res.StatusCode, string(data)
}

func TestSignedURLs(t *testing.T) {
	s := serve(t)
	put := mustSignPut(t, s.Store, "datasets/acme/d/1/rows ü.jsonl", 10, time.Minute)
	get, err := s.SignGet(t.Context(), "datasets/acme/d/1/rows ü.jsonl", time.Minute)
	require.NoError(t, err)

	code, message := do(t, http.MethodGet, get, "")
	require.Equal(t, 404, code, message)
	code, _ = do(t, http.MethodPut, put, "0123456789")
	require.Equal(t, 200, code)
	code, body := do(t, http.MethodGet, get, "")
	require.Equal(t, 200, code)
	require.Equal(t, "0123456789", body)
	code, body = do(t, http.MethodGet, get, "", "Range", "bytes=3-5")
	require.Equal(t, 206, code)
	require.Equal(t, "345", body)
	code, _ = do(t, http.MethodGet, get, "", "Range", "bytes=30-")
	require.Equal(t, 416, code)
	code, _ = do(t, http.MethodHead, get, "")
	require.Equal(t, 200, code)
}

func TestRefusals(t *testing.T) {
	s := serve(t)
	put := mustSignPut(t, s.Store, "d/f", 10, time.Minute)
	mustPut(t, s.Store, "d/f", strings.NewReader("old"))
	mustPut(t, s.Store, "d/secret", strings.NewReader("secret"))
	get, err := s.SignGet(t.Context(), "d/f", time.Minute)
	require.NoError(t, err)
	changed := func(signed, field, value string) string {
		u, err := url.Parse(signed)
		require.NoError(t, err)
		query := u.Query()
		query.Set(field, value)
		u.RawQuery = query.Encode()
		return u.String()
	}
	for name, one := range map[string]struct {
		method, url, body string
		code              int
		message           string
	}{
		"another file":      {http.MethodGet, strings.Replace(get, "/d/f", "/d/secret", 1), "", 403, "is invalid"},
		"another method":    {http.MethodPut, get, "new", 405, "for the method GET"},
		"a read with a PUT": {http.MethodGet, put, "", 405, "for the method PUT"},
		"a changed method":  {http.MethodPut, changed(get, "method", "PUT"), "new", 403, "is invalid"},
		"a longer time": {http.MethodGet, changed(get, "until", strconv.FormatInt(epoch.Add(time.Hour).Unix(), 10)),
			"", 403, "is invalid"},
		"a higher limit":     {http.MethodPut, changed(put, "limit", "1000"), "new", 403, "is invalid"},
		"a negative limit":   {http.MethodPut, changed(put, "limit", "-1"), "new", 403, "is invalid"},
		"no signature":       {http.MethodGet, changed(get, "signature", ""), "", 403, "is invalid"},
		"too large":          {http.MethodPut, put, "01234567890", 413, "10 bytes"},
		"too large, chunked": {"CHUNKED", put, "01234567890", 413, "10 bytes"},
		"upwards":            {http.MethodGet, strings.Replace(get, "/d/f", "/d/%2e%2e/d/f", 1), "", 403, "is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			code, message := do(t, one.method, one.url, one.body)
			require.Equal(t, one.code, code)
			require.Contains(t, message, one.message)
		})
	}
	require.Equal(t, "old", content(t, s.Store, "d/f"), "refused requests store nothing")

	s.clock.Store(61)
	code, message := do(t, http.MethodGet, get, "")
	require.Equal(t, 403, code)
	require.Contains(t, message, "expired at 2030-01-02T03:05:05Z")
}

// TestMethodsOfSignedURLs checks that the response to a request with the wrong method names the
// signed method, and that the response to HEAD is the response to GET without its content.
func TestMethodsOfSignedURLs(t *testing.T) {
	s := serve(t)
	mustPut(t, s.Store, "d/f", strings.NewReader("0123456789"))
	get, err := s.SignGet(t.Context(), "d/f", time.Minute)
	require.NoError(t, err)
	put := mustSignPut(t, s.Store, "d/f", 10, time.Minute)
	for link, methods := range map[string][]string{get: {http.MethodPost, http.MethodPut, http.MethodDelete},
		put: {http.MethodGet, http.MethodHead, http.MethodDelete}} {
		allowed := http.MethodGet
		if link == put {
			allowed = http.MethodPut
		}
		for _, method := range methods {
			res := send(t, method, link)
			require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode, method)
			require.Equal(t, allowed, res.Header.Get("Allow"), method)
		}
	}
	res := send(t, http.MethodHead, get)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.EqualValues(t, 10, res.ContentLength)
	require.Equal(t, "bytes", res.Header.Get("Accept-Ranges"))
	require.NotEmpty(t, res.Header.Get("ETag"))
	require.Contains(t, res.Header.Get("Content-Disposition"), "attachment")
}

// send sends a request without a body and discards the body of the response.
func send(t *testing.T, method, link string) *http.Response {
	req, err := http.NewRequestWithContext(t.Context(), method, link, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, errors.Join(err, res.Body.Close()))
	return res
}

// TestServingAFullDisk checks that a PUT to a full disk returns status 507 and keeps the old
// content.
func TestServingAFullDisk(t *testing.T) {
	s := serve(t)
	mustPut(t, s.Store, "d/f", strings.NewReader("old"))
	put := mustSignPut(t, s.Store, "d/f", 10, time.Minute)
	s.files.space = disk.New(func() (uint64, error) { return 0, nil })
	code, message := do(t, http.MethodPut, put, "new")
	require.Equal(t, http.StatusInsufficientStorage, code)
	require.Contains(t, message, "the disk is nearly full")
	require.Equal(t, "old", content(t, s.Store, "d/f"))
}

func TestSignedTimeIsBounded(t *testing.T) {
	s := open(t, "")
	for _, ttl := range []time.Duration{0, -time.Second, MaxTTL + 1} {
		_, err := s.SignGet(t.Context(), "a", ttl)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	}
}

// TestCutUpload checks that an upload whose body is shorter than its Content-Length is not stored.
func TestCutUpload(t *testing.T) {
	s := serve(t)
	put := mustSignPut(t, s.Store, "d/f", 0, time.Minute)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, put, io.LimitReader(strings.NewReader("half"), 4))
	require.NoError(t, err)
	req.ContentLength = 8
	_, err = http.DefaultClient.Do(req)
	require.Error(t, err)
	_, err = s.Size(t.Context(), "d/f")
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
}
