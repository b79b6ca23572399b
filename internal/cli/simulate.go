package cli

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"anneal/api/routing/twin"
	"anneal/domain"
	"anneal/internal/usage"
)

// Limits of a simulation.
const (
	maxSimulatedReplicas = 4096
	maxSimulatedGateways = 64
	maxSimulatedSpeed    = 1000
	minSimulatedSpeed    = 0.001
)

func simulateCommand() *cobra.Command {
	var o twin.Options
	var trace, profile string
	var policies []string
	var blocks int64
	var names []string
	for _, p := range twin.Policies {
		names = append(names, string(p))
	}
	c := &cobra.Command{Use: "simulate",
		Short:   "Show the times to the first token of a trace of requests, by routing policy",
		Args:    arguments(0, 0),
		Example: "  anneal simulate --trace requests.jsonl --replicas 8 --policy fewest-requests,tokens",
		Long: `Replays a trace of requests on a virtual clock, and prints the times to the first token. The gateway runs the
code of the server; a replica is a model of an engine with continuous batching, whose constants --profile selects.

Each line of the trace is a JSON object with timestamp (ms), input_length and output_length (tokens) and hash_ids,
one for each 512 tokens of the prompt; equal leading IDs mean an equal prefix. The field account is optional.

Policies:
  round-robin      each replica in turn, for comparison
  fewest-requests  the replica with the fewest requests, for comparison
  tokens           the replica with the fewest prompt tokens to process before the answer, which the server uses
  queue            the same, with a fair queue at the gateway, which the server does not have yet`,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := checkSimulation(&o, trace, profile, blocks, policies, names); err != nil {
				return err
			}
			if o.Trace, err = twin.ReadTrace(trace); err != nil {
				return usage.Errorf("--trace: %v", err)
			}
			if len(o.Trace) == 0 {
				return usage.Errorf("--trace %s has no requests", trace)
			}
			var rows []simulatedPolicy
			for i, policy := range policies {
				fmt.Fprintf(c.ErrOrStderr(), "simulating %d requests with the policy %s (%d of %d)\n", len(o.Trace), policy, i+1,
					len(policies))
				o.Policy = twin.Policy(policy)
				result, err := twin.Run(c.Context(), o)
				if err != nil {
					return err
				}
				rows = append(rows, newSimulatedPolicy(policy, result))
			}
			if inJSON, _ := wantsJSON(c); inJSON {
				return printJSON(c.OutOrStdout(), map[string]any{"policies": rows})
			}
			return printTable(c.OutOrStdout(), simulationTable(rows))
		}}
	f := c.Flags()
	f.StringVar(&trace, "trace", "", "`FILE` with the requests; may be compressed (.gz); required")
	f.StringSliceVar(&policies, "policy", []string{"fewest-requests", "tokens"},
		"`POLICIES` to compare, separated by commas")
	f.StringVar(&profile, "profile", "h100", "`NAME` of the cost model of a replica: h100 or g8k (8,000 prompt tokens/s)")
	f.IntVar(&o.Replicas, "replicas", 8, "`NUMBER` of replicas")
	f.Int64Var(&blocks, "cache-blocks", 0,
		"`SIZE` of a replica's KV cache in blocks of 512 tokens (default: the profile's)")
	f.Float64Var(&o.Speed, "speed", 1, "`FACTOR` by which requests arrive faster than in the trace")
	f.IntVar(&o.Gateways, "gateways", 1, "`NUMBER` of gateways, which get the requests in turn")
	f.DurationVar(&o.AnnounceDelay, "announce-delay", 0,
		"`TIME` after which gateways learn of one another's requests (default: never)")
	f.BoolVar(&o.Reports, "reports", false,
		"replicas report their pending tokens and the size of their cache, which the server does not use yet")
	_ = c.MarkFlagRequired("trace") // fails only if the flag does not exist
	return c
}

// checkSimulation sets the profile of a simulation, and returns an error that names a wrong flag.
func checkSimulation(o *twin.Options, trace, profile string, blocks int64, policies, names []string) error {
	for _, policy := range policies {
		if !slices.Contains(names, policy) {
			return usage.Errorf("--policy %q %s", policy, domain.OneOfRule(policy, names))
		}
	}
	switch {
	case trace == "":
		return usage.Errorf("--trace must name a file with requests")
	case len(policies) == 0:
		return usage.Errorf("--policy must name at least one policy")
	case o.Replicas > maxSimulatedReplicas:
		return usage.Errorf("--replicas %d must be at most %d", o.Replicas, maxSimulatedReplicas)
	case o.Gateways > maxSimulatedGateways:
		return usage.Errorf("--gateways %d must be at most %d", o.Gateways, maxSimulatedGateways)
	case !(o.Speed >= minSimulatedSpeed && o.Speed <= maxSimulatedSpeed): // also rejects NaN
		return usage.Errorf("--speed %v must be %v to %d", o.Speed, minSimulatedSpeed, maxSimulatedSpeed)
	}
	known := false
	if o.Profile, known = twin.ProfileNamed(profile); !known {
		return usage.Errorf("--profile %q %s", profile, domain.OneOfRule(profile, twin.ProfileNames()))
	}
	if blocks > 0 {
		o.Profile.CacheBlocks = blocks
	}
	return nil
}

// A simulatedPolicy is the result of one policy. Times are in seconds.
type simulatedPolicy struct {
	Policy     string  `json:"policy"`
	Requests   int     `json:"requests"`
	FirstP50   float64 `json:"firstTokenP50"`
	FirstP90   float64 `json:"firstTokenP90"`
	FirstP99   float64 `json:"firstTokenP99"`
	TokenP90   float64 `json:"furtherTokenP90"` // mean time of a request's further tokens
	Waited     float64 `json:"queueP90"`        // time in the gateway's queue
	Cached     float64 `json:"cachedShare"`     // share of the prompt tokens that were cached
	WithinTwo  float64 `json:"withinTwoSeconds"`
	WithinFour float64 `json:"withinFourSeconds"`
}

func newSimulatedPolicy(policy string, r twin.Result) simulatedPolicy {
	return simulatedPolicy{policy, r.Requests, r.FirstP50.Seconds(), r.FirstP90.Seconds(), r.FirstP99.Seconds(),
		r.TokenP90.Seconds(), r.WaitedP90.Seconds(), r.Hit, r.Within[2*time.Second], r.Within[4*time.Second]}
}

func simulationTable(rows []simulatedPolicy) [][]string {
	table := [][]string{{"POLICY", "REQUESTS", "FIRST TOKEN P50", "P90", "P99", "FURTHER TOKENS P90", "QUEUE P90",
		"CACHED", "WITHIN 2s", "WITHIN 4s"}}
	seconds := func(s float64) string { return strconv.FormatFloat(s, 'f', 2, 64) + "s" }
	percent := func(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) + "%" }
	for _, r := range rows {
		table = append(table, []string{r.Policy, strconv.Itoa(r.Requests), seconds(r.FirstP50), seconds(r.FirstP90),
			seconds(r.FirstP99), strconv.FormatFloat(1000*r.TokenP90, 'f', 0, 64) + "ms", seconds(r.Waited),
			percent(r.Cached), percent(r.WithinTwo), percent(r.WithinFour)})
	}
	return table
}
