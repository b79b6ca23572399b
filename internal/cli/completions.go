package cli

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/domain"
)

// A completer returns the words by which the shell can complete the last word of a command line.
// before are the arguments before that word.
type completer = cobra.CompletionFunc

// completionTimeout limits the request that a shell completion sends, because the user waits for
// it.
const completionTimeout = 2 * time.Second

// annotationCollection is the annotation of a flag whose value names a resource: the collection of
// the resource, or usableModels.
const annotationCollection = "collection"

// usableModels is the value of annotationCollection for a flag that names a model for requests: a
// model, a deployment or an alias, which are in several collections.
const usableModels = "names"

// addCompletions adds shell completion of arguments and flags to a command and all commands below
// it.
func addCompletions(c *cobra.Command) {
	if c.ValidArgsFunction == nil && !c.HasSubCommands() {
		c.ValidArgsFunction = completeArguments
	}
	complete := func(f *pflag.Flag) {
		// The error is that the flag already has a completion.
		_ = c.RegisterFlagCompletionFunc(f.Name, completerOf(f))
	}
	c.LocalFlags().VisitAll(complete)
	for _, child := range c.Commands() {
		addCompletions(child)
	}
}

// argumentNames returns the names of the arguments in a command's usage line, such as ID and FILE.
func argumentNames(c *cobra.Command) (names []string) {
	for _, word := range strings.Fields(c.Use)[1:] {
		if strings.HasPrefix(strings.Trim(word, "["), "--") {
			break
		}
		name, _, _ := strings.Cut(strings.Trim(word, "[]."), "|")
		names = append(names, name)
	}
	return names
}

// namingCommands are the commands whose argument ID is the ID of a new resource.
var namingCommands = []string{"create", "derive", "load"}

// completeArguments completes an argument of a command. The name of the argument in the usage line,
// such as FILE or ID, determines the words.
func completeArguments(c *cobra.Command, before []string, word string) ([]string, cobra.ShellCompDirective) {
	names := argumentNames(c)
	if len(before) >= len(names) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	switch name := names[len(before)]; {
	case name == "FILE":
		return nil, cobra.ShellCompDirectiveDefault
	case name == "DIR":
		return nil, cobra.ShellCompDirectiveFilterDirs
	case name == "SERVICE":
		return services, cobra.ShellCompDirectiveNoFileComp
	case name == "BATCH":
		return completeBatches(c)
	case name == "SHAPE":
		return completeIDs(shapes.name)(c, before, word)
	case name == "ACCOUNT", name == "ID" && c.Parent().Name() == "account":
		return completeAccounts(c)
	case name == "CHECKPOINT":
		return completeCheckpoints(c, before)
	case name == "ID" && c.Parent().Name() == "quota":
		return domain.QuotaIDs, cobra.ShellCompDirectiveNoFileComp
	case name == "ID" && c.Parent().Name() == "credentials":
		return completeIDs(apiKeys.name)(c, before, word)
	case name == "ID" && !slices.Contains(namingCommands, c.Name()):
		if collection, found := collectionNamedBy(c); found {
			return completeIDs(collection)(c, before, word)
		}
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// collectionNamedBy returns the collection of the resources that a command names: that of its group, or of the
// group around it, as for `anneal deployment release start`.
func collectionNamedBy(c *cobra.Command) (collection string, found bool) {
	for group := c.Parent(); group != nil; group = group.Parent() {
		for collection, command := range commandOf {
			if command == group.Name() {
				return collection, true
			}
		}
	}
	return "", false
}

// enumerations are the values of flags whose help does not list their values, by flag name.
var enumerations = map[string][]string{
	"accelerator-type": domain.ShapeAcceleratorTypes[1:],
	"precision":        domain.Precisions[1:],
}

// completerOf returns the completer of the values of a flag.
func completerOf(f *pflag.Flag) completer {
	values := enumerations[f.Name]
	if f.Value.Type() == "string" {
		if shown := shownValues(f.Usage); shown != nil {
			values = shown
		}
	}
	switch collection := f.Annotations[annotationCollection]; {
	case len(collection) > 0 && collection[0] == usableModels:
		return completeModels
	case len(collection) > 0:
		return completeIDs(collection[0])
	case values != nil:
		return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	case isDirectory(f):
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	case isPath(f):
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	}
	return cobra.NoFileCompletions
}

// isDirectory reports whether the value of a flag is the path of a directory.
func isDirectory(f *pflag.Flag) bool {
	return f.Name == "dir" || f.Name == "base-dir" || f.Name == "hf" || f.Name == "data" || f.Name == "engine-files"
}

// pathFlags matches the names of flags whose value is the path of a file.
var pathFlags = regexp.MustCompile(`^(.*-)?file$|^(context|ca|gguf|image)$|-(ca|cert|key)$`)

func isPath(f *pflag.Flag) bool { return pathFlags.MatchString(f.Name) }

// valuesInHelp matches a list of values in the help of a flag, such as "role: admin, user or
// reader".
var valuesInHelp = regexp.MustCompile(`^(?:[^:(]+: )?((?:[\w.]+, )*[\w.]+(?:,| or) [\w.-]+)(?: \(.*)?$`)

// shownValues returns the values that the help of a flag lists; nil if it lists none.
func shownValues(usage string) (values []string) {
	found := valuesInHelp.FindStringSubmatch(usage)
	if found == nil {
		return nil
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(found[1], " or ", ", "), ", ") {
		values = append(values, part)
	}
	return values
}

// completionClient returns a client for shell completion, which prints no warnings.
func completionClient(c *cobra.Command) (*client, error) {
	made, err := newClient(c)
	if err == nil {
		made.warn = nil
	}
	return made, err
}

// completeIDs returns the completer of the IDs of the account's resources in a collection. The
// words have the resources' states as descriptions. Without a response of the server there are no
// words.
func completeIDs(collection string) completer {
	return func(c *cobra.Command, _ []string, word string) (words []string, _ cobra.ShellCompDirective) {
		path := func(made *client) string { return made.path(collection) }
		if commandOf[collection] == "node" {
			return completeNodes(c)
		}
		items := completionItems(c, completionClient, path, collection)
		for _, item := range items {
			words = append(words, completionWord(item, word))
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// completionWord returns the word for a resource, with its state as a description. The word is the
// resource name if the user has typed the beginning of a resource name, and otherwise the ID.
func completionWord(item map[string]any, typed string) string {
	name := cell(item, "#name")
	if strings.HasPrefix(typed, "accounts/") {
		name = cell(item, "name")
	}
	if state := cell(item, "state"); state != "-" {
		return name + "\t" + strings.TrimPrefix(state, "JOB_STATE_")
	}
	return name
}

// completionItems requests a collection and returns the items of its first page, which are in the
// given field of the response. It returns nil if the request fails.
func completionItems(c *cobra.Command, connect func(*cobra.Command) (*client, error), path func(*client) string,
	field string) []map[string]any {
	made, err := connect(c)
	if err != nil {
		return nil
	}
	ctx, stop := context.WithTimeout(c.Context(), completionTimeout)
	defer stop()
	query := url.Values{}
	if strings.HasPrefix(path(made), "/v1/accounts") { // only lists at these paths accept the parameter pageSize
		query.Set("pageSize", pageSize)
	}
	var page map[string]any
	if made.call(ctx, http.MethodGet, path(made), query, nil, &page) != nil {
		return nil
	}
	list, _ := page[field].([]any)
	items := make([]map[string]any, 0, len(list))
	for _, one := range list {
		if item, ok := one.(map[string]any); ok {
			items = append(items, item)
		}
	}
	return items
}

// completionOperator returns a client for shell completion with the operator's key.
func completionOperator(c *cobra.Command) (*client, error) {
	made, err := newOperator(c)
	if err == nil {
		made.warn = nil
	}
	return made, err
}

func completeAccounts(c *cobra.Command) (words []string, _ cobra.ShellCompDirective) {
	path := func(*client) string { return "/v1/accounts" }
	for _, item := range completionItems(c, completionOperator, path, "accounts") {
		words = append(words, completionWord(item, ""))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

func completeNodes(c *cobra.Command) (words []string, _ cobra.ShellCompDirective) {
	path := func(made *client) string { return made.path("nodes") }
	for _, item := range completionItems(c, completionOperator, path, "nodes") {
		words = append(words, completionWord(item, ""))
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeCheckpoints completes the ID of a checkpoint of the job that is the first argument.
func completeCheckpoints(c *cobra.Command, before []string) (words []string, _ cobra.ShellCompDirective) {
	for collection, command := range commandOf {
		if command != c.Parent().Name() || len(before) == 0 {
			continue
		}
		path := func(made *client) string { return "/v1/" + made.name(collection, before[0]) + "/checkpoints" }
		for _, item := range completionItems(c, completionClient, path, "checkpoints") {
			words = append(words, cell(item, "#name")+"\tstep "+cell(item, "step"))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeModels completes the names of models for requests: IDs of the account's models, names of
// public models, and aliases of deployments.
func completeModels(c *cobra.Command, _ []string, word string) (words []string, _ cobra.ShellCompDirective) {
	path := func(*client) string { return "/inference/v1/models" }
	made, err := completionClient(c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, item := range completionItems(c, completionClient, path, "data") {
		name := cell(item, "id")
		if own, found := strings.CutPrefix(name, "accounts/"+made.Account+"/models/"); found &&
			!strings.HasPrefix(word, "accounts/") {
			name = own
		}
		state := "not deployed"
		if item["deployed"] == true {
			state = "deployed"
		}
		words = append(words, name+"\t"+state)
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
