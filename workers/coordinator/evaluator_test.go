package coordinator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

// A scorer records the code that it opens, and whether it is closed.
type scorer struct {
	opened chan engines.EvaluatorCode
	closed chan struct{}
	main   string // content of the evaluator's entry file
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

// scoring is a trainer that scores rows with the evaluator before it trains.
type scoring struct{ engines.Trainer }

func (s scoring) Train(ctx context.Context, req engines.TrainRequest,
	watch engines.TrainWatcher) (engines.TrainResult,
	error) {
	if req.Evaluation == nil {
		return engines.TrainResult{}, fmt.Errorf("there is no scorer")
	}
	scores, err := req.Evaluation.Score(ctx, []map[string]any{{}})
	if err != nil || len(scores) != 1 {
		return engines.TrainResult{}, fmt.Errorf("%v %w", scores, err)
	}
	req.Method = engines.Supervised // the only method that the simulated engine supports
	return s.Trainer.Train(ctx, req, watch)
}

// evaluator creates a built evaluator with a secret.
func (c *cluster) evaluator() domain.Name {
	name, directory := domain.NewName("acme", domain.Evaluators.Collection, "right"), "evaluators/acme/right/builds/1/"
	size := c.put(directory+"lib/judge.py", []byte("# judges"))
	c.do(domain.Intend(domain.Secrets, domain.NewName("acme", "secrets", "key"), domain.CreateSecret{
		KeyName: "JUDGE_KEY", Value: domain.Sealed{Ciphertext: []byte("x")}}))
	c.do(domain.Intend(domain.Evaluators, name, domain.CreateEvaluator{EvaluatorSpec: domain.EvaluatorSpec{
		Secrets: []string{"accounts/acme/secrets/key"}}}))
	c.do(domain.Intend(domain.Evaluators, name, domain.AcceptBuild{Revision: 1,
		Entry: domain.Entry{File: "lib/judge.py", Func: "judge"},
		Files: domain.Files{Prefix: directory, Sizes: map[string]int64{"lib/judge.py": size}}}))
	return name
}

// reinforce starts a reinforcement job on a node.
func (c *cluster) reinforce(evaluator domain.Name, revision int) domain.Name {
	name := domain.NewName("acme", domain.ReinforcementJobs.Collection, "learn")
	c.queue(name, domain.Intend(domain.ReinforcementJobs, name, domain.CreateReinforcementJob{ID: "learn",
		ReinforcementSpec: domain.ReinforcementSpec{Dataset: string(datasetName), Evaluator: string(evaluator),
			MaxConcurrentEvaluations: 3, TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName)}}}))
	c.startAttempt(name, domain.StartJob{Attempt: 1, Evaluator: revision})
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

// TestNodeReceivesTheEvaluator checks that the node of an attempt receives the code of the
// evaluator with its secrets, and closes the evaluation when the attempt ends.
func TestNodeReceivesTheEvaluator(t *testing.T) {
	c := startWithInputs(t)
	made := &scorer{opened: make(chan engines.EvaluatorCode, 1), closed: make(chan struct{})}
	engine := simulated.New(simulated.Options{})
	engine.Scorer, engine.Trainer = made, scoring{engine.Trainer}
	c.agent("n1", engine)
	c.ready("n1")
	name := c.reinforce(c.evaluator(), 1)
	job := c.ended(name)
	require.Equal(t, domain.JobCompletedState, job.State, job.Status.Message)
	require.Equal(t, secrets.Reader{Purpose: secrets.ScoreResponses, Resource: name, Node: "accounts/system/nodes/n1"},
		*c.reader.Load())
	code := <-made.opened
	require.Equal(t, "# judges", made.main)
	require.Equal(t, "judge", code.EntryFunc)
	require.Equal(t, 3, code.Parallelism)
	require.Equal(t, map[string]string{"JUDGE_KEY": "opened accounts/acme/secrets/key"}, code.Env)
	c.wait("the evaluation is closed", made.closed)
}

// TestNodeCannotScore checks that an attempt that needs an evaluator fails with a reason on a node
// without a scorer.
func TestNodeCannotScore(t *testing.T) {
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{})
	engine.Scorer, engine.Missing = nil, map[string]string{"score": "bubblewrap is not installed"}
	c.agent("n1", engine)
	c.ready("n1")
	name := c.reinforce(c.evaluator(), 1)
	view := c.until("the attempt has failed", func(v *projections.View) bool {
		row, ok := projections.TableOf(v, domain.ReinforcementJobs).Get(name)
		return ok && row.State.State != domain.JobRunningState
	})
	row, _ := projections.TableOf(view, domain.ReinforcementJobs).Get(name)
	require.Contains(t, row.State.Status.Message, "bubblewrap is not installed")
}

// TestRevisionIsDeleted checks that a job whose evaluator revision is not kept any more fails
// instead of running another revision.
func TestRevisionIsDeleted(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", simulated.New(simulated.Options{}))
	c.ready("n1")
	job := c.ended(c.reinforce(c.evaluator(), 7))
	require.Equal(t, domain.JobFailedState, job.State)
	require.Contains(t, job.Status.Message, "revision 7 of evaluator accounts/acme/evaluators/right")
}
