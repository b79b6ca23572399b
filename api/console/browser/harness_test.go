package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

const (
	root     = "../../.."
	patience = 90 * time.Second // for a busy machine
)

// build builds the program once.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "anneal-console-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "anneal")
	out, err := exec.Command("go", "-C", root, "build", "-o", path, "./cmd/anneal").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// A server is a control plane with its data directory.
type server struct {
	t       *testing.T
	program string
	dir     string
	flags   []string
	listen  string
	cmd     *exec.Cmd
	url     string
}

// serve starts a server with more flags, which ends with the test.
func serve(t *testing.T, flags ...string) *server {
	t.Helper()
	program, err := build()
	require.NoError(t, err)
	s := &server{t: t, program: program, dir: filepath.Join(t.TempDir(), "data"), listen: "127.0.0.1:0",
		flags: flags}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) start() {
	s.cmd = exec.Command(s.program, append([]string{"serve", "--data", s.dir, "--listen", s.listen}, s.flags...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, s.cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "anneal is ready at "); ok {
			s.url, _, _ = strings.Cut(rest, " ")
			s.listen = strings.TrimPrefix(s.url, "http://")
			go func() { // the pipe must not fill up
				for lines.Scan() {
				}
			}()
			return
		}
	}
	require.Fail(s.t, "the server has not become ready")
}

// kill ends the server as a power failure would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill() // an error means that it has ended
	_ = s.cmd.Wait()
}

// key returns the API key in a context file of the data directory.
func (s *server) key(file string) string {
	data, err := os.ReadFile(filepath.Join(s.dir, file))
	require.NoError(s.t, err)
	var c struct {
		APIKey string `json:"apiKey"`
	}
	require.NoError(s.t, json.Unmarshal(data, &c))
	return c.APIKey
}

// run runs a command of the CLI and returns its output.
func (s *server) run(args ...string) string {
	s.t.Helper()
	return s.runAs("context.json", args...)
}

// runAs is run with the key of another context file.
func (s *server) runAs(file string, args ...string) string {
	s.t.Helper()
	args = append([]string{"--context", filepath.Join(s.dir, file)}, args...)
	out, err := exec.Command(s.program, args...).CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	return string(out)
}

// A tab is a browser tab that shows the console.
type tab struct {
	context.Context
	t      *testing.T
	server *server

	mu       sync.Mutex
	problems []string // messages of the browser's console and exceptions
}

// open opens a tab, which ends with the test. The test fails if the page throws an exception,
// violates its Content-Security-Policy, or logs another error than that of a failed request.
func (s *server) open() *tab {
	s.t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		s.t.Skip("needs Chromium: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.Flag("no-sandbox", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(patience))
	allocated, end := chromedp.NewExecAllocator(context.Background(), options...)
	s.t.Cleanup(end)
	ctx, closeTab := chromedp.NewContext(allocated)
	s.t.Cleanup(closeTab)
	one := &tab{Context: ctx, t: s.t, server: s}
	chromedp.ListenTarget(ctx, one.observe)
	require.NoError(s.t, chromedp.Run(ctx)) // starts the browser, which ends with the context of this call
	one.do(log.Enable(), chromedp.EmulateViewport(1280, 900), chromedp.Navigate(s.url))
	s.t.Cleanup(func() {
		one.mu.Lock()
		defer one.mu.Unlock()
		require.Empty(s.t, one.problems)
	})
	return one
}

func (b *tab) observe(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError && e.Entry.Source != log.SourceNetwork {
			b.problems = append(b.problems, fmt.Sprint(e.Entry.Source, ": ", e.Entry.Text))
		}
	}
}

// do runs actions, each of which waits for its element.
func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	for i, action := range actions {
		ctx, cancel := context.WithTimeout(b.Context, patience)
		err := chromedp.Run(ctx, action)
		cancel()
		if err != nil {
			var text string
			_ = chromedp.Run(b.Context, chromedp.Evaluate("document.body.innerText", &text)) // only for the message
			main, _ := strings.CutPrefix(text, "Skip to content")
			require.NoError(b.t, err, "action %d; the page shows:\n%.6000s", i, main)
		}
	}
}

// wait waits until an expression is true in the page, which may be replaced by another one
// meanwhile.
func (b *tab) wait(expression string) {
	b.t.Helper()
	poll := chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(patience))
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		for {
			err := poll.Do(ctx)
			var gone *cdproto.Error
			if !errors.As(err, &gone) || gone.Code != contextGone {
				return err
			}
		}
	}))
}

// contextGone is the code of the browser's error for a script in a page that has been replaced.
const contextGone = -32000

// see waits until the page shows a text, in whatever case.
func (b *tab) see(text string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("document.body.innerText.toLowerCase().includes(%q.toLowerCase())", text))
}

// button returns the path of a button or link with a text.
func button(text string) string {
	return fmt.Sprintf("//*[self::button or self::a][normalize-space()=%q]", text)
}

func field(label string) string {
	return fmt.Sprintf("//label[starts-with(normalize-space(),%q)]//*[self::input or self::select or self::textarea]",
		label)
}

// press clicks a button or link with a text.
func (b *tab) press(text string) {
	b.t.Helper()
	b.do(chromedp.Click(button(text), chromedp.BySearch))
}

// pressTab clicks the tab with a text in a list of tabs.
func (b *tab) pressTab(text string) {
	b.t.Helper()
	b.do(chromedp.Click(fmt.Sprintf("//*[@role='tab'][normalize-space()=%q]", text), chromedp.BySearch))
}

// choose chooses an option of a list by its text.
func (b *tab) choose(label, option string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(field(label)+fmt.Sprintf("/option[normalize-space()=%q]/..", option), chromedp.BySearch),
		chromedp.Evaluate(fmt.Sprintf(`(() => {
			const list = document.evaluate(%q, document, null, 9).singleNodeValue
			list.value = [...list.options].find((o) => o.text.trim() === %q).value
			list.dispatchEvent(new Event('change', { bubbles: true }))
		})()`, field(label), option), nil))
}

// enter replaces the text of a field.
func (b *tab) enter(label, text string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(field(label), chromedp.BySearch), chromedp.Evaluate(
		fmt.Sprintf("document.evaluate(%q, document, null, 9).singleNodeValue.select()", field(label)), nil),
		chromedp.SendKeys(field(label), text, chromedp.BySearch))
}

// signIn signs in with the key of a context file.
func (b *tab) signIn(file string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(`input[type=password]`, b.server.key(file)+"\r"))
	b.do(chromedp.WaitVisible("#main h1"))
}

// goTo shows a screen.
func (b *tab) goTo(route string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", route), nil))
}

// awaitPromise makes Evaluate return the value of the promise to which an expression evaluates.
func awaitPromise(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
