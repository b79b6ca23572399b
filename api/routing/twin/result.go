package twin

import (
	"slices"
	"time"
)

// A Result is the result of a simulation.
type Result struct {
	Requests  int
	FirstP50  time.Duration // time to the first token
	FirstP90  time.Duration
	FirstP99  time.Duration
	TokenP90  time.Duration             // mean time of a further token of a request
	Hit       float64                   // share of the prompt tokens that were cached
	Within    map[time.Duration]float64 // share of the requests whose first token came within a time
	WaitedP90 time.Duration             // time in the gateway's queue
	// Accounts has the p90 of the time to the first token of each account of the trace, if there are
	// several.
	Accounts map[string]time.Duration
}

func (s *simulation) result() Result {
	var first, token, waited []time.Duration
	var cached, tokens int64
	byAccount := map[string][]time.Duration{}
	for _, r := range s.requests {
		byAccount[r.account] = append(byAccount[r.account], r.first-r.arrival)
		first = append(first, r.first-r.arrival)
		waited = append(waited, r.dispatch-r.arrival)
		if r.output > 1 {
			token = append(token, (r.end-r.first)/time.Duration(r.output-1))
		}
		cached += r.cached
		tokens += r.prompt.Tokens
	}
	out := Result{Requests: len(first), FirstP50: quantile(first, 50), FirstP90: quantile(first, 90),
		FirstP99: quantile(first, 99), TokenP90: quantile(token, 90), WaitedP90: quantile(waited, 90),
		Hit: float64(cached) / float64(max(1, tokens)), Within: map[time.Duration]float64{}}
	for _, limit := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		n, _ := slices.BinarySearch(first, limit+1)
		out.Within[limit] = float64(n) / float64(len(first))
	}
	if len(byAccount) > 1 {
		out.Accounts = map[string]time.Duration{}
		for account, times := range byAccount {
			out.Accounts[account] = quantile(times, 90)
		}
	}
	return out
}

// quantile returns a percentile of times, which it sorts.
func quantile(times []time.Duration, percent int) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(len(times)-1, len(times)*percent/100)]
}
