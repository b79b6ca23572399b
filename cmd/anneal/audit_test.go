package main_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestAudit checks over a server of its own that refused requests, logins of keys, nodes and readers,
// and reads of secrets are recorded with who, from where, by which key and through which server.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--worker=false", "--name", "first")
	admin := s.user()
	made := admin.must(http.MethodPost, "/apiKeys", object{"apiKeyId": "limited",
		"apiKey": object{"displayName": "limited", "role": "user"}})
	key := made["key"].(string)
	const hidden = "hidden-value-of-a-secret"
	admin.must(http.MethodPost, "/secrets", object{"name": "store", "keyName": "STORE",
		"value": `{"access_key_id": "a", "secret_access_key": "` + hidden + `"}`})
	s.as("default", key).must(http.MethodPost, "/datasets", object{"datasetId": "plain"})

	audit := func(args ...string) (records []object) {
		out := s.run(append([]string{"audit", "-o", "json"}, args...)...).ok(t)
		require.NotContains(t, out, hidden)
		require.NotContains(t, out, key)
		require.NoError(t, json.Unmarshal([]byte(out), &records))
		for _, r := range records {
			require.Equal(t, "first", r["controlPlane"])
			require.NotEmpty(t, r["time"])
		}
		return records
	}
	operator := []string{"--all-accounts", "--context", filepath.Join(s.dir, "operator.json"), "--filter"}

	status, _, err := s.as("default", key).do(http.MethodPost, "/secrets", object{"name": "x", "keyName": "X",
		"value": hidden})
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, status)
	records := audit("--filter", "status = 403")
	require.Len(t, records, 1)
	require.Equal(t, []any{"REQUEST_REFUSED", "default", "accounts/default/apiKeys/limited", "127.0.0.1", "createSecret",
		"ROLE"}, []any{records[0]["kind"], records[0]["account"], records[0]["apiKey"], records[0]["clientAddress"],
		records[0]["operation"], records[0]["reason"]})

	s.run("whoami").ok(t)
	records = audit("--filter", "kind = LOGIN_ACCEPTED AND operation = getApiKey")
	require.Len(t, records, 1)

	status, _, err = admin.do(http.MethodPost, "/datasets/plain:import", object{
		"externalUrl": "s3://127.0.0.1:1/b/x.jsonl", "credentialsSecret": "accounts/default/secrets/store"})
	require.NoError(t, err)
	require.NotZero(t, status)
	records = audit("--filter", "kind = SECRET_READ AND purpose = CHECK_CREDENTIALS")
	require.NotEmpty(t, records)
	require.Equal(t, []any{"accounts/default/secrets/store", "default", "127.0.0.1"},
		[]any{records[0]["secret"], records[0]["account"], records[0]["clientAddress"]})

	login := s.context
	_, err = nats.Connect(login.NATSURL, nats.UserInfo("default.context-reader", hidden))
	require.Error(t, err)
	_, err = nats.Connect(login.NATSURL, nats.UserInfo("rogue", hidden))
	require.Error(t, err)
	nc, err := nats.Connect(login.NATSURL, nats.UserInfo(login.NATSUser, login.NATSPassword))
	require.NoError(t, err)
	nc.Close()
	refused := map[any]object{}
	for _, r := range audit(append(operator, "kind = LOGIN_REFUSED")...) {
		refused[r["operation"]] = r
	}
	require.Len(t, refused, 2)
	require.Equal(t, "accounts/default/apiKeys/context-reader", refused["connectReader"]["apiKey"])
	require.Equal(t, "accounts/system/nodes/rogue", refused["connectNode"]["actor"])
	for _, r := range refused {
		require.Equal(t, "127.0.0.1", r["clientAddress"])
		require.Nil(t, r["account"], "only the operator sees it")
	}
	require.Empty(t, audit("--filter", "kind = LOGIN_REFUSED"))
	records = audit("--filter", "operation = connectReader")
	require.NotEmpty(t, records)
	require.Equal(t, "LOGIN_ACCEPTED", records[0]["kind"])

	require.Len(t, audit("--limit", "1"), 1)
	require.Contains(t, s.run("audit", "--since", "1h").ok(t), "createSecret")
	require.Contains(t, s.run("audit", "--all-accounts").stderr, "operator")
	blamed := s.run("blame", "datasets/plain", "-o", "json").ok(t)
	require.Contains(t, strings.ReplaceAll(blamed, " ", ""), `"clientaddress":"127.0.0.1"`)
}
