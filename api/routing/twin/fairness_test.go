package twin

import (
	"compress/gzip"
	"encoding/csv"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/routing/balance"
)

// azure returns the trace of requests of a code assistant in schedulers/testdata/traces. Its
// prompts have no common prefixes.
func azure(t testing.TB) (trace []TraceRequest) {
	t.Helper()
	file, err := os.Open("../../../schedulers/testdata/traces/azure_llm_2023_code.csv.gz")
	require.NoError(t, err)
	defer file.Close()
	text, err := gzip.NewReader(file)
	require.NoError(t, err)
	rows, err := csv.NewReader(text).ReadAll()
	require.NoError(t, err)
	var begin time.Time
	for i, row := range rows[1:] {
		at, err := time.Parse("2006-01-02 15:04:05.9999999", row[0])
		require.NoError(t, err)
		if i == 0 {
			begin = at
		}
		prompt, err := strconv.ParseInt(row[1], 10, 64)
		require.NoError(t, err)
		answer, err := strconv.ParseInt(row[2], 10, 64)
		require.NoError(t, err)
		trace = append(trace, TraceRequest{Time: at.Sub(begin), Account: "neighbour", Output: max(1, answer),
			Prompt: balance.Prompt{Tokens: max(1, prompt)}})
	}
	return trace
}

// TestNeighbours checks that an account is hardly slower while another account sends ten times as
// many requests and overloads the replicas. Goal: the p90 of the time to the first token is at most
// 1.35 times the p90 without the other account, or 50 ms more.
func TestNeighbours(t *testing.T) {
	trace, victim := azure(t), []TraceRequest(nil)
	for i := range trace {
		if i%11 == 5 {
			trace[i].Account = "victim"
			victim = append(victim, trace[i])
		}
	}
	for _, speed := range []float64{11, 12, 13, 14} {
		o := Options{Trace: victim, Speed: speed, Profile: profile(t, "h100", 840), Replicas: 4, Policy: PolicyQueue,
			Reports: true}
		alone := run(t, o).FirstP90
		o.Trace = trace
		fair := run(t, o)
		o.Policy = PolicyTokens
		unfair := run(t, o)
		beside := fair.Accounts["victim"]
		t.Logf("speed %v: p90 alone %v, beside a neighbour %v with a queue and %v without; of the neighbour %v and %v", speed,
			alone, beside, unfair.Accounts["victim"], fair.Accounts["neighbour"], unfair.Accounts["neighbour"])
		assert.LessOrEqual(t, beside, max(alone*135/100, alone+50*time.Millisecond))
	}
}
