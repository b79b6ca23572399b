package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

func storeSecret(s *harness, id, value string) string {
	s.Helper()
	a := s.call("POST", secretsPath, "admin", `{"name": "`+id+`", "keyName": "STORE", "value": `+value+`}`)
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
	return "accounts/acme/secrets/" + id
}

func TestDatasetsAreImportedAndExportedByURL(t *testing.T) {
	s := newHarness(t, request.Limits{})
	secret := storeSecret(s, "store", `"{\"access_key_id\": \"a\", \"secret_access_key\": \"b\"}"`)
	a := s.ok("POST", acme+"/datasets", `{"datasetId": "d", "dataset": {"externalUrl": "s3://rows/chats/",
		"credentialsSecret": "`+secret+`"}}`)
	require.Empty(t, a.header.Values("anneal-warning"))
	require.Equal(t, "the rows are being imported from s3://rows/chats/",
		a.json(t)["status"].(map[string]any)["message"])
	row, _ := s.world.View().Datasets.Get("accounts/acme/datasets/d")
	require.Equal(t, domain.TransferSpec{ExternalURL: "s3://rows/chats/", CredentialsSecret: secret},
		row.State.Import.TransferSpec)

	refused := s.call("DELETE", secretsPath+"/store", "admin", "")
	require.Equal(t, http.StatusBadRequest, refused.status)
	require.Contains(t, string(refused.body), "accounts/acme/datasets/d")

	a = s.call("POST", acme+"/datasets/d:import", "user", `{"externalUrl": "s3://other/a.jsonl"}`)
	require.Contains(t, string(a.body), "IMPORT_RUNNING")
	s.do(domain.Intend(domain.Datasets, "accounts/acme/datasets/d", domain.FailImport{Import: 1, Status: domain.Status{
		Code: "NOT_FOUND", Message: "no object"}}))
	require.Equal(t, "no object", s.ok("GET", acme+"/datasets/d", "").json(t)["status"].(map[string]any)["message"])
	s.ok("POST", acme+"/datasets/d:import", ``)
	row, _ = s.world.View().Datasets.Get("accounts/acme/datasets/d")
	require.Equal(t, 2, row.State.Import.Number)
	require.Equal(t, secret, row.State.Import.CredentialsSecret)

	s.readyDataset("ready")
	a = s.ok("POST", acme+"/datasets/ready:export", `{"externalUrl": "s3://out/x/", "credentialsSecret": "`+secret+`"}`)
	require.Equal(t, map[string]any{"externalUrl": "s3://out/x/", "credentialsSecret": secret, "state": "RUNNING",
		"status": map[string]any{"code": "OK", "message": ""}}, a.json(t)["export"])
	a = s.call("PATCH", acme+"/datasets/ready", "user",
		`{"name": "accounts/acme/datasets/ready", "externalUrl": "s3://a-b/c"}`)
	require.Contains(t, strings.Join(a.header.Values("anneal-warning"), " "), "externalUrl: accepted, but has no "+
		"effect on a dataset that is READY or derived")
}

// TestRequestsForTransfersAreChecked checks that errors of imports and exports name the invalid
// field, and never contain a part of a secret's value.
func TestRequestsForTransfersAreChecked(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.readyDataset("ready")
	s.makeDataset("waits")
	text, lacks := storeSecret(s, "text", `"hunter2"`), storeSecret(s, "lacks", `"{\"access_key_id\": \"hunter2\"}"`)
	for _, c := range []struct{ path, body, field, message string }{
		{"", `{"dataset": {"externalUrl": "file:///etc/passwd"}}`, "dataset.externalUrl", "must be s3://BUCKET/KEY"},
		{"", `{"dataset": {"externalUrl": "https://example.com/a"}}`, "dataset.externalUrl", "must be s3://BUCKET/KEY"},
		{"", `{"dataset": {"externalUrl": "s3://rows/a", "credentialsSecret": "` + text + `"}}`,
			"dataset.credentialsSecret", text + " must be JSON like"},
		{"", `{"dataset": {"externalUrl": "s3://rows/a", "credentialsSecret": "` + lacks + `"}}`,
			"dataset.credentialsSecret", "secret_access_key is missing"},
		{"", `{"dataset": {"externalUrl": "s3://rows/a", "credentialsSecret": "accounts/acme/secrets/none"}}`,
			"dataset.credentialsSecret", "must be the name of a secret of accounts/acme"},
		{"", `{"dataset": {"externalUrl": "s3://rows/a", "credentialsSecret": "accounts/other/secrets/s"}}`,
			"dataset.credentialsSecret", "must be the name of a secret of accounts/acme"},
		{"", `{"sourceDatasetId": "ready", "dataset": {"externalUrl": "s3://rows/a"}}`, "dataset.externalUrl",
			"contradicts sourceDatasetId"},
		{"/waits:import", `{}`, "externalUrl", "must be s3://BUCKET/KEY"},
		{"/waits:import", `{"externalUrl": "mem://x", "credentialsSecret": "` + text + `"}`, "credentialsSecret",
			"must be JSON like"},
		{"/ready:export", `{"externalUrl": "file:///tmp/x"}`, "credentialsSecret", "required"},
		{"/ready:export", `{"externalUrl": "file:///tmp/x", "credentialsSecret": "` + lacks + `"}`, "externalUrl",
			"must be s3://BUCKET/KEY"},
	} {
		a := s.call("POST", acme+"/datasets"+c.path, "user", c.body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", c.body, a.body)
		require.Contains(t, string(a.body), c.field+": ", c.body)
		require.Contains(t, string(a.body), c.message, c.body)
		require.NotContains(t, string(a.body), "hunter2")
	}
	a := s.call("POST", acme+"/datasets/waits:export", "user", `{"externalUrl": "s3://out/", "credentialsSecret": "`+
		storeSecret(s, "store", `"{\"access_key_id\": \"a\", \"secret_access_key\": \"b\"}"`)+`"}`)
	require.Contains(t, string(a.body), "DATASET_NOT_READY")
	require.Contains(t, string(s.call("POST", acme+"/datasets/ready:import", "user",
		`{"externalUrl": "s3://rows/a"}`).body), "DATASET_READY")
}
