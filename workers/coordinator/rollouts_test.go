package coordinator_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/workers/protocol"
)

// brief is a scorer that gives short completions a high score.
type brief struct{}

func (brief) Open(context.Context, engines.EvaluatorCode) (engines.Evaluation, error) {
	return brief{}, nil
}

func (brief) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	var out []engines.Score
	for _, row := range rows {
		messages := row["messages"].([]any)
		text := messages[len(messages)-1].(map[string]any)["content"].(string)
		out = append(out, engines.Score{Value: 1 / float64(1+len(text)), Valid: true})
	}
	return out, nil
}

func (brief) Close() error { return nil }

// TestReinforcementJobTrains checks that a reinforcement job runs on an agent with the embedded
// engine: it samples with the job's inference parameters and staleness, and trains on the scores.
func TestReinforcementJobTrains(t *testing.T) {
	for _, staleness := range []int{0, 1} {
		t.Run(fmt.Sprint("staleness ", staleness), func(t *testing.T) { reinforcementJobTrains(t, staleness) })
	}
}

func reinforcementJobTrains(t *testing.T, staleness int) {
	c := start(t)
	c.shipped()
	engine := embedded.New(embedded.Options{Parallelism: 1})
	engine.Scorer = brief{}
	c.agent("n1", engine)
	c.ready("n1")
	var lines []string
	for i := range 12 {
		lines = append(lines, fmt.Sprintf(`{"messages":[{"role":"user","content":"Name %d."}],"ground_truth":"%d"}`, i,
			i))
	}
	directory, warm := "evaluators/acme/brief/builds/1/", 1.0
	size := c.put(directory+"main.py", []byte("# judges"))
	evaluator, name := domain.NewName("acme", domain.Evaluators.Collection, "brief"), domain.NewName("acme",
		domain.ReinforcementJobs.Collection, "learn")
	c.do(domain.Intend(domain.Evaluators, evaluator, domain.CreateEvaluator{}))
	c.do(domain.Intend(domain.Evaluators, evaluator, domain.AcceptBuild{Revision: 1,
		Entry: domain.Entry{File: "main.py", Func: "evaluate"},
		Files: domain.Files{Prefix: directory, Sizes: map[string]int64{"main.py": size}}}))
	c.queue(name, domain.Intend(domain.ReinforcementJobs, name, domain.CreateReinforcementJob{ID: "learn",
		ReinforcementSpec: domain.ReinforcementSpec{Dataset: c.rows("asked", domain.ShapePrompt, lines...),
			Evaluator: string(evaluator), InferenceParameters: &domain.InferenceParameters{MaxOutputTokens: 5,
				Temperature: &warm, ResponseCandidatesCount: 6}, MaxStaleness: staleness,
			TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName), OutputModel: "learnt", Epochs: 2}}}))
	c.startAttempt(name, domain.StartJob{Attempt: 1, Evaluator: 1})
	require.Equal(t, domain.PEFTAddon, c.tuned("learnt").Kind)
	row := c.latest(name)
	require.Equal(t, row.Steps, row.Step)
	require.LessOrEqual(t, row.Values["rollout/length"], 5.0)
	require.Positive(t, row.Values["reward/mean"])
	require.Contains(t, row.Values, "train/kl")
	require.InDelta(t, float64(staleness), row.Values["train/staleness"], 0)
	c.storedRollouts(name, 2*12*6)
}

// storedRollouts requires that the job's rollouts file holds want different rollouts.
func (c *cluster) storedRollouts(job domain.Name, want int) {
	c.Helper()
	event := c.world.Lookup(job).CreateEvent
	file, err := c.blobs.Get(c.Context(), blobs.RolloutsPrefix(job, event, 1)+engines.RolloutsFile)
	require.NoError(c, err)
	defer file.Close()
	seen := map[[3]int]bool{}
	require.NoError(c, engines.ReadRollouts(file, func(r *engines.Rollout, _ []byte) bool {
		seen[[3]int{r.Step, r.Row, r.Candidate}] = true
		require.Contains(c, string(r.Input), "ground_truth")
		require.Equal(c, 1/float64(1+len(r.Response)), r.Score)
		return true
	}))
	require.Len(c, seen, want)
}

// TestUploadsOfRolloutsAreLimited checks that an agent can store only the rollouts file of its
// attempt, within the limit.
func TestUploadsOfRolloutsAreLimited(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	request := protocol.SignRequest{Version: protocol.Version, Job: jobName, Attempt: 1, CreateTime: c.created(),
		For: protocol.ForRollouts}
	for _, sizes := range []map[string]int64{
		nil, {"w": 1}, {engines.RolloutsFile: 1, "w": 1}, {engines.RolloutsFile: -1},
		{engines.RolloutsFile: engines.MaxRolloutsBytes + 1}, {"../" + engines.RolloutsFile: 1},
	} {
		request.Sizes = sizes
		err := c.send(node, protocol.SignSubject("n1"), request, &protocol.SignReply{})
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", sizes)
		require.ErrorContains(t, err, engines.RolloutsFile)
	}
	request.Sizes = map[string]int64{engines.RolloutsFile: 7}
	var reply protocol.SignReply
	require.NoError(t, c.send(node, protocol.SignSubject("n1"), request, &reply))
	require.Equal(t, "/blobs/"+blobs.RolloutsPrefix(jobName, c.world.Lookup(jobName).CreateEvent, 1)+engines.RolloutsFile,
		path(t, reply.URLs[engines.RolloutsFile]))
	request.Attempt = 2
	require.NoError(t, c.send(node, protocol.SignSubject("n1"), request, &reply))
	require.Equal(t, protocol.Stale, reply.Outcome)
}
