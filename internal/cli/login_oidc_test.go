package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/datadir"
)

// A fakeProvider is an identity provider with the endpoints that renew and revoke a login.
type fakeProvider struct {
	*httptest.Server
	metadata map[string]any // of the provider, in addition to its issuer
	forms    []url.Values   // forms that were sent to the endpoints
	status   int            // of the endpoints' responses
	redirect string         // if not "", where the endpoints redirect requests
	during   func()         // called before an endpoint responds; may be nil
}

func newFakeProvider(t *testing.T) *fakeProvider {
	p := &fakeProvider{status: http.StatusOK}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/.well-known/") {
			p.metadata["issuer"] = p.URL
			_ = json.NewEncoder(w).Encode(p.metadata)
			return
		}
		_ = r.ParseForm() // a form that cannot be parsed is empty, which the test notices
		p.forms = append(p.forms, r.PostForm)
		if p.during != nil {
			p.during()
		}
		if p.redirect != "" {
			http.Redirect(w, r, p.redirect, http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(p.status)
		_, _ = fmt.Fprintf(w, `{"access_token": "a", "token_type": "Bearer", "id_token": %q, "refresh_token": "second"}`,
			idToken(time.Hour))
	}))
	t.Cleanup(p.Close)
	p.metadata = map[string]any{"token_endpoint": p.URL + "/token", "revocation_endpoint": p.URL + "/revoke"}
	return p
}

// idToken returns an unsigned ID token that ends after a time.
func idToken(lifetime time.Duration) string {
	claims := fmt.Sprintf(`{"exp": %d}`, time.Now().Add(lifetime).Unix())
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".x"
}

// storeContext stores a context file with a login at the provider, and returns its path.
func (p *fakeProvider) storeContext(t *testing.T, refresh string, lifetime time.Duration) (string, datadir.Context) {
	path := filepath.Join(t.TempDir(), "context.json")
	file := datadir.Context{Address: "http://127.0.0.1:1", Login: &datadir.Login{Issuer: p.URL, ClientID: "anneal",
		IDToken: idToken(lifetime), RefreshToken: refresh}}
	require.NoError(t, replaceLogin(path, file))
	read, err := datadir.ReadContext(path)
	require.NoError(t, err)
	return path, read
}

// TestLogoutRevokes checks that a logout revokes the refresh token if the provider can do that, and deletes
// the file in any case.
func TestLogoutRevokes(t *testing.T) {
	for name, one := range map[string]struct {
		refresh         string
		change          func(p *fakeProvider)
		revoked         bool
		output, warning string
	}{
		"revoked": {"first", func(*fakeProvider) {}, true, "deleted, and the login revoked; to end the session", ""},
		"no endpoint": {"first", func(p *fakeProvider) { delete(p.metadata, "revocation_endpoint") }, false,
			"deleted; to end the session too, log out at", ""},
		"no refresh token": {"", func(*fakeProvider) {}, false, "deleted; to end the session too, log out at", ""},
		"refused": {"first", func(p *fakeProvider) { p.status = http.StatusBadRequest }, true,
			"deleted; to end the session too, log out at", "responded with status 400"},
		"unreachable": {"first", func(p *fakeProvider) { p.Close() }, false,
			"deleted; to end the session too, log out at", "is unreachable"},
		"endpoint without TLS": {"first", func(p *fakeProvider) {
			p.metadata["revocation_endpoint"] = "http://login.example.com/revoke"
		}, false, "deleted; to end the session too, log out at", "which has no TLS"},
		"redirect to a server without TLS": {"first", func(p *fakeProvider) { p.redirect = "http://login.example.com/" },
			true, "deleted; to end the session too, log out at", "must begin with https://"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakeProvider(t)
			one.change(p)
			path, _ := p.storeContext(t, one.refresh, time.Hour)
			var output, errors bytes.Buffer
			c := NewRoot("test")
			c.SetOut(&output)
			c.SetErr(&errors)
			c.SetArgs([]string{"logout", "--context", path})
			require.NoError(t, c.Execute())
			require.Contains(t, output.String(), one.output)
			require.Contains(t, errors.String(), one.warning)
			require.Equal(t, one.warning == "", errors.Len() == 0, "%s", errors.String())
			left, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			require.Empty(t, left)
			var want []url.Values
			if one.revoked {
				want = []url.Values{{"token": {"first"}, "token_type_hint": {"refresh_token"}, "client_id": {"anneal"}}}
			}
			require.Equal(t, want, p.forms)
			require.NotContains(t, output.String()+errors.String(), "first")
		})
	}
}

// TestRenewal checks that a login is renewed and stored, and that a command which renews a login restores
// neither a login that was deleted meanwhile nor replaces another one.
func TestRenewal(t *testing.T) {
	for name, one := range map[string]struct {
		meanwhile func(t *testing.T, path string, file datadir.Context)
		refresh   string // in the file afterwards; "" if there is no file
		renewed   bool
		message   string
	}{
		"renewed": {func(*testing.T, string, datadir.Context) {}, "second", true, ""},
		"logged out": {func(t *testing.T, path string, _ datadir.Context) { require.NoError(t, os.Remove(path)) }, "", false,
			"another command has logged out or in"},
		"logged in at another server": {func(t *testing.T, path string, file datadir.Context) {
			file.Address, file.Login = "http://127.0.0.1:2", &datadir.Login{Issuer: file.Login.Issuer, RefreshToken: "other"}
			require.NoError(t, replaceLogin(path, file))
		}, "other", false, "another command has logged out or in"},
		"logged in with a key": {func(t *testing.T, path string, file datadir.Context) {
			file.APIKey, file.Login = "ank_x", nil
			require.NoError(t, replaceLogin(path, file))
		}, "", false, "another command has logged out or in"},
		"renewed by another command": {func(t *testing.T, path string, file datadir.Context) {
			file.Login = &datadir.Login{Issuer: file.Login.Issuer, RefreshToken: "third", IDToken: idToken(time.Hour)}
			require.NoError(t, replaceLogin(path, file))
		}, "third", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFakeProvider(t)
			path, file := p.storeContext(t, "first", time.Second)
			begun := *file.Login
			one.meanwhile(t, path, file)
			file.Login = &begun
			file.Account = "chosen" // by a flag, which the file must not contain
			token, err := (&client{Context: file}).credential(t.Context())
			if one.message == "" {
				require.NoError(t, err)
				require.Greater(t, time.Until(endOf(token)), time.Minute)
			} else {
				require.ErrorContains(t, err, one.message)
			}
			require.Equal(t, one.renewed, len(p.forms) == 1)
			left, err := datadir.ReadContext(path)
			switch {
			case one.refresh != "":
				require.NoError(t, err)
				require.Equal(t, one.refresh, left.Login.RefreshToken)
				require.Empty(t, left.Account)
			case err == nil:
				require.Nil(t, left.Login)
			}
		})
	}
}

// TestLogoutDuringRenewal checks that a logout waits for a command that renews the login, and that no file
// is left.
func TestLogoutDuringRenewal(t *testing.T) {
	p := newFakeProvider(t)
	path, file := p.storeContext(t, "first", time.Second)
	done := make(chan error, 1)
	p.during = func() {
		p.during = nil
		go func() {
			c := NewRoot("test")
			c.SetOut(io.Discard)
			c.SetArgs([]string{"logout", "--context", path})
			done <- c.Execute()
		}()
	}
	_, err := (&client{Context: file}).credential(t.Context())
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Equal(t, "second", p.forms[len(p.forms)-1].Get("token"), "the renewed token is revoked")
	require.NoFileExists(t, path)
}
