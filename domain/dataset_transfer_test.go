package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestAddressesOfObjectStores(t *testing.T) {
	for text, want := range map[string]domain.ObjectURL{
		"s3://rows/a.jsonl":                   {Bucket: "rows", Key: "a.jsonl"},
		"s3://rows/a b/":                      {Bucket: "rows", Key: "a b/"},
		"s3://rows":                           {Bucket: "rows"},
		"s3://my.rows/a/b?region=eu-west-1":   {Bucket: "my.rows", Key: "a/b", Region: "eu-west-1"},
		"s3://rows/a?endpoint=http://s3:9000": {Bucket: "rows", Key: "a", Endpoint: "http://s3:9000"},
	} {
		at, ok := domain.ParseObjectURL(text)
		require.True(t, ok, text)
		require.Equal(t, want, at)
	}
	for _, text := range []string{"", "rows.jsonl", "file:///etc/passwd", "mem://rows", "https://example.com/rows.jsonl",
		"gs://rows/a", "s3:///a", "s3://u:p@rows/a", "s3://rows:80/a", "s3://ROWS/a", "s3://rows/a#b", "s3://rows/a%00",
		"s3://rows/a?region=eu/x", "s3://rows/a?region=eu.example.com", "s3://rows/a?region=a&region=b",
		"s3://rows/a?profile=admin", "s3://rows/a?endpoint=file:///etc", "s3://rows/a?endpoint=https://u:p@host",
		"s3://rows/a?endpoint=https://host/path", "s3://rows/a?endpoint=https://", "s3://rows/a?endpoint=http://h?x=y",
	} {
		_, ok := domain.ParseObjectURL(text)
		require.False(t, ok, text)
	}
}

func TestCredentialsOfObjectStores(t *testing.T) {
	for _, value := range []string{`{"access_key_id": "AK", "secret_access_key": "SK", "session_token": "ST"}`,
		`{"aws_access_key_id": "AK", "aws_secret_access_key": "SK", "aws_session_token": "ST"}`} {
		c, wrong := domain.ParseStoreCredentials(domain.SecretValue(value))
		require.Empty(t, wrong)
		require.Equal(t, []string{"AK", "SK", "ST"},
			[]string{c.AccessKeyID.Reveal(), c.SecretAccessKey.Reveal(), c.SessionToken.Reveal()})
	}
	for value, want := range map[string][]string{
		"hunter2": {"the value is not a JSON object"}, "null": {"the value is not a JSON object"},
		`["hunter2"]`:                  {"the value is not a JSON object"},
		`{"access_key_id": "hunter2"}`: {"secret_access_key is missing"},
		`{"access_key_id": 7, "secret_access_key": "hunter2 hunter2"}`: {
			"access_key_id must be text of 1 to 8192 ASCII characters without spaces",
			"secret_access_key must be text of 1 to 8192 ASCII characters without spaces"},
		`{"access_key_id": "a", "secret_access_key": "b", "hunter2": "c"}`: {
			"the object has a field other than access_key_id, secret_access_key and session_token"},
	} {
		_, wrong := domain.ParseStoreCredentials(domain.SecretValue(value))
		require.Equal(t, want, wrong, value)
	}
}

func TestImportsEndInAnUploadOrAReason(t *testing.T) {
	var d domain.Dataset
	decide := func(cmd domain.Command[domain.Dataset]) error {
		e, err := cmd.Decide(d, noon)
		if e != nil {
			e.Evolve(&d)
		}
		return err
	}
	store := domain.TransferSpec{ExternalURL: "s3://rows/a.jsonl", CredentialsSecret: "accounts/acme/secrets/s"}
	failed := domain.Status{Code: "PERMISSION_DENIED", Message: "the object store refuses the credentials"}
	require.NoError(t, decide(domain.CreateDataset{DatasetSpec: domain.DatasetSpec{ExternalURL: store.ExternalURL,
		CredentialsSecret: store.CredentialsSecret}}))
	require.True(t, d.Import.Running())
	require.Equal(t, []string{store.CredentialsSecret}, d.References(""))
	require.NoError(t, decide(domain.FailImport{Import: 1, Status: failed}))
	require.Equal(t, failed, d.Status)
	require.Empty(t, d.References(""), "an import that has ended uses no secret")
	require.ErrorContains(t, decide(domain.CompleteImport{Import: 1, Files: domain.Files{Prefix: "p/"}}), "has ended")

	require.NoError(t, decide(domain.RequestImport{TransferSpec: store}))
	require.Equal(t, 2, d.Import.Number)
	require.ErrorContains(t, decide(domain.RequestImport{TransferSpec: domain.TransferSpec{ExternalURL: "s3://rows/b"}}),
		"s3://rows/a.jsonl")
	require.NoError(t, decide(domain.CompleteImport{Import: 2,
		Files: domain.Files{Prefix: "p/", Sizes: map[string]int64{"a.jsonl": 3, "b.jsonl": 3}}}))
	require.ErrorContains(t, decide(domain.RequestImport{TransferSpec: store}), "is being validated")
	require.Equal(t, 1, d.Upload)
	require.NoError(t, decide(domain.AcceptDataset{Upload: 1}))
	require.ErrorContains(t, decide(domain.RequestImport{TransferSpec: store}), "READY")

	require.ErrorContains(t, decide(domain.RequestExport{TransferSpec: store}), "must end in a slash")
	require.ErrorContains(t, decide(domain.RequestExport{TransferSpec: domain.TransferSpec{ExternalURL: "s3://out/"}}),
		"is required")
	store.ExternalURL = "s3://out/rows/"
	require.NoError(t, decide(domain.RequestExport{TransferSpec: store}))
	require.Equal(t, []string{store.CredentialsSecret}, d.References(""))
	require.NoError(t, decide(domain.CompleteExport{Export: 1}))
	require.Equal(t, domain.TransferCompleted, d.Export.State)
}

// TestExternalURLsOfEarlierVersionsAreNotImported folds an event without the request of an import.
func TestExternalURLsOfEarlierVersionsAreNotImported(t *testing.T) {
	var d domain.Dataset
	domain.DatasetCreated{DatasetSpec: domain.DatasetSpec{ExternalURL: "s3://rows/a.jsonl"}}.Evolve(&d)
	require.Nil(t, d.Import)
}
