package cli

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/internal/usage"
)

// usageFields are the columns of the table for each field of --group-by.
var usageFields = map[string][]column{
	"hour":            {{"HOUR", "startTime"}},
	"day":             {{"DAY", "startDay"}},
	"account":         {{"ACCOUNT", "#account"}},
	"apiKey":          {{"KEY", "#apiKey"}},
	"model":           {{"MODEL", "model"}},
	"deployment":      {{"DEPLOYMENT", "#deployment"}},
	"job":             {{"JOB", "#job"}},
	"acceleratorType": {{"ACCELERATOR", "acceleratorType"}},
}

var usageAmounts = []column{{"REQUESTS", "requests"}, {"PROMPT", "promptTokens"}, {"CACHED", "cachedPromptTokens"},
	{"COMPLETION", "completionTokens"}, {"AUDIO S", "audioSeconds"}, {"ACCELERATOR S", "acceleratorSeconds"},
	{"COMPLETE", "complete"}}

func usageCommand() *cobra.Command {
	var from, to, filter string
	var groups []string
	var all, asCSV bool
	c := &cobra.Command{Use: "usage", Args: arguments(0, 0), Short: "Show the usage of models and accelerators",
		Long: `Shows the requests, tokens and seconds of audio of the account, and the seconds for which accelerators were
allocated to its jobs and deployments. Days and hours are in UTC. A row is complete when its period has ended and its
usage is rolled up; the usage of the current hour is included.`,
		Example: "  anneal usage\n  anneal usage --group-by day,model,apiKey --from 2026-03-01T00:00:00Z --csv\n" +
			"  anneal usage --all-accounts --group-by account",
		RunE: func(c *cobra.Command, _ []string) error {
			query, err := usageParameters(groups, from, to, filter)
			if err != nil {
				return err
			}
			client, path, err := usageClient(c, all)
			if err != nil {
				return err
			}
			if asCSV {
				query.Set("format", "csv")
				res, err := client.request(c.Context(), http.MethodGet, path, query, "", nil)
				if err != nil {
					return err
				}
				defer res.Body.Close()
				_, err = io.Copy(c.OutOrStdout(), res.Body)
				return err
			}
			items, err := client.list(c.Context(), path, "usage", query)
			if err != nil {
				return err
			}
			var columns []column
			for _, name := range groups {
				columns = append(columns, usageFields[name]...)
			}
			inJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			for _, item := range items {
				if start, _ := item["startTime"].(string); !inJSON {
					item["startDay"], _, _ = strings.Cut(start, "T")
				}
			}
			return printItems(c, noRows{"no usage",
				"the default period is the current month: give another one with --from and --to"},
				items, append(columns, usageAmounts...)...)
		}}
	f := c.Flags()
	f.StringSliceVar(&groups, "group-by", []string{"day"}, "`FIELDS` to group by: none, or some of hour, day, "+
		"account, apiKey, model, deployment, job, acceleratorType")
	f.StringVar(&from, "from", "", "start `TIME` of the period, rounded down to an hour, such as "+
		"2026-03-01T00:00:00Z (default: start of the current month)")
	f.StringVar(&to, "to", "", "end `TIME` of the period, rounded up to an hour (default: now)")
	f.StringVar(&filter, "filter", "", "AIP-160 `FILTER` of the rows, such as 'requests > 0'")
	f.BoolVar(&asCSV, "csv", false, "print CSV")
	f.BoolVar(&all, "all-accounts", false, "show the usage of all accounts; requires the operator's context file")
	bindFlag(c, "from", "startTime")
	bindFlag(c, "to", "endTime")
	dataFlag(f)
	return c
}

func usageParameters(groups []string, from, to, filter string) (url.Values, error) {
	for _, name := range groups {
		if usageFields[name] == nil && !slices.Equal(groups, []string{"none"}) {
			return nil, usage.Errorf("--group-by must be none alone, or some of hour, day, account, apiKey, model, deployment, "+
				"job, acceleratorType, not %q%s", name, domain.DidYouMean(name, wire.SortedKeys(usageFields)))
		}
	}
	query := url.Values{}
	for name, value := range map[string]string{"groupBy": strings.Join(groups, ","), "startTime": from, "endTime": to,
		"filter": filter} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query, nil
}

// usageClient returns a client and the URL path of usage records: of the user's account or, if all
// is true, of the operator and all accounts.
func usageClient(c *cobra.Command, all bool) (*client, string, error) {
	if all {
		operator, err := newOperator(c)
		return operator, "/v1/usage", err
	}
	user, err := newClient(c)
	if err != nil {
		return nil, "", err
	}
	return user, user.path("usage"), nil
}
