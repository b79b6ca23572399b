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

	"anneal/domain"
	"anneal/engines"
)

// An exactScorer compares answers with the row's ground truth, whatever the code
// says; code that says "broken" cannot be opened.
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
			scores = append(scores, engines.Score{Value: 1, Valid: true, Metrics: map[string]float64{"length": 4}, Stdout: "right " + e.code.Env["TOKEN"] + "\n"})
		} else {
			scores = append(scores, engines.Score{Reason: "KeyError: 'x' (main.py:1)", Stderr: "KeyError: 'x'\n"})
		}
	}
	return scores, nil
}

func (exactEvaluation) Close() error { return nil }

const (
	previewPath = "/v1/accounts/acme/evaluators:previewEvaluator"
	lima        = `{"messages": [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Lima"}], "ground_truth": "Lima"}`
	quito       = `{"messages": [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Lima"}], "ground_truth": "Quito"}`
	someCode    = `"criteria": [{"codeSnippets": {"fileContents": {"main.py": "def evaluate(messages): return 1"}}}]`
)

func TestAPreviewTellsOfEachRow(t *testing.T) {
	s := newStage(t, Limits{})
	asText := strings.ReplaceAll(quito, `"`, `\"`)
	a := s.ok(http.MethodPost, previewPath, `{"evaluator": {`+someCode+`}, "sampleData": [`+lima+`, "`+asText+`", `+lima+`], "maxSamples": 2}`).json(t)
	require.Equal(t, []any{
		map[string]any{"success": true, "score": 1.0, "perMetricEvals": map[string]any{"length": 4.0}, "reason": ""},
		map[string]any{"success": false, "score": 0.0, "perMetricEvals": map[string]any{}, "reason": "KeyError: 'x' (main.py:1)"},
	}, a["results"])
	require.Equal(t, 2.0, a["totalSamples"])
	require.Equal(t, []any{"right \n", ""}, a["stdout"])
	require.Equal(t, []any{"", "KeyError: 'x'\n"}, a["stderr"])
	require.Contains(t, a, "totalRuntimeMs")
	require.Empty(t, s.ok(http.MethodGet, "/v1/accounts/acme/evaluators", "").json(t)["evaluators"], "nothing is kept")
}

func TestPreviewsThatAreRefused(t *testing.T) {
	s := newStage(t, Limits{})
	many := strings.TrimSuffix(strings.Repeat(lima+",", 101), ",")
	for _, c := range []struct{ body, message string }{
		{`{}`, "evaluator: is required"},
		{`{"evaluator": {}, "sampleData": [` + lima + `]}`, "evaluator: must have criteria with code, or the name of an evaluator"},
		{`{"evaluator": {"name": "accounts/other/evaluators/e"}, "sampleData": [` + lima + `]}`, "the name of an evaluator of accounts/acme"},
		{`{"evaluator": {` + someCode + `}, "sampleData": []}`, "sampleData: must have 1 to 100 entries"},
		{`{"evaluator": {` + someCode + `}, "sampleData": [` + many + `]}`, "sampleData: must have 1 to 100 entries"},
		{`{"evaluator": {` + someCode + `}, "sampleData": [` + lima + `], "maxSamples": -1}`, "maxSamples: must be from 1 to 100"},
		{`{"evaluator": {` + someCode + `}, "sampleData": [7, "[]", {"ground_truth": 1}]}`, "sampleData[0]: must be a JSON object, or a text that holds one; sampleData[1]: must be a JSON object, or a text that holds one; sampleData[2].messages: is required"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"language": "ruby", "fileContents": {"main.rb": "x"}}}]}, "sampleData": [` + lima + `]}`, "evaluator.criteria[0].codeSnippets.language: must be python"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"language": "ruby", "fileContents": {"main.rb": "x"}}}]}, "sampleData": []}`, "sampleData: must have 1 to 100 entries; evaluator.criteria[0].codeSnippets.language: must be python"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"fileContents": {"../main.py": "x"}}}]}, "sampleData": [` + lima + `]}`, "must be a path within the code"},
		{`{"evaluator": {"criteria": [{"codeSnippets": {"fileContents": {"main.py": "broken"}}}]}, "sampleData": [` + lima + `]}`, "main.py: cannot be imported"},
	} {
		a := s.call(http.MethodPost, previewPath, "user", c.body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", c.body, a.body)
		require.Contains(t, a.json(t)["message"], c.message)
	}
	require.Equal(t, http.StatusForbidden, s.call(http.MethodPost, previewPath, "inference", `{}`).status)
	none := s.twin(func(o *Options) { o.Scorer = nil })
	require.Equal(t, http.StatusServiceUnavailable, none.call(http.MethodPost, previewPath, "user", `{"evaluator": {`+someCode+`}, "sampleData": [`+lima+`]}`).status)
	for range mostPreview {
		_, ok := s.server.busy.Enter("previews acme", mostPreview)
		require.True(t, ok)
	}
	require.Equal(t, http.StatusTooManyRequests, s.call(http.MethodPost, previewPath, "user", `{"evaluator": {`+someCode+`}, "sampleData": [`+lima+`]}`).status)
}

// Code that is given secrets is written by those who may see them.
func TestSecretsOfEvaluators(t *testing.T) {
	s := newStage(t, Limits{})
	const all, one = "/v1/accounts/acme/evaluators", "/v1/accounts/acme/evaluators/e"
	name, secret := `"name": "accounts/acme/evaluators/e"`, `"secrets": ["accounts/acme/secrets/judge"]`
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/secrets", "admin", `{"name": "judge", "keyName": "TOKEN", "value": "canary-71"}`).status)
	create := fmt.Sprintf(`{"evaluatorId": "e", "evaluator": {%s, %s}}`, someCode, secret)
	require.Equal(t, 403, s.call("POST", all, "user", create).status)
	a := s.call("POST", all, "admin", create)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, []any{"accounts/acme/secrets/judge"}, a.json(t)["secrets"])
	for _, ask := range []func(who string) answer{
		func(who string) answer { return s.call("PATCH", one+"?prepareCodeUpload=true", who, "{"+name+"}") },
		func(who string) answer {
			return s.upload(one+":upload", who, "file", "main.py", strings.NewReader("x"))
		},
		func(who string) answer {
			return s.call("POST", previewPath, who, fmt.Sprintf(`{"evaluator": {%s, %s}, "sampleData": [%s]}`, someCode, secret, lima))
		},
	} {
		require.Equal(t, 403, ask("user").status)
		a := ask("admin")
		require.Equal(t, 200, a.status, "%s", a.body)
		require.NotContains(t, string(a.body), "canary")
	}
	a = s.call("POST", previewPath, "admin", fmt.Sprintf(`{"evaluator": {"criteria": [{"codeSnippets": {"fileContents": {"main.py": "broken"}}}], %s}, "sampleData": [%s]}`, secret, lima))
	require.Equal(t, "main.py: cannot be imported: [redacted]", a.json(t)["message"])
	require.Equal(t, 400, s.call("POST", all, "admin", `{"evaluator": {"secrets": ["judge", "accounts/acme/secrets/x", "accounts/acme/secrets/x"]}}`).status)
}

// A preview by name runs what was built.
func TestAPreviewOfWhatWasBuilt(t *testing.T) {
	s := newStage(t, Limits{})
	name := domain.NewName("acme", domain.Evaluators.Collection, "e")
	ask := `{"evaluator": {"name": "accounts/acme/evaluators/e"}, "sampleData": [` + lima + `]}`
	s.ok(http.MethodPost, "/v1/accounts/acme/evaluators", `{"evaluatorId": "e"}`)
	a := s.call(http.MethodPost, previewPath, "user", ask)
	require.Equal(t, 400, a.status)
	require.Contains(t, a.json(t)["message"], "accounts/acme/evaluators/e was never built: it is BUILDING")
	size, err := s.store.Put(t.Context(), "evaluators/acme/e/builds/1/lib/judge.py", strings.NewReader("# fine"))
	require.NoError(t, err)
	s.do(domain.Intend(domain.Evaluators, name, domain.Command[domain.Evaluator](domain.AcceptBuild{Revision: 1, Entry: domain.Entry{File: "lib/judge.py", Func: "f"},
		Files: domain.Files{Folder: "evaluators/acme/e/builds/1/", Sizes: map[string]int64{"lib/judge.py": size}}})))
	require.Equal(t, true, s.ok(http.MethodPost, previewPath, ask).json(t)["results"].([]any)[0].(map[string]any)["success"])
}
