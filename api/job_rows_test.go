package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A job on rows that it cannot learn from is refused when it is created, not
// hours later, as soon as the rows or their format are known.
func TestJobsAreRefusedRowsOfOtherShapes(t *testing.T) {
	s := newStage(t, Limits{})
	made := func(id, fields string, rows ...string) {
		require.Equal(t, http.StatusOK, s.call("POST", acme+"/datasets", "user", `{"datasetId":"`+id+`","dataset":{`+fields+`}}`).status)
		if len(rows) > 0 {
			a := s.upload(acme+"/datasets/"+id+":upload", "user", "file", "rows.jsonl", strings.NewReader(strings.Repeat(rows[0]+"\n", 3)))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		}
	}
	made("chats", "", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`)
	made("texts", "", `{"text":"a"}`)
	made("pairs", "", `{"input":{"messages":[{"role":"user","content":"a"}]},"preferred_output":[{"role":"assistant","content":"b"}],"non_preferred_output":[{"role":"assistant","content":"c"}]}`)
	made("prompts", `"format":"RL"`, `{"messages":[{"role":"user","content":"a"}]}`)
	made("coming", `"format":"RL"`)
	made("unknown", "")
	require.Equal(t, http.StatusOK, s.call("POST", acme+"/evaluators", "user", `{"evaluatorId":"e","evaluator":{"criteria":[{"type":"CODE_SNIPPETS","name":"e",`+
		`"codeSnippets":{"language":"python","fileContents":{"main.py":"def evaluate(messages, **kwargs): return 1"},"entryFile":"main.py","entryFunc":"evaluate"}}]}}`).status)
	for _, c := range []struct{ path, fields, refusal string }{
		{"supervisedFineTuningJobs", `"dataset":"chats","evaluationDataset":"chats"`, ""},
		{"supervisedFineTuningJobs", `"dataset":"texts"`, ""},
		{"supervisedFineTuningJobs", `"dataset":"unknown","evaluationDataset":"texts"`, ""},
		{"supervisedFineTuningJobs", `"dataset":"pairs"`, "dataset: accounts/acme/datasets/pairs has preference rows (format CHAT), and this takes chat rows (format CHAT) or completion rows"},
		{"supervisedFineTuningJobs", `"dataset":"coming"`, "dataset: accounts/acme/datasets/coming is of format RL, and this takes chat rows"},
		{"supervisedFineTuningJobs", `"dataset":"chats","evaluationDataset":"texts"`, "evaluationDataset: accounts/acme/datasets/texts has completion rows (format COMPLETION), and this takes chat rows"},
		{"supervisedFineTuningJobs:estimateCost", `"dataset":"pairs"`, "supervisedFineTuningJob.dataset: accounts/acme/datasets/pairs has preference rows"},
		{"dpoJobs", `"dataset":"pairs"`, ""},
		{"dpoJobs", `"dataset":"unknown"`, ""},
		{"dpoJobs", `"dataset":"chats"`, "dataset: accounts/acme/datasets/chats has chat rows (format CHAT), and this takes preference rows"},
		{"dpoJobs", `"dataset":"coming"`, "dataset: accounts/acme/datasets/coming is of format RL, and this takes preference rows"},
		{"reinforcementFineTuningJobs", `"dataset":"prompts","evaluator":"accounts/acme/evaluators/e"`, ""},
		{"reinforcementFineTuningJobs", `"dataset":"coming","evaluator":"accounts/acme/evaluators/e"`, ""},
		{"reinforcementFineTuningJobs", `"dataset":"prompts","evaluationDataset":"chats","evaluator":"accounts/acme/evaluators/e"`, "evaluationDataset: accounts/acme/datasets/chats has chat rows (format CHAT), and this takes prompt rows"},
		{"rlorTrainerJobs", `"dataset":"coming"`, ""},
		{"rlorTrainerJobs?rlorTrainerJobId=kept", `"keepAlive":true`, ""},
		{"rlorTrainerJobs", `"dataset":"prompts"`, "dataset: accounts/acme/datasets/prompts has prompt rows (format RL), and this takes samples rows"},
		{"rlorTrainerJobs/kept:executeTrainStep", `"outputModel":"m","dataset":"chats"`, "dataset: accounts/acme/datasets/chats has chat rows"},
	} {
		body := strings.NewReplacer(`ataset":"`, `ataset":"accounts/acme/datasets/`).Replace("{" + c.fields + "}")
		if strings.HasSuffix(c.path, ":estimateCost") {
			body = `{"supervisedFineTuningJob":` + body + `}`
		}
		a := s.call("POST", acme+"/"+c.path, "user", body)
		if c.refusal == "" {
			require.Equal(t, http.StatusOK, a.status, "%s %s: %s", c.path, c.fields, a.body)
			continue
		}
		require.Equal(t, http.StatusBadRequest, a.status, "%s %s: %s", c.path, c.fields, a.body)
		require.Contains(t, a.json(t)["message"], c.refusal)
	}
}
