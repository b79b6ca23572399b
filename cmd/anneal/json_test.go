package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unspoken are commands that answer nothing, or show it as they go.
var unspoken = []string{"serve", "work", "demo"}

// spoken are commands as they are typed for an answer in JSON, in this order.
// What another one made is named; what needs a trained model has scripts of its
// own.
var spoken = []string{
	"dataset create pairs --file rows.jsonl", "dataset create plain", "dataset upload plain rows.jsonl", "dataset derive some --from pairs", "dataset list",
	"dataset get pairs", "dataset preview pairs", "dataset download pairs out",
	"dpo create j --dataset pairs --epochs 1000", "dpo list", "dpo get j", "dpo cancel j", "dpo delete j",
	"rlor create t --keep-alive", "rlor watch t", "rlor list", "rlor get t", "rlor cancel t", "rlor delete t",
	"sft list", "rft list", "evaluator list", "addon list",
	"model list", "model get anneal-base", "model download anneal-base --dir base", "model export x --dir base --gguf x.gguf",
	"shape create s --model anneal-base --accelerator-type ACCELERATOR_TYPE_UNSPECIFIED", "shape list", "shape get s", "shape versions s", "shape validate s v1",
	"shape match --model anneal-base", "shape delete s",
	"deployment create d --model anneal-base --watch", "deployment list", "deployment get d", "deployment watch d", "deployment update d --max-replicas 2", "deployment alias d smart",
	"deployment scale d 1", "complete -m accounts/default/deployments/d --max-tokens 2 hello", "chat -m accounts/default/deployments/d --max-tokens 2 hello",
	"deployment delete d --ignore-checks", "deployment undelete d", "deployment delete d --ignore-checks",
	"secret create k --key-name K --value-file rows.jsonl", "secret update k --value-file rows.jsonl", "secret list", "secret get k", "secret delete k",
	"key create r --role inference", "key list", "key delete r",
	"account create other", "account list", "account get other", "account suspend other --reason CREDIT_DEPLETED", "account restore other",
	"quota set other jobs 3", "quota list other", "node list", "node get local", "node token", "node token --file token",
	"events", "log verify", "log credentials", "dataset delete plain",
}

// scripted are commands whose JSON the scripts in testdata show.
var scripted = []string{"sft create", "sft watch", "sft get", "sft metrics", "sft cancel", "sft resume", "sft delete", "dpo watch", "dpo metrics", "dpo resume",
	"rft create", "rft watch", "rft get", "rft metrics", "rft cancel", "rft resume", "rft delete", "rlor metrics", "rlor resume", "rlor step",
	"evaluator create", "evaluator upload", "evaluator preview", "evaluator logs", "evaluator get", "evaluator delete", "addon load", "addon get", "addon unload",
	"model create", "model upload", "model prepare", "model delete", "node delete", "transcribe"}

// Every command takes -o json, and is tried with it or known not to be.
func TestEveryCommandIsTriedInJSON(t *testing.T) {
	for _, c := range leaves(newRoot()) {
		require.NotNil(t, c.InheritedFlags().Lookup("output"), c.CommandPath())
		name := strings.TrimPrefix(c.CommandPath(), "anneal ")
		tried := false
		for _, line := range append(append(append([]string{}, spoken...), scripted...), unspoken...) {
			tried = tried || line == name || strings.HasPrefix(line, name+" ")
		}
		require.True(t, tried, "%s is in none of the lists", name)
	}
}

// Spoken is for the tests that run the program.
var Spoken = spoken
