package coordinator_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog/secrets"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/workers/protocol"
)

// TestFaultsAtEveryEffect injects a fault at each effect of the reports of an attempt: the metrics
// file and the events of a checkpoint and of the result. After a restart of the coordinator and a
// reconciliation, the world and the files must agree. Then the agent repeats what was not
// acknowledged, and the checkpoint, the result and the metrics must be present once.
func TestFaultsAtEveryEffect(t *testing.T) {
	for _, inline := range []bool{false, true} {
		steps := reportWithFault(t, faults.NewPlan("", 0), inline)
		require.GreaterOrEqual(t, len(steps), 4)
		for _, mode := range faults.Modes {
			for at := range len(steps) {
				t.Run(fmt.Sprintf("inline %v, %s: %s", inline, mode, steps[at]), func(t *testing.T) {
					t.Parallel()
					reportWithFault(t, faults.NewPlan(mode, at+1), inline)
				})
			}
		}
	}
}

// reportWithFault reports a checkpoint and a result with the faults of a plan, and returns the
// effects. With inline, the report of the result has its files and the log.
func reportWithFault(t *testing.T, plan *faults.Plan, inline bool) []string {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	row, ok := c.world.View().Job(jobName)
	require.True(t, ok)

	const curve = `{"step": 5, "steps": 10, "values": {"train/loss": 2}}` + "\n" +
		`{"step": 10, "steps": 10, "values": {"train/loss": 1}}` + "\n"
	prefixes := map[string]string{
		protocol.ReportCheckpoint: blobs.CheckpointPrefix(jobName, row.CreateEvent, 1, 10),
		protocol.ReportCompleted:  blobs.ResultPrefix(jobName, row.CreateEvent, 1),
	}
	files := map[string][]byte{"metrics.jsonl": []byte(curve), "config.json": []byte(`{"model_type":"llama"}`),
		"model.safetensors": []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}")}
	upload := func(kind string) {
		for name, content := range files {
			c.put(prefixes[kind]+name, content)
		}
	}
	sizes := map[string]int64{"metrics.jsonl": int64(len(curve)), "model.safetensors": 10, "config.json": 22}
	for _, kind := range []string{protocol.ReportCheckpoint, protocol.ReportCompleted} {
		report := protocol.Report{Version: protocol.Version, Boot: "a", Kind: kind, Job: jobName, Attempt: 1,
			CreateTime: c.created(), Step: 10, Sizes: sizes, Result: &protocol.Result{}}
		if inline && kind == protocol.ReportCompleted {
			report.Files, report.Log = files, []byte("the log\n")
		} else {
			upload(kind)
		}
		c.reopen(plan)
		outcome := reported(c, node, report)
		c.reopen(nil)
		agree(c)
		if outcome == protocol.RetryLater {
			outcome = reported(c, node, report)
		}
		// without a grace period, the reconciler has deleted files to which no event refers
		if outcome == protocol.Incomplete {
			upload(kind)
			report.Files = nil
			outcome = reported(c, node, report)
		}
		if outcome != protocol.Accepted { // the result was recorded before, and this is its repetition
			require.Equal(t, []string{protocol.ReportCompleted, protocol.Stale}, []string{kind, outcome})
		}
	}
	life := c.life()
	require.Len(t, life.Checkpoints, 1)
	if life.State != domain.JobCompletedState {
		require.NotNil(t, life.Outcome, "a scheduler completes the job with the recorded result")
	} else {
		model, ok := c.world.View().Models.Get(outputName)
		require.True(t, ok)
		require.Equal(t, domain.ModelReady, model.State.State)
	}
	content, err := c.blobs.Get(t.Context(), blobs.MetricsFile(jobName, row.CreateEvent))
	require.NoError(t, err)
	rows := testutil.ReadAll(t, content)
	require.NoError(t, content.Close())
	require.Equal(t, 2, strings.Count(string(rows), "train/loss"), "%s", rows)
	if inline && life.Outcome == nil { // the log is stored together with the files
		require.Contains(t, []string{"the log\n", ""}, c.jobLog())
	}
	return plan.Steps()
}

// reopen replaces the coordinator by one that injects the faults of a plan, unless it is nil.
func (c *cluster) reopen(plan *faults.Plan) {
	c.stop()
	require.NoError(c, c.server.Coordinator().Flush()) // after this, no request reaches the former subscriptions
	c.plan.Store(plan)
	c.open()
}

// reported sends a report, and returns the outcome in the reply.
func reported(c *cluster, node *nats.Conn, report protocol.Report) string {
	var reply protocol.ReportReply
	require.NoError(c, c.send(node, protocol.ReportSubject("n1"), report, &reply))
	return reply.Outcome
}

// agree requires that the world, the files and the data keys are consistent after a restart and a
// reconciliation.
func agree(c *cluster) {
	c.Helper()
	vault := secrets.NewMemoryVault()
	world, err := faults.Restart(c.Context(), c.log, c.blobs, vault)
	require.NoError(c, err)
	require.NoError(c, faults.Agree(c.Context(), world.View(), c.blobs, vault))
	c.until("the coordinator's world has all events",
		func(v *projections.View) bool { return v.Position >= world.Position() })
}
