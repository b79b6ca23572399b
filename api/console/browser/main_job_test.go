package browser

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

const (
	prompt    = "Packing code for 15 pink chairs, customer Rosa"
	completed = "ROS-15-PC"
)

// TestMainJob uploads a dataset, trains a model, watches its curves, deploys it and the base model,
// and compares their responses in the playground: in less than five minutes, from the start of the
// server on.
func TestMainJob(t *testing.T) {
	s := serve(t)
	began := time.Now()
	b := s.open()
	b.signIn("context.json")
	b.see("Nothing needs attention")
	b.press("New job")
	rows, err := filepath.Abs(filepath.Join(root, "examples/packing-codes.jsonl"))
	require.NoError(t, err)
	b.do(chromedp.SetUploadFiles(`.drop input`, []string{rows}))
	b.see("400 rows")
	b.choose("Model", "anneal-base")
	b.enter("ID", "codes")
	b.enter("Epochs", "8")
	b.see("anneal sft create codes --dataset")
	b.press("Create the job")
	b.see("Base model")
	b.do(chromedp.WaitVisible(".chart canvas"))
	b.see("Ended") // the page has its final layout
	b.do(chromedp.Click(".chart details summary"), chromedp.WaitVisible(".chart details tbody tr"))
	b.wait("document.querySelector('.chart details tbody').rows.length === 400") // a row for each step
	b.wait("document.querySelectorAll('.chart').length >= 2")
	b.pressTab("Checkpoints")
	b.see("train/loss")
	b.pressTab("Events")
	b.see("supervisedFineTuningJob.completed.v1")

	b.press("Deploy")
	b.press("Create")
	b.see("1 of 1")
	b.goTo("#/new-deployment")
	b.choose("Model", "anneal-base")
	b.press("Create")
	b.see("1 of 1")
	b.press("Playground")
	b.press("Compare two models")
	for label, model := range map[string]string{"First model": "accounts/default/models/codes",
		"Second model": "anneal-base"} {
		b.do(chromedp.WaitVisible(`section[aria-label="` + label + `"] select`))
		b.do(chromedp.Evaluate(`(() => {
			const lists = document.querySelectorAll('section[aria-label="`+label+`"] select')
			for (const [i, value] of [[0, '`+model+`'], [1, 'completion']]) {
				lists[i].value = value
				lists[i].dispatchEvent(new Event('change', { bubbles: true }))
			}
		})()`, nil))
	}
	b.do(chromedp.SendKeys("textarea", prompt))
	b.press("Send to both")
	b.see("tokens/s")
	var first, second string
	b.wait("document.querySelectorAll('.stats').length === 2")
	b.wait("[...document.querySelectorAll('.response')].every((r) => r.innerText.trim())")
	b.see(completed)
	b.do(chromedp.Text(`section[aria-label="First model"] .response`, &first),
		chromedp.Text(`section[aria-label="Second model"] .response`, &second))
	require.Contains(t, first, completed)
	require.NotContains(t, second, completed)
	t.Logf("a tuned model has answered after %s", time.Since(began).Round(time.Second))
	require.Less(t, time.Since(began), 5*time.Minute)
	b.press("View code")
	b.see("Authorization: Bearer $ANNEAL_API_KEY")
}
