package browser

import (
	"encoding/json"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// TestReconnect kills the server without warning. The page says that the connection is lost, and shows the
// changes after the restart without being reloaded.
func TestReconnect(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/datasets")
	b.see("There are no datasets")
	s.kill()
	b.see("Connection lost")
	s.start()
	b.wait("!document.body.innerText.includes('Connection lost')")
	s.run("dataset", "create", "codes", "--file", root+"/examples/packing-codes.jsonl")
	b.see("400")
	b.wait("[...document.querySelectorAll('td .state')].some((s) => s.innerText === 'ready')")
}

// TestRolesAndAccounts checks that a wrong key is refused with the reason, that a key is not offered what
// its role does not permit, and that the console shows nothing of another account.
func TestRolesAndAccounts(t *testing.T) {
	s := serve(t)
	s.run("dataset", "create", "codes", "--file", root+"/examples/packing-codes.jsonl")
	b := s.open()
	b.do(chromedp.SendKeys("input[type=password]", "ank_default_admin_wrong\r"))
	b.see("API key")
	b.do(chromedp.WaitVisible("[role=alert]"))
	b.do(chromedp.Evaluate("location.reload()", nil), chromedp.WaitVisible("input[type=password]"))
	b.signIn("context.json")
	b.goTo("#/keys")
	b.enter("ID", "other")
	b.choose("Role", "user")
	b.press("Create a key")
	b.see("This is the only time")
	var key string
	b.do(chromedp.Text(".secret code", &key))
	require.Regexp(t, "^ank_default_other_", key)
	b.press("Sign out")
	b.do(chromedp.SendKeys("input[type=password]", key+"\r"))
	b.see("default · user")
	b.wait("!document.body.innerText.includes('API keys')")
	b.goTo("#/keys")
	b.see("does not permit")
	b.goTo("#/datasets")
	b.see("400")
	b.press("Sign out")
	for role, offers := range map[string]string{"reader": "Events", "inference": "Playground"} {
		created := s.run("key", "create", role, "--role", role, "-o", "json")
		var made struct{ Key string }
		require.NoError(t, json.Unmarshal([]byte(created), &made))
		b.do(chromedp.SendKeys("input[type=password]", made.Key+"\r"))
		b.see("default · " + role)
		b.wait("document.querySelector('h1').innerText === '" + offers + "'")
		b.wait("document.querySelectorAll('nav a').length === 2") // the screen and the API reference
		b.press("Sign out")
	}
	b.signIn("operator.json")
	b.see("Cluster")
	b.goTo("#/datasets")
	b.see("There are no datasets")
}
