package browser

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"anneal/api/oidc/compat"
)

// logIn logs a user in on the page of the provider.
func (b *tab) logIn(user string) {
	b.t.Helper()
	b.do(chromedp.SendKeys("input[name=username]", user), chromedp.SendKeys("input[name=password]", compat.Password+"\r"))
}

// windows returns the IDs of the pages that the browser shows.
func (b *tab) windows() (ids []target.ID) {
	b.t.Helper()
	all, err := chromedp.Targets(b.Context)
	require.NoError(b.t, err)
	for _, one := range all {
		if one.Type == "page" {
			ids = append(ids, one.TargetID)
		}
	}
	return ids
}

// logInAgain presses the button that renews the login, and logs a user in in the window that it
// opens, which then closes.
func (b *tab) logInAgain(user string) {
	b.t.Helper()
	before := b.windows()
	b.press("Log in again")
	var opened target.ID
	require.Eventually(b.t, func() bool {
		for _, id := range b.windows() {
			if !slices.Contains(before, id) {
				opened = id
			}
		}
		return opened != ""
	}, patience, 100*time.Millisecond, "no window has opened")
	ctx, end := chromedp.NewContext(b.Context, chromedp.WithTargetID(opened))
	defer end()
	require.NoError(b.t, chromedp.Run(ctx)) // attaches to the window, until the context of this call ends
	window := &tab{Context: ctx, t: b.t, server: b.server}
	window.logIn(user)
	require.Eventually(b.t, func() bool { return !slices.Contains(b.windows(), opened) }, patience,
		100*time.Millisecond, "the window of the login is open")
}

// TestLogin logs users in at an identity provider, by the button of the console: the address stays,
// and the groups decide. A login that ends is renewed in another window, while the page and what
// was entered stay as they are.
func TestLogin(t *testing.T) {
	p := compat.New(t)
	for user, group := range map[string]string{"ann": "team", "olga": "sre", "nina": "others"} {
		p.Set(user, group)
	}
	s := serve(t, "--oidc-issuer", p.URL, "--oidc-client-id", "anneal", "--oidc-group", "team=accounts/default:user",
		"--oidc-group", "sre=operator")
	p.SetCallback(s.url + "/oidc/callback")
	const link = "//a[starts-with(normalize-space(),'Sign in at 127.0.0.1')]"
	b := s.open()
	b.do(chromedp.Click(link, chromedp.BySearch))
	b.logIn("nina")
	b.see("no --oidc-group of the server maps a group of nina@example.com")

	p.SetLifetime(2 * time.Second) // and half a minute, by which the clocks may differ
	b.goTo("#/datasets?filter=state%20%3D%20READY")
	b.do(chromedp.Click(link, chromedp.BySearch))
	b.logIn("ann")
	b.see("default · user")
	b.wait("location.href.endsWith('/#/datasets?filter=state%20%3D%20READY')")
	b.wait("document.querySelector('.filter input').value === 'state = READY'")
	b.wait("![...document.querySelectorAll('nav a')].some((a) => a.innerText === 'API keys')")
	var cookies []*network.Cookie
	b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		cookies, err = network.GetCookies().Do(ctx)
		return err
	}))
	require.Empty(t, cookies, "the cookie of the login was used")

	b.see("Your login ends soon")
	b.logInAgain("olga") // another user gets another page
	b.see("system · operator")
	b.lookAt("default")
	b.goTo("#/new-deployment")
	b.enter("ID", "entered")
	b.see("Your login has ended")
	p.SetLifetime(time.Hour)
	b.logInAgain("olga")
	b.wait("!document.body.innerText.includes('Your login')")
	var entered string
	b.do(chromedp.Value(field("ID"), &entered, chromedp.BySearch))
	require.Equal(t, "entered", entered)
	b.goTo("#/datasets")
	b.see("There are no datasets")
	b.wait("!document.body.innerText.includes('Connection lost')")
	s.run("dataset", "create", "codes", "--file", root+"/examples/packing-codes.jsonl")
	b.see("400") // the events continue
	b.press("Sign out")
	b.do(chromedp.WaitVisible(link, chromedp.BySearch))
	var kept string
	b.do(chromedp.Evaluate("JSON.stringify({ ...sessionStorage })", &kept))
	require.NotContains(t, kept, "eyJ")
}

// TestRefusedLogin shows why a login failed on a page, and not as JSON.
func TestRefusedLogin(t *testing.T) {
	p := compat.New(t)
	s := serve(t, "--oidc-issuer", p.URL, "--oidc-client-id", "anneal", "--oidc-group", "sre=operator")
	b := s.open()
	b.do(chromedp.Navigate(s.url + "/oidc/callback?code=x&state=y"))
	b.see("The login failed")
	b.see("begun in another browser")
	b.press("Back to the console")
	b.do(chromedp.WaitVisible("input[type=password]"))
}
