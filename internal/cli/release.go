package cli

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// releaseDetails are the columns of the newest release of a deployment.
var releaseDetails = []column{{"Deployment", "name"}, {"Release", "trafficSplit.number"},
	{"Candidate", "trafficSplit.candidate"}, {"State", "trafficSplit.state"}, {"Reason", "trafficSplit.reason"},
	{"Mode", "trafficSplit.mode"}, {"Step", "trafficSplit.step"}, {"Percent", "trafficSplit.percent"},
	{"Requests", "trafficSplit.figures.stable.requests"}, {"Errors", "trafficSplit.figures.stable.errors"},
	{"First token (s)", "trafficSplit.figures.stable.firstTokenP50"},
	{"Per token (s)", "trafficSplit.figures.stable.perTokenP50"},
	{"Candidate requests", "trafficSplit.figures.candidate.requests"},
	{"Candidate errors", "trafficSplit.figures.candidate.errors"},
	{"Candidate first token (s)", "trafficSplit.figures.candidate.firstTokenP50"},
	{"Candidate per token (s)", "trafficSplit.figures.candidate.perTokenP50"},
	{"Started", "trafficSplit.startTime"}, {"Changed", "trafficSplit.stepTime"}}

func releaseCommand() *cobra.Command {
	return group("release", "Manage canary and shadow releases of deployments", releaseStart(),
		collection{deployments.name, "release of a deployment", nil, releaseDetails}.getCommand(),
		&cobra.Command{Use: "watch ID", Short: "Show the progress of a release until it has ended", Args: arguments(1, 1),
			RunE: func(c *cobra.Command, args []string) error {
				client, err := newClient(c)
				if err != nil {
					return err
				}
				return watchRelease(c, client, client.name("deployments", args[0]))
			}},
		releaseEnd("promote", "promoteRelease", "Promote the candidate: it gets all requests of the deployment"),
		releaseEnd("rollback", "rollBackRelease", "Roll back a release: the candidate gets no more requests"))
}

func releaseStart() *cobra.Command {
	var steps []string
	var watch bool
	fields := []field{
		{flag: "candidate", path: "candidate", value: "", collection: deployments.name,
			usage: "deployment to which the requests move"},
		{flag: "mode", path: "mode", value: "", usage: "CANARY: the candidate answers its share of the requests (default); " +
			"SHADOW: they are mirrored to it, and its answers are discarded"},
		{flag: "selection", path: "selection", value: "", usage: "REQUEST: each request on its own (default); KEY: all " +
			"requests of a session or an API key"},
		{flag: "promotion", path: "promotion", value: "", usage: "AUTOMATIC: promote after the last step (default); " +
			"MANUAL: wait for 'anneal deployment release promote'"},
		{flag: "max-error-increase", path: "maxErrorIncreasePercent", value: 1, usage: "percentage points by which the " +
			"error rate of the candidate may be higher"},
		{flag: "max-latency", path: "maxLatencyPercent", value: 125, usage: "maximum latency of the candidate in percent " +
			"of that of the stable deployment"},
		{flag: "min-samples", path: "minSamples", value: 50, usage: "requests to each of the two deployments that a step " +
			"needs"},
		{flag: "max-step-duration", path: "maxStepDuration", value: "", usage: "roll back when a step takes longer, such " +
			"as 3600s (default 86400s)"},
	}
	c := &cobra.Command{Use: "start ID --candidate DEPLOYMENT", Short: "Start a release", Args: arguments(1, 1),
		Example: "  anneal deployment release start polite --candidate polite-v2 --steps 5,25,50",
		Long: "Moves the traffic of a deployment, the stable deployment, to another deployment, the candidate. The share " +
			"of the candidate grows in steps, as long as its error rate and latencies stay within limits. The server then " +
			"promotes the candidate or rolls the release back.",
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body := map[string]any{}
			if err := fillBody(c, client, fields, body); err != nil {
				return err
			}
			if body["candidate"] == nil {
				return required("candidate")
			}
			if c.Flags().Changed("steps") {
				percentages := make([]int, len(steps))
				for i, text := range steps {
					if percentages[i], err = strconv.Atoi(text); err != nil {
						return usage.Errorf("--steps %q must be percentages such as 5,25,50", text)
					}
				}
				body["steps"] = percentages
			}
			var item map[string]any
			name := client.name("deployments", args[0])
			if err := client.call(c.Context(), http.MethodPost, "/v1/"+name+":startRelease", nil, body, &item); err != nil {
				return err
			}
			if watch {
				return watchRelease(c, client, name)
			}
			return printItem(c, item, releaseDetails...)
		}}
	addFields(c, fields)
	c.Flags().StringSliceVar(&steps, "steps", nil, "`PERCENTAGES` of the requests for the candidate (default 1,5,25,50)")
	bindFlag(c, "steps", "steps")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "wait until the release has ended")
	return c
}

// releaseEnd returns the command for a custom verb of the API that ends a release.
func releaseEnd(use, verb, short string) *cobra.Command {
	reason := []field{{flag: "reason", path: "reason", value: "", usage: "reason, for the events"}}
	c := &cobra.Command{Use: use + " ID", Short: short, Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := newClient(c)
			if err != nil {
				return err
			}
			var item map[string]any
			body := map[string]any{}
			if err := fillBody(c, client, reason, body); err != nil {
				return err
			}
			path := "/v1/" + client.name("deployments", args[0]) + ":" + verb
			if err := client.call(c.Context(), http.MethodPost, path, nil, body, &item); err != nil {
				return err
			}
			return printItem(c, item, releaseDetails...)
		}}
	addFields(c, reason)
	return c
}

// watchRelease prints the progress of the newest release of a deployment until it is no longer RUNNING,
// and then the release.
func watchRelease(cmd *cobra.Command, c *client, name string) error {
	watch, last := watch{client: c, cmd: cmd, name: name}, ""
	for {
		item, err := watch.read()
		if err == nil && cell(item, "trafficSplit.state") != "RUNNING" {
			return printItem(cmd, item, releaseDetails...)
		}
		if err == nil {
			line := fmt.Sprintf("step %s, %s %%: %s requests to the candidate, %s errors", cell(item, "trafficSplit.step"),
				cell(item, "trafficSplit.percent"), cell(item, "trafficSplit.figures.candidate.requests"),
				cell(item, "trafficSplit.figures.candidate.errors"))
			if line != last {
				fmt.Fprintln(cmd.ErrOrStderr(), line)
			}
			last, err = line, sleep(cmd.Context(), watchPoll)
		}
		if err != nil {
			return onInterrupt(cmd, err, "The release continues. Run `anneal deployment release watch %s` to show its "+
				"progress again, or `anneal deployment release rollback %s` to end it.", id(name), id(name))
		}
	}
}
