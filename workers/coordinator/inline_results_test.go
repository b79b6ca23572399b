package coordinator_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/engines/simulated"
	"anneal/workers/protocol"
)

// countedPuts is a transport that counts the PUT requests.
type countedPuts struct{ puts chan string }

func (p countedPuts) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut {
		p.puts <- r.URL.Path
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestSmallResultsAreInTheReport checks that the coordinator stores the files and the log of an
// attempt that its report of the results contains, and that the agent uploads them if that fails.
func TestSmallResultsAreInTheReport(t *testing.T) {
	for name, plan := range map[string]*faults.Plan{"stored": nil, "not stored": faults.NewPlan(faults.Refuse, 1)} {
		t.Run(name, func(t *testing.T) {
			c := startWithInputs(t)
			puts := make(chan string, 99)
			c.http = &http.Client{Transport: countedPuts{puts}}
			c.agent("n1", simulated.New(simulated.Options{Steps: 1}))
			c.plan.Store(plan)
			c.startJob("n1")
			life := c.reaches(domain.JobCompletedState)
			require.Equal(t, 1, life.Attempt)
			model, ok := c.world.View().Models.Get(outputName)
			require.True(t, ok)
			for file := range model.State.Files.Sizes {
				content, err := c.blobs.Get(t.Context(), model.State.Files.Prefix+file)
				require.NoError(t, err)
				require.NoError(t, content.Close())
			}
			c.requireAllSteps(c.metrics(), 1)
			if plan == nil {
				require.Contains(t, c.jobLog(), "the training is complete")
				require.Empty(t, puts)
				require.NotContains(t, model.State.Files.Sizes, "metrics.jsonl", "the job's metrics file has the rows")
			} else {
				require.NotEmpty(t, puts)
			}
		})
	}
}

// TestReportsWithLargeFiles checks that a report may not contain files outside of its directory,
// and that the agent uploads files of more than MaxInline.
func TestReportsWithLargeFiles(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	report := protocol.Report{Version: protocol.Version, Boot: "a", Kind: protocol.ReportCompleted, Job: jobName,
		Attempt: 1, CreateTime: c.created(), Result: &protocol.Result{}}
	report.Files = map[string][]byte{"config.json": make([]byte, protocol.MaxInline+1)}
	var reply protocol.ReportReply
	require.NoError(t, c.send(node, protocol.ReportSubject("n1"), report, &reply))
	require.Equal(t, protocol.Incomplete, reply.Outcome)
	report.Files = map[string][]byte{"../x": {1}}
	err := c.send(node, protocol.ReportSubject("n1"), report, &reply)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
	require.Equal(t, domain.JobRunningState, c.life().State)
}
