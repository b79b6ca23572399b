package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// TestRelease starts a release of a deployment, compares its figures with those of the API,
// promotes the candidate and rolls the release back.
func TestRelease(t *testing.T) {
	const few = 9 // requests, fewer than the minimum of a step
	s := serve(t)
	for _, id := range []string{"stable", "next"} {
		s.run("deployment", "create", id, "--model", "anneal-base", "--watch")
	}
	type arm struct{ Requests, Errors int }
	split := func() (release struct {
		State, Candidate, Reason string
		Percent, MinSamples      int
		Steps                    []int
		Figures                  struct{ Stable, Candidate arm }
	}) {
		var d struct{ TrafficSplit any }
		d.TrafficSplit = &release
		s.api("GET", "/v1/accounts/default/deployments/stable", nil, &d)
		return release
	}
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/deployments/stable?tab=release")
	b.see("This deployment had no release")
	b.choose("Candidate", "next")
	b.choose("After the last step", "wait for me")
	b.enter("Steps (%)", "50")
	b.enter("Requests in a step", "10")
	b.press("Start")
	b.see("Release 1 to next")
	release := split()
	require.Equal(t, "accounts/default/deployments/next", release.Candidate)
	require.Equal(t, []int{50}, release.Steps)
	require.Equal(t, 10, release.MinSamples)
	send := func(n int) {
		for range n {
			s.api("POST", "/inference/v1/completions", map[string]any{"model": "accounts/default/deployments/stable",
				"prompt": "What is 1 + 2?", "max_tokens": 4}, nil)
		}
	}
	send(few)
	require.Eventually(t, func() bool {
		release = split()
		return release.Figures.Stable.Requests+release.Figures.Candidate.Requests == few
	}, patience, 100*time.Millisecond)
	require.Equal(t, "RUNNING", release.State)
	b.wait(fmt.Sprintf(`[...document.querySelectorAll("[aria-label='Requests of the step'] tbody tr")]
		.map((r) => r.cells[1].innerText + ' ' + r.cells[2].innerText).join() === '%d %d,%d %d'`,
		release.Figures.Stable.Requests, release.Figures.Stable.Errors, release.Figures.Candidate.Requests,
		release.Figures.Candidate.Errors))
	// on a busy machine, times of less than a millisecond need more requests until they are known to be equal
	require.Eventually(t, func() bool {
		send(20)
		return split().State == "WAITING"
	}, patience, time.Millisecond)
	b.wait("document.querySelector('h2 + .state').innerText === 'waiting'")
	require.Equal(t, "WAITING", split().State)
	b.press("Promote")
	b.press("Send all requests there?")
	b.wait("document.querySelector('h2 + .state').innerText === 'promoted'")
	require.Equal(t, "PROMOTED", split().State)
	b.press("Roll back")
	b.press("Send no requests there?")
	b.wait("document.querySelector('h2 + .state').innerText === 'rolled back'")
	require.Equal(t, "rolled back by its user", split().Reason)
	b.see("rolled back by its user")
	b.do(chromedp.WaitVisible(button("Start"), chromedp.BySearch))
}
