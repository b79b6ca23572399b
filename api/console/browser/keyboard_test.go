package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// focus presses Tab until an element whose name begins with a text has the focus.
func (b *tab) focus(text string) {
	b.t.Helper()
	b.focusOn(text, func(name string) bool { return strings.HasPrefix(name, text) })
}

// focusOn presses Tab until an element whose name matches has the focus.
func (b *tab) focusOn(text string, matches func(name string) bool) {
	b.t.Helper()
	var names []string
	for range 120 {
		var name string
		b.do(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`(() => {
			const e = document.activeElement
			return (e.getAttribute('aria-label') || (e.labels && e.labels[0] ? e.labels[0].innerText : e.innerText) || '').trim()
		})()`, &name))
		if matches(name) {
			return
		}
		names = append(names, name)
	}
	require.Fail(b.t, "no element with the focus is named "+text, "%q", names)
}

// TestKeyboard signs in, creates a deployment, asks the model and finds a resource, with the
// keyboard alone.
func TestKeyboard(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.do(chromedp.WaitVisible("input[type=password]"))
	b.focus("API key")
	b.do(chromedp.KeyEvent(s.key("context.json")), chromedp.KeyEvent(kb.Enter))
	b.see("Nothing needs attention")
	b.focus("New deployment")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.wait("document.querySelectorAll('select option').length > 1 && document.title.startsWith('New deployment')")
	b.focus("Model")
	b.do(chromedp.KeyEvent("anneal-base"))
	b.see("--model accounts/default/models/anneal-base")
	b.focus("Create")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.see("1 of 1")
	b.focus("Playground")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.see("Maximum tokens")
	b.focus("Prompt")
	b.do(chromedp.KeyEvent("What is 1 + 2?"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(2)))
	b.see("first token")
	b.do(chromedp.KeyEvent("k", chromedp.KeyModifiers(2)), chromedp.KeyEvent("anneal"))
	b.wait("document.querySelectorAll('#found li').length > 0")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.wait("location.hash.startsWith('#/deployments/') || location.hash.startsWith('#/models')")
}
