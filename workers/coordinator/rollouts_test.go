package coordinator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
)

// brief scores short answers high.
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

// A reinforcement job runs on an agent with the embedded engine: it samples with the job's inference
// parameters and trains on the scores.
func TestReinforcementJobTrains(t *testing.T) {
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
	folder, warm := "evaluators/acme/brief/builds/1/", 1.0
	size, err := c.blobs.Put(c.Context(), folder+"main.py", strings.NewReader("# judges"))
	require.NoError(t, err)
	evaluator, name := domain.NewName("acme", domain.Evaluators.Collection, "brief"), domain.NewName("acme",
		domain.ReinforcementJobs.Collection, "learn")
	c.do(domain.Intend(domain.Evaluators, evaluator, domain.Command[domain.Evaluator](domain.CreateEvaluator{})))
	c.do(domain.Intend(domain.Evaluators, evaluator, domain.Command[domain.Evaluator](domain.AcceptBuild{Revision: 1,
		Entry: domain.Entry{File: "main.py", Func: "evaluate"},
		Files: domain.Files{Folder: folder, Sizes: map[string]int64{"main.py": size}}})))
	c.do(domain.Intend(domain.ReinforcementJobs, name, domain.Command[domain.ReinforcementJob](
		domain.CreateReinforcementJob{ID: "learn",
			ReinforcementSpec: domain.ReinforcementSpec{Dataset: c.rows("asked", domain.ShapePrompt, lines...),
				Evaluator: string(evaluator),
				InferenceParameters: &domain.InferenceParameters{MaxOutputTokens: 5, Temperature: &warm,
					ResponseCandidatesCount: 6},
				TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName), OutputModel: "learnt",
					Epochs: 2}}})))
	c.do(domain.IntendJob(name, domain.StartValidation{}))
	c.do(domain.IntendJob(name, domain.QueueJob{}))
	takes := domain.Resources{CPUMilli: 500, MemoryMiB: 64}
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.Command[domain.Node](domain.PlaceAllocation{
		Allocation: domain.Allocation{
			ID: domain.AllocationID(name, 1), For: name, Attempt: 1, Takes: takes}})),
		domain.IntendJob(name, domain.StartJob{Attempt: 1, Nodes: []domain.Name{nodeName("n1")}, Takes: takes,
			Evaluator: 1}))
	require.Equal(t, domain.PEFTAddon, c.tuned("learnt").Kind)
	row := c.latest(name)
	require.Equal(t, row.Steps, row.Step)
	require.LessOrEqual(t, row.Values["rollout/length"], 5.0)
	require.Positive(t, row.Values["reward/mean"])
	require.Contains(t, row.Values, "train/kl")
}
