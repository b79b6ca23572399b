package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

// manyFields is a JSON object's fields that nothing knows, n of them.
func manyFields(n int) string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"u%d": 1`, i)
	}
	return strings.Join(fields, ", ")
}

// A small request must not make a large answer: neither of violations, each of
// which names the fields that there are, nor of warnings, since clients refuse
// answers with too many headers.
func TestAnswersToManyFaultsAreBounded(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	a := s.call("POST", acme+"/deployments", "user", "{"+manyFields(5000)+"}")
	require.Equal(t, 400, a.status)
	require.Less(t, len(a.body), 300<<10)
	require.Contains(t, a.json(t)["message"], "more places")

	a = s.complete(`"prompt": "a", ` + manyFields(300))
	require.Equal(t, 200, a.status, "%s", a.body)
	warnings := a.header.Values("anneal-warning")
	require.Len(t, warnings, maxWarnings+1)
	require.Equal(t, "268 more unknown parameters were ignored", warnings[maxWarnings])
}

// Keys of JSON are as they are written: what is not called tools is not taken
// for tools that were checked.
func TestToolsOfAnotherSpellingAreUnknown(t *testing.T) {
	body := []byte(`{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}], "TOOLS": [{"bad": 1}]}`)
	value, err := wire.Parse(body)
	require.NoError(t, err)
	q, err := readChat(value, body, false)
	require.NoError(t, err)
	require.Equal(t, []string{"TOOLS"}, q.unknown)
	require.Equal(t, []json.RawMessage{json.RawMessage(`{"type": "function", "function": {"name": "f"}}`)}, q.prompts[0].chat.Tools)
}

// A null count is as good as none, as every other field of null is.
func TestCountsMayBeNull(t *testing.T) {
	s := newStage(t, Limits{})
	a := s.call("POST", acme+"/datasets", "user", `{"datasetId": "d", "dataset": {"exampleCount": null}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	a = s.call("POST", acme+"/datasets", "user", `{"datasetId": "e", "dataset": {"exampleCount": "x", "displayName": 5}}`)
	require.Equal(t, 400, a.status)
	require.NotContains(t, string(a.body), "strconv")
	require.Contains(t, string(a.body), "dataset.exampleCount")
	require.Contains(t, string(a.body), "dataset.displayName")
}

// The operator's own account has no quotas in a real installation either,
// where it is an account like others: its operator could not undo one.
func TestTheOperatorCannotLockItselfOut(t *testing.T) {
	s := newStage(t, Limits{})
	s.do(domain.Intend(domain.Accounts, "accounts/system", domain.Command[domain.Account](domain.CreateAccount{})))
	a := s.call("PATCH", "/v1/accounts/system/quotas/requests-per-minute", "operator", `{"maxValue": 0}`)
	require.Equal(t, 404, a.status, "%s", a.body)
	s.do(domain.Intend(domain.Quotas, "accounts/system/quotas/requests-per-minute", domain.Command[domain.Quota](domain.SetQuota{}))) // as older servers let one be set
	require.Equal(t, 200, s.call("GET", "/v1/accounts", "operator", "").status)
}

// What is loaded into a deployment is its account's to know.
func TestAddonsOfOthersAreNotTold(t *testing.T) {
	s := newStage(t, Limits{})
	s.deployForAddons("d1")
	s.addonFor("polite", "d1", domain.UpdateDeployedModel{DeployedModelSpec: domain.DeployedModelSpec{Default: true,
		Model: "accounts/acme/models/polite", Deployment: "accounts/acme/deployments/d1"}})
	a := s.call("POST", "/v1/accounts/other/deployedModels", "other",
		`{"model": "`+publicBase+`", "deployment": "accounts/acme/deployments/d1", "default": true}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "names no deployment of accounts/other")
	require.NotContains(t, string(a.body), "polite")
}

// What is read as JSON belongs to its key whatever its Content-Type says; and a
// form that broke off is not the same request as the whole one.
func TestAKeyBelongsToTheWholeBody(t *testing.T) {
	s := newStage(t, Limits{})
	s.settle()
	asForm := func(key, path, body string) answer {
		r := s.request("POST", acme+path, "admin", strings.NewReader(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		r.Header.Set(request.IdempotencyHeader, key)
		return s.send(r)
	}
	require.Equal(t, 200, asForm("k", "/secrets", `{"name": "s1", "keyName": "TOKEN", "value": "v"}`).status)
	a := asForm("k", "/secrets", `{"name": "s2", "keyName": "TOKEN", "value": "w"}`)
	require.Equal(t, 409, a.status, "%s", a.body)

	whole := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n" + strings.Repeat(`{"prompt": "p", "completion": "c"}`+"\n", 3) + "\r\n--x--\r\n"
	a = asForm("u", "/datasets/d:upload", strings.TrimSuffix(whole, "\r\n--x--\r\n"))
	require.Equal(t, 400, a.status, "%s", a.body)
	a = asForm("u", "/datasets/d:upload", whole)
	require.Equal(t, 409, a.status, "%s", a.body)
	require.Empty(t, a.header.Get(request.ReplayedHeader))
	require.Equal(t, 200, asForm("v", "/datasets/d:upload", whole).status)
}

// Who asks to be refused rather than cut short speaks of the max_tokens that
// they gave: the default yields to the window.
func TestTheDefaultOfMaxTokensYieldsToTheWindow(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	for fields, status := range map[string]int{``: 200, `, "max_tokens": null`: 200, `, "max_tokens": 511`: 200, `, "max_tokens": 512`: 400, `, "max_completion_tokens": 512`: 400} {
		a := s.complete(`"prompt": "a", "context_length_exceeded_behavior": "error"` + fields)
		require.Equal(t, status, a.status, "%s: %s", fields, a.body)
		a = s.chat(`"context_length_exceeded_behavior": "error"` + fields)
		require.Equal(t, status == 200 && !strings.Contains(fields, "511"), a.status == 200, "%s: %s", fields, a.body)
	}
}

// A replica's window may be less than the model's: what it tells is what counts,
// for a prompt of tokens too.
func TestTheReplicasWindowCounts(t *testing.T) {
	s := newStage(t, Limits{})
	s.deploy("d1", 1)
	s.sing(engines.Usage{PromptTokens: 5, ContextLength: 20}, engines.Chunk{Finish: engines.FinishStop})
	for _, prompt := range []string{`"a"`, `[97, 98, 99, 100, 101]`} {
		for most, status := range map[int]int{15: 200, 16: 400} {
			a := s.complete(fmt.Sprintf(`"prompt": %s, "max_tokens": %d, "context_length_exceeded_behavior": "error"`, prompt, most))
			require.Equal(t, status, a.status, "%s", a.body)
			require.Equal(t, status == 400, strings.Contains(string(a.body), "exceed the window of 20"), "%s", a.body)
		}
	}
}

// A preparation is told all of its faults at once.
func TestAllFaultsOfAPreparationAreTold(t *testing.T) {
	s := newStage(t, Limits{})
	a := s.call("POST", "/v1/"+publicBase+":prepare?bogus=1", "default", `{"precision": "NF9", "readMask": 5, "zz": 1}`)
	require.Equal(t, 400, a.status)
	for _, field := range []string{"precision: ", "readMask: ", "zz: ", "bogus: "} {
		require.Contains(t, a.json(t)["message"], field)
	}
}
