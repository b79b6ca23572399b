package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// rolloutFlags are the flags that select rollouts.
type rolloutFlags struct {
	step, limit         int
	min, max            float64
	invalid, evaluation bool
}

func (k jobKind) rolloutsCommand() *cobra.Command {
	var flags rolloutFlags
	c := &cobra.Command{Use: "rollouts ID [ROLLOUT]", Short: "Show a job's rollouts: prompts, responses and their scores",
		Args: arguments(1, 2),
		Long: "The newest steps come first. A table may truncate long texts; with the ID of a rollout, the command " +
			"prints the rollout in full. A job keeps all rollouts of its newest steps, and an even sample of the " +
			"earlier steps.",
		Example: fmt.Sprintf("  anneal %s rollouts exact\n  anneal %s rollouts exact --step 12 --max-score 0.2\n"+
			"  anneal %s rollouts exact 12-3-1\n  anneal %s rollouts exact --limit 0 -o json > rollouts.json",
			k.command, k.command, k.command, k.command),
		RunE: func(c *cobra.Command, args []string) error {
			if err := flags.check(c); err != nil {
				return err
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			job := client.name(k.name, args[0])
			if len(args) == 2 {
				return printRollout(c, client, job, args[1])
			}
			rollouts, total, err := readRollouts(c.Context(), client, job, flags.filter(c), flags.limit)
			if err != nil {
				return err
			}
			if total > len(rollouts) {
				fmt.Fprintf(c.ErrOrStderr(), "%d of %d rollouts; --limit 0 shows all\n", len(rollouts), total)
			}
			if inJSON, err := wantsJSON(c); err != nil || inJSON {
				return cmp.Or(err, printJSON(c.OutOrStdout(), rollouts))
			}
			for _, one := range rollouts {
				describeRollout(one)
			}
			return printItems(c, flags.emptyList(c), rollouts,
				column{"ID", "#name"}, column{"STEP", "step"}, column{"EPOCH", "shownEpoch"},
				column{"SCORE", "shownScore"}, column{"PROMPT", "prompt"}, column{"RESPONSE", "response"},
				column{"REASON", "reason"})
		}}
	f := c.Flags()
	f.IntVar(&flags.step, "step", 0, "show only the rollouts of one step")
	f.Float64Var(&flags.min, "min-score", 0, "show only valid scores that are at least this")
	f.Float64Var(&flags.max, "max-score", 1, "show only valid scores that are at most this")
	f.BoolVar(&flags.invalid, "invalid", false, "show only rollouts without a valid score")
	f.BoolVar(&flags.evaluation, "evaluation", false, "show only rollouts of evaluation rows; =false excludes them")
	f.IntVar(&flags.limit, "limit", 20, "maximum number of rollouts; 0 shows all")
	return c
}

func (f *rolloutFlags) check(c *cobra.Command) error {
	given := c.Flags().Changed
	switch {
	case f.limit < 0:
		return usage.Errorf("--limit %d must not be negative", f.limit)
	case f.min < 0 || f.min > 1, f.max < 0 || f.max > 1:
		return usage.Errorf("--min-score %g and --max-score %g must be from 0 to 1", f.min, f.max)
	case f.min > f.max:
		return usage.Errorf("--min-score %g is above --max-score %g", f.min, f.max)
	case f.invalid && (given("min-score") || given("max-score")):
		return usage.Errorf("--invalid excludes --min-score and --max-score: rollouts without a valid score have none")
	}
	return nil
}

// filter returns the filter of the API request for the flags that are given.
func (f *rolloutFlags) filter(c *cobra.Command) string {
	var terms []string
	add := func(flag, term string) {
		if c.Flags().Changed(flag) {
			terms = append(terms, term)
		}
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	add("step", "step = "+strconv.Itoa(f.step))
	add("min-score", "success = true AND score >= "+number(f.min))
	add("max-score", "success = true AND score <= "+number(f.max))
	add("invalid", "success = "+strconv.FormatBool(!f.invalid))
	add("evaluation", "evaluation = "+strconv.FormatBool(f.evaluation))
	return strings.Join(terms, " AND ")
}

// emptyList returns what the command prints if no rollout matches the flags.
func (f *rolloutFlags) emptyList(c *cobra.Command) noRows {
	if f.filter(c) != "" {
		return noRows{"no rollout of the job matches the flags", "leave out a flag"}
	}
	return noRows{"the job has no rollouts yet", ""}
}

// readRollouts returns the rollouts of a job that match a filter, at most limit, the newest steps
// first, and the number of all matching rollouts. A limit of 0 returns all.
func readRollouts(
	ctx context.Context, client *client, job, filter string, limit int,
) (rollouts []map[string]any, total int, err error) {
	rollouts = []map[string]any{}
	query := url.Values{"orderBy": {"step desc,evaluation,row,candidate"}, "pageSize": {pageSize}}
	if filter != "" {
		query.Set("filter", filter)
	}
	if size, _ := strconv.Atoi(pageSize); limit > 0 && limit < size {
		query.Set("pageSize", strconv.Itoa(limit))
	}
	for {
		var page struct {
			Rollouts      []map[string]any `json:"rollouts"`
			NextPageToken string           `json:"nextPageToken"`
			TotalSize     int              `json:"totalSize"`
		}
		if err := client.call(ctx, http.MethodGet, "/v1/"+job+"/rollouts", query, nil, &page); err != nil {
			return nil, 0, err
		}
		rollouts, total = append(rollouts, page.Rollouts...), page.TotalSize
		if limit > 0 && len(rollouts) >= limit {
			return rollouts[:limit], total, nil
		}
		if page.NextPageToken == "" {
			return rollouts, total, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

// describeRollout adds to a rollout the texts that only tables show.
func describeRollout(rollout map[string]any) {
	input, _ := rollout["input"].(map[string]any)
	rollout["prompt"] = lastContent(input["messages"])
	rollout["shownScore"] = "invalid"
	if rollout["success"] == true {
		rollout["shownScore"] = rollout["score"]
	}
	if epoch, ok := rollout["epoch"].(float64); ok {
		rollout["shownEpoch"] = strconv.FormatFloat(epoch, 'f', 2, 64)
	}
}

// printRollout prints all fields of one rollout.
func printRollout(c *cobra.Command, client *client, job, rollout string) error {
	name := job + "/rollouts/" + id(rollout)
	found, _, err := readRollouts(c.Context(), client, job, "name = "+strconv.Quote(name), 1)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("rollout %s of job %s not found: list the rollouts that are kept with `anneal %s rollouts %s`",
			id(rollout), id(job), c.Parent().Name(), id(job))
	}
	one := found[0]
	if inJSON, err := wantsJSON(c); err != nil || inJSON {
		return cmp.Or(err, printJSON(c.OutOrStdout(), one))
	}
	describeRollout(one)
	input, _ := one["input"].(map[string]any)
	messages, _ := input["messages"].([]any)
	var lines []string
	for _, each := range messages {
		message, _ := each.(map[string]any)
		lines = append(lines, fmt.Sprintf("%v: %s", message["role"], lastContent([]any{message})))
	}
	one["prompt"] = strings.Join(lines, "\n")
	fields := maps.Clone(input)
	delete(fields, "messages")
	if len(fields) > 0 {
		text, err := json.Marshal(fields)
		if err != nil {
			return err
		}
		one["fields"] = string(text)
	}
	return printItem(c, one, column{"Name", "name"}, column{"Created", "createTime"}, column{"Step", "step"},
		column{"Epoch", "shownEpoch"}, column{"Evaluation", "evaluation"}, column{"Row", "row"},
		column{"Candidate", "candidate"}, column{"Score", "shownScore"}, column{"Reason", "reason"},
		column{"Metrics", "perMetricEvals"}, column{"Fields of the row", "fields"}, column{"Prompt", "prompt"},
		column{"Response", "response"}, column{"Truncated", "truncated"})
}
