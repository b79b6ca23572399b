package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

// manyFields returns n unknown fields of a JSON object.
func manyFields(n int) string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"u%d": 1`, i)
	}
	return strings.Join(fields, ", ")
}

// TestErrorsAndWarningsAreBounded checks that a small request does not cause a large response,
// neither with violations, each of which lists the known fields, nor with warnings, because clients
// reject responses with too many headers.
func TestErrorsAndWarningsAreBounded(t *testing.T) {
	s := servingHarness(t, 1)
	a := s.call("POST", acme+"/deployments", "user", "{"+manyFields(5000)+"}")
	require.Equal(t, 400, a.status)
	require.Less(t, len(a.body), 300<<10)
	require.Contains(t, a.json(t)["message"], "has more than")

	a = s.complete(`"prompt": "a", ` + manyFields(300))
	require.Equal(t, 200, a.status, "%s", a.body)
	warnings := a.header.Values("anneal-warning")
	require.Len(t, warnings, request.MaxWarnings+1)
	require.Equal(t, "268 more unknown parameters were ignored", warnings[request.MaxWarnings])
}

// TestCountsMayBeNull checks that a null count means the same as an absent one, like null in every
// other field.
func TestCountsMayBeNull(t *testing.T) {
	s := newHarness(t, request.Limits{})
	a := s.call("POST", acme+"/datasets", "user", `{"datasetId": "d", "dataset": {"exampleCount": null}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	a = s.call("POST", acme+"/datasets", "user", `{"datasetId": "e", "dataset": {"exampleCount": "x", "displayName": 5}}`)
	require.Equal(t, 400, a.status)
	require.NotContains(t, string(a.body), "strconv")
	require.Contains(t, string(a.body), "dataset.exampleCount")
	require.Contains(t, string(a.body), "dataset.displayName")
}

// TestOperatorCannotLockItselfOut checks that the operator cannot set a quota of its own account,
// and that a quota in the log does not reject its requests, because with a quota of 0 requests it
// could not remove the quota again.
func TestOperatorCannotLockItselfOut(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(domain.Intend(domain.Accounts, "accounts/system", domain.CreateAccount{}))
	a := s.call("PATCH", "/v1/accounts/system/quotas/requests-per-minute", "operator", `{"maxValue": 0}`)
	require.Equal(t, 404, a.status, "%s", a.body)
	// the log may contain a quota of the operator's account, because older servers allowed it
	s.do(domain.Intend(domain.Quotas, "accounts/system/quotas/requests-per-minute", domain.SetQuota{}))
	require.Equal(t, 200, s.call("GET", "/v1/accounts", "operator", "").status)
}

// TestAddonsOfOthersAreNotDisclosed checks that addons that other accounts loaded into a deployment
// are not disclosed.
func TestAddonsOfOthersAreNotDisclosed(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.deployForAddons("d1")
	s.addonFor("polite", "d1", domain.UpdateDeployedModel{DeployedModelSpec: domain.DeployedModelSpec{Default: true,
		Model: "accounts/acme/models/polite", Deployment: "accounts/acme/deployments/d1"}})
	a := s.call("POST", "/v1/accounts/other/deployedModels", "other",
		`{"model": "`+publicBase+`", "deployment": "accounts/acme/deployments/d1", "default": true}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "is not a deployment of accounts/other")
	require.NotContains(t, string(a.body), "polite")
}

// TestIdempotencyKeyCoversWholeBody checks that a request with the same idempotency key but another
// JSON body is rejected, for any Content-Type, and that an interrupted form and the complete form
// count as different requests.
func TestIdempotencyKeyCoversWholeBody(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.createTargets()
	asForm := func(key, path, body string) response {
		r := s.request("POST", acme+path, "admin", strings.NewReader(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		r.Header.Set(request.IdempotencyHeader, key)
		return s.send(r)
	}
	require.Equal(t, 200, asForm("k", "/secrets", `{"name": "s1", "keyName": "TOKEN", "value": "v"}`).status)
	a := asForm("k", "/secrets", `{"name": "s2", "keyName": "TOKEN", "value": "w"}`)
	require.Equal(t, 409, a.status, "%s", a.body)

	whole := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\r\n" +
		strings.Repeat(`{"prompt": "p", "completion": "c"}`+"\n", 3) + "\r\n--x--\r\n"
	a = asForm("u", "/datasets/d:upload", strings.TrimSuffix(whole, "\r\n--x--\r\n"))
	require.Equal(t, 400, a.status, "%s", a.body)
	a = asForm("u", "/datasets/d:upload", whole)
	require.Equal(t, 409, a.status, "%s", a.body)
	require.Empty(t, a.header.Get(request.ReplayedHeader))
	require.Equal(t, 200, asForm("v", "/datasets/d:upload", whole).status)
}

// TestDefaultMaxTokensFitsWindow checks that context_length_exceeded_behavior "error" rejects only
// requests with max_tokens, because the default of max_tokens is limited to the context length.
func TestDefaultMaxTokensFitsWindow(t *testing.T) {
	s := servingHarness(t, 1)
	for fields, status := range map[string]int{``: 200, `, "max_tokens": null`: 200, `, "max_tokens": 511`: 200,
		`, "max_tokens": 512`: 400, `, "max_completion_tokens": 512`: 400} {
		a := s.complete(`"prompt": "a", "context_length_exceeded_behavior": "error"` + fields)
		require.Equal(t, status, a.status, "%s: %s", fields, a.body)
		a = s.chat(`"context_length_exceeded_behavior": "error"` + fields)
		require.Equal(t, status == 200 && !strings.Contains(fields, "511"), a.status == 200, "%s: %s", fields, a.body)
	}
}

// TestWindowOfReplica checks that the context length that a replica reports applies when it is
// smaller than the context length of the model, also to a prompt of token IDs.
func TestWindowOfReplica(t *testing.T) {
	s := servingHarness(t, 1)
	s.respond(engines.Usage{PromptTokens: 5, ContextLength: 20}, engines.Chunk{Finish: engines.FinishStop})
	for _, prompt := range []string{`"a"`, `[97, 98, 99, 100, 101]`} {
		for maxTokens, status := range map[int]int{15: 200, 16: 400} {
			a := s.complete(fmt.Sprintf(`"prompt": %s, "max_tokens": %d, "context_length_exceeded_behavior": "error"`, prompt,
				maxTokens))
			require.Equal(t, status, a.status, "%s", a.body)
			require.Equal(t, status == 400, strings.Contains(string(a.body), "exceed the context length of 20"), "%s", a.body)
		}
	}
}

// TestUploadErrorsAreReportedTogether checks that the error of a request to prepare a model lists
// the violations in the body and in the query together.
func TestUploadErrorsAreReportedTogether(t *testing.T) {
	s := newHarness(t, request.Limits{})
	a := s.call("POST", "/v1/"+publicBase+":prepare?bogus=1", "default", `{"precision": "NF9", "readMask": 5, "zz": 1}`)
	require.Equal(t, 400, a.status)
	for _, field := range []string{"precision: ", "readMask: ", "zz: ", "bogus: "} {
		require.Contains(t, a.json(t)["message"], field)
	}
}
