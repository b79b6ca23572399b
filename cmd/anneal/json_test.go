package main_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/internal/cli"
	"anneal/internal/testutil"
)

// streamingCommands have no result, or print it as they run.
var streamingCommands = []string{"serve", "work", "demo", "batch results"}

// jsonCommands are command lines with a result in JSON, in this order: a command can use a
// resource that an earlier one created. Commands that require a trained model are in separate
// scripts.
var jsonCommands = []string{
	"dataset create pairs --file rows.jsonl", "dataset create plain", "dataset upload plain rows.jsonl",
	"dataset derive some --from pairs", "dataset list",
	"dataset get pairs", "dataset preview pairs", "dataset download pairs --dir out",
	"dpo create j --dataset pairs --epochs 1000", "dpo list", "dpo get j", "dpo priority j high",
	"dpo cancel j", "dpo delete j",
	"rlor create t --keep-alive", "rlor watch t", "rlor list", "rlor get t", "rlor cancel t", "rlor delete t",
	"sft list", "rft list", "evaluator list", "addon list",
	"model list", "model names", "model get anneal-base", "model download anneal-base --dir base",
	"model export x --dir base --gguf x.gguf",
	"shape create s --model anneal-base --accelerator-type ACCELERATOR_TYPE_UNSPECIFIED", "shape list", "shape get s",
	"shape versions s", "shape validate s v1",
	"shape match --model anneal-base", "shape delete s",
	"deployment create d --model anneal-base --watch", "deployment list", "deployment get d", "deployment watch d",
	"deployment update d --max-replicas 2", "deployment alias d smart",
	"deployment scale d 1", "complete -m accounts/default/deployments/d --max-tokens 2 hello",
	"chat -m accounts/default/deployments/d --max-tokens 2 hello",
	"deployment create e --model anneal-base",
	"deployment release start d --candidate e --steps 5,50", "deployment release get d",
	"deployment release promote d --reason reviewed", "deployment release watch d", "deployment release rollback d",
	"deployment delete e --ignore-checks",
	"deployment delete d --ignore-checks", "deployment undelete d", "deployment delete d --ignore-checks",
	"secret create k --key-name K --value-file rows.jsonl", "secret update k --value-file rows.jsonl", "secret list",
	"secret get k", "secret delete k",
	"subscription create s --webhook https://127.0.0.1:1/x", "subscription list", "subscription get s",
	"subscription update s --display-name x", "subscription pause s", "subscription resume s",
	"subscription dead-letters s", "subscription redeliver s --from 1", "subscription rotate-secret s",
	"subscription delete s",
	"key create r --role inference", "key list", "key delete r",
	"events credentials create e", "events credentials list", "events credentials revoke e",
	"account create other", "account list", "account get other", "account suspend other --reason CREDIT_DEPLETED",
	"account restore other",
	"quota set other jobs 3", "quota list other", "node list", "node get local", "node top", "node cordon local",
	"node drain local --reason maintenance", "node uncordon local", "node taint local dedicated=x:NoSchedule",
	"node untaint local dedicated",
	"account nodes other --tolerate dedicated=x:NoSchedule", "account weight other 2",
	"accelerators set any=1 --account other", "accelerators list other",
	"node token", "node token --file token",
	"events", "audit", "blame datasets/plain", "why datasets/plain", "usage",
	"log verify", "replay", "config check serve --config anneal.yaml", "doctor", "top",
	"support-bundle bundle.tar.gz",
	"man pages", "install server --root image", "uninstall server --root image",
	"log credentials", "log key", "log checkpoint",
	"backup key backup.key", "backup status", "world rebuild", "world status", "dataset delete plain",
}

// stopped are commands for a stopped server, in this order.
var stopped = []string{"log rotate-key", "log repair", "log verify", "replay",
	"server bundle keys.bundle --data clustered", "server join keys.bundle --data other"}

// otherCommands are tested against a handler, in output_test.go of package cli, in
// TestSecondControlPlane, or by the commands of the documents.
var otherCommands = []string{"node delete away", "node revoke away", "batch cancel b", "batch create r",
	"diff datasets/d 1 2", "server list",
	"dataset import rows", "dataset export rows", "log prove 1", "log check event", "witness", "backup create b",
	"backup prune b --keep 1", "world cancel r1", "simulate --trace t",
	"restore b"}

// scriptedCommands returns the commands whose JSON output the scripts in testdata read.
func scriptedCommands(t *testing.T) (names []string) {
	read := regexp.MustCompile(`(?m)^exec (?:sh -c ')?anneal (\w+(?: [a-z]+)?) ?.* ?-o json.*\n(?:field|object)\b`)
	scripts := testutil.Glob(t, filepath.Join("testdata", "script", "*.txtar"))
	for _, script := range scripts {
		text := testutil.ReadFile(t, script)
		for _, match := range read.FindAllStringSubmatch(string(text), -1) {
			names = append(names, match[1])
		}
	}
	return names
}

// TestEveryCommandIsTestedInJSON checks that every command accepts -o json, and is tested with it
// or listed as an exception.
func TestEveryCommandIsTestedInJSON(t *testing.T) {
	for _, c := range leaves(cli.NewRoot("test")) {
		require.NotNil(t, c.InheritedFlags().Lookup("output"), c.CommandPath())
		name := strings.TrimPrefix(c.CommandPath(), "anneal ")
		tried := false
		if kind, verb, _ := strings.Cut(name, " "); verb == "checkpoints" || verb == "promote" ||
			verb == "logs" && kind != "evaluator" {
			require.Contains(t, []string{"sft", "dpo", "rft", "rlor"}, kind)
			name = "sft " + verb // one implementation serves the four kinds of jobs
		}
		if kind, verb, _ := strings.Cut(name, " "); verb == "priority" {
			require.Contains(t, []string{"sft", "dpo", "rft", "rlor"}, kind)
			name = "dpo " + verb
		}
		for _, line := range slices.Concat(jsonCommands, scriptedCommands(t), otherCommands, stopped, streamingCommands) {
			tried = tried || line == name || strings.HasPrefix(line, name+" ")
		}
		assert.True(t, tried, "no list and no script reads the output of `anneal %s -o json`", name)
	}
}

// listExamples returns command lines of the list commands, with the filters and orders that their
// help shows.
func listExamples() (lines [][]string) {
	example := regexp.MustCompile(`such as '(.*)'`)
	for _, c := range allCommands(cli.NewRoot("test")) {
		for _, flag := range []string{"filter", "order-by"} {
			if f := c.Flags().Lookup(flag); f != nil && c.Name() != "derive" {
				lines = append(lines, append(strings.Fields(c.CommandPath())[1:], "--"+flag,
					example.FindStringSubmatch(f.Usage)[1]))
			}
		}
	}
	return lines
}

// allCommands returns a command and all commands below it.
func allCommands(c *cobra.Command) (all []*cobra.Command) {
	all = append(all, c)
	for _, child := range c.Commands() {
		all = append(all, allCommands(child)...)
	}
	return all
}

// leaves returns the commands that contain no others.
func leaves(c *cobra.Command) (all []*cobra.Command) {
	if !c.HasSubCommands() {
		return []*cobra.Command{c}
	}
	for _, child := range c.Commands() {
		all = append(all, leaves(child)...)
	}
	return all
}
