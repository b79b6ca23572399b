package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// TestReconnect kills the server without warning. The page says that the connection is lost, and
// shows the changes after the restart without being reloaded.
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

// TestRolesAndAccounts checks that a wrong key is refused with the reason, that a key is not
// offered what its role does not permit, and that the console shows nothing of another account.
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

// TestAddresses checks that an address that leads to no screen or no resource says so, and does not
// reach another resource; and that the console works afterwards.
func TestAddresses(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.signIn("context.json")
	for _, route := range []string{"#/%", "#/datasets/..%2Fdeployments%2Fprod", "#/missing", "#/jobs/a%20b"} {
		b.goTo(route)
		b.see("There is no screen")
	}
	for _, route := range []string{"#/jobs/foo/x", "#/datasets/none", "#/deployments/none", "#/jobs/sft/none"} {
		b.goTo(route)
		b.do(chromedp.WaitVisible("[role=alert]"))
		b.goTo("#/jobs")
		b.see("There are no jobs of this kind")
	}
	b.goTo("#/new-deployment?model=" + "x'%3Bid%3B'")
	b.see("--model 'x'")
}

// account creates an account and returns its key.
func (s *server) account(id string) string {
	created := s.runAs("operator.json", "account", "create", id, "-o", "json")
	var made struct{ APIKey string }
	require.NoError(s.t, json.Unmarshal([]byte(created[strings.Index(created, "{"):]), &made))
	require.NotEmpty(s.t, made.APIKey, created)
	return made.APIKey
}

// TestAnotherAccount checks that another account is offered the public base model, and that a key
// that was deleted leads to the sign-in.
func TestAnotherAccount(t *testing.T) {
	s := serve(t)
	acme := s.account("acme")
	var other struct{ Key string }
	b := s.open()
	b.do(chromedp.SendKeys("input[type=password]", acme+"\r"))
	b.see("acme · admin")
	b.goTo("#/new-job")
	b.choose("Model", "anneal-base")
	b.press("Sign out")
	require.NoError(t, json.Unmarshal([]byte(s.run("key", "create", "other", "--role", "user", "-o", "json")), &other))
	b.do(chromedp.SendKeys("input[type=password]", other.Key+"\r"))
	b.see("default · user")
	s.run("key", "delete", "other")
	b.goTo("#/datasets")
	b.see("refuses the key")
}

// TestPages turns a page of a list, and changes the filter by the address: the list begins again,
// because the token of a page is one of the former list.
func TestPages(t *testing.T) {
	s := serve(t)
	for n := range 30 {
		s.run("key", "create", fmt.Sprint("k-", n), "--role", "reader")
	}
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/keys")
	b.see("32 in total")
	b.press("Next")
	b.wait("document.querySelectorAll('tbody tr').length === 7")
	b.goTo("#/keys?filter=" + "role%20%3D%20reader")
	b.see("31 in total")
	b.wait("document.querySelector('.filter input').value === 'role = reader'")
	b.wait("!document.querySelector('[role=alert]')")
	b.press("Clear")
	b.see("32 in total")
	b.goTo("#/events?filter=" + "type%20%3D%20%22apiKey.created.v1%22")
	b.see("Events: 32")
	b.goTo("#/usage")
	b.see("No usage in this month")
	b.goTo("#/usage?filter=" + "model%20%3D%20%22none%22")
	b.wait(`document.querySelector('.filter input').value === 'model = "none"'`)
	b.wait("!document.querySelector('[role=alert]')")
}

// TestColumns chooses the columns of a list by mouse and by keyboard. The choice is kept for each
// collection.
func TestColumns(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/keys")
	const titles = "[...document.querySelectorAll('thead th')].map((h) => h.innerText.trim().split(' ')[0]).join()"
	b.wait(titles + " === 'Key,Role,Begins,Last,Created,'")
	b.wait("document.querySelectorAll('tbody tr').length === 2")
	b.do(chromedp.Click(".choose summary"))
	box := func(title string) string { return fmt.Sprintf("//label[normalize-space()=%q]/input", title) }
	b.do(chromedp.Click(box("Role"), chromedp.BySearch))
	b.wait(titles + " === 'Key,Begins,Last,Created,'")
	b.do(chromedp.Focus(box("displayName"), chromedp.BySearch), chromedp.KeyEvent(" "))
	b.wait(titles + " === 'Key,Begins,Last,Created,displayName,'")
	b.do(chromedp.Evaluate("location.reload()", nil))
	b.wait(titles + " === 'Key,Begins,Last,Created,displayName,'")
	b.goTo("#/datasets")
	b.wait(titles + " === 'Dataset,State,Rows,Shape,Made,Created'")
	b.goTo("#/keys")
	b.do(chromedp.Click(".choose summary"))
	b.press("Default columns")
	b.wait(titles + " === 'Key,Role,Begins,Last,Created,'")
}
