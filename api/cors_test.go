package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// A page is a web page of an origin. It sends requests like the function fetch of a browser: it
// sends a preflight request first where the Fetch standard requires one, and lets the script read
// the response only as far as the server allows.
type page struct {
	*harness
	origin string
}

var errBlocked = errors.New("blocked by CORS policy")

// safelisted are the request headers for which no preflight is necessary, and the response headers
// that every script may read.
var safelisted = []string{"Accept", "Accept-Language", "Content-Language", "Cache-Control", "Content-Length",
	"Content-Type", "Expires", "Last-Modified", "Pragma"}

// fetch sends a request, and returns the part of the response that the script may read.
func (p page) fetch(method, path, alias, body string, headers ...string) (response, error) {
	p.Helper()
	url := path
	if !strings.HasPrefix(path, "http") {
		url = p.url + path
	}
	r, err := http.NewRequestWithContext(p.Context(), method, url, strings.NewReader(body))
	require.NoError(p, err)
	if alias != "" {
		r.Header.Set("Authorization", "Bearer "+p.key(alias))
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if err := p.preflight(r); err != nil {
		return response{}, err
	}
	r.Header.Set("Origin", p.origin)
	a := p.send(r)
	if allowed := a.header.Get("Access-Control-Allow-Origin"); allowed != "*" && allowed != p.origin {
		return response{}, errBlocked
	}
	exposed := append(list(a.header.Get("Access-Control-Expose-Headers")), safelisted...)
	for name := range a.header {
		if !slices.ContainsFunc(exposed, func(one string) bool { return strings.EqualFold(one, name) }) {
			a.header.Del(name)
		}
	}
	return a, nil
}

func list(header string) []string { return regexp.MustCompile(`\s*,\s*`).Split(header, -1) }

// preflight sends the preflight request of r, and returns an error unless the response allows r.
func (p page) preflight(r *http.Request) error {
	var unsafe []string
	for name := range r.Header {
		if !slices.Contains(safelisted, name) || name == "Content-Type" && r.Header.Get(name) == "application/json" {
			unsafe = append(unsafe, strings.ToLower(name))
		}
	}
	slices.Sort(unsafe)
	if len(unsafe) == 0 && slices.Contains([]string{"GET", "HEAD", "POST"}, r.Method) {
		return nil
	}
	preflight, err := http.NewRequestWithContext(p.Context(), http.MethodOptions, r.URL.String(), nil)
	require.NoError(p, err)
	preflight.Header.Set("Origin", p.origin)
	preflight.Header.Set("Access-Control-Request-Method", r.Method)
	if len(unsafe) > 0 {
		preflight.Header.Set("Access-Control-Request-Headers", strings.Join(unsafe, ","))
	}
	a := p.send(preflight)
	allowed := a.header.Get("Access-Control-Allow-Origin")
	names := list(strings.ToLower(a.header.Get("Access-Control-Allow-Headers")))
	switch {
	case a.status < 200 || a.status > 299, allowed != "*" && allowed != p.origin,
		!slices.Contains(list(a.header.Get("Access-Control-Allow-Methods")), r.Method) &&
			!slices.Contains([]string{"GET", "HEAD", "POST"}, r.Method):
		return errBlocked
	}
	for _, name := range unsafe {
		if !slices.Contains(names, name) {
			return errBlocked
		}
	}
	return nil
}

// TestPagesOfOtherOrigins checks that a page of an allowed origin can use the whole interface, and
// that a page of another origin cannot.
func TestPagesOfOtherOrigins(t *testing.T) {
	base := newHarness(t, request.Limits{})
	base.deploy("d1", 1, func(s *domain.DeploymentSpec) { s.DirectRouteType = domain.DirectInternet })
	const app = "https://app.example.com"
	completion := `{"model": "accounts/acme/deployments/d1", "prompt": "one two", "max_tokens": 2, "colour": "red"}`
	for _, line := range []struct {
		name, page string
		origins    []string
		allowed    bool
	}{
		{"an allowed origin", app, []string{"http://localhost:3000", app}, true},
		{"every origin", app, []string{AnyOrigin}, true},
		{"another origin", app, []string{"https://app.example.com:8443", "http://app.example.com"}, false},
		{"the null origin", "null", []string{app}, false},
		{"no origin by default", app, nil, false},
	} {
		t.Run(line.name, func(t *testing.T) {
			s := base.another(func(o *Options) { o.Origins = line.origins })
			s.TB = t
			p := page{s, line.page}
			a, err := p.fetch("POST", "/inference/v1/completions", "inference", completion, "X-Stainless-Lang", "js")
			if !line.allowed {
				require.ErrorIs(t, err, errBlocked)
				_, err = p.fetch("GET", "/healthz", "", "")
				require.ErrorIs(t, err, errBlocked, "a request without a preflight")
				return
			}
			require.NoError(t, err)
			require.Equal(t, 200, a.status, "%s", a.body)
			require.NotEmpty(t, a.header.Get("anneal-prompt-tokens"))
			require.Contains(t, a.header.Get("anneal-warning"), "colour")
			require.NotEmpty(t, a.header.Get(request.RequestIDHeader))
			p.usesEverything()
		})
	}
}

// usesEverything requires that the page can send requests of each method, read errors, and use
// signed URLs.
func (p page) usesEverything() {
	p.Helper()
	fetch := func(status int, method, path, alias, body string, headers ...string) response {
		p.Helper()
		a, err := p.fetch(method, path, alias, body, headers...)
		require.NoError(p, err)
		require.Equal(p, status, a.status, "%s", a.body)
		return a
	}
	fetch(200, "GET", "/inference/v1/models", "inference", "")
	fetch(401, "GET", "/inference/v1/models", "", "")
	fetch(404, "GET", acme+"/models/none", "user", "")
	fetch(404, "GET", "/nothing", "user", "")
	fetch(405, "PUT", acme+"/models/none", "user", "{}")
	fetch(200, "POST", acme+"/datasets", "user", `{"datasetId": "rows"}`, "Idempotency-Key", p.url)
	again := fetch(200, "POST", acme+"/datasets", "user", `{"datasetId": "rows"}`, "Idempotency-Key", p.url)
	require.Equal(p, "true", again.header.Get(request.ReplayedHeader))
	urls := fetch(200, "POST", acme+"/datasets/rows:getUploadEndpoint", "user", `{"filenameToSize": {"a.jsonl": 13}}`)
	signed := urls.json(p)["filenameToSignedUrls"].(map[string]any)["a.jsonl"].(string)
	fetch(200, "PUT", p.url+signed[strings.Index(signed, "/blobs/"):], "", `{"text": "a"}`)
	fetch(200, "PATCH", acme+"/datasets/rows", "user", `{"name": "accounts/acme/datasets/rows", "displayName": "n"}`)
	fetch(200, "DELETE", acme+"/datasets/rows", "user", "")
}

// TestOptions checks that the response to an OPTIONS request without an API key lists the methods
// of the path, for every path of the table, and that the response depends on nothing else.
func TestOptions(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, op := range s.server.table {
		path := strings.NewReplacer("{account}", "none", "{id}", "none", "{version}", "none", "*", "none").Replace(op.Path)
		a := s.call("OPTIONS", path, "", "")
		require.Equal(t, http.StatusNoContent, a.status, "%s: %s", path, a.body)
		require.Subset(t, list(a.header.Get("Allow")), []string{op.Method, "OPTIONS"}, path)
		for name := range a.header {
			require.NotContains(t, name, "Access-Control")
		}
	}
	require.Equal(t, "GET, HEAD, POST, OPTIONS", s.call("OPTIONS", acme+"/models", "", "").header.Get("Allow"))
	require.Equal(t, "GET, HEAD, PUT, OPTIONS", s.call("OPTIONS", "/blobs/x", "", "").header.Get("Allow"))
	require.Equal(t, http.StatusNotFound, s.call("OPTIONS", "/nothing", "", "").status)
	require.Equal(t, http.StatusNotFound, s.call("OPTIONS", acme+"/models/one:fly", "", "").status)
}

// TestPreflightOfDirectRoutes checks that pages can use the host name of a deployment.
func TestPreflightOfDirectRoutes(t *testing.T) {
	base := newHarness(t, request.Limits{})
	s := base.another(func(o *Options) { o.Origins, o.Direct = []string{AnyOrigin}, "direct.example.com" })
	a := s.call("POST", acme+"/deployments?deploymentId=d1", "user", `{"baseModel": "accounts/default/models/anneal-base",
		"directRouteType": "INTERNET", "directRouteApiKeys": ["k"]}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	for host, status := range map[string]int{a.json(t)["directRouteHandle"].(string): 204,
		"none.direct.example.com": 404} {
		r := s.request("OPTIONS", "/v1/chat/completions", "", bytes.NewReader(nil))
		r.Host = host
		r.Header.Set("Origin", "https://app.example.com")
		r.Header.Set("Access-Control-Request-Method", "POST")
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, errors.Join(err, response.Body.Close()))
		require.Equal(t, status, response.StatusCode, "%s", body)
		require.Equal(t, "*", response.Header.Get("Access-Control-Allow-Origin"))
	}
}

func TestOriginsAreChecked(t *testing.T) {
	for origin, message := range map[string]string{
		"*": "", "https://app.example.com": "", "http://localhost:3000": "", "http://[::1]:8080": "",
		"app.example.com":          "must be *, or http:// or https:// followed by",
		"":                         "must be *, or http:// or https:// followed by",
		"null":                     "must be *, or http:// or https:// followed by",
		"https://*.example.com":    "wildcard",
		"https://app.example.com/": "without a path",
		"https://u@example.com":    "without a path",
		"https://App.example.com":  "must be in lower case",
		"https://example.com:443":  "must leave out the port 443",
	} {
		err := CheckOrigin(origin)
		if message == "" {
			require.NoError(t, err, origin)
			continue
		}
		require.ErrorContains(t, err, message, origin)
	}
}
