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
	c.Flags().VisitAll(func(f *pflag.Flag) {
		fields := f.Annotations[annotationField]
		if fields == nil {
			fields = []string{fieldName(f.Name), strings.ReplaceAll(f.Name, "-", "_")}
		}
		if (slices.Contains(fields, field) || slices.Contains(fields, last)) && (field == last || f.Changed) {
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
		return "ID"
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
	"MODEL_NOT_DEPLOYED": "deploy the model with `anneal deployment create --model MODEL`",
	"RECENTLY_USED":      "delete the deployment anyway with --ignore-checks",
}

// hintsFor returns what a user can do about an error.
func hintsFor(c *cobra.Command, e *apiError) (hints []string) {
	add := func(hint string) {
		if hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	add(hintsByReason[e.Reason])
	if e.Reason == "NOT_FOUND" {
		add(notFoundHint(e.request))
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

// commandOf maps a collection to the command for its resources.
var commandOf = map[string]string{"accounts": "account", "datasets": "dataset", "models": "model",
	"deployments":    "deployment",
	"deployedModels": "addon", "deploymentShapes": "shape", "evaluators": "evaluator", "secrets": "secret",
	"apiKeys": "key", "nodes": "node",
	"quotas": "quota", "supervisedFineTuningJobs": "sft", "dpoJobs": "dpo", "reinforcementFineTuningJobs": "rft",
	"rlorTrainerJobs": "rlor"}

// listHint returns a hint about how to list a collection, or "" if no command lists the collection.
func listHint(collection string) string {
	command := commandOf[collection]
	switch {
	case command == "":
		return ""
	case strings.HasSuffix(collection, "Jobs"):
		return fmt.Sprintf("list jobs with `anneal %s list`", command)
	}
	return fmt.Sprintf("list %ss with `anneal %s list`", command, command)
}

// notFoundHint returns how to list the collection of the resource at a URL path.
func notFoundHint(path string) string {
	path, _, _ = strings.Cut(strings.TrimPrefix(path, "/v1/"), ":")
	if shape, _, found := strings.Cut(path, "/versions/"); found {
		return fmt.Sprintf("list shape versions with `anneal shape versions %s`", id(shape))
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
