package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// The server speaks to programs: its messages name requests ("list what there
// is with GET /v1/accounts/acme/datasets") and fields ("set ignoreChecks"). Who
// types is told the commands and flags for them. What has none is left as it is.

var (
	requestForm = regexp.MustCompile(`\b(GET|POST|PATCH|DELETE) /?[\w/:-]*\w`)
	fieldForm   = regexp.MustCompile(`\b[a-zA-Z]+(?:\.[a-zA-Z]+)*\b`)
	headForm    = regexp.MustCompile(`(?m)(^ *|; )([a-z][a-z_]*): `) // a field of one word, and what is wrong with it
	askWords    = strings.NewReplacer("/v1/audio/transcriptions asks", "`anneal transcribe` asks", "/inference/v1/completions asks", "`anneal complete` asks")
	absentForm  = regexp.MustCompile(`\b(?:open|l?stat) (.+?): no such file or directory`) // as the machine says it
	sampleForm  = regexp.MustCompile(`\bsampleData\[(\d+)\]`)
	modelsForm  = regexp.MustCompile(`its own and public ones are listed at /inference/v1/models and in \S+`)
	uploadForm  = regexp.MustCompile(`PATCH it with prepare_code_upload true, then upload|upload it to the URLs of :getUploadEndpoint, then :validateUpload|PUT .* to the URLs that :getUploadEndpoint gives, then validate|files in folders are PUT to the URLs of :getUploadEndpoint`)
)

// inCommands is a message of the server's in the words of the command line;
// c is the command that was typed.
func inCommands(c *cobra.Command, text string) string {
	text = absentForm.ReplaceAllString(text, "there is no file or folder $1")
	text = sampleForm.ReplaceAllStringFunc(text, func(sample string) string {
		n, _ := strconv.Atoi(sampleForm.FindStringSubmatch(sample)[1])
		return fmt.Sprintf("row %d of --file", n+1)
	})
	text = modelsForm.ReplaceAllString(askWords.Replace(text), "`anneal model list` lists its own, and "+baseModelName+" is everybody's")
	text = uploadForm.ReplaceAllStringFunc(text, func(form string) string { return uploadCommand(c, form) })
	text = requestForm.ReplaceAllStringFunc(text, func(request string) string {
		method, path, _ := strings.Cut(request, " ")
		if command := commandFor(c.Root(), method, path); command != "" {
			return "`" + command + "`"
		}
		return request
	})
	text = headForm.ReplaceAllStringFunc(text, func(head string) string {
		parts := headForm.FindStringSubmatch(head)
		for _, name := range append([]string{strings.ReplaceAll(parts[2], "_", "-")}, flagsOf[parts[2]]...) {
			if c.Flags().Lookup(name) != nil {
				return parts[1] + "--" + name + ": "
			}
		}
		return head
	})
	return fieldForm.ReplaceAllStringFunc(text, func(path string) string {
		if argument := argumentFor(c, path); argument != "" {
			return argument
		}
		if flag := flagFor(c, path); flag != "" {
			return "--" + flag
		}
		return path
	})
}

// groupOf is the group of commands for the resources of a collection.
var groupOf = map[string]string{"accounts": "account", "datasets": "dataset", "models": "model", "deployments": "deployment", "deployedModels": "addon",
	"deploymentShapes": "shape", "evaluators": "evaluator", "secrets": "secret", "apiKeys": "key", "nodes": "node", "quotas": "quota",
	"supervisedFineTuningJobs": "sft", "dpoJobs": "dpo", "reinforcementFineTuningJobs": "rft", "rlorTrainerJobs": "rlor", "events": "events"}

// commandFor is the command that does what a request does, or "".
func commandFor(root *cobra.Command, method, path string) string {
	switch path = strings.TrimPrefix(strings.TrimPrefix(path, "/"), "v1/"); {
	case path == "inference/v1/models":
		return "anneal model names"
	case strings.HasSuffix(path, "deploymentShapeVersions:match"):
		return "anneal shape match"
	}
	parts := strings.Split(path, "/")
	if len(parts) == 5 && parts[4] == "versions" {
		return "anneal shape versions " + parts[3]
	}
	if len(parts) < 1 || len(parts) > 4 || parts[0] != "accounts" {
		return ""
	}
	command := []string{groupOf[parts[len(parts)-1-(len(parts)+1)%2]]}
	verb := map[string]string{"GET": "list", "POST": "create"}[method]
	if len(parts)%2 == 0 {
		verb = map[string]string{"GET": "get", "PATCH": "update", "DELETE": "delete"}[method]
	}
	if command[0] == "addon" {
		verb = map[string]string{"create": "load", "delete": "unload"}[verb]
	}
	if command[0] != "events" {
		command = append(command, verb)
	}
	if found, rest, err := root.Find(command); err != nil || len(rest) > 0 || found == root || found.HasSubCommands() {
		return ""
	}
	if len(parts)%2 == 0 {
		command = append(command, parts[len(parts)-1])
	}
	return "anneal " + strings.Join(command, " ")
}

// argumentFor is the argument of the command that sets a field; "" when none
// does. A new resource's ID is the ID of the command that makes it.
func argumentFor(c *cobra.Command, field string) string {
	argument := map[string]string{"replicaCount": "REPLICAS", "maxValue": "LIMIT"}[field]
	if kind, found := strings.CutSuffix(field, "Id"); found && c.HasParent() && groupOf[kind+"s"] == c.Parent().Name() {
		argument = "ID"
	}
	if argument == "" || !slices.Contains(strings.FieldsFunc(c.Use, func(r rune) bool { return strings.ContainsRune(" []", r) }), argument) {
		return ""
	}
	return argument
}

// flagsOf are flags that are not called as their fields are.
var flagsOf = map[string][]string{"minReplicaCount": {"min-replicas"}, "maxReplicaCount": {"max-replicas"}, "enableAddons": {"addons"}, "enableHotLoad": {"hot-load"},
	"deploymentShape": {"shape"}, "baseModel": {"model"}, "sourceDatasetId": {"from"}, "suspendState": {"reason"}, "expireTime": {"expire"},
	"rolloutDeploymentName": {"rollout-deployment"}, "defaultDataset": {"dataset"}, "disableDeploymentSizeValidation": {"skip-size-validation"},
	"loadTargets": {"load-target"}, "response_format": {"format"}, "task": {"translate"}}

// flagFor is the flag for a field, by its path: one of the command's or of the
// one that creates what the command is about; or "". A field inside of another
// is the flag's only when that was given: it may have come from a file.
func flagFor(c *cobra.Command, path string) string {
	field := path[strings.LastIndexByte(path, '.')+1:]
	nested := field != path
	if !nested && !strings.ContainsFunc(field, unicode.IsUpper) || unicode.IsUpper(rune(field[0])) {
		return "" // a word like any other
	}
	about := []*cobra.Command{c, sibling(c, "create")}
	if c.HasParent() && c.Parent().Name() == "addon" { // addons are told of their deployments
		about = append(about, child(sibling(c.Parent(), "deployment"), "create"))
	}
	for _, name := range append([]string{kebab(field)}, flagsOf[field]...) {
		for _, of := range about {
			if of == nil || of.Flags().Lookup(name) == nil || nested && !(of == c && c.Flags().Changed(name)) {
				continue
			}
			return name
		}
	}
	return ""
}

// sibling is another command of the same group; nil when there is none.
func sibling(c *cobra.Command, name string) *cobra.Command { return child(c.Parent(), name) }

// child is a command of a group; nil when there is none.
func child(group *cobra.Command, name string) *cobra.Command {
	if group == nil {
		return nil
	}
	for _, c := range group.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// kebab writes a field's name as flags are written.
func kebab(field string) string {
	var name strings.Builder
	for _, r := range field {
		if unicode.IsUpper(r) {
			name.WriteByte('-')
		}
		name.WriteRune(unicode.ToLower(r))
	}
	return name.String()
}

// uploadCommand is the command that uploads what the command is about.
func uploadCommand(c *cobra.Command, form string) string {
	upload := sibling(c, "upload")
	if upload == nil {
		return form
	}
	words := "upload it with `"
	if strings.HasPrefix(form, "PUT ") { // files
		words = "upload them with `"
	}
	return words + upload.CommandPath() + strings.TrimPrefix(upload.Use, upload.Name()) + "`"
}
