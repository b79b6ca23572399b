package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags.
const (
	annotationField = "field" // dotted path of the field of the request that the flag sets
	annotationHint  = "hint"  // printed if that field is violated
)

// bindFlag records that a flag sets a field of the request, so that violations name the flag.
// Without a binding a flag sets the field of its own name: --max-tokens sets maxTokens or max_tokens.
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
}

// flagFor returns the flag of a command that sets a field; nil if none does. A flag only stands for
// a nested field if it is given: the field may come from a file.
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

// nameOf returns what a user gave to set a field: a flag, an argument, or the field of a file.
func nameOf(c *cobra.Command, field string) string {
	if argument := c.Annotations[annotationField+":"+field]; argument != "" {
		return argument
	}
	if kind, found := strings.CutSuffix(field, "Id"); found && c.HasParent() && commandOf[kind+"s"] == c.Parent().Name() && strings.Contains(c.Use, "ID") {
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

// hintsByReason are printed after errors with these reasons.
var hintsByReason = map[string]string{
	"MODEL_NOT_FOUND":    modelNamesHint,
	"MODEL_NOT_DEPLOYED": "deploy the model with `anneal deployment create --model MODEL`",
	"RECENTLY_USED":      "delete it anyway with --ignore-checks",
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

// commandOf are the commands for the resources of each collection.
var commandOf = map[string]string{"accounts": "account", "datasets": "dataset", "models": "model", "deployments": "deployment",
	"deployedModels": "addon", "deploymentShapes": "shape", "evaluators": "evaluator", "secrets": "secret", "apiKeys": "key", "nodes": "node",
	"quotas": "quota", "supervisedFineTuningJobs": "sft", "dpoJobs": "dpo", "reinforcementFineTuningJobs": "rft", "rlorTrainerJobs": "rlor"}

// listHint returns how to list a collection; "" if no command does.
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

// notFoundHint returns how to list the siblings of the resource at a URL path.
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
