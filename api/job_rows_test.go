package api

import (
	"net/http"
	"strings"
	"testing"

	"anneal/api/request"

	"github.com/stretchr/testify/require"
)

// TestJobsRejectRowsOfOtherFormats checks that creating a job is rejected when the job's method
// cannot use the rows of the dataset, provided that the rows or their format are known.
func TestJobsRejectRowsOfOtherFormats(t *testing.T) {
	s := newHarness(t, request.Limits{})
	made := func(id, fields string, rows ...string) {
		require.Equal(t, http.StatusOK,
			s.call("POST", acme+"/datasets", "user", `{"datasetId":"`+id+`","dataset":{`+fields+`}}`).status)
		if len(rows) > 0 {
			a := s.upload(acme+"/datasets/"+id+":upload", "user", "file", "rows.jsonl",
				strings.NewReader(strings.Repeat(rows[0]+"\n", 3)))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		}
	}
	made("chats", "", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`)
	made("texts", "", `{"text":"a"}`)
	made("pairs", "", `{"input":{"messages":[{"role":"user","content":"a"}]},`+
		`"preferred_output":[{"role":"assistant","content":"b"}],"non_preferred_output":[{"role":"assistant",`+
		`"content":"c"}]}`)
	made("prompts", `"format":"RL"`, `{"messages":[{"role":"user","content":"a"}]}`)
	made("coming", `"format":"RL"`)
	made("unknown", "")
	require.Equal(t, http.StatusOK,
		s.call("POST", acme+"/evaluators", "user",
			`{"evaluatorId":"e","evaluator":{"criteria":[{"type":"CODE_SNIPPETS","name":"e",`+
				`"codeSnippets":{"language":"python","fileContents":{"main.py":"def evaluate(messages, **kwargs): return `+
				`1"},"entryFile":"main.py","entryFunc":"evaluate"}}]}}`).status)
	for _, c := range []struct{ path, fields, message string }{
		{"supervisedFineTuningJobs", `"dataset":"chats","evaluationDataset":"chats"`, ""},
		{"supervisedFineTuningJobs", `"dataset":"texts"`, ""},
		{"supervisedFineTuningJobs", `"dataset":"unknown","evaluationDataset":"texts"`, ""},
		{"supervisedFineTuningJobs", `"dataset":"pairs"`,
			"dataset: accounts/acme/datasets/pairs has preference rows (format CHAT), but chat rows (format " +
				"CHAT) or completion rows"},
		{"supervisedFineTuningJobs", `"dataset":"coming"`,
			"dataset: accounts/acme/datasets/coming has format RL, but chat rows"},
		{"supervisedFineTuningJobs", `"dataset":"chats","evaluationDataset":"texts"`,
			"evaluationDataset: accounts/acme/datasets/texts has completion rows (format COMPLETION), but chat rows"},
		{"supervisedFineTuningJobs:estimateCost", `"dataset":"pairs"`,
			"supervisedFineTuningJob.dataset: accounts/acme/datasets/pairs has preference rows"},
		{"dpoJobs", `"dataset":"pairs"`, ""},
		{"dpoJobs", `"dataset":"unknown"`, ""},
		{"dpoJobs", `"dataset":"chats"`,
			"dataset: accounts/acme/datasets/chats has chat rows (format CHAT), but preference rows"},
		{"dpoJobs", `"dataset":"coming"`,
			"dataset: accounts/acme/datasets/coming has format RL, but preference rows"},
		{"reinforcementFineTuningJobs", `"dataset":"prompts","evaluator":"accounts/acme/evaluators/e"`, ""},
		{"reinforcementFineTuningJobs", `"dataset":"coming","evaluator":"accounts/acme/evaluators/e"`, ""},
		{"reinforcementFineTuningJobs",
			`"dataset":"prompts","evaluationDataset":"chats","evaluator":"accounts/acme/evaluators/e"`,
			"evaluationDataset: accounts/acme/datasets/chats has chat rows (format CHAT), but prompt rows"},
		{"rlorTrainerJobs", `"dataset":"coming"`, ""},
		{"rlorTrainerJobs?rlorTrainerJobId=kept", `"keepAlive":true`, ""},
		{"rlorTrainerJobs", `"dataset":"prompts"`,
			"dataset: accounts/acme/datasets/prompts has prompt rows (format RL), but samples rows"},
		{"rlorTrainerJobs/kept:executeTrainStep", `"outputModel":"m","dataset":"chats"`,
			"dataset: accounts/acme/datasets/chats has chat rows"},
	} {
		body := strings.NewReplacer(`ataset":"`, `ataset":"accounts/acme/datasets/`).Replace("{" + c.fields + "}")
		if strings.HasSuffix(c.path, ":estimateCost") {
			body = `{"supervisedFineTuningJob":` + body + `}`
		}
		a := s.call("POST", acme+"/"+c.path, "user", body)
		if c.message == "" {
			require.Equal(t, http.StatusOK, a.status, "%s %s: %s", c.path, c.fields, a.body)
			continue
		}
		require.Equal(t, http.StatusBadRequest, a.status, "%s %s: %s", c.path, c.fields, a.body)
		require.Contains(t, a.json(t)["message"], c.message)
	}
}
