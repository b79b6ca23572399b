package coordinator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/projections"
)

// A scorer records the code that it opens, and whether it is closed.
type scorer struct {
	opened chan engines.EvaluatorCode
	closed chan struct{}
	main   string // what the entry file holds
}

func (j *scorer) Open(_ context.Context, code engines.EvaluatorCode) (engines.Evaluation, error) {
	content, err := os.ReadFile(filepath.Join(code.Dir, code.EntryFile))
	j.main = string(content)
	j.opened <- code
	return j, err
}

func (j *scorer) Score(_ context.Context, rows []map[string]any) ([]engines.Score, error) {
	return make([]engines.Score, len(rows)), nil
}

func (j *scorer) Close() error { close(j.closed); return nil }

// scoring is a trainer that scores rows before it trains.
type scoring struct{ engines.Trainer }

func (s scoring) Train(ctx context.Context, order engines.TrainRequest, watch engines.TrainWatcher) (engines.TrainResult,
	error) {
	if order.Evaluation == nil {
		return engines.TrainResult{}, fmt.Errorf("nobody scores")
	}
	scores, err := order.Evaluation.Score(ctx, []map[string]any{{}})
	if err != nil || len(scores) != 1 {
		return engines.TrainResult{}, fmt.Errorf("%v %w", scores, err)
	}
	order.Method = engines.Supervised // all that the simulated engine can do
	return s.Trainer.Train(ctx, order, watch)
}

// evaluator creates a built evaluator with a secret.
func (c *cluster) evaluator() domain.Name {
	name, folder := domain.NewName("acme", domain.Evaluators.Collection, "right"), "evaluators/acme/right/builds/1/"
	size, err := c.blobs.Put(c.Context(), folder+"lib/judge.py", strings.NewReader("# judges"))
	require.NoError(c, err)
	c.do(domain.Intend(domain.Secrets, domain.NewName("acme", "secrets", "key"),
		domain.Command[domain.Secret](domain.CreateSecret{KeyName: "JUDGE_KEY",
			Value: domain.Sealed{Ciphertext: []byte("x")}})))
	c.do(domain.Intend(domain.Evaluators, name, domain.Command[domain.Evaluator](domain.CreateEvaluator{
		EvaluatorSpec: domain.EvaluatorSpec{Secrets: []string{"accounts/acme/secrets/key"}}})))
	c.do(domain.Intend(domain.Evaluators, name, domain.Command[domain.Evaluator](domain.AcceptBuild{Revision: 1,
		Entry: domain.Entry{File: "lib/judge.py", Func: "judge"},
		Files: domain.Files{Folder: folder, Sizes: map[string]int64{"lib/judge.py": size}}})))
	return name
}

// reinforce starts a reinforcement job on a node.
func (c *cluster) reinforce(evaluator domain.Name, revision int) domain.Name {
	name := domain.NewName("acme", domain.ReinforcementJobs.Collection, "learn")
	c.do(domain.Intend(domain.ReinforcementJobs, name, domain.Command[domain.ReinforcementJob](
		domain.CreateReinforcementJob{ID: "learn",
			ReinforcementSpec: domain.ReinforcementSpec{Dataset: string(datasetName), Evaluator: string(evaluator),
				MaxConcurrentEvaluations: 3, TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName)}}})))
	c.do(domain.IntendJob(name, domain.StartValidation{}))
	c.do(domain.IntendJob(name, domain.QueueJob{}))
	takes := domain.Resources{CPUMilli: 500, MemoryMiB: 64}
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.Command[domain.Node](domain.PlaceAllocation{
		Allocation: domain.Allocation{
			ID: domain.AllocationID(name, 1), For: name, Attempt: 1, Takes: takes}})),
		domain.IntendJob(name, domain.StartJob{Attempt: 1, Nodes: []domain.Name{nodeName("n1")}, Takes: takes,
			Evaluator: revision}))
	return name
}

func (c *cluster) ended(name domain.Name) domain.ReinforcementJob {
	view := c.until("the job has ended", func(v *projections.View) bool {
		row, ok := projections.TableOf(v, domain.ReinforcementJobs).Get(name)
		return ok && row.State.Terminal()
	})
	row, _ := projections.TableOf(view, domain.ReinforcementJobs).Get(name)
	return row.State
}

// The node of an attempt receives the code of the evaluator with its secrets, and closes it when the
// attempt ends.
func TestNodeReceivesTheEvaluator(t *testing.T) {
	c := start(t)
	c.createInputs()
	made := &scorer{opened: make(chan engines.EvaluatorCode, 1), closed: make(chan struct{})}
	engine := simulated.New(simulated.Options{})
	engine.Scorer, engine.Trainer = made, scoring{engine.Trainer}
	c.agent("n1", engine)
	c.ready("n1")
	job := c.ended(c.reinforce(c.evaluator(), 1))
	require.Equal(t, domain.JobCompletedState, job.State, job.Status.Message)
	code := <-made.opened
	require.Equal(t, "# judges", made.main)
	require.Equal(t, "judge", code.EntryFunc)
	require.Equal(t, 3, code.Parallelism)
	require.Equal(t, map[string]string{"JUDGE_KEY": "opened accounts/acme/secrets/key"}, code.Env)
	c.wait("the evaluation is closed", made.closed)
}

// A node without a scorer reports the reason.
func TestNodeCannotScore(t *testing.T) {
	c := start(t)
	c.createInputs()
	engine := simulated.New(simulated.Options{})
	engine.Scorer, engine.Missing = nil, map[string]string{"score": "there is no bubblewrap"}
	c.agent("n1", engine)
	c.ready("n1")
	name := c.reinforce(c.evaluator(), 1)
	view := c.until("the attempt has failed", func(v *projections.View) bool {
		row, ok := projections.TableOf(v, domain.ReinforcementJobs).Get(name)
		return ok && row.State.State != domain.JobRunningState
	})
	row, _ := projections.TableOf(view, domain.ReinforcementJobs).Get(name)
	require.Contains(t, row.State.Status.Message, "there is no bubblewrap")
}

// A deleted revision is not replaced by another.
func TestRevisionIsDeleted(t *testing.T) {
	c := start(t)
	c.createInputs()
	c.agent("n1", simulated.New(simulated.Options{}))
	c.ready("n1")
	job := c.ended(c.reinforce(c.evaluator(), 7))
	require.Equal(t, domain.JobFailedState, job.State)
	require.Contains(t, job.Status.Message, "revision 7 of accounts/acme/evaluators/right")
}
