package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags.
const (
	annotationField = "field" // dotted path of the field of the request that the flag sets
	annotationHint  = "hint"  // printed if the field of annotationField is violated
)

// bindFlag records that a flag sets a field of the request, so that violations name the flag.
// Without a binding a flag sets the field of its own name: --max-tokens sets maxTokens or
// max_tokens.
func bindFlag(c *cobra.Command, flag, field string, hints ...string) {
	_ = c.Flags().SetAnnotation(flag, annotationField, []string{field}) // the flag exists
	_ = c.Flags().SetAnnotation(flag, annotationHint, hints)
}

// bindArgument records that an argument sets a field of the request.
func bindArgument(c *cobra.Command, argument, field, hint string) {
	c.Annotations = map[string]string{annotationField + ":" + field: argument, annotationHint + ":" + field: hint}
}

// bindReference records that a flag names a resource of a collection.
func bindReference(c *cobra.Command, flag, field, collection string) {
	bindFlag(c, flag, field, listHint(collection))
	_ = c.Flags().SetAnnotation(flag, annotationCollection, []string{collection}) // the flag exists
}

// bindModel records that a flag names a model, deployment or alias to send requests to. hint is
// printed if the server rejects the name.
func bindModel(c *cobra.Command, hint string) {
	bindFlag(c, "model", "model", hint)
	_ = c.Flags().SetAnnotation("model", annotationCollection, []string{usableModels}) // the flag exists
}

// flagFor returns the flag of a command that sets a field; nil if none does. It returns the flag
// of a nested field only if the flag is given, because the field may come from a file.
func flagFor(c *cobra.Command, field string) (found *pflag.Flag) {
	last := field[strings.LastIndexByte(field, '.')+1:]
	element, _, _ := strings.Cut(field, "[") // the list of an element
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

// fieldName returns a flag's name in camelCase.
func fieldName(flag string) string {
	words := strings.Split(flag, "-")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

// nameOf returns the part of the command line that sets a field: a flag or an argument. It returns
// the field itself when no part does, as for a field of a JSON file.
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

// hintsByReason maps the reason of an error to the hint that is printed after the error.
var hintsByReason = map[string]string{
	"MODEL_NOT_FOUND":    modelNamesHint,
	"MODEL_NOT_DEPLOYED": "deploy the model with `anneal deployment create --model MODEL --watch`",
	"RECENTLY_USED":      "delete the deployment anyway with --ignore-checks",
}

// hintsFor returns what a user can do about an error.
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

// withArguments returns a hint whose commands have the arguments of the command line c in place of
// their names, such as `anneal deployment update d3 …` for ID.
func withArguments(c *cobra.Command, hint string) string {
	parts := strings.Split(hint, "`")
	for i := 1; i < len(parts); i += 2 { // commands stand between backticks
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

// argumentOf returns the value that a command line gives to ID, DEPLOYMENT or MODEL, an argument or a
// flag; "" without one.
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
		return value // the model of another account keeps its name
	}
	return id(value)
}

// existsHint returns how to show the resource whose ID a create would use again; "" when no command
// shows it.
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

// commandOf maps a collection to the command for its resources.
var commandOf = map[string]string{"accounts": "account", "datasets": "dataset", "models": "model",
	"deployments":    "deployment",
	"deployedModels": "addon", "deploymentShapes": "shape", "evaluators": "evaluator", "secrets": "secret",
	"apiKeys": "key", "nodes": "node",
	"quotas": "quota", "supervisedFineTuningJobs": "sft", "dpoJobs": "dpo", "reinforcementFineTuningJobs": "rft",
	"rlorTrainerJobs": "rlor", "subscriptions": "subscription"}

// listHint returns a hint about how to list a collection, or "" if no command lists the collection.
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

// notFoundHint returns how to list the collection of the resource that a request names.
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

// collectionOf returns the collection of a resource name.
func collectionOf(name string) string {
	parts := strings.Split(name, "/")
	if len(parts) < 2 {
		return ""
	}
	return parts[(len(parts)/2-1)*2]
}

// hintsVariable is the environment variable that shows or hides the suggested next commands: never,
// always, or auto (the default), which shows them on a terminal.
const hintsVariable = "ANNEAL_HINTS"

// suggest prints the command that usually follows a successful command, if $ANNEAL_HINTS (see
// hintsVariable) permits it. With -o json it prints nothing.
func suggest(c *cobra.Command, format string, args ...any) {
	setting := os.Getenv(hintsVariable)
	inJSON, _ := wantsJSON(c)
	if inJSON || setting == "never" || setting != "always" &&
		!(onTerminal(c.ErrOrStderr()) && onTerminal(c.OutOrStdout())) {
		return
	}
	fmt.Fprintf(c.ErrOrStderr(), "next: anneal "+format+"\n", args...)
}
