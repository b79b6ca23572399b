package described

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Prism is the path of the program prism, a validating proxy, relative to the directory where the
// JavaScript clients are installed.
const Prism = "node_modules/.bin/prism"

// StartPrism starts prism as a proxy of the server at the URL upstream, waits until it listens, and
// returns the proxy's URL. The end of the test stops prism.
func StartPrism(t testing.TB, program string, document []byte, upstream string, options ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "openapi.json")
	noError(t, os.WriteFile(file, document, 0o644))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	_, port, err := net.SplitHostPort(free.Addr().String())
	noError(t, err)
	noError(t, free.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	command := exec.CommandContext(ctx, program,
		append([]string{"proxy", file, upstream, "--host", "127.0.0.1", "--port", port}, options...)...)
	out, err := command.StdoutPipe()
	noError(t, err)
	command.Stderr = command.Stdout
	noError(t, command.Start())
	scanner, listening := bufio.NewScanner(out), false
	var lines []string
	for !listening && scanner.Scan() {
		lines = append(lines, scanner.Text())
		listening = strings.Contains(scanner.Text(), "Prism is listening")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for scanner.Scan() { // prism would block if nothing read its output
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = command.Wait() // returns an error, because prism was killed
	})
	if !listening {
		t.Fatalf("prism does not listen; its output:\n%s", strings.Join(lines, "\n"))
	}
	return "http://127.0.0.1:" + port
}

// violations is the header in which prism lists violations of the document.
const violations = "Sl-Violations"

// WithoutViolations returns the URL of a proxy in front of prism. For each violation that prism
// finds, the proxy reports an error of the test, except for requests that the server rejects:
// clients send some invalid requests on purpose.
func WithoutViolations(t testing.TB, prism string) string {
	t.Helper()
	target, err := url.Parse(prism)
	noError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ModifyResponse = func(res *http.Response) error {
		found := res.Header.Get(violations)
		if found != "" && (res.StatusCode < http.StatusBadRequest || strings.Contains(found, `"response"`)) {
			t.Errorf("%s %s: prism found violations of the OpenAPI document: %s", res.Request.Method, res.Request.URL, found)
		}
		res.Header.Del(violations)
		return nil
	}
	between := httptest.NewServer(proxy)
	t.Cleanup(between.Close)
	return between.URL
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
