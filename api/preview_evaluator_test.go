package api

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
	"anneal/engines"
)

// An exactScorer is an engines.Scorer that ignores the code and compares responses with the ground
// truth of the row. Code that contains "broken" fails to load.
type exactScorer struct{}

type exactEvaluation struct{ code engines.EvaluatorCode }

func (exactScorer) Open(_ context.Context, code engines.EvaluatorCode) (engines.Evaluation, error) {
	text, err := os.ReadFile(filepath.Join(code.Dir, code.EntryFile))
	if err == nil && strings.Contains(string(text), "broken") {
		err = domain.Errorf(domain.InvalidArgument, "main.py: cannot be imported: %s", code.Env["TOKEN"])
	}
	return exactEvaluation{code}, err
}

func (e exactEvaluation) Score(_ context.Context, rows []map[string]any) (scores []engines.Score, err error) {
	for _, row := range rows {
		messages := row["messages"].([]any)
		if messages[len(messages)-1].(map[string]any)["content"] == row["ground_truth"] {
			scores = append(scores, engines.Score{Value: 1, Valid: true, Metrics: map[string]float64{"length": 4},
				Stdout: "right " + e.code.Env["TOKEN"] + "\n"})
		} else {
			scores = append(scores, engines.Score{Reason: "KeyError: 'x' (main.py:1)", Stderr: "KeyError: 'x'\n"})
		}
	}
	return scores, nil
}

func (exactEvaluation) Close() error { return nil }

const (
	previewPath = "/v1/accounts/acme/evaluators:previewEvaluator"
	lima        = `{"messages": [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Lima"}], ` +
		`"ground_truth": "Lima"}`
	quito = `{"messages": [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Lima"}], ` +
		`"ground_truth": "Quito"}`
	someCode = `"criteria": [{"codeSnippets": {"fileContents": {"main.py": "def evaluate(messages): return 1"}}}]`
)

func TestPreviewReportsEachRow(t *testing.T) {
	s := newHarness(t, request.Limits{})
	asText := strings.ReplaceAll(quito, `"`, `\"`)
	a := s.ok(http.MethodPost, previewPath,
		`{"evaluator": {`+someCode+`}, "sampleData": [`+lima+`, "`+asText+`", `+lima+`], "maxSamples": 2}`).json(t)
	require.Equal(t, []any{
		map[string]any{"success": true, "score": 1.0, "perMetricEvals": map[string]any{"length": 4.0}, "reason": ""},
		map[string]any{"success": false, "score": 0.0, "perMetricEvals": map[string]any{},
			"reason": "KeyError: 'x' (main.py:1)"},
	}, a["results"])
	require.Equal(t, 2.0, a["totalSamples"])
	require.Equal(t, []any{"right \n", ""}, a["stdout"])
	require.Equal(t, []any{"", "KeyError: 'x'\n"}, a["stderr"])
	require.Contains(t, a, "totalRuntimeMs")
	require.Empty(t, s.ok(http.MethodGet, "/v1/accounts/acme/evaluators", "").json(t)["evaluators"],
		"a preview stores nothing")
}

// TestPreviewOfDefaultDataset checks that a preview without sampleData scores the first rows of the
// evaluator's defaultDataset, and that errors name a defaultDataset that cannot be scored.
func TestPreviewOfDefaultDataset(t *testing.T) {
	s := newHarness(t, request.Limits{})
	fill := func(id, row string, n int) {
		s.ok("POST", acme+"/datasets", `{"datasetId": "`+id+`"}`)
		a := s.upload(acme+"/datasets/"+id+":upload", "user", "file", "rows.jsonl",
			strings.NewReader(strings.Repeat(row+"\n", n)))
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	fill("chats", `{"messages": [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Lima"}]}`, 12)
	fill("prompts", `{"messages": [{"role": "user", "content": "Capital?"}]}`, 3)
	preview := func(evaluator string) response {
		return s.call("POST", previewPath, "user", `{"evaluator": {`+evaluator+`}}`)
	}
	const chats = `"defaultDataset": "accounts/acme/datasets/chats"`
	a := preview(someCode + ", " + chats)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, 10.0, a.json(t)["totalSamples"])
	require.Len(t, a.json(t)["results"], 10)
	a = s.call("POST", previewPath, "user", `{"evaluator": {`+someCode+`, `+chats+`}, "maxSamples": 2}`)
	require.Equal(t, 2.0, a.json(t)["totalSamples"])
	for evaluator, message := range map[string]string{
		someCode: "sampleData: must have 1 to 100 rows, unless the evaluator has a defaultDataset",
		someCode + `, "defaultDataset": "accounts/acme/datasets/none"`: "evaluator.defaultDataset: " +
			"accounts/acme/datasets/none " +
			"is not a dataset of accounts/acme",
		someCode + `, "defaultDataset": "accounts/acme/datasets/prompts"`: "evaluator.defaultDataset: " +
			"accounts/acme/datasets/prompts has rows without a response to score (prompt)",
	} {
		a := preview(evaluator)
		require.Equal(t, 400, a.status)
		require.Contains(t, string(a.body), message)
		require.NotContains(t, string(a.body), "sampleData: must have 1 to 100 rows, unless the evaluator has a "+
			"defaultDataset; evaluator.defaultDataset")
	}
	s.ok("POST", acme+"/evaluators", `{"evaluatorId": "e", "evaluator": {`+someCode+`, `+chats+`}}`)
	build := domain.AcceptBuild{Revision: 1, Entry: domain.Entry{File: "main.py", Func: "evaluate"}}
	s.do(domain.Intend(domain.Evaluators, "accounts/acme/evaluators/e", domain.Command[domain.Evaluator](build)))
	a = preview(`"name": "accounts/acme/evaluators/e"`)
	require.NotContains(t, string(a.body), "sampleData")
}

func TestRejectedPreviews(t *testing.T) {
	s := newHarness(t, request.Limits{})
	many := strings.TrimSuffix(strings.Repeat(lima+",", 101), ",")
	for _, c := range []struct{ body, message string }{
		{`{}`, "evaluator: is required"},
		{`{"evaluator": {}, "sampleData": [` + lima + `]}`,
			"evaluator: must have either criteria with code, or the name of an evaluator"},
		{`{"evaluator": {"name": "accounts/other/evaluators/e"}, "sampleData": [` + lima + `]}`,
			`evaluator.name: evaluator "accounts/other/evaluators/e" does not exist in accounts/acme`},
		{`{"evaluator": {` + someCode + `}, "sampleData": []}`, "sampleData: must have 1 to 100 rows"},
		{`{"evaluator": {` + someCode + `}, "sampleData": [` + many + `]}`, "sampleData: must have 1 to 100 rows"},
		{`{"evaluator": {` + someCode + `}, "sampleData": [` + lima + `], "maxSamples": -1}`,
			"maxSamples: must be from 1 to 100"},
		{`{"evaluator": {` + someCode + `}, "sampleData": [7, "[]", {"ground_truth": 1}]}`,
			"sampleData[0]: must be a JSON object, or a string that contains one, is 7; sampleData[1]: must be a JSON " +
				"object, or a string that contains one; sampleData[2].messages: is required"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"language": "ruby", "fileContents": {"main.rb": "x"}}}]}, ` +
			`"sampleData": [` + lima + `]}`, "evaluator.criteria[0].codeSnippets.language: must be python"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"language": "ruby", "fileContents": {"main.rb": "x"}}}]}, ` +
			`"sampleData": []}`, "sampleData: must have 1 to 100 rows, has 0, unless the evaluator has a defaultDataset; " +
			"evaluator.criteria[0].codeSnippets.language: must " +
			"be python"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"fileContents": {"../main.py": "x"}}}]}, "sampleData": [` + lima +
			`]}`, "must be a path within the code"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"fileContents": {"main.py": "broken"}}}]}, "sampleData": [` + lima +
			`]}`, "main.py: cannot be imported"},
	} {
		a := s.call(http.MethodPost, previewPath, "user", c.body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", c.body, a.body)
		require.Contains(t, a.json(t)["message"], c.message)
	}
	require.Equal(t, http.StatusForbidden, s.call(http.MethodPost, previewPath, "inference", `{}`).status)
	none := s.another(func(o *Options) { o.Scorer = nil })
	require.Equal(t, http.StatusServiceUnavailable,
		none.call(http.MethodPost, previewPath, "user", `{"evaluator": {`+someCode+`}, "sampleData": [`+lima+`]}`).status)
	for range rest.MaxPreviews {
		_, ok := s.server.core.Busy.Enter("previews acme", rest.MaxPreviews)
		require.True(t, ok)
	}
	require.Equal(t, http.StatusTooManyRequests,
		s.call(http.MethodPost, previewPath, "user", `{"evaluator": {`+someCode+`}, "sampleData": [`+lima+`]}`).status)
}

// TestSecretsOfEvaluators checks that only a caller that may manage secrets can set the secrets of
// an evaluator, or change an evaluator that has secrets.
func TestSecretsOfEvaluators(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const all, one = "/v1/accounts/acme/evaluators", "/v1/accounts/acme/evaluators/e"
	name, secret := `"name": "accounts/acme/evaluators/e"`, `"secrets": ["accounts/acme/secrets/judge"]`
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/secrets", "admin",
		`{"name": "judge", "keyName": "TOKEN", "value": "canary-71"}`).status)
	create := fmt.Sprintf(`{"evaluatorId": "e", "evaluator": {%s, %s}}`, someCode, secret)
	require.Equal(t, 403, s.call("POST", all, "user", create).status)
	a := s.call("POST", all, "admin", create)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, []any{"accounts/acme/secrets/judge"}, a.json(t)["secrets"])
	for _, send := range []func(who string) response{
		func(who string) response { return s.call("PATCH", one+"?prepareCodeUpload=true", who, "{"+name+"}") },
		func(who string) response {
			return s.upload(one+":upload", who, "file", "main.py", strings.NewReader("x"))
		},
		func(who string) response {
			return s.call("POST", previewPath, who, fmt.Sprintf(`{"evaluator": {%s, %s}, "sampleData": [%s]}`, someCode, secret,
				lima))
		},
	} {
		require.Equal(t, 403, send("user").status)
		a := send("admin")
		require.Equal(t, 200, a.status, "%s", a.body)
		require.NotContains(t, string(a.body), "canary")
	}
	a = s.call("POST", previewPath, "admin",
		fmt.Sprintf(`{"evaluator": {"criteria": [{"codeSnippets": {"fileContents": {"main.py": "broken"}}}], %s}, `+
			`"sampleData": [%s]}`, secret, lima))
	require.Equal(t, "main.py: cannot be imported: [redacted]", a.json(t)["message"])
	require.Equal(t, 400, s.call("POST", all, "admin",
		`{"evaluator": {"secrets": ["judge", "accounts/acme/secrets/x", "accounts/acme/secrets/x"]}}`).status)
}

// TestPreviewOfBuild checks that a preview of an existing evaluator, by its name, runs the code
// that was built.
func TestPreviewOfBuild(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := domain.NewName("acme", domain.Evaluators.Collection, "e")
	send := `{"evaluator": {"name": "accounts/acme/evaluators/e"}, "sampleData": [` + lima + `]}`
	s.ok(http.MethodPost, "/v1/accounts/acme/evaluators", `{"evaluatorId": "e"}`)
	a := s.call(http.MethodPost, previewPath, "user", send)
	require.Equal(t, 400, a.status)
	require.Contains(t, a.json(t)["message"], "accounts/acme/evaluators/e has no successful build: its state is BUILDING")
	size := s.putFile("evaluators/acme/e/builds/1/lib/judge.py", "# fine")
	s.do(domain.Intend(domain.Evaluators, name,
		domain.AcceptBuild{Revision: 1, Entry: domain.Entry{File: "lib/judge.py", Func: "f"},
			Files: domain.Files{Prefix: "evaluators/acme/e/builds/1/", Sizes: map[string]int64{"lib/judge.py": size}}}))
	require.Equal(t, true, s.ok(http.MethodPost, previewPath,
		send).json(t)["results"].([]any)[0].(map[string]any)["success"])
}
