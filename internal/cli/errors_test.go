package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
)

// TestErrorsNameFlags checks that an error of the API names the flags and arguments of the command
// that set the violated fields, and ends with hints.
func TestErrorsNameFlags(t *testing.T) {
	for _, test := range []struct{ line, body, shown string }{
		{"dataset get d", `{"message":"there is no dataset accounts/a/datasets/d","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no dataset accounts/a/datasets/d\nhint: list datasets with `anneal dataset list`"},
		{"rft get r", `{"message":"there is no job","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no job\nhint: list jobs with `anneal rft list`"},
		{"shape validate fast v1", `{"message":"there is no version","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no version\nhint: list shape versions with `anneal shape versions fast`"},
		{"account get other", `{"message":"no such account","details":[{"reason":"NOT_FOUND"}]}`,
			"no such account\nhint: list accounts with `anneal account list`"},
		{"complete -m accounts/a/models/m x", `{"error":{"message":"not deployed","code":"MODEL_NOT_DEPLOYED"}}`,
			"not deployed\nhint: deploy the model with `anneal deployment create --model accounts/a/models/m --watch`"},
		{"complete -m accounts/a/models/m x", `{"error":{"message":"there is no model m","code":"MODEL_NOT_FOUND"}}`,
			"there is no model m\nhint: list the names of models with `anneal model names`"},
		{"complete -m accounts/a/models/m x", `{"error":{"message":"max_tokens: must be positive","param":"max_tokens"}}`,
			"--max-tokens: must be positive"},
		{"chat -m a/b x", `{"error":{"message":"model: transcribes speech","param":"model"}}`,
			"--model: transcribes speech\nhint: list the names of models with `anneal model names`; `anneal transcribe` " +
				"transcribes speech"},
		{"transcribe -m a/b http://x/y.wav", `{"error":{"message":"model: transcribes no speech","param":"model"}}`,
			"--model: transcribes no speech\nhint: list the names of models with `anneal model names`; `anneal complete` " +
				"completes prompts"},
		{"transcribe -m a/b http://x/y.wav",
			`{"error":{"message":"response_format: must be json","param":"response_format"}}`, "--format: must be json"},
		{"transcribe -m a/b http://x/y.wav --translate", `{"error":{"message":"task: cannot translate","param":"task"}}`,
			"--translate: cannot translate"},
		{"deployment scale d 5", violations("replicaCount: must be from 1 to 2"),
			"REPLICAS: must be from 1 to 2\nhint: change the allowed range with `anneal deployment update d " +
				"--min-replicas N " +
				"--max-replicas N`"},
		{"quota set a jobs 5", violations("maxValue: must be at most 4"), "LIMIT: must be at most 4"},
		{"dataset create X", violations("datasetId: must be short"), "ID \"X\": must be short"},
		{"key create X", violations("apiKeyId: must be short"), "ID \"X\": must be short"},
		{"addon load X --model m --deployment d", violations("deployedModelId: must be short"), "ID \"X\": must be short"},
		{"rlor create X --dataset d", violations("rlorTrainerJobId: must be short"), "ID \"X\": must be short"},
		{"sft create X --dataset d", violations("supervisedFineTuningJobId: must be short"), "ID \"X\": must be short"},
		{"sft create --dataset d", violations("dataset: is not a dataset"),
			"--dataset: is not a dataset\nhint: list datasets with `anneal dataset list`"},
		{"sft create --dataset d", violations("epochs: must be positive", "loraRank: must be a power of two"),
			"2 fields or rows are invalid:\n  --epochs: must be positive\n  --lora-rank: must be a power of two"},
		{"dpo create --dataset d --epochs 1001", violations("trainingConfig.epochs: must be at most 1000"),
			"--epochs: must be at most 1000"},
		{"dpo create --dataset d", violations("trainingConfig.epochs: must be positive"),
			"trainingConfig.epochs: must be positive"},
		{"dpo create --dataset d --warm-start-from m", violations("trainingConfig.warmStartFrom: is not a model"),
			"--warm-start-from: is not a model\nhint: list models with `anneal model list`"},
		{"deployment create --model m --min-replicas 1", violations("minReplicaCount: must not be negative"),
			"--min-replicas: must not be negative"},
		{"deployment create --model m --scale-up-window 1s", violations("autoscalingPolicy.scaleUpWindow: too short"),
			"--scale-up-window: too short"},
		{"deployment create --model m --shape s", violations("deploymentShape: is not a shape"),
			"--shape: is not a shape\nhint: list the versions that match a model with `anneal shape match --model m`; " +
				"--skip-shape-validation accepts one that is not validated"},
		{"deployment delete d", `{"message":"in use","details":[{"reason":"RECENTLY_USED"}]}`,
			"in use\nhint: delete the deployment anyway with --ignore-checks"},
		{"dataset create d", violations("dataset: has 0 rows"), "dataset: has 0 rows"},
		{"dataset get d", violations("rows.jsonl:3: messages must be a list"), "rows.jsonl:3: messages must be a list"},
	} {
		server := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, test.body, http.StatusBadRequest) }
		c, err := runAgainst(t, server, strings.Fields(test.line)...)
		require.Error(t, err, test.line)
		require.Equal(t, test.shown, describe(c, err), test.line)
	}
}

// TestHintsReplaceAdviceForTheAPI checks that a hint about a command replaces advice to send a
// request of the API.
func TestHintsReplaceAdviceForTheAPI(t *testing.T) {
	for _, test := range []struct{ line, body, shown string }{
		{"dataset get d", `{"message":"there is no dataset named d: list the existing ones with GET ` +
			`/v1/accounts/a/datasets","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no dataset named d\nhint: list datasets with `anneal dataset list`"},
		{"complete -m a/m x", `{"error":{"message":"m has no deployment: create one with POST /v1/accounts/a/deployments",` +
			`"code":"MODEL_NOT_DEPLOYED"}}`,
			"m has no deployment\nhint: deploy the model with `anneal deployment create --model a/m --watch`"},
		{"complete -m a/m x", `{"error":{"message":"m is gone; GET /inference/v1/models lists the models",` +
			`"code":"MODEL_NOT_FOUND"}}`, "m is gone\nhint: list the names of models with `anneal model names`"},
		{"deployment delete d", `{"message":"in use: set ignoreChecks to delete it anyway",` +
			`"details":[{"reason":"RECENTLY_USED"}]}`, "in use\nhint: delete the deployment anyway with --ignore-checks"},
		{"sft promote j 1-2 m", `{"message":"there is no checkpoint named 1-2: list the existing ones with GET ` +
			`/v1/accounts/a/supervisedFineTuningJobs/j/checkpoints","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no checkpoint named 1-2\nhint: list checkpoints with `anneal sft checkpoints j`"},
		{"rft promote j 1-2 m", `{"message":"there is no reinforcement fine-tuning job named j: list the existing ` +
			`ones with GET /v1/accounts/a/reinforcementFineTuningJobs","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no reinforcement fine-tuning job named j\nhint: list jobs with `anneal rft list`"},
		{"quota set acme acelerators 8", `{"message":"there is no quota named accounts/acme/quotas/acelerators: list the ` +
			`existing ones with GET /v1/accounts/acme/quotas","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no quota named accounts/acme/quotas/acelerators\nhint: list the quotas with `anneal quota list acme`"},
		{"quota set nobody jobs 8", `{"message":"there is no account with quotas named accounts/nobody",` +
			`"details":[{"reason":"NOT_FOUND"}]}`,
			"there is no account with quotas named accounts/nobody\nhint: list accounts with `anneal account list`"},
		{"batch get b", `{"error":{"message":"there is no batch \"b\": list the existing ones with GET /v1/batches",` +
			`"code":"NOT_FOUND"}}`, "there is no batch \"b\"\nhint: list batches with `anneal batch list`"},
		{"addon load x --model m --deployment d", `{"message":"deployment: d accepts no addons: set its ` +
			`enableAddons with PATCH /v1/accounts/a/deployments/d, or name another deployment","details":[{"reason":` +
			`"INVALID_FIELDS"},{"fieldViolations":[{"field":"deployment","description":"d accepts no addons"}]}]}`,
			"--deployment: d accepts no addons\nhint: list deployments with `anneal deployment list`\nhint: make the " +
				"deployment accept addons with `anneal deployment update d --addons`"},
		{"events --resource nosuch/x", `{"message":"there is no path","details":[{"reason":"NO_SUCH_PATH"}]}`,
			"--resource: the server has no collection \"nosuch\"\nhint: the column RESOURCE of `anneal events` shows " +
				"the resources that have events"},
		{"dataset list", `{"message":"nothing here: try GET /v1/accounts"}`, "nothing here: try GET /v1/accounts"},
	} {
		server := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, test.body, http.StatusBadRequest) }
		c, err := runAgainst(t, server, strings.Fields(test.line)...)
		require.Error(t, err, test.line)
		require.Equal(t, test.shown, describe(c, err), test.line)
	}
}

// TestNumberOfViolations checks that the printed number of violations is exact, unless the server
// may have truncated their list.
func TestNumberOfViolations(t *testing.T) {
	for n, shown := range map[int][]string{
		99:  {"99 fields or rows are invalid:\n", "\n  and 79 more"},
		100: {"at least 100 fields or rows are invalid:\n", "\n  and at least 80 more"},
	} {
		e := &apiError{Violations: make([]violation, n)}
		require.True(t, strings.HasPrefix(e.Error(), shown[0]), e.Error())
		require.True(t, strings.HasSuffix(e.Error(), shown[1]), e.Error())
	}
}

// violations returns an error response of the management API with these fields as violations.
func violations(all ...string) string {
	var list []string
	for _, one := range all {
		at := strings.LastIndex(one, ": ")
		list = append(list, `{"field":"`+one[:at]+`","description":"`+one[at+2:]+`"}`)
	}
	return `{"message":"` + strings.Join(all, "; ") + `","details":[{"reason":"INVALID_FIELDS"},{"fieldViolations":[` +
		strings.Join(list, ",") + `]}]}`
}

func TestRowsOfASampleFile(t *testing.T) {
	require.Equal(t, "row 5 of --file", nameOf(&cobra.Command{}, "sampleData[4]"))
}

// TestHintsNameCommands checks that the commands that hints name exist.
func TestHintsNameCommands(t *testing.T) {
	for collection := range commandOf {
		_, line, found := strings.Cut(listHint(collection), "anneal ")
		require.True(t, found, collection)
		c, rest, err := NewRoot("test").Find(strings.Fields(strings.Trim(line, "`")))
		require.NoError(t, err, line)
		require.Empty(t, rest, line)
		require.False(t, c.HasSubCommands(), line)
	}
}

// TestErrorsOfFilesNameTheFlag checks that the error of a file begins with the flag or the argument
// that names it, not with a system call.
func TestErrorsOfFilesNameTheFlag(t *testing.T) {
	server := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }
	for line, shown := range map[string]string{
		"dataset create d --file nope.jsonl":                 "--file nope.jsonl: no such file or directory",
		"dataset upload d nope.jsonl":                        "FILE nope.jsonl: no such file or directory",
		"sft create --dataset d --file nope.json":            "--file nope.json: no such file or directory",
		"eval -m a/b --file nope.jsonl":                      "--file nope.jsonl: no such file or directory",
		"evaluator create e --dir nope":                      "--dir nope: no such file or directory",
		"evaluator preview e --file nope.jsonl":              "--file nope.jsonl: no such file or directory",
		"evaluator upload e nope":                            "DIR nope: no such file or directory",
		"model create m --dir nope":                          "--dir nope: no such file or directory",
		"model upload m nope":                                "DIR nope: no such file or directory",
		"secret create s --key-name K --value-file nope.txt": "--value-file nope.txt: no such file or directory",
		"transcribe -m a/b nope.wav":                         "FILE nope.wav: no such file or directory",
		"dataset list --ca nope.pem":                         "--ca nope.pem: no such file or directory",
	} {
		c, err := runAgainst(t, server, strings.Fields(line)...)
		require.Error(t, err, line)
		require.Contains(t, describe(c, err), shown, line)
		require.NotRegexp(t, `\b(stat|lstat|open) nope`, describe(c, err), line)
	}
}

// TestMessagesOfInvalidUploadsNameTheRemedy checks that the error of an upload ends with the command that
// uploads again.
func TestMessagesOfInvalidUploadsNameTheRemedy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(file, []byte("{}\n"), 0o600))
	server := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"state":"UPLOADING","status":{"code":"INVALID_ARGUMENT","message":"row 1 is wrong: correct ` +
			`the file and upload it again"}}`))
	}
	for _, line := range []string{"dataset create d --file " + file, "dataset upload accounts/a/datasets/d " + file} {
		c, err := runAgainst(t, server, strings.Fields(line)...)
		require.Error(t, err)
		require.Equal(t, "accounts/a/datasets/d is not READY: row 1 is wrong: correct the file and upload it again\n"+
			"hint: upload the corrected file with `anneal dataset upload d FILE`", describe(c, err))
	}
	rows := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ":upload") {
			text := violations("f.jsonl:1: wrong", "f.jsonl:2: wrong")
			http.Error(w, strings.Replace(text, "INVALID_FIELDS", "INVALID_ROWS", 1), http.StatusBadRequest)
		}
	}
	c, err := runAgainst(t, rows, "dataset", "upload", "d", file)
	require.Equal(t, "2 fields or rows are invalid:\n  f.jsonl: lines 1-2: wrong\n"+
		"hint: upload the corrected file with `anneal dataset upload d FILE`", describe(c, err))
	c, err = runAgainst(t, server, "dataset", "derive", "d", "--from", "e")
	require.NotContains(t, describe(c, err), "hint:", "a derived dataset has no file")
}

// TestUploadsThatAQuotaRefuses checks that the error of an upload that a quota refuses says that the
// resource exists, and how to upload again.
func TestUploadsThatAQuotaRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(file, []byte("{}\n"), 0o600))
	for _, reason := range []string{"QUOTA_EXCEEDED", "QUOTA_TOO_SMALL"} {
		server := func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ":upload") {
				http.Error(w, `{"message":"too much","details":[{"reason":"`+reason+`"}]}`, http.StatusTooManyRequests)
				return
			}
			_, _ = w.Write([]byte("{}"))
		}
		c, err := runAgainst(t, server, "dataset", "create", "d", "--file", file)
		require.Equal(t, "too much\nhint: dataset d exists without files: upload them later with `anneal dataset upload d "+
			file+"`, or delete it", describe(c, err))
	}
}

// TestBatchesThatFail checks that `batch create --watch` fails when the batch does, so that a script
// notices it.
func TestBatchesThatFail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	require.NoError(t, os.WriteFile(file, []byte("{}\n"), 0o600))
	for status, fails := range map[string]bool{"completed": false, "failed": true, "expired": true, "cancelled": true} {
		server := func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"id":"batch-1","status":"` + status + `"}`))
		}
		_, err := runAgainst(t, server, "batch", "create", file, "--watch")
		if !fails {
			require.NoError(t, err, status)
			continue
		}
		require.EqualError(t, err, "batch batch-1 is "+status)
	}
}

// TestWrongSchemes checks that a server's address may lack its scheme, and that the error of a wrong
// scheme names the right one.
func TestWrongSchemes(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	key, err := request.MintKey(make([]byte, 32), "accounts/default/apiKeys/k")
	require.NoError(t, err)
	t.Setenv(keyVariable, key.Text)
	host := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for address, shown := range map[string]string{
		host(plain):              "so it is no anneal server",
		"https://" + host(plain): "speaks HTTP without TLS: give its address as http://" + host(plain),
		"http://" + host(secure): "speaks TLS: give its address as https://" + host(secure),
		"ftp://" + host(plain):   "must be the address of a server",
	} {
		t.Setenv(urlVariable, address)
		c := NewRoot("test")
		c.SetArgs([]string{"dataset", "list"})
		require.ErrorContains(t, c.Execute(), shown, address)
	}
}
