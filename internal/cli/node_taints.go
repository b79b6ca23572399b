package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

// Paths of the fields of an account with its policy.
const (
	selectorPath    = "nodes.nodeSelector"
	tolerationsPath = "nodes.tolerations"
)

func nodeTaint() *cobra.Command {
	return &cobra.Command{Use: "taint ID KEY=VALUE:NoSchedule",
		Short:   "Keep new work off a node, except work of accounts that tolerate the taint",
		Args:    arguments(2, 2),
		Example: "  anneal node taint gpu-7 dedicated=acme:NoSchedule",
		RunE: func(c *cobra.Command, args []string) error {
			taint, err := parseTaint(args[1])
			if err != nil {
				return err
			}
			return changeNode(c, args[0], ":taint", taint, "tainted")
		}}
}

func nodeUntaint() *cobra.Command {
	return &cobra.Command{Use: "untaint ID KEY", Short: "Remove a taint from a node", Args: arguments(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return changeNode(c, args[0], ":untaint", map[string]any{"key": args[1]}, "untainted")
		}}
}

func accountNodes() *cobra.Command {
	var selector, tolerations []string
	c := &cobra.Command{Use: "nodes ID",
		Short:   "Set which nodes an account may use; without flags, all nodes without taints",
		Args:    arguments(1, 1),
		Example: "  anneal account nodes acme --selector tier=spot --tolerate dedicated=acme:NoSchedule",
		Long: `Replaces the policy of the account. New jobs and replicas of the account are placed only on nodes that have
all labels of --selector (see ` + "`anneal work --label`" + `), and not on nodes with a taint that is not
tolerated. Running jobs and replicas stay on their nodes.`,
		RunE: func(c *cobra.Command, args []string) error {
			labels, tolerated := map[string]any{}, []any{}
			for _, text := range selector {
				key, value, found := strings.Cut(text, "=")
				if !found || !domain.ValidLabel(key, value) {
					return usage.Errorf("--selector %q must be KEY=VALUE: key and value %s", text, domain.LabelRule)
				}
				labels[key] = value
			}
			for _, text := range tolerations {
				taint, err := parseTaint(text)
				if err != nil {
					return err
				}
				tolerated = append(tolerated, taint)
			}
			return accountVerb(c, args[0], "setNodes", map[string]any{"nodeSelector": labels, "tolerations": tolerated},
				"changed")
		}}
	c.Flags().StringArrayVar(&selector, "selector", nil, "label `KEY=VALUE` that the nodes must have; repeatable")
	c.Flags().StringArrayVar(&tolerations, "tolerate", nil,
		"taint `KEY=VALUE:NoSchedule` that the nodes may have; repeatable")
	return c
}

// parseTaint parses a taint KEY=VALUE:NoSchedule or KEY:NoSchedule, and returns it as the JSON of
// the API.
func parseTaint(text string) (map[string]any, error) {
	label, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(label, "=")
	if effect != domain.NoSchedule || !domain.ValidLabel(key, value) {
		return nil, usage.Errorf("taint %q must be KEY=VALUE:%s: key and value %s", text, domain.NoSchedule,
			domain.LabelRule)
	}
	return map[string]any{"key": key, "value": value, "effect": effect}, nil
}

// taintTexts returns taints of the API's JSON as parseTaint takes them, separated by commas.
func taintTexts(taints []any) string {
	var texts []string
	for _, taint := range objects(taints) {
		text := cell(taint, "key")
		if value := cell(taint, "value"); value != "-" {
			text += "=" + value
		}
		texts = append(texts, text+":"+cell(taint, "effect"))
	}
	return strings.Join(texts, ", ")
}
