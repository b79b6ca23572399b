package browser

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

const (
	fewResources = 3000 // of TestPaging without ANNEAL_RESOURCES
	pageSize     = 25   // rows of a page of a list
	turns        = 30   // pages that are turned in each order
	// limits of the time from a click until the rows are shown, in milliseconds
	medianTime, maxTime = 1000, 10_000
)

// show changes the page with a script, and returns how many milliseconds pass until the first row
// of the list is the dataset with a display name or, with "", another one than before.
func (b *tab) show(change, first string) (milliseconds float64) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(`(async () => {
		const first = () => document.querySelector('tbody td a')?.innerText
		const before = first(), expected = %q
		const began = performance.now()
		;(() => { %s })()
		while (expected ? first() !== expected : !first() || first() === before) {
			if (performance.now() - began > 60000) throw new Error(document.body.innerText)
			await new Promise(requestAnimationFrame)
		}
		return performance.now() - began
	})()`, first, change), &milliseconds, awaitPromise))
	return milliseconds
}

// TestPaging turns pages of a list of ANNEAL_RESOURCES datasets from its beginning, its middle and
// its end, and filters it: each page is shown at once, wherever it is.
func TestPaging(t *testing.T) {
	n := fewResources
	if text := os.Getenv("ANNEAL_RESOURCES"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	s := serve(t)
	s.create(n)
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/datasets?order=name")
	b.wait("document.querySelector('tbody td a')")
	list := func(filter, order string) string {
		return fmt.Sprintf("location.hash = %q", "#/datasets?"+url.Values{"filter": {filter}, "order": {order}}.Encode())
	}
	const next = "[...document.querySelectorAll('.pager button')].find((b) => b.innerText === 'Next').click()"
	row := func(i int) string { return fmt.Sprintf("row %d", i) }
	middle := n / 2
	for _, one := range []struct {
		title, filter, order string
		row                  func(i int) string // display name of the row at an index
	}{
		{"newest first", "", "createTime desc", nil},
		{"by name, from the beginning", "", "name", row},
		{"by name, from the end", "", "name desc", func(i int) string { return row(n - 1 - i) }},
		{"by name, from the middle", fmt.Sprintf(`name >= "accounts/default/datasets/m-%06d"`, middle), "name",
			func(i int) string { return row(middle + i) }},
		{"by state", "state != READY", "name", row},
		{"those with a text", `displayName:"7"`, "name", nil},
	} {
		b.goTo("#/quotas")
		b.wait("!document.querySelector('.pager')")
		var times []float64
		for page := range turns {
			change, first := next, ""
			if page == 0 {
				change = list(one.filter, one.order)
			}
			if one.row != nil {
				first = one.row(pageSize * page)
			}
			times = append(times, b.show(change, first))
		}
		slices.Sort(times)
		median, longest := times[len(times)/2], times[len(times)-1]
		t.Logf("%s, %d datasets: %d pages, median %.0f ms, longest %.0f ms", one.title, n, turns, median, longest)
		require.Less(t, median, float64(medianTime), one.title)
		require.Less(t, longest, float64(maxTime), one.title)
	}
	took := b.show(list(fmt.Sprintf("displayName = %q", row(n-2)), "name"), row(n-2))
	t.Logf("the one with a name, of %d datasets: %.0f ms", n, took)
	require.Less(t, took, float64(maxTime))
	b.see("1 in total")
	b.press("Clear")
	var total string
	b.do(chromedp.Evaluate(fmt.Sprintf("(%d).toLocaleString('en')", n), &total))
	b.see(total + " in total")
}
