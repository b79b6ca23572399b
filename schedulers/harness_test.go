package schedulers_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/schedulers"
)

var update = flag.Bool("update", false, "rewrite the transcripts of testdata")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A harness records a transcript of the commands of users and of the plans of schedulers.
type harness struct {
	t          *testing.T
	log        *eventlog.Memory
	world      *projections.World
	now        time.Time
	transcript strings.Builder
}

func newHarness(t *testing.T) *harness {
	s := &harness{t: t, log: eventlog.NewMemory(), world: projections.NewWorld(), now: noon}
	s.world.SetClock(func() time.Time { return s.now })
	s.world.Live().ListenFrom(noon)
	return s
}

// newHarnessWithInputs returns a harness with the resources that jobs and deployments refer to.
func newHarnessWithInputs(t *testing.T) *harness {
	s := newHarness(t)
	s.prerequisites()
	return s
}

// comment adds a formatted comment to the transcript.
func (s *harness) comment(format string, args ...any) {
	fmt.Fprintf(&s.transcript, "# "+format+"\n", args...)
}

// given executes each intent, and writes it to the transcript.
func (s *harness) given(intents ...domain.Intent) {
	s.t.Helper()
	for _, intent := range intents {
		fmt.Fprintf(&s.transcript, "given %s\n", describe(s.t, intent))
		s.do(intent)
	}
}

// do records intents, one after the other.
func (s *harness) do(intents ...domain.Intent) {
	s.t.Helper()
	for _, intent := range intents {
		_, err := eventlog.Do(s.t.Context(), s.log, s.world, eventlog.Request{Time: s.now, Actor: "test"}, intent)
		require.NoError(s.t, err)
	}
	for e, err := range s.log.Read(s.t.Context(), "events.>", s.world.Position()) {
		require.NoError(s.t, err)
		require.NoError(s.t, s.world.Apply(e))
	}
}

// advance advances the clock.
func (s *harness) advance(d time.Duration) {
	s.now = s.now.Add(d)
	fmt.Fprintf(&s.transcript, "\nat %s\n", s.now.Format(time.TimeOnly))
}

// plan adds the current plan of the scheduler to the transcript.
func (s *harness) plan(scheduler schedulers.Scheduler) schedulers.Plan {
	s.t.Helper()
	s.world.Live().ReceivedAll(s.now)
	view := s.world.View()
	plan := scheduler.Plan(view, s.now)
	require.Equal(s.t, plan.String(), scheduler.Plan(view, s.now).String(), "the same view and time gave two plans")
	fmt.Fprintf(&s.transcript, "plan of %s\n%s", scheduler.Name(), plan)
	return plan
}

// execute executes the current plans of schedulers, one after the other.
func (s *harness) execute(all ...schedulers.Scheduler) {
	s.t.Helper()
	for _, scheduler := range all {
		for _, step := range s.plan(scheduler).Steps {
			s.do(step.Intents()...)
		}
	}
}

// compare compares the transcript with its golden file, or updates the file.
func (s *harness) compare(name string) {
	s.t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(s.t, os.MkdirAll("testdata", 0o755))
		require.NoError(s.t, os.WriteFile(path, []byte(s.transcript.String()), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(s.t, err, "run the test with -update to create the file")
	was, is := strings.Split(string(want), "\n"), strings.Split(s.transcript.String(), "\n")
	for i := range max(len(was), len(is)) {
		if i >= len(was) || i >= len(is) || was[i] != is[i] {
			s.t.Fatalf("%s differs from line %d on; run the test with -update when the change is "+
				"meant\nwas:\n%s\nis:\n%s", path, i+1,
				strings.Join(was[min(i, len(was)):min(i+5, len(was))],
					"\n"), strings.Join(is[min(i, len(is)):min(i+5, len(is))], "\n"))
		}
	}
}

// describe formats an intent without its empty fields.
func describe(t *testing.T, intent domain.Intent) string {
	name, command, _ := strings.Cut(intent.String(), " ")
	word, body, _ := strings.Cut(command, " ")
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &fields))
	text := testutil.Marshal(t, nonEmpty(fields))
	return name + " " + word + " " + string(text)
}

// nonEmpty returns the fields that are not empty.
func nonEmpty(fields map[string]any) map[string]any {
	kept := map[string]any{}
	for key, value := range fields {
		if inner, ok := value.(map[string]any); ok {
			if inner = nonEmpty(inner); len(inner) > 0 {
				kept[key] = inner
			}
			continue
		}
		if !slices.Contains([]string{"null", `""`, `"0"`, "0", "false", "[]", `"0001-01-01T00:00:00Z"`},
			string(must(json.Marshal(value)))) {
			kept[key] = value
		}
	}
	return kept
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

// The following functions return names and intents for the transcripts.

func jobName(id string) domain.Name {
	return domain.NewName("acme", domain.SupervisedJobs.Collection, id)
}

func deploymentName(id string) domain.Name {
	return domain.NewName("acme", domain.Deployments.Collection, id)
}

func nodeName(id string) domain.Name {
	return domain.NewName(domain.System, domain.Nodes.Collection, id)
}

func datasetName(id string) domain.Name {
	return domain.NewName("acme", domain.Datasets.Collection, id)
}

func modelName(id string) domain.Name {
	return domain.NewName("acme", domain.Models.Collection, id)
}

func onJob(id string, cmd domain.Command[domain.JobLife]) domain.Intent {
	return domain.IntendJob(jobName(id), cmd)
}

func onDeployment(id string, cmd domain.Command[domain.Deployment]) domain.Intent {
	return domain.Intend(domain.Deployments, deploymentName(id), cmd)
}

func onNode(id string, cmd domain.Command[domain.Node]) domain.Intent {
	return domain.Intend(domain.Nodes, nodeName(id), cmd)
}

func onDataset(id string, cmd domain.Command[domain.Dataset]) domain.Intent {
	return domain.Intend(domain.Datasets, datasetName(id), cmd)
}

func onModel(id string, cmd domain.Command[domain.Model]) domain.Intent {
	return domain.Intend(domain.Models, modelName(id), cmd)
}

func onAccount(cmd domain.Command[domain.Account]) domain.Intent {
	return domain.Intend(domain.Accounts, "accounts/acme", cmd)
}

func account() domain.Intent { return onAccount(domain.CreateAccount{}) }

func node(id, pool string, cores int64, accelerators map[string]int) domain.Intent {
	return onNode(id, domain.RegisterNode{NodeSpec: domain.NodeSpec{Pool: pool,
		Engines:  []string{"train", "complete", domain.GangAbility},
		Capacity: domain.Resources{CPUMilli: cores * 1000, MemoryMiB: cores * 1024, Accelerators: accelerators}}})
}

func baseModel(id string) domain.Intent {
	return onModel(id, domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel},
		Files: domain.Files{Prefix: "models/" + id + "/"}})
}

// dataset returns the intents that create a READY dataset with rows of a shape.
func dataset(id string, shape string, rows domain.Count) []domain.Intent {
	return []domain.Intent{
		onDataset(id, domain.CreateDataset{}),
		onDataset(id, domain.UploadDataset{Upload: 1, Files: domain.Files{Prefix: id + "/1/",
			Sizes: map[string]int64{"rows.jsonl": 9}}}),
		onDataset(id, domain.AcceptDataset{Upload: 1, DatasetStats: domain.DatasetStats{Shape: shape,
			ExampleCount: rows}}),
	}
}

func job(id string, change func(*domain.SupervisedSpec)) domain.Intent {
	spec := domain.SupervisedSpec{Dataset: string(datasetName("rows")),
		TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}
	if change != nil {
		change(&spec)
	}
	return domain.Intend(domain.SupervisedJobs, jobName(id), domain.CreateSupervisedJob{SupervisedSpec: spec, ID: id})
}

func deployment(id string, minReplicas, maxReplicas int, change func(*domain.DeploymentSpec)) domain.Intent {
	spec := domain.DeploymentSpec{BaseModel: string(modelName("base")), MinReplicaCount: minReplicas,
		MaxReplicaCount: &maxReplicas}
	if change != nil {
		change(&spec)
	}
	return onDeployment(id, domain.CreateDeployment{DeploymentSpec: spec})
}

// pending creates pending jobs, each of which needs the given number of nodes, in the order of ids.
func (s *harness) pending(nodes int, ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		s.now = s.now.Add(time.Second)
		s.given(job(id, func(spec *domain.SupervisedSpec) { spec.Nodes = nodes }))
		s.do(onJob(id, domain.StartValidation{}))
		s.do(onJob(id, domain.QueueJob{}))
	}
}

// prerequisites creates the account, model and dataset that the jobs of the transcripts use.
func (s *harness) prerequisites() {
	s.t.Helper()
	s.do(account())
	s.do(baseModel("base"))
	for _, intent := range dataset("rows", domain.ShapeChat, 3) {
		s.do(intent)
	}
}
