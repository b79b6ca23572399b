package compat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// An installation is a server that runs as a program, and its provider.
type installation struct {
	*testing.T
	provider *Provider
	program  string
	dir      string
	url      string
	log      string // path of the server's log
}

func install(t *testing.T) *installation {
	s := &installation{T: t, provider: New(t), dir: t.TempDir()}
	s.program = filepath.Join(s.dir, "anneal")
	build := exec.Command("go", "build", "-o", s.program, "./cmd/anneal")
	build.Dir = "../../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	s.log = filepath.Join(s.dir, "log")
	file, err := os.Create(s.log)
	require.NoError(t, err)
	serve := exec.Command(s.program, "serve", "--data", filepath.Join(s.dir, "data"), "--listen", "127.0.0.1:0",
		"--worker=false", "--log-level", "debug", "--oidc-issuer", s.provider.URL, "--oidc-client-id", "anneal",
		"--oidc-group", "sre=operator", "--oidc-group", "team=accounts/default:user",
		"--oidc-group", "audit=accounts/default:reader", "--oidc-group", "ghosts=accounts/none:user")
	serve.Dir, serve.Stderr = s.dir, file
	output, err := serve.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, serve.Start())
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		_ = serve.Wait()
		file.Close()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err, "%s", s.logged())
	s.url = regexp.MustCompile(`http://\S+`).FindString(line)
	s.provider.SetCallback(s.url + "/oidc/callback")
	return s
}

func (s *installation) logged() string {
	text, err := os.ReadFile(s.log)
	require.NoError(s, err)
	return string(text)
}

// command returns a command of the command line that uses a context file.
func (s *installation) command(context string, args ...string) *exec.Cmd {
	c := exec.Command(s.program, append(args, "--context", filepath.Join(s.dir, context))...)
	c.Dir = s.dir
	return c
}

// run runs a command, and returns its output and whether it succeeded.
func (s *installation) run(context string, args ...string) (output string, ok bool) {
	out, err := s.command(context, args...).CombinedOutput()
	return string(out), err == nil
}

var codeText = regexp.MustCompile(`enter the code (\S+)`)

// device logs a user in through the command line: the user confirms the code that it prints.
func (s *installation) device(context, user string) (output string, ok bool) {
	c := s.command(context, "login", s.url, "--oidc")
	var rest bytes.Buffer
	c.Stdout = &rest
	stderr, err := c.StderrPipe()
	require.NoError(s, err)
	require.NoError(s, c.Start())
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	require.NoError(s, err)
	code := codeText.FindStringSubmatch(line)
	require.NotNil(s, code, line)
	require.Contains(s, line, s.provider.URL+"/device")
	require.NoError(s, s.provider.CompleteDeviceAuthorization(s.Context(), code[1], user))
	errors, err := io.ReadAll(lines)
	require.NoError(s, err)
	ok = c.Wait() == nil
	return rest.String() + string(errors), ok
}

// send sends a request with a token.
func (s *installation) send(method, path, token, body string) (int, map[string]any) {
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	require.NoError(s, err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	require.NoError(s, err)
	defer response.Body.Close()
	var out map[string]any
	require.NoError(s, json.NewDecoder(response.Body).Decode(&out))
	return response.StatusCode, out
}

var tokenText = regexp.MustCompile(`<meta name="token" content="([^"]+)">`)

// browse logs a user in as a browser does, and returns the ID token that the page of the console
// gets.
func (s *installation) browse(user string) string {
	jar, err := cookiejar.New(nil)
	require.NoError(s, err)
	browser := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.Path, "/login/") {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	response, err := browser.Get(s.url + "/oidc/login")
	require.NoError(s, err)
	response.Body.Close()
	at, err := url.Parse(response.Header.Get("Location"))
	require.NoError(s, err)
	id := at.Query().Get("authRequestID")
	require.NotEmpty(s, id, "%d %s", response.StatusCode, at)
	require.NoError(s, s.provider.CheckUsernamePassword(user, Password, id))
	response, err = browser.Get(op.AuthCallbackURL(s.provider.op)(op.ContextWithIssuer(s.Context(), s.provider.URL), id))
	require.NoError(s, err)
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	require.NoError(s, err)
	require.Equal(s, 200, response.StatusCode, "%s", page)
	require.Equal(s, "no-store", response.Header.Get("Cache-Control"))
	found := tokenText.FindSubmatch(page)
	require.NotNil(s, found, "%s", page)

	// the state is used once, and belongs to the browser
	again, err := http.Get(response.Request.URL.String())
	require.NoError(s, err)
	again.Body.Close()
	require.Equal(s, 403, again.StatusCode)
	return string(found[1])
}

// TestLogin logs users in with the device authorization grant and with the authorization code flow.
func TestLogin(t *testing.T) {
	s := install(t)
	s.provider.Set("ann", "team")
	s.provider.Set("olga", "sre")
	s.provider.Set("rita", "audit")
	s.provider.Set("nina", "others")
	s.provider.Set("gus", "ghosts")

	t.Run("code flow and roles", func(t *testing.T) {
		const datasets = "/v1/accounts/default/datasets"
		ann, rita, olga := s.browse("ann"), s.browse("rita"), s.browse("olga")
		status, made := s.send("POST", datasets, ann, `{"datasetId": "rows", "dataset": {"displayName": "Rows"}}`)
		require.Equal(t, 200, status, made)
		require.Equal(t, "ann@example.com", made["createdBy"])
		status, answer := s.send("POST", datasets, rita, `{"datasetId": "x", "dataset": {}}`)
		require.Equal(t, 403, status, answer)
		require.Contains(t, answer["message"], "the login's role is reader")
		status, events := s.send("GET", "/v1/accounts/default/events?filter=type%3D%22dataset.created.v1%22", rita, "")
		require.Equal(t, 200, status, events)
		require.Contains(t, fmt.Sprint(events), "accounts/default/users/ann@example.com")
		status, answer = s.send("GET", "/v1/accounts", ann, "")
		require.Equal(t, 403, status, answer)
		status, answer = s.send("GET", "/v1/accounts", olga, "")
		require.Equal(t, 200, status, answer)
		status, answer = s.send("GET", "/v1/caller", olga, "")
		require.Equal(t, 200, status, answer)
		require.Equal(t, true, answer["operator"])
		for user, message := range map[string]string{
			"nina": "no --oidc-group of the server maps a group of nina@example.com (groups: others)",
			"gus":  "accounts/none, which does not exist",
		} {
			status, answer = s.send("GET", "/v1/caller", s.browse(user), "")
			require.Equal(t, 403, status, answer)
			require.Contains(t, answer["message"], message)
		}
		status, records := s.send("GET", "/v1/auditRecords?filter=kind%3DLOGIN_REFUSED", olga, "")
		require.Equal(t, 200, status)
		require.Contains(t, fmt.Sprint(records), "actor:users/nina@example.com")
		status, records = s.send("GET", "/v1/auditRecords?filter=kind%3DLOGIN_ACCEPTED", olga, "")
		require.Equal(t, 200, status)
		require.Contains(t, fmt.Sprint(records), "accounts/system/users/olga@example.com")
		require.Contains(t, s.logged(), "principal=accounts/default/users/ann@example.com")
		for _, token := range []string{ann, rita, olga} {
			require.NotContains(t, s.logged(), token)
		}
	})

	t.Run("device flow, renewal and end of access", func(t *testing.T) {
		s.provider.SetLifetime(2 * time.Second) // less than the time before the end at which the command line renews
		output, ok := s.device("ann.json", "ann")
		require.True(t, ok, output)
		require.Contains(t, output, "ann@example.com")
		info, err := os.Stat(filepath.Join(s.dir, "ann.json"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		before := read(t, s, "ann.json")
		output, ok = s.run("ann.json", "dataset", "list")
		require.True(t, ok, output)
		require.Contains(t, output, "rows")
		after := read(t, s, "ann.json")
		require.NotEqual(t, before, after, "the token was renewed")

		// a member of no mapped group gets a token without a grant at the next renewal
		s.provider.Set("ann", "others")
		output, ok = s.run("ann.json", "dataset", "list")
		require.False(t, ok)
		require.Contains(t, output, "maps a group of ann@example.com")
		refresh := strings.Fields(read(t, s, "ann.json"))[1]
		output, ok = s.run("ann.json", "logout")
		require.True(t, ok, output)
		require.Contains(t, output, "and the login revoked")
		response, err := http.PostForm(s.provider.URL+"/oauth/token", url.Values{"grant_type": {"refresh_token"},
			"refresh_token": {refresh}, "client_id": {"anneal"}})
		require.NoError(t, err)
		response.Body.Close()
		require.Equal(t, http.StatusBadRequest, response.StatusCode, "the refresh token is revoked")
		_, err = os.Stat(filepath.Join(s.dir, "ann.json"))
		require.ErrorIs(t, err, os.ErrNotExist)
		for token := range strings.FieldsSeq(before + " " + after) {
			require.NotContains(t, s.logged(), token)
		}
	})
}

// read returns the tokens in a context file.
func read(t *testing.T, s *installation, context string) string {
	data, err := os.ReadFile(filepath.Join(s.dir, context))
	require.NoError(t, err)
	var file struct {
		Login struct{ IDToken, RefreshToken string }
	}
	require.NoError(t, json.Unmarshal(data, &file))
	require.NotEmpty(t, file.Login.RefreshToken)
	return file.Login.IDToken + " " + file.Login.RefreshToken
}
