package cli

import (
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// An error of the API names the flags and arguments of the command that set the violated fields, and
// is followed by what the user can do.
func TestErrorsNameFlags(t *testing.T) {
	for _, test := range []struct{ line, body, shown string }{
		{"dataset get d", `{"message":"there is no dataset accounts/a/datasets/d","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no dataset accounts/a/datasets/d\nhint: list datasets with `anneal dataset list`"},
		{"rft get r", `{"message":"there is no job","details":[{"reason":"NOT_FOUND"}]}`, "there is no job\nhint: list jobs with `anneal rft list`"},
		{"shape validate fast v1", `{"message":"there is no version","details":[{"reason":"NOT_FOUND"}]}`,
			"there is no version\nhint: list shape versions with `anneal shape versions fast`"},
		{"account get other", `{"message":"no such account","details":[{"reason":"NOT_FOUND"}]}`, "no such account\nhint: list accounts with `anneal account list`"},
		{"complete -m accounts/a/models/m x", `{"error":{"message":"not deployed","code":"MODEL_NOT_DEPLOYED"}}`,
			"not deployed\nhint: deploy the model with `anneal deployment create --model MODEL`"},
		{"complete -m accounts/a/models/m x", `{"error":{"message":"there is no model m","code":"MODEL_NOT_FOUND"}}`,
			"there is no model m\nhint: list the names of models with `anneal model names`"},
		{"complete -m accounts/a/models/m x", `{"error":{"message":"max_tokens: must be positive","param":"max_tokens"}}`, "--max-tokens: must be positive"},
		{"chat -m a/b x", `{"error":{"message":"model: transcribes speech","param":"model"}}`,
			"--model: transcribes speech\nhint: list the names of models with `anneal model names`; `anneal transcribe` transcribes speech"},
		{"transcribe -m a/b http://x/y.wav", `{"error":{"message":"model: transcribes no speech","param":"model"}}`,
			"--model: transcribes no speech\nhint: list the names of models with `anneal model names`; `anneal complete` completes prompts"},
		{"transcribe -m a/b http://x/y.wav", `{"error":{"message":"response_format: must be json","param":"response_format"}}`, "--format: must be json"},
		{"transcribe -m a/b http://x/y.wav --translate", `{"error":{"message":"task: cannot translate","param":"task"}}`, "--translate: cannot translate"},
		{"deployment scale d 5", violations("replicaCount: must be from 1 to 2"), "REPLICAS: must be from 1 to 2\nhint: change the limits with `anneal deployment update --min-replicas N --max-replicas N`"},
		{"quota set a jobs 5", violations("maxValue: must be at most 4"), "LIMIT: must be at most 4"},
		{"dataset create X", violations("datasetId: must be short"), "ID: must be short"},
		{"key create X", violations("apiKeyId: must be short"), "ID: must be short"},
		{"addon load X --model m --deployment d", violations("deployedModelId: must be short"), "ID: must be short"},
		{"rlor create X --dataset d", violations("rlorTrainerJobId: must be short"), "ID: must be short"},
		{"sft create X --dataset d", violations("supervisedFineTuningJobId: must be short"), "ID: must be short"},
		{"sft create --dataset d", violations("dataset: names no dataset"), "--dataset: names no dataset\nhint: list datasets with `anneal dataset list`"},
		{"sft create --dataset d", violations("epochs: must be positive", "loraRank: must be a power of two"),
			"2 things are wrong:\n  --epochs: must be positive\n  --lora-rank: must be a power of two"},
		{"dpo create --dataset d --epochs 0", violations("trainingConfig.epochs: must be positive"), "--epochs: must be positive"},
		{"dpo create --dataset d", violations("trainingConfig.epochs: must be positive"), "trainingConfig.epochs: must be positive"},
		{"dpo create --dataset d --warm-start-from m", violations("trainingConfig.warmStartFrom: names no model"),
			"--warm-start-from: names no model\nhint: list models with `anneal model list`"},
		{"deployment create --model m --min-replicas 1", violations("minReplicaCount: must not be negative"), "--min-replicas: must not be negative"},
		{"deployment create --model m --scale-up-window 1s", violations("autoscalingPolicy.scaleUpWindow: too short"), "--scale-up-window: too short"},
		{"deployment create --model m --shape s", violations("deploymentShape: names none"),
			"--shape: names none\nhint: list the versions that match a model with `anneal shape match --model MODEL`; --skip-shape-validation accepts one that is not validated"},
		{"deployment delete d", `{"message":"in use","details":[{"reason":"RECENTLY_USED"}]}`, "in use\nhint: delete it anyway with --ignore-checks"},
		{"dataset create d", violations("dataset: has 0 rows"), "dataset: has 0 rows"},
		{"dataset get d", violations("rows.jsonl:3: messages must be a list"), "rows.jsonl:3: messages must be a list"},
	} {
		server := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, test.body, http.StatusBadRequest) }
		c, err := runAgainst(t, server, strings.Fields(test.line)...)
		require.Error(t, err, test.line)
		require.Equal(t, test.shown, describe(c, err), test.line)
	}
}

// violations is an error response of the management API.
func violations(all ...string) string {
	var list []string
	for _, one := range all {
		at := strings.LastIndex(one, ": ")
		list = append(list, `{"field":"`+one[:at]+`","description":"`+one[at+2:]+`"}`)
	}
	return `{"message":"` + strings.Join(all, "; ") + `","details":[{"reason":"INVALID_FIELDS"},{"fieldViolations":[` + strings.Join(list, ",") + `]}]}`
}

func TestRowsOfASampleFile(t *testing.T) {
	require.Equal(t, "row 5 of --file", nameOf(&cobra.Command{}, "sampleData[4]"))
}

// The commands that hints name exist.
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
