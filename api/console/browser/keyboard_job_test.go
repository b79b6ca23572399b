package browser

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// enterOn moves the focus to the button or link with a text, and presses Enter.
func (b *tab) enterOn(text string) {
	b.t.Helper()
	b.focusOn(text, func(name string) bool { return name == text })
	b.do(chromedp.KeyEvent(kb.Enter))
}

// chooseFile opens the browser's window for a file from the element with the focus, and chooses a
// file there.
func (b *tab) chooseFile(path string) {
	b.t.Helper()
	opened := make(chan cdp.BackendNodeID, 1)
	listening, stop := context.WithCancel(b.Context)
	defer stop()
	chromedp.ListenTarget(listening, func(event any) {
		if e, ok := event.(*page.EventFileChooserOpened); ok {
			opened <- e.BackendNodeID
		}
	})
	b.do(page.SetInterceptFileChooserDialog(true), chromedp.KeyEvent(" "))
	select {
	case id := <-opened:
		b.do(dom.SetFileInputFiles([]string{path}).WithBackendNodeID(id))
	case <-time.After(patience):
		require.Fail(b.t, "the window for a file has not opened")
	}
}

// TestMainJobByKeyboard does what TestMainJob does with the keyboard alone, from the sign-in to the
// comparison of two models.
func TestMainJobByKeyboard(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.do(chromedp.WaitVisible("input[type=password]"))
	b.focus("API key")
	b.do(chromedp.KeyEvent(s.key("context.json")), chromedp.KeyEvent(kb.Enter))
	b.see("Nothing needs attention")
	b.enterOn("New job")
	b.see("Drop a JSONL file here")
	b.focus("Drop a JSONL file here")
	rows, err := filepath.Abs(filepath.Join(root, "examples/packing-codes.jsonl"))
	require.NoError(t, err)
	b.chooseFile(rows)
	b.see("400 rows")
	b.wait("[...document.querySelectorAll('select option')].some((o) => o.innerText.includes('anneal-base'))")
	b.focus("Model")
	b.do(chromedp.KeyEvent("anneal-base"))
	b.focus("ID")
	b.do(chromedp.KeyEvent("codes"))
	b.focus("Epochs")
	b.do(chromedp.KeyEvent("8"))
	b.see("anneal sft create codes --dataset")
	b.enterOn("Create the job")
	b.see("Ended")
	b.do(chromedp.WaitVisible(".chart canvas"))
	b.enterOn("Table")
	b.wait("document.querySelector('.chart details tbody').rows.length === 400")
	b.focus("Curves")
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	b.wait("location.hash.endsWith('tab=checkpoints')")
	b.see("train/loss")
	b.enterOn("Deploy")
	b.see("--model accounts/default/models/codes")
	b.enterOn("Create")
	b.see("1 of 1")
	b.enterOn("Deployments")
	b.enterOn("New deployment")
	b.wait("document.querySelectorAll('select option').length > 1 && document.title.startsWith('New deployment')")
	b.focus("Model")
	b.do(chromedp.KeyEvent("anneal-base"))
	b.see("--model accounts/default/models/anneal-base")
	b.enterOn("Create")
	b.see("1 of 1")
	b.enterOn("Playground")
	b.enterOn("Compare two models")
	b.do(chromedp.WaitVisible("section[aria-label='Second model'] select"))
	b.focus("Prompt")
	b.do(chromedp.KeyEvent(prompt))
	for _, model := range []string{"codes", "anneal-base"} {
		b.focus("Model")
		b.do(chromedp.KeyEvent(model))
		b.focus("Mode") // follows the model
		b.do(chromedp.KeyEvent("completion"))
	}
	b.wait("[...document.querySelectorAll('.columns select')].map((s) => s.value).join() === " +
		"'codes,completion,anneal-base,completion'")
	b.enterOn("Send to both")
	b.wait("document.querySelectorAll('.stats').length === 2")
	response := func(column string) (text string) {
		at := fmt.Sprintf("section[aria-label='%s model'] .response", column)
		b.wait(fmt.Sprintf("document.querySelector(%q).innerText.trim()", at))
		b.do(chromedp.Text(at, &text))
		return text
	}
	b.see(completed)
	require.Contains(t, response("First"), completed)
	require.NotContains(t, response("Second"), completed)
}
