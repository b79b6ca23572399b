package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func typed(t *testing.T, line string) *cobra.Command {
	t.Helper()
	c, rest, err := newRoot().Find(strings.Fields(line)[1:])
	require.NoError(t, err)
	require.NoError(t, c.ParseFlags(rest))
	return c
}

func TestMessagesInCommands(t *testing.T) {
	for _, test := range []struct{ line, said, shown string }{
		{"anneal dataset get d", "there is no dataset named d: list what there is with GET /v1/accounts/acme/datasets", "there is no dataset named d: list what there is with `anneal dataset list`"},
		{"anneal rft get r", "list what there is with GET /v1/accounts/acme/reinforcementFineTuningJobs", "list what there is with `anneal rft list`"},
		{"anneal complete", "create one with POST /v1/accounts/acme/deployments", "create one with `anneal deployment create`"},
		{"anneal complete", "GET /inference/v1/models lists what there is", "`anneal model names` lists what there is"},
		{"anneal complete", "transcribes speech, and answers no prompts: /v1/audio/transcriptions asks it", "transcribes speech, and answers no prompts: `anneal transcribe` asks it"},
		{"anneal transcribe", "and transcribes no speech: /inference/v1/completions asks it", "and transcribes no speech: `anneal complete` asks it"},
		{"anneal deployment scale d 5", "replicaCount: must be from minReplicaCount (1) to maxReplicaCount (2)", "REPLICAS: must be from --min-replicas (1) to --max-replicas (2)"},
		{"anneal evaluator create e", "lstat ./my code: no such file or directory", "there is no file or folder ./my code"},
		{"anneal work", "open node.token: no such file or directory", "there is no file or folder node.token"},
		{"anneal evaluator preview", "sampleData[4]: must be a JSON object", "row 5 of --file: must be a JSON object"},
		{"anneal quota set a jobs 5", "maxValue: must be at most 4", "LIMIT: must be at most 4"},
		{"anneal deployment get d", "replicaCount is 3", "replicaCount is 3"},
		{"anneal dataset create X", "datasetId: must be 1 to 63 characters", "ID: must be 1 to 63 characters"},
		{"anneal key create X", "apiKeyId: must be 1 to 63 characters", "ID: must be 1 to 63 characters"},
		{"anneal addon load X", "deployedModelId: must be 1 to 63 characters", "ID: must be 1 to 63 characters"},
		{"anneal rlor create X", "rlorTrainerJobId: must be 1 to 63 characters", "ID: must be 1 to 63 characters"},
		{"anneal addon load", "without enableAddons: set that with PATCH /v1/accounts/a/deployments/d, or name another", "without --addons: set that with `anneal deployment update d`, or name another"},
		{"anneal account get", "list what there is with GET /v1/accounts", "list what there is with `anneal account list`"},
		{"anneal shape validate", "with GET /v1/accounts/a/deploymentShapes/fast/versions", "with `anneal shape versions fast`"},
		{"anneal deployment create", "deploymentShape: names none: POST deploymentShapeVersions:match lists those that fit a model", "--shape: names none: `anneal shape match` lists those that fit a model"},
		{"anneal deployment create", "validate it, or set skipShapeValidation", "validate it, or set --skip-shape-validation"},
		{"anneal deployment create", "raise it, or set disableDeploymentSizeValidation", "raise it, or set --skip-size-validation"},
		{"anneal deployment delete d", "within the last hour: set ignoreChecks to delete it", "within the last hour: set --ignore-checks to delete it"},
		{"anneal evaluator get e", "waits for its code: upload it to the URLs of :getUploadEndpoint, then :validateUpload", "waits for its code: upload it with `anneal evaluator upload ID FOLDER`"},
		{"anneal model upload m f", "0 files have been uploaded: PUT 1 to 9 files to the URLs that :getUploadEndpoint gives, then validate", "0 files have been uploaded: upload them with `anneal model upload ID FOLDER`"},
		{"anneal sft get j", "x is an adapter: name it in warmStartFrom instead", "x is an adapter: name it in --warm-start-from instead"},
		{"anneal dpo create --warm-start-from m", "trainingConfig.warmStartFrom: names no model that accounts/a may use: its own and public ones are listed at /inference/v1/models and in accounts/default/models",
			"--warm-start-from: names no model that accounts/a may use: `anneal model list` lists its own, and " + baseModelName + " is everybody's"},
		{"anneal dpo create --epochs 0", "trainingConfig.epochs: must be positive", "--epochs: must be positive"},
		{"anneal dpo create --file f", "trainingConfig.epochs: must be positive", "trainingConfig.epochs: must be positive"},
		{"anneal sft create", "2 things are wrong:\n  epochs: must be positive\n  loraRank: must be a power of two", "2 things are wrong:\n  --epochs: must be positive\n  --lora-rank: must be a power of two"},
		{"anneal sft create", "dataset: names no dataset of accounts/a", "--dataset: names no dataset of accounts/a"},
		{"anneal complete", "max_tokens: must be a whole number; temperature: must be at most 2", "--max-tokens: must be a whole number; --temperature: must be at most 2"},
		{"anneal transcribe", "response_format: must be one of json, text", "--format: must be one of json, text"},
		{"anneal transcribe", "task: cannot translate", "--translate: cannot translate"},
		{"anneal dataset create d", "dataset: has 0 rows", "dataset: has 0 rows"},
		{"anneal rft get r", "accounts/a/rlorTrainerJobs/x differs from accounts/a/datasets/x", "accounts/a/rlorTrainerJobs/x differs from accounts/a/datasets/x"},
		{"anneal dataset get d", "GET /v1/accounts/a/nothings", "GET /v1/accounts/a/nothings"},
		{"anneal dataset get d", "rows.jsonl:3: messages must be a list", "rows.jsonl:3: messages must be a list"},
	} {
		require.Equal(t, test.shown, inCommands(typed(t, test.line), test.said), test.line)
	}
}

// untold are fields that no flag sets: who is told of them has written them
// in a file of JSON, or is told how far something is.
var untold = map[string]bool{}

// Every request that a message of the server's names is a command's, and every
// field that it asks to be set is a flag's, or of those that no flag sets.
func TestEveryMessageCanBeSaidInCommands(t *testing.T) {
	request := regexp.MustCompile(`\b(GET|POST|PUT|PATCH|DELETE) |listed at /|:getUpload|:validateUpload`)
	route := regexp.MustCompile(`^[A-Z]+ /\S*$`) // an operation's name
	asked := regexp.MustCompile(`\b(?:set|give|give it as|name it in|name that one in|beside) ([a-z]+[A-Z]\w*)`)
	commands, found := leaves(newRoot()), 0
	for message := range messages(t, "api", "domain", "schedulers", "workers", "projections") {
		if route.MatchString(message) || !request.MatchString(message) && !asked.MatchString(message) {
			continue
		}
		found++
		text := filled(message)
		said := false
		for _, c := range commands {
			shown := inCommands(c, text)
			said = said || shown != text && !request.MatchString(shown) && !asked.MatchString(shown)
		}
		assert.True(t, said || untold[message], "no command says this in its own words: %q", text)
	}
	require.Greater(t, found, 12)
}

// filled is a message with something in its blanks.
func filled(format string) string {
	format = regexp.MustCompile(`/v1/%s/versions`).ReplaceAllString(format, "/v1/accounts/a/deploymentShapes/x/versions")
	format = strings.ReplaceAll(format, "accounts/%s", "accounts/acme")
	format = strings.ReplaceAll(format, "GET /v1/%s", "GET /v1/accounts/a/datasets")
	format = strings.ReplaceAll(format, "PATCH /v1/%s", "PATCH /v1/accounts/a/deployments/x")
	return regexp.MustCompile(`%[.\d]*[a-z]`).ReplaceAllString(format, "7")
}

func leaves(c *cobra.Command) (all []*cobra.Command) {
	if !c.HasSubCommands() {
		return []*cobra.Command{c}
	}
	for _, child := range c.Commands() {
		all = append(all, leaves(child)...)
	}
	return all
}

// messages are the sentences in the code of some folders that a user may read.
func messages(t *testing.T, folders ...string) map[string]bool {
	all := map[string]bool{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join("..", "..", folder, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(filepath.Base(file), "openapi") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			require.NoError(t, err)
			ast.Inspect(parsed, func(n ast.Node) bool {
				if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
					if text, err := strconv.Unquote(s.Value); err == nil && strings.Contains(text, " ") && !strings.HasPrefix(text, "json:") {
						all[text] = true
					}
				}
				return true
			})
		}
	}
	return all
}
