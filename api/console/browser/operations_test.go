package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// evaluator creates the evaluator exact of the account default.
func (s *server) evaluator() {
	code, err := os.ReadFile(root + "/examples/exact-match/main.py")
	require.NoError(s.t, err)
	s.api("POST", "/v1/accounts/default/evaluators", map[string]any{"evaluatorId": "exact", "evaluator": map[string]any{
		"entryPoint": "main.py::evaluate", "criteria": []any{map[string]any{"type": "CODE_SNIPPETS",
			"codeSnippets": map[string]any{"fileContents": map[string]string{"main.py": string(code)}}}}}}, nil)
}

// large creates a deployment for which there is no node.
func (s *server) large() {
	s.api("POST", "/v1/accounts/default/deployments?deploymentId=large", map[string]any{
		"baseModel": "accounts/default/models/anneal-base", "acceleratorType": "VENDOR_A_H100_80GB", "acceleratorCount": 1,
		"minReplicaCount": 1, "maxReplicaCount": 1}, nil)
}

// lookAt chooses the account whose resources the operator sees.
func (b *tab) lookAt(account string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(fmt.Sprintf("//select[@aria-label='Account'][option[.=%q]]", account), chromedp.BySearch),
		chromedp.Evaluate(fmt.Sprintf(`(() => {
			const list = document.querySelector('select[aria-label=Account]')
			list.value = %q
			list.dispatchEvent(new Event('change', { bubbles: true }))
		})()`, account), nil))
	b.see(account + " · operator")
}

// TestDeployment sends requests to a deployment, and compares the charts of its load with the API;
// changes its autoscaling; and shows why another deployment has no place.
func TestDeployment(t *testing.T) {
	s := serve(t)
	s.train()
	s.large()
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/deployments/base?tab=load")
	b.see("Requests per hour")
	b.wait("document.querySelectorAll('.chart').length >= 6")
	b.do(chromedp.Evaluate("document.querySelectorAll('.chart details').forEach((d) => (d.open = true))", nil))
	const rates = `[...document.querySelectorAll('.chart')].find((c) => c.innerText.startsWith('Requests per second'))
		.querySelectorAll('.scroll td:last-child').values()`
	b.wait(rates + ".some(() => true)") // the second sample has the first rates
	for range 5 {
		s.api("POST", "/inference/v1/completions", map[string]any{"model": "anneal-base", "prompt": "What is 1 + 2?",
			"max_tokens": 4}, nil)
	}
	b.wait(rates + ".some((d) => Number(d.innerText) > 0)")
	b.wait(`[...document.querySelectorAll('.chart')].find((c) => c.innerText.startsWith('Replicas'))
		.querySelector('.scroll tbody tr:last-child')?.cells[2].innerText.trim() === '1'`)
	b.goTo("#/deployments/base?tab=scaling")
	b.enter("Replicas at most", "2")
	b.enter("Scale down after", "120s")
	b.choose("Load of a replica", "concurrent_requests")
	b.enter("Target", "3")
	b.press("Save")
	b.wait("[...document.querySelectorAll('.facts div')].some((d) => d.innerText === 'Replicas at most\\n2')")
	var d struct {
		MaxReplicaCount   int
		AutoscalingPolicy struct {
			ScaleDownWindow string
			LoadTargets     map[string]float64
		}
	}
	s.api("GET", "/v1/accounts/default/deployments/base", nil, &d)
	require.Equal(t, 2, d.MaxReplicaCount)
	require.Equal(t, "120s", d.AutoscalingPolicy.ScaleDownWindow)
	require.Equal(t, map[string]float64{"concurrent_requests": 3}, d.AutoscalingPolicy.LoadTargets)

	b.goTo("#/deployments/large")
	var large struct{ Status struct{ Message string } }
	s.api("GET", "/v1/accounts/default/deployments/large", nil, &large)
	require.NotEmpty(t, large.Status.Message)
	b.see(large.Status.Message)
	b.press("Sign out")
	b.signIn("operator.json")
	b.lookAt("default")
	b.goTo("#/deployments/large")
	b.see("Free CPUs")
	b.goTo("#/deployments/base?tab=load")
	b.see("r1 on local")
	b.see("Requests in progress")
}

// TestSecretsAndQuotas creates, replaces and deletes a secret, whose value is never shown, and sets
// a quota.
func TestSecretsAndQuotas(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/secrets")
	b.enter("ID", "token")
	b.enter("Variable", "API_TOKEN")
	b.enter("Value", "first-value")
	b.press("Create a secret")
	b.wait("document.querySelector('tbody td')?.innerText === 'token'")
	b.press("Replace the value")
	b.do(chromedp.SendKeys("input[aria-label='New value']", "second-value"))
	b.press("Save")
	b.do(chromedp.WaitVisible(button("Replace the value"), chromedp.BySearch))
	var content string
	b.do(chromedp.Evaluate(`document.documentElement.outerHTML +
		[...document.querySelectorAll('input')].map((i) => i.value)`, &content))
	require.NotContains(t, content, "-value")
	var events struct{ Events []struct{ Type string } }
	s.api("GET", "/v1/accounts/default/secrets/token/events", nil, &events)
	require.Len(t, events.Events, 2)
	b.press("Delete")
	b.press("Delete the secret?")
	b.see("There are no secrets")
	b.press("Sign out")
	b.signIn("operator.json")
	b.lookAt("default")
	b.goTo("#/quotas")
	b.do(chromedp.SendKeys("input[aria-label='Limit of deployments']", "7"))
	b.do(chromedp.Click(`//tr[td[1][.='deployments']]//button[normalize-space()='Set']`, chromedp.BySearch))
	const limit = `[...document.querySelectorAll('tr')].find((r) => r.cells[0].innerText === 'deployments')
		.cells[2].innerText`
	b.wait(limit + " === '7'")
	var quota struct{ Value string }
	s.api("GET", "/v1/accounts/default/quotas/deployments", nil, &quota)
	require.Equal(t, "7", quota.Value)
	b.press("Remove")
	b.wait(limit + " === 'none'")
}

// TestEvaluator shows the code and the build log of an evaluator, and scores rows with their
// answers and with those of a model.
func TestEvaluator(t *testing.T) {
	s := serve(t)
	s.evaluator()
	s.run("deployment", "create", "base", "--model", "anneal-base", "--watch")
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/evaluators/exact")
	b.see("Scores an answer by how it compares")
	b.do(chromedp.Focus("[role=tab][aria-selected=true]"), chromedp.KeyEvent(kb.ArrowRight))
	b.wait("document.activeElement.innerText.trim() === 'Build log' && location.hash.endsWith('tab=log')")
	b.wait("document.querySelector('.log')?.innerText.replace('Loading…', '').trim()")
	b.wait("!document.querySelector('[role=alert]')")
	b.pressTab("Try")
	b.do(chromedp.SendKeys(".prompt textarea", `{"messages": [{"role": "user", "content": "Capital of Peru?"}, `+
		`{"role": "assistant", "content": "Lima"}], "ground_truth": "Lima"}`))
	b.press("Score")
	b.see("Rows scored: 1")
	b.wait("document.querySelector('table tbody tr')?.innerText.startsWith('Lima\\t1\\texact')")
	b.choose("Answers", "of anneal-base")
	b.enter("Answers to a row", "2")
	b.press("Score")
	b.see("Rows scored: 2")
	b.wait("document.querySelectorAll('table tbody tr').length === 2")
}

// TestFailedUpload uploads a dataset while the network fails. The dataset without rows is offered
// for another upload, or for deletion.
func TestFailedUpload(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/new-job")
	rows, err := filepath.Abs(filepath.Join(root, "examples/packing-codes.jsonl"))
	require.NoError(t, err)
	block := func(patterns ...string) chromedp.Action {
		return chromedp.ActionFunc(func(ctx context.Context) error {
			return network.SetBlockedURLs(patterns).Do(ctx)
		})
	}
	b.do(network.Enable(), block("*:upload*"), chromedp.SetUploadFiles(`.drop input`, []string{rows}))
	b.see("was created, but its file was not uploaded")
	b.press("Delete the dataset")
	b.wait("!document.body.innerText.includes('was not uploaded')")
	var list struct{ Datasets []struct{ State string } }
	s.api("GET", "/v1/accounts/default/datasets", nil, &list)
	require.Empty(t, list.Datasets)
	b.do(chromedp.Evaluate("document.querySelector('.drop input').value = ''", nil),
		chromedp.SetUploadFiles(`.drop input`, []string{rows}))
	b.see("was created, but its file was not uploaded")
	b.do(block())
	b.press("Upload again")
	b.see("400 rows")
	s.api("GET", "/v1/accounts/default/datasets", nil, &list)
	require.Len(t, list.Datasets, 1)
}

// TestSpeech transcribes a recording in the playground.
func TestSpeech(t *testing.T) {
	s := serve(t)
	var node struct{ Engines []string }
	s.apiAs("operator.json", "GET", "/v1/accounts/system/nodes/local", nil, &node)
	if !strings.Contains(strings.Join(node.Engines, " "), "transcribe") {
		t.Skip("needs pocketsphinx")
	}
	b := s.open()
	b.signIn("context.json")
	b.goTo("#/playground")
	recording, err := filepath.Abs(filepath.Join(root, "examples/go-forward.wav"))
	require.NoError(t, err)
	b.do(chromedp.SetUploadFiles(`input[type=file]`, []string{recording}))
	b.press("Transcribe")
	b.see("go forward ten meters")
	b.see("s of audio in")
}

// TestQuietHome checks that the home screen reads only the lists whose kinds changed, however busy
// the log is, and each at most every 3 seconds.
func TestQuietHome(t *testing.T) {
	s := serve(t)
	b := s.open()
	b.signIn("context.json")
	b.see("Nothing needs attention")
	b.wait(`['deployments', 'datasets', 'dpoJobs', 'rlorTrainerJobs', 'supervisedFineTuningJobs',
		'reinforcementFineTuningJobs'].every((c) => performance.getEntriesByType('resource')
			.filter((e) => e.name.includes('/' + c + '?')).length === 2)`) // again once the events are connected
	b.do(chromedp.Evaluate("performance.clearResourceTimings(); performance.setResourceTimingBufferSize(1000)", nil))
	began := time.Now()
	s.create(500)
	b.wait("performance.getEntriesByType('resource').some((e) => e.name.includes('/datasets?'))")
	var names []string
	b.do(chromedp.Evaluate("performance.getEntriesByType('resource').map((e) => e.name)", &names))
	rounds := int(time.Since(began)/(3*time.Second)) + 1
	require.LessOrEqual(t, len(names), rounds, "%q", names)
	for _, name := range names {
		require.Contains(t, name, "/datasets?")
	}
}

// get returns the body of a URL path with a key.
func (s *server) get(file, path string) string {
	r, err := http.NewRequest("GET", s.url+path, nil)
	require.NoError(s.t, err)
	r.Header.Set("Authorization", "Bearer "+s.key(file))
	res, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return string(data)
}

// cells returns the texts of the cells of the first table whose header begins with a text.
func (b *tab) cells(header string) (rows [][]string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll('table')]
		.find((t) => t.tHead?.rows[0]?.innerText.startsWith(%q))
		?.querySelectorAll('tbody tr').values().map((r) => [...r.cells].map((c) => c.innerText.trim()))
		.toArray()`, header), &rows))
	return rows
}

// TestNumbers compares the numbers of screens with those of the API at the same position: the
// usage, the metrics of a job, the replicas of deployments, the quotas, and the counts of lists.
func TestNumbers(t *testing.T) {
	s := serve(t)
	s.train()
	for range 3 {
		s.api("POST", "/inference/v1/completions", map[string]any{"model": "anneal-base", "prompt": "What is 1 + 2?",
			"max_tokens": 4}, nil)
	}
	s.create(30)
	b := s.open()
	b.signIn("context.json")

	var usage struct{ Usage []map[string]any }
	require.Eventually(t, func() bool {
		s.api("GET", "/v1/accounts/default/usage?groupBy=day,model", nil, &usage)
		return len(usage.Usage) > 0 && usage.Usage[0]["requests"] == "3"
	}, patience, 100*time.Millisecond)
	b.goTo("#/usage?by=day%2Cmodel")
	b.wait("document.querySelectorAll('tbody tr').length > 0")
	rows, columns := b.cells("startTime"), []string{}
	b.do(chromedp.Evaluate("[...document.querySelectorAll('thead th')].map((h) => h.innerText.trim())", &columns))
	require.Len(t, rows, len(usage.Usage))
	for i, row := range usage.Usage {
		require.Len(t, columns, len(row))
		for j, column := range columns {
			require.Equal(t, fmt.Sprint(row[column]), rows[i][j], column)
		}
	}

	var endpoint struct{ SignedURL string }
	s.api("GET", "/v1/accounts/default/supervisedFineTuningJobs/codes:getMetricsFileEndpoint", nil, &endpoint)
	at, err := url.Parse(endpoint.SignedURL)
	require.NoError(t, err)
	losses := map[string]string{}
	for line := range strings.Lines(s.get("context.json", at.RequestURI())) {
		var row map[string]json.RawMessage
		if json.Unmarshal([]byte(line), &row) == nil && row["train/loss"] != nil {
			losses[string(row["step"])] = string(row["train/loss"])
		}
	}
	b.goTo("#/jobs/sft/codes")
	b.do(chromedp.WaitVisible(".chart canvas"))
	b.do(chromedp.Evaluate("document.querySelectorAll('.chart details').forEach((d) => (d.open = true))", nil))
	b.wait(`[...document.querySelectorAll('.chart table')].some((t) =>
		t.tHead?.innerText.includes('train/loss') && t.tBodies[0].rows.length > 0)`)
	shown := b.cells("step\ttrain/loss")
	require.Len(t, shown, len(losses))
	require.NotEmpty(t, losses)
	for _, row := range shown {
		require.Equal(t, losses[row[0]], row[1], "step %s", row[0])
	}

	var list struct{ TotalSize int }
	s.api("GET", "/v1/accounts/default/datasets", nil, &list)
	require.Equal(t, 31, list.TotalSize)
	b.goTo("#/datasets")
	b.see(fmt.Sprintf("%d in total", list.TotalSize))
	var d struct {
		ReplicaStats        struct{ ReadyReplicaCount int }
		DesiredReplicaCount int
	}
	s.api("GET", "/v1/accounts/default/deployments/base", nil, &d)
	b.goTo("#/deployments")
	b.see(fmt.Sprintf("%d of %d", d.ReplicaStats.ReadyReplicaCount, d.DesiredReplicaCount))

	var quotas struct {
		Quotas []struct{ Name, Usage string }
	}
	s.api("GET", "/v1/accounts/default/quotas", nil, &quotas)
	b.goTo("#/quotas")
	b.wait("document.querySelectorAll('tbody tr').length > 0")
	for i, row := range b.cells("Quota") {
		require.Equal(t, quotas.Quotas[i].Usage, strings.ReplaceAll(row[1], ",", ""), row[0])
	}

	var events struct{ TotalSize int }
	s.api("GET", "/v1/accounts/default/events?pageSize=1", nil, &events)
	b.goTo("#/events")
	b.wait(fmt.Sprintf("document.querySelector('.timeline')?.getAttribute('aria-rowcount') === '%d'", events.TotalSize))
}

// TestCluster shows the operator a job that waits, with its place and what it waits for, as the API
// states them; and the control plane with the position of the log.
func TestCluster(t *testing.T) {
	s := serve(t)
	s.run("dataset", "create", "codes", "--file", root+"/examples/packing-codes.jsonl")
	s.apiAs("operator.json", "POST", "/v1/accounts/system/nodes/local:cordon", map[string]any{}, nil)
	s.run("sft", "create", "codes", "--dataset", "codes", "--epochs", "1")
	b := s.open()
	b.signIn("operator.json")
	b.goTo("#/cluster")
	b.see("supervisedFineTuningJobs/codes")
	b.see("1 of 1")
	var job struct{ Queue struct{ WaitingFor string } }
	s.api("GET", "/v1/accounts/default/supervisedFineTuningJobs/codes", nil, &job)
	require.NotEmpty(t, job.Queue.WaitingFor)
	b.see(job.Queue.WaitingFor)
	var ready struct{ Position string }
	require.NoError(t, json.Unmarshal([]byte(s.get("operator.json", "/readyz")), &ready))
	b.wait(fmt.Sprintf("[...document.querySelectorAll('.facts div')].some((d) => d.innerText === 'Position\\n%s')",
		ready.Position))
	planes := b.cells("Control plane")
	require.Len(t, planes, 1)
	require.Regexp(t, "^"+ready.Position+" ", planes[0][1])
	require.Equal(t, "0", planes[0][3])
	b.press("Uncordon")
	b.see("No job waits")
}

// TestAliases creates an alias in the cluster screen, moves it to another deployment and deletes
// it. A wrong target leaves it where it was. The playground offers it.
func TestAliases(t *testing.T) {
	s := serve(t)
	for _, id := range []string{"first", "second"} {
		s.run("deployment", "create", id, "--model", "anneal-base", "--watch")
	}
	aliases := func(id string) []string {
		var d struct{ Aliases []string }
		s.api("GET", "/v1/accounts/default/deployments/"+id, nil, &d)
		return d.Aliases
	}
	b := s.open()
	b.signIn("operator.json")
	b.goTo("#/cluster")
	const row = "[...document.querySelectorAll('[aria-label=Aliases] tr')].find((r) => r.cells[0].innerText === 'smart')"
	b.enter("Alias", "smart")
	b.enter("Deployment", "accounts/default/deployments/first")
	b.press("Create an alias")
	b.do(chromedp.WaitVisible("input[aria-label='Deployment of smart']"))
	require.Equal(t, []string{"smart"}, aliases("first"))
	const inRow = "//table[@aria-label='Aliases']//tr[td[1][.='smart']]" // other aliases are reserved for speech
	move := func(to string) {
		b.do(chromedp.Evaluate("document.querySelector(\"input[aria-label='Deployment of smart']\").select()", nil),
			chromedp.SendKeys("input[aria-label='Deployment of smart']", "accounts/default/deployments/"+to))
		b.do(chromedp.Click(inRow+"//button[normalize-space()='Move']", chromedp.BySearch))
	}
	move("none")
	b.do(chromedp.WaitVisible("[aria-label=Aliases] [role=alert]"))
	require.Equal(t, []string{"smart"}, aliases("first"))
	move("second")
	b.wait(row + "?.cells[1].innerText.endsWith('/second')")
	require.Empty(t, aliases("first"))
	require.Equal(t, []string{"smart"}, aliases("second"))
	b.goTo("#/playground")
	b.wait("[...document.querySelectorAll('section option')].some((o) => o.value === 'smart')")
	b.goTo("#/cluster")
	b.wait(row)
	b.do(chromedp.Click(inRow+"//button[normalize-space()='Delete']", chromedp.BySearch))
	b.press("Delete the alias?")
	b.wait("document.querySelector('[aria-label=Aliases]') && !" + row)
	require.Empty(t, aliases("second"))
}

// TestSettingsHideSignedURLs checks that no screen shows a signed URL, which gives access to
// everyone who sees it.
func TestSettingsHideSignedURLs(t *testing.T) {
	s := serve(t)
	s.train()
	b := s.open()
	b.signIn("context.json")
	for _, route := range []string{"#/jobs/sft/codes?tab=settings", "#/datasets/codes?tab=settings"} {
		b.goTo(route)
		b.see(`"createTime"`)
		b.wait("!document.documentElement.outerHTML.includes('signature=')")
	}
}
