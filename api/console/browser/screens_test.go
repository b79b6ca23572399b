package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// routes are the routes of the screens.
var routes = []string{"#/", "#/playground", "#/playground?columns=2", "#/jobs", "#/jobs/sft/codes",
	"#/jobs/sft/codes?tab=checkpoints", "#/jobs/sft/codes?tab=events", "#/jobs/sft/codes?tab=log", "#/new-job",
	"#/deployments", "#/deployments/base", "#/deployments/base?tab=load", "#/deployments/base?tab=scaling",
	"#/deployments/large", "#/deployments/base?tab=addons", "#/deployments/base?tab=release", "#/new-deployment",
	"#/models", "#/models/codes",
	"#/datasets", "#/datasets/codes", "#/evaluators", "#/evaluators/exact", "#/evaluators/exact?tab=log",
	"#/evaluators/exact?tab=try", "#/usage", "#/quotas", "#/secrets", "#/keys", "#/events",
	"#/events?tab=difference&from=10&to=30", "#/missing"}

// operatorRoutes are those of the operator.
var operatorRoutes = []string{"#/", "#/cluster", "#/events", "#/quotas", "#/usage"}

// axe is the script of the rules of axe-core.
func axe(t *testing.T) string {
	t.Helper()
	path := "testdata/node_modules/axe-core/axe.min.js"
	script, err := os.ReadFile(path)
	if err != nil {
		t.Skip("needs axe-core: make console")
	}
	return string(script)
}

// A violation is a violation of an accessibility rule.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct{ HTML string }
}

// TestScreens shows each screen in light and dark at three widths. No screen is wider than the
// window, logs an error, or violates an accessibility rule whose impact is serious. With
// ANNEAL_SCREENSHOTS, the screenshots are written to that directory.
func TestScreens(t *testing.T) {
	rules := axe(t)
	s := serve(t)
	s.train()
	s.evaluator()
	s.large()
	s.api("POST", "/v1/accounts/default/secrets", map[string]string{"name": "accounts/default/secrets/token",
		"keyName": "API_TOKEN", "value": "hidden-value"}, nil)
	b := s.open()
	for file, shown := range map[string][]string{"context.json": routes, "operator.json": operatorRoutes} {
		b.do(chromedp.Evaluate("sessionStorage.clear(); location.hash = '#/'; location.reload()", nil))
		b.do(chromedp.WaitVisible("input[type=password]"))
		b.signIn(file)
		b.do(chromedp.Evaluate(rules, nil))
		for _, scheme := range []string{"light", "dark"} {
			b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme",
				Value: scheme}}))
			for _, width := range []int64{360, 1280, 2560} {
				b.do(chromedp.EmulateViewport(width, 900))
				for _, route := range shown {
					b.goTo(route)
					b.wait("document.querySelector('#main h1') && !/Loading…|no metrics yet/.test(document.body.innerText) && " +
						"[...document.querySelectorAll('.chart')].every((c) => c.querySelector('canvas, p'))")
					b.check(fmt.Sprintf("%s %s %d", route, scheme, width), file+"-"+route, scheme, width)
				}
			}
		}
	}
}

// charts checks that each chart of the screen has a table, with a row for each point if it draws
// any.
func (b *tab) charts(what string) {
	b.t.Helper()
	var wrong []string
	b.do(chromedp.Evaluate(`(async () => {
		const wrong = []
		for (const chart of document.querySelectorAll('canvas, .chart')) {
			if (!chart.isConnected) continue // was drawn again meanwhile
			const details = chart.closest('.chart')?.querySelector('details')
			if (!details) {
				wrong.push(chart.outerHTML)
				continue
			}
			details.open = true
			for (let i = 0; i < 60 && !details.querySelector('tbody tr'); i++) await new Promise(requestAnimationFrame)
			const rows = details.querySelectorAll('tbody tr').length
			const draws = details.parentNode.querySelector('canvas')
			if (!details.querySelector('thead th') || !!draws !== rows > 0) wrong.push(details.parentNode.innerText)
			details.open = false
		}
		return wrong
	})()`, &wrong, awaitPromise))
	if len(wrong) > 0 {
		b.t.Errorf("%s: charts without a table: %.600q", what, wrong)
	}
}

// check checks the screen that the tab shows.
func (b *tab) check(what, name, scheme string, width int64) {
	b.t.Helper()
	var wide int64
	b.do(chromedp.Evaluate("document.documentElement.scrollWidth", &wide))
	if wide > width {
		b.t.Errorf("%s: the screen is %d pixels wide", what, wide)
	}
	b.charts(what)
	var found []violation
	b.do(chromedp.Evaluate("axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations)", &found,
		chromedp.EvalAsValue, awaitPromise))
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			b.t.Errorf("%s: %s: %s: %.600v", what, v.ID, v.Help, v.Nodes)
		}
	}
	if dir := os.Getenv("ANNEAL_SCREENSHOTS"); dir != "" {
		var image []byte
		b.do(chromedp.FullScreenshot(&image, 60))
		name = strings.NewReplacer("#/", "", "/", "-", "?", "-", "=", "-", "&", "-", "context.json-", "",
			".json", "").Replace(name)
		if strings.HasSuffix(name, "-") || name == "" {
			name += "home"
		}
		require.NoError(b.t, os.MkdirAll(dir, 0o755))
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.jpg", name, scheme, width)), image, 0o644))
	}
}
