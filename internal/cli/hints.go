package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags, which connect them with fields of requests.
const (
	annotationField = "field" // dotted path of the request's field that the flag sets
	annotationHint  = "hint"  // hints that are printed if the server rejects that field
)

// bindFlag records that a flag sets a field of the request, so that errors about the field name the
// flag and have the hints. Without bindFlag, a flag sets the field of its own name: --max-tokens
// sets maxTokens or max_tokens.
func bindFlag(c *cobra.Command, flag, field string, hints ...string) {
	_ = c.Flags().SetAnnotation(flag, annotationField, []string{field}) // fails only if the flag does not exist
	_ = c.Flags().SetAnnotation(flag, annotationHint, hints)
}

// bindArgument records that an argument sets a field of the request, so that errors about the field
// name the argument and have the hint.
func bindArgument(c *cobra.Command, argument, field, hint string) {
	c.Annotations = map[string]string{annotationField + ":" + field: argument, annotationHint + ":" + field: hint}
}

// bindReference records that a flag names a resource of a collection, and sets a field of the
// request.
func bindReference(c *cobra.Command, flag, field, collection string) {
	bindFlag(c, flag, field, listHint(collection))
	// Fails only if the flag does not exist.
	_ = c.Flags().SetAnnotation(flag, annotationCollection, []string{collection})
}

// bindModel records that the flag --model names a model, deployment or alias to send requests to.
// hint is printed if the server rejects the name.
func bindModel(c *cobra.Command, hint string) {
	bindFlag(c, "model", "model", hint)
	// Fails only if the flag does not exist.
	_ = c.Flags().SetAnnotation("model", annotationCollection, []string{usableModels})
}

// flagFor returns the flag of c that sets a field of the request; nil if none does. For a nested
// field it returns a flag only if it is given, because a file can also set the field.
func flagFor(c *cobra.Command, field string) (found *pflag.Flag) {
	last := field[strings.LastIndexByte(field, '.')+1:]
	element, _, _ := strings.Cut(field, "[") // name of the field without the index of a list element
	c.Flags().VisitAll(func(f *pflag.Flag) {
		fields := f.Annotations[annotationField]
		if fields == nil {
			fields = []string{fieldName(f.Name), strings.ReplaceAll(f.Name, "-", "_")}
		}
		names := []string{field, element, last}
		if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(fields, name) }) &&
			(field == last || f.Changed) {
			found = f
		}
	})
	return found
}

// fieldName returns the name of a flag in camelCase, as a field has it.
func fieldName(flag string) string {
	words := strings.Split(flag, "-")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

// nameOf returns the flag or argument of the command line that sets a field of the request. If none
// does, as for a field in a JSON file, it returns the field.
func nameOf(c *cobra.Command, field string) string {
	if argument := c.Annotations[annotationField+":"+field]; argument != "" {
		return argument
	}
	if kind, found := strings.CutSuffix(field, "Id"); found && c.HasParent() && commandOf[kind+"s"] == c.Parent().Name() &&
		strings.Contains(c.Use, "ID") {
		return strings.TrimSuffix(fmt.Sprintf("ID %q", argumentOf(c, "ID")), ` ""`)
	}
	var row int
	if n, _ := fmt.Sscanf(field, "sampleData[%d]", &row); n == 1 {
		return fmt.Sprintf("row %d of --file", row+1)
	}
	if f := flagFor(c, field); f != nil {
		return "--" + f.Name
	}
	return field
}

// hintsByReason are the hints for errors of the API, by the reason of the error.
var hintsByReason = map[string]string{
	"MODEL_NOT_FOUND":    modelNamesHint,
	"MODEL_NOT_DEPLOYED": "deploy the model with `anneal deployment create --model MODEL --watch`",
	"RECENTLY_USED":      "delete the deployment anyway with --ignore-checks",
}

// hintsFor returns hints about what the user can do after an error of the API.
func hintsFor(c *cobra.Command, e *apiError) (hints []string) {
	add := func(hint string) {
		if hint = withArguments(c, hint); hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	add(hintsByReason[e.Reason])
	switch e.Reason {
	case "NOT_FOUND":
		add(notFoundHint(e))
	case "ALREADY_EXISTS":
		add(existsHint(c, e))
	}
	for _, v := range e.Violations {
		if hint := c.Annotations[annotationHint+":"+v.Field]; hint != "" {
			add(hint)
		}
		if f := flagFor(c, v.Field); f != nil {
			for _, hint := range f.Annotations[annotationHint] {
				add(hint)
			}
		}
	}
	return hints
}

// withArguments returns a hint in whose commands the words ID, DEPLOYMENT and MODEL are replaced by
// the values in the command line, such as `anneal deployment update d3 …`.
func withArguments(c *cobra.Command, hint string) string {
	parts := strings.Split(hint, "`")
	for i := 1; i < len(parts); i += 2 { // every second part is a command, which stands between backticks
		words := strings.Fields(parts[i])
		for j, word := range words {
			if value := argumentOf(c, word); value != "" {
				words[j] = value
			}
		}
		parts[i] = strings.Join(words, " ")
	}
	return strings.Join(parts, "`")
}

// argumentOf returns the value of the argument or flag that word (ID, DEPLOYMENT or MODEL) stands
// for; "" if the command line does not have it.
func argumentOf(c *cobra.Command, word string) string {
	if word != "ID" && word != "DEPLOYMENT" && word != "MODEL" {
		return ""
	}
	names := strings.Fields(c.Use)
	for i, arg := range c.Flags().Args() {
		if i+1 < len(names) && strings.Trim(names[i+1], "[]") == word {
			return id(arg)
		}
	}
	value, _ := c.Flags().GetString(strings.ToLower(word))
	if word == "MODEL" {
		return value // keep the full name, because the model can belong to another account
	}
	return id(value)
}

// existsHint returns a hint about the resource that already has the ID of the resource to create;
// "" if e does not name the existing resource.
func existsHint(c *cobra.Command, e *apiError) string {
	_, path, found := strings.Cut(e.Message, "see the existing one with GET ")
	if !found {
		return ""
	}
	name := strings.TrimPrefix(path, "/v1/")
	command := commandOf[collectionOf(name)]
	get, _, err := c.Root().Find([]string{command, "get"})
	if command == "" || err != nil || get.Name() != "get" {
		return "choose another ID"
	}
	if strings.HasPrefix(e.Message, "a deleted deployment") {
		return fmt.Sprintf("choose another ID, restore it with `anneal deployment undelete %s`, or free its ID with `anneal "+
			"deployment delete %s --hard`", id(name), id(name))
	}
	return fmt.Sprintf("choose another ID; `anneal %s get %s` shows the existing one", command, id(name))
}

// commandOf is the command for the resources of a collection, by collection.
var commandOf = map[string]string{"accounts": "account", "datasets": "dataset", "models": "model",
	"deployments":    "deployment",
	"deployedModels": "addon", "deploymentShapes": "shape", "evaluators": "evaluator", "secrets": "secret",
	"apiKeys": "key", "nodes": "node",
	"quotas": "quota", "supervisedFineTuningJobs": "sft", "dpoJobs": "dpo", "reinforcementFineTuningJobs": "rft",
	"rlorTrainerJobs": "rlor", "subscriptions": "subscription"}

// listHint returns a hint with the command that lists a collection; "" if there is no such command.
func listHint(collection string) string {
	command := commandOf[collection]
	switch {
	case collection == "batches":
		return "list batches with `anneal batch list`"
	case command == "":
		return ""
	case strings.HasSuffix(collection, "Jobs"):
		return fmt.Sprintf("list jobs with `anneal %s list`", command)
	}
	return fmt.Sprintf("list %ss with `anneal %s list`", command, command)
}

// notFoundHint returns a hint with the command that lists the collection in the path of a failed
// request.
func notFoundHint(e *apiError) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(e.request, "/v1/"), ":")
	job, _, found := strings.Cut(path, "/checkpoints/")
	if found && strings.Contains(e.Message, "checkpoint") {
		return fmt.Sprintf("list checkpoints with `anneal %s checkpoints %s`", commandOf[collectionOf(job)], id(job))
	}
	path = job
	if shape, _, found := strings.Cut(path, "/versions/"); found {
		return fmt.Sprintf("list shape versions with `anneal shape versions %s`", id(shape))
	}
	if account, quota, found := strings.Cut(path, "/quotas/"); found && !strings.Contains(e.Message, "account with") &&
		quota != "" {
		return fmt.Sprintf("list the quotas with `anneal quota list %s`", id(account))
	} else if found {
		return listHint("accounts")
	}
	return listHint(collectionOf(path))
}

// collectionOf returns the collection in a resource name.
func collectionOf(name string) string {
	parts := strings.Split(name, "/")
	if len(parts) < 2 {
		return ""
	}
	return parts[(len(parts)/2-1)*2]
}

// hintsVariable is the environment variable that controls whether commands suggest the next
// command: never, always, or auto (the default), which suggests it on a terminal.
const hintsVariable = "ANNEAL_HINTS"

// suggest prints the command that usually follows this one, if hintsVariable permits it. With -o
// json it prints nothing.
func suggest(c *cobra.Command, format string, args ...any) {
	setting := os.Getenv(hintsVariable)
	inJSON, _ := wantsJSON(c)
	if inJSON || setting == "never" || setting != "always" &&
		!(onTerminal(c.ErrOrStderr()) && onTerminal(c.OutOrStdout())) {
		return
	}
	fmt.Fprintf(c.ErrOrStderr(), "next: anneal "+format+"\n", args...)
}
