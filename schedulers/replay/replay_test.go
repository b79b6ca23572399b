package replay

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

var update = flag.Bool("update", false, "rewrite the files of testdata")

func sortInputs(inputs []input) {
	slices.SortStableFunc(inputs, func(a, b input) int { return a.at.Compare(b.at) })
}

// replayed replays a log of the first length after noon.
func replayed(t testing.TB, log list, length, step time.Duration, with ...string) Report {
	t.Helper()
	options := Options{From: noon, To: noon.Add(length), Step: step}
	for _, text := range with {
		s, err := ParseSettings(text)
		require.NoError(t, err)
		options.With = append(options.With, s)
	}
	report, err := Run(t.Context(), log, options)
	require.NoError(t, err)
	return report
}

// TestReplayOfItself replays the log of a simulation with the recorded settings. The decisions
// differ only where the log does not show how much of an attempt a preemption saved.
func TestReplayOfItself(t *testing.T) {
	tr := newTrace(t, 4)
	tr.period(6*time.Hour, 250, 4, 0.9)
	log := tr.record(6 * time.Hour)
	report := replayed(t, log, 6*time.Hour, time.Second)
	recorded, simulated := report.Results[0], report.Results[1]
	require.Positive(t, recorded.Wait.P95, "jobs wait")
	same := 0
	for name, p := range recorded.placements {
		if simulated.placements[name] == p {
			same++
		}
	}
	t.Logf("%d of %d first starts are equal; waits %+v and %+v; %d preemptions", same, len(recorded.placements),
		recorded.Wait, simulated.Wait, recorded.Preempted)
	require.Equal(t, recorded.Jobs, simulated.Jobs)
	require.InDelta(t, recorded.Wait.Mean, simulated.Wait.Mean, 1)
	require.Greater(t, same, len(recorded.placements)*9/10)
}

// TestEndOfPeriod checks that jobs which arrive after the last step of a simulation arrive in it.
func TestEndOfPeriod(t *testing.T) {
	tr := newTrace(t, 4)
	tr.period(time.Hour, 40, 4, 0.5)
	report := replayed(t, tr.record(time.Hour), time.Hour, 40*time.Minute)
	// a third of the jobs are created after the last step before the end; one may need another plan to
	// arrive
	require.InDelta(t, report.Results[0].Jobs.Arrived, report.Results[1].Jobs.Arrived, 1)
}

// eventful returns the log of six hours in which nodes are lost, drained and added, attempts crash,
// jobs are cancelled, and a deployment scales.
func eventful(t testing.TB) list {
	tr := newTrace(t, 4)
	tr.period(6*time.Hour, 150, 4, 0.8)
	user := func(after time.Duration, intent domain.Intent) { tr.at(noon.Add(after), intent, nil) }
	node := func(i int, cmd domain.Command[domain.Node]) domain.Intent {
		return domain.Intend(domain.Nodes, nodeName(i), cmd)
	}
	user(time.Hour, node(0, domain.LoseNode{Reason: "no heartbeat"}))
	user(90*time.Minute, node(0, domain.RegisterNode{NodeSpec: spec()}))
	user(2*time.Hour, node(1, domain.DrainNode{Reason: "maintenance", Within: 10 * time.Minute}))
	user(3*time.Hour, node(1, domain.UncordonNode{}))
	user(4*time.Hour, node(4, domain.RegisterNode{NodeSpec: spec()}))
	d := domain.NewName("acme", domain.Deployments.Collection, "d")
	maximum := 3
	user(30*time.Minute, domain.Intend(domain.Deployments, d, domain.Command[domain.Deployment](domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{BaseModel: string(domain.NewName("acme", "models", "m0")), MinReplicaCount: 1,
			MaxReplicaCount: &maximum, AcceleratorType: h100, AcceleratorCount: 2}})))
	user(2*time.Hour, domain.Intend(domain.Deployments, d, domain.Command[domain.Deployment](domain.ScaleDeployment{
		Replicas: 3})))
	for i := range tr.inputs {
		if w := tr.inputs[i].work; w != nil && i%20 == 0 {
			w.segments[0].crashes = []time.Duration{3 * time.Minute}
		}
	}
	sortInputs(tr.inputs)
	return tr.record(6 * time.Hour)
}

// TestEventfulPeriod replays a period with failures, and compares the table with a golden file.
func TestEventfulPeriod(t *testing.T) {
	log := eventful(t)
	report := replayed(t, log, 6*time.Hour, time.Second, "nodes=+4x"+h100, "weight:acme=3,quota:beta.accelerators=8")
	recorded, simulated, twice, limited := report.Results[0], report.Results[1], report.Results[2], report.Results[3]
	require.Positive(t, recorded.Requeued, "attempts ended early")
	require.Positive(t, recorded.Wait.P95, "jobs wait")
	require.InDelta(t, recorded.Jobs.Completed, simulated.Jobs.Completed, 4)
	require.InDelta(t, recorded.Requeued, simulated.Requeued, 4)
	require.Less(t, twice.Wait.Mean, simulated.Wait.Mean/2, "twice the nodes")
	require.Greater(t, limited.Accounts[1].Wait.Mean, simulated.Accounts[1].Wait.Mean, "beta has a quota")
	require.Less(t, limited.Accounts[0].Wait.Mean/limited.Wait.Mean,
		simulated.Accounts[0].Wait.Mean/simulated.Wait.Mean, "acme has a higher weight, and waits less than others")
	require.InDelta(t, recorded.Wait.Mean, simulated.Wait.Mean, 5, "the step is one second")

	var text strings.Builder
	fmt.Fprintln(&text, strings.Join(report.Variants(), "\n"))
	w := tabwriter.NewWriter(&text, 0, 8, 3, ' ', 0)
	for _, cells := range report.Table() {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	require.NoError(t, w.Flush())
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile("testdata/table.txt", []byte(text.String()), 0o644))
	}
	want, err := os.ReadFile("testdata/table.txt")
	require.NoError(t, err, "run the test with -update to create the file")
	require.Equal(t, string(want), text.String())

	again := replayed(t, log, 6*time.Hour, time.Second, "nodes=+4x"+h100, "weight:acme=3,quota:beta.accelerators=8")
	one, err := json.Marshal(report)
	require.NoError(t, err)
	other, err := json.Marshal(again)
	require.NoError(t, err)
	require.Equal(t, string(one), string(other), "equal inputs give equal bytes")
}

// TestLaterPeriod replays a part of a log that begins with running and waiting jobs, and whose jobs
// end after it.
func TestLaterPeriod(t *testing.T) {
	log := eventful(t)
	report, err := Run(t.Context(), log, Options{From: noon.Add(2 * time.Hour), To: noon.Add(4 * time.Hour),
		Step: time.Second})
	require.NoError(t, err)
	recorded, simulated := report.Results[0], report.Results[1]
	require.Less(t, report.Estimate, 20, "most run times are known from events after the period")
	require.Positive(t, recorded.Jobs.Completed)
	require.Equal(t, recorded.Jobs.Arrived, simulated.Jobs.Arrived)
	require.InDelta(t, recorded.Jobs.Completed, simulated.Jobs.Completed, 3)
	require.InDelta(t, recorded.Wait.Mean, simulated.Wait.Mean, max(20, recorded.Wait.Mean/5))
	for i, u := range recorded.Devices {
		require.InDelta(t, u.Percent, simulated.Devices[i].Percent, 3, u.Type)
	}
}

// TestSettingsChangeDecisions checks the effect of each kind of setting.
func TestSettingsChangeDecisions(t *testing.T) {
	tr := newTrace(t, 2)
	name := tr.job(noon.Add(time.Second), "acme", "blocker", 3, 1, time.Hour)
	tr.job(noon.Add(time.Second), "acme", "other", 3, 1, time.Hour)
	first := tr.job(noon.Add(time.Minute), "acme", "first", 3, 2, time.Minute)
	second := tr.job(noon.Add(2*time.Minute), "acme", "second", 3, 2, time.Minute)
	log := tr.record(3 * time.Hour)
	report := replayed(t, log, 3*time.Hour, time.Second, "priority:acme/supervisedFineTuningJobs/second=PRIORITY_HIGH",
		"nodes=-1xn01", "quota:acme.accelerators=8", "nodes=+2xn00")
	at := func(i int, job domain.Name) time.Duration {
		p, started := report.Results[i].placements[job]
		if !started {
			return -1
		}
		return p.at.Sub(noon)
	}
	require.Equal(t, report.Results[0].placements, report.Results[1].placements, "the recorded settings")
	require.Less(t, at(1, first), at(1, second))
	require.Less(t, at(2, second), at(2, first), "the priority")
	require.EqualValues(t, -1, at(3, first), "a gang needs two nodes")
	require.Equal(t, 1, report.Results[3].Jobs.Completed+report.Results[3].Jobs.Running-1, "the jobs of one node")
	require.EqualValues(t, -1, at(4, second), "a gang needs 16 accelerators")
	require.Positive(t, at(4, name))
	require.Less(t, at(5, first), at(1, first), "more nodes")
}

func TestUnknownSettings(t *testing.T) {
	for text, want := range map[string]string{
		"preemption=off":            "unknown setting",
		"weight:acme":               "unknown setting",
		"weight:acme=0":             "from 1 to 1000",
		"quota:acme.jobs=3":         "accelerators and guaranteed-accelerators",
		"quota:acme.accelerators=x": "a number from 0",
		"priority:acme/j=HIGH":      "ACCOUNT/COLLECTION/JOB",
		"placement=RANDOM":          "PACK, SPREAD, DEFAULT",
		"nodes=2xCPU":               "+NxTYPE",
		"weight:acme=2,,":           "unknown setting",
	} {
		_, err := ParseSettings(text)
		require.ErrorContains(t, err, want, text)
	}
	log := newTrace(t, 1).record(time.Hour)
	log = append(log, log[len(log)-1])
	last := &log[len(log)-1]
	*last = purgeOf("accounts/acme/dpoJobs/none", uint64(len(log)), noon.Add(time.Minute))
	for text, want := range map[string]string{
		"weight:none=2":                        `account "none" does not exist`,
		"nodes=+1xB200":                        "nodes of " + h100,
		"priority:acme/dpoJobs/j=PRIORITY_LOW": "does not exist in the period",
		"nodes=-2x" + h100:                     "only 1 such node",
	} {
		s, err := ParseSettings(text)
		require.NoError(t, err)
		_, err = Run(t.Context(), log, Options{From: noon, To: noon.Add(time.Hour), With: []Settings{s}})
		require.ErrorContains(t, err, want, text)
	}
	_, err := Run(t.Context(), log, Options{From: noon.Add(time.Hour), To: noon.Add(2 * time.Hour)})
	require.ErrorContains(t, err, "before the period begins")
	_, err = Run(t.Context(), log, Options{From: noon, To: noon})
	require.ErrorContains(t, err, "not after its start")
}

// TestDay replays a day: of 500 jobs, or with ANNEAL_REPLAY=full, of 10,000 on 320 accelerators.
func TestDay(t *testing.T) {
	jobs, nodes := 500, 4
	if os.Getenv("ANNEAL_REPLAY") == "full" {
		jobs, nodes = 10_000, 40
	}
	tr := newTrace(t, nodes)
	tr.day(jobs, nodes, 0.8)
	log := tr.record(24 * time.Hour)
	began := time.Now()
	report := replayed(t, log, 24*time.Hour, 0, "weight:acme=3")
	took := time.Since(began)
	t.Logf("%d jobs, %d events, %d nodes: recorded waits %+v, simulated %+v, in %.1f s", jobs, len(log), nodes,
		report.Results[0].Wait, report.Results[1].Wait, took.Seconds())
	require.Equal(t, jobs, report.Results[1].Jobs.Arrived)
	require.InDelta(t, report.Results[0].Wait.Mean, report.Results[1].Wait.Mean, max(20, report.Results[0].Wait.Mean/2))
	require.Less(t, took, 100*time.Second)
}

// BenchmarkDay replays a day of 10,000 jobs on 320 accelerators with the recorded and with other
// settings. The goal is 10 s.
func BenchmarkDay(b *testing.B) {
	tr := newTrace(b, 40)
	tr.day(10_000, 40, 0.9)
	log := tr.record(24 * time.Hour)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // as the command does
	for b.Loop() {
		replayed(b, log, 24*time.Hour, 0, "weight:acme=3")
	}
}
