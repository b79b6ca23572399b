package coordinator_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/embedded/miniature"
	"anneal/engines/enginetest"
	"anneal/projections"
)

const (
	serviceName = domain.Name("accounts/acme/rlorTrainerJobs/service")
	baseName    = domain.Name("accounts/acme/models/tiny")
	sessionName = domain.Name("accounts/acme/trainingSessions/session")
)

// A service is a trainer job in service mode whose base model the embedded engine can train.
type service struct {
	*cluster
	base string // directory of the base model
	next map[string]int64
}

func startService(t *testing.T) *service {
	t.Helper()
	c := start(t)
	s := &service{cluster: c, base: t.TempDir(), next: map[string]int64{}}
	require.NoError(t, miniature.Write(s.base, "llama"))
	files := domain.Files{Prefix: "models/acme/tiny/", Sizes: map[string]int64{}}
	entries, err := os.ReadDir(s.base)
	require.NoError(t, err)
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(s.base, entry.Name()))
		require.NoError(t, err)
		files.Sizes[entry.Name()] = c.put(files.Prefix+entry.Name(), content)
	}
	c.do(domain.Intend(domain.Models, baseName, domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.BaseModel}, ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 1000,
		ContextLength: 256}, Files: files}),
		domain.Intend(domain.TrainerJobs, serviceName, domain.Command[domain.TrainerJob](domain.CreateTrainerJob{
			TrainerSpec: domain.TrainerSpec{ServiceMode: true,
				TrainingConfig: domain.TrainingConfig{BaseModel: string(baseName)}}, ID: "service", CreatedBy: "ada"})),
		domain.Intend(domain.TrainerJobs, serviceName, domain.Command[domain.TrainerJob](domain.StartService{})),
		domain.IntendJob(serviceName, domain.QueueJob{}))
	c.do(domain.Intend(domain.TrainingSessions, sessionName, domain.Command[domain.TrainingSession](
		domain.CreateTrainingSession{TrainingSessionSpec: domain.TrainingSessionSpec{Job: serviceName,
			JobEvent: s.event()}})))
	return s
}

func (s *service) job() *projections.Row[domain.TrainerJob] {
	s.Helper()
	row, ok := projections.TableOf(s.world.View(), domain.TrainerJobs).Get(serviceName)
	require.True(s, ok)
	return row
}

// event returns the ID of the event that created the job.
func (s *service) event() string {
	row, _ := s.world.View().Job(serviceName)
	return row.CreateEvent
}

// place starts the job's next attempt on a node.
func (s *service) place(node string) {
	s.Helper()
	attempt, takes := s.job().State.NextAttempt(), domain.Resources{CPUMilli: 10, MemoryMiB: 1}
	s.do(domain.Intend(domain.Nodes, nodeName(node), domain.PlaceAllocation{Allocation: domain.Allocation{
		ID: domain.AllocationID(serviceName, attempt), For: serviceName, Attempt: attempt, Resources: takes}}),
		domain.IntendJob(serviceName, domain.StartJob{Attempt: attempt, Nodes: []domain.Name{nodeName(node)},
			Resources: takes}))
}

func (s *service) untilJob(what string, met func(domain.TrainerJob) bool) {
	s.Helper()
	s.until(what, func(v *projections.View) bool {
		row, ok := projections.TableOf(v, domain.TrainerJobs).Get(serviceName)
		return ok && met(row.State)
	})
}

// replace waits until the attempt has ended and the job is queued again, and starts the next one.
func (s *service) replace(node string) {
	s.Helper()
	s.untilJob("the attempt has ended", func(j domain.TrainerJob) bool {
		return j.State == domain.JobReQueueingState || j.State == domain.JobPendingState
	})
	if s.job().State.State == domain.JobReQueueingState {
		s.do(domain.IntendJob(serviceName, domain.QueueJob{}))
	}
	s.place(node)
}

func runName(id string) domain.Name {
	return domain.NewName("acme", domain.TrainingRuns.Collection, id)
}

func (s *service) lane(run string) operations.Lane {
	return operations.Lane{Account: "acme", Job: s.event(), ID: run}
}

var runConfig = domain.TrainingRunConfig{Rank: 4, Alpha: 32, Seed: 5, TrainAttn: true, TrainMLP: true}

// create creates a run.
func (s *service) create(id string, number int64) {
	s.Helper()
	require.NoError(s, s.journal.Create(s.Context(), s.lane(id)))
	s.do(domain.Intend(domain.TrainingRuns, runName(id), domain.Command[domain.TrainingRun](
		domain.CreateTrainingRun{TrainingRunSpec: domain.TrainingRunSpec{Job: serviceName, JobEvent: s.event(),
			Session: sessionName, ModelSeq: number, BaseModel: baseName, Config: runConfig}})))
}

func (s *service) run(id string) domain.TrainingRun {
	s.Helper()
	row, ok := s.world.View().Runs.Get(runName(id))
	require.True(s, ok)
	return row.State
}

// submit submits the next operation of a run and returns its number.
func (s *service) submit(run string, o engines.TrainOperation) int64 {
	s.Helper()
	s.next[run]++
	body, err := o.Encode()
	require.NoError(s, err)
	created, err := s.journal.Submit(s.Context(), s.lane(run), operations.Operation{Seq: s.next[run], Kind: o.Kind(),
		Body: body, Hash: sha256.Sum256(body)})
	require.NoError(s, err)
	require.True(s, created)
	return s.next[run]
}

// await waits for the result of an operation.
func (s *service) await(lane operations.Lane, seq int64) operations.Result {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), waitTimeout)
	defer cancel()
	result, err := s.journal.Wait(ctx, lane, seq)
	require.NoError(s, err, "operation %d of %s", seq, lane.ID)
	return result
}

// A loop is a training loop of a client: operations that depend only on its seed.
type loop []engines.TrainOperation

// vocab is a number of tokens that the base model knows.
const vocab = 64

func newLoop(seed uint64, steps int) (l loop) {
	random := rand.New(rand.NewPCG(seed, 1))
	adam := engines.AdamParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8}
	for i := range steps {
		name := enginetest.TrainLosses[i%len(enginetest.TrainLosses)]
		for range 2 {
			pass := enginetest.RandomPass(random, name, 3, vocab)
			l = append(l, engines.TrainOperation{ForwardBackward: &pass})
		}
		if i%3 == 0 {
			pass := enginetest.RandomPass(random, name, 2, vocab)
			l = append(l, engines.TrainOperation{Forward: &pass})
		}
		l = append(l, engines.TrainOperation{Step: &adam})
	}
	return l
}

// direct executes a loop on a pool without a service, and returns the encoded results and the state
// of the run afterwards.
func (s *service) direct(l loop) (results [][]byte, state []byte) {
	s.Helper()
	ctx := s.Context()
	pool, err := embedded.New(embedded.Options{}).TrainPools.OpenTrainPool(ctx, engines.TrainPoolRequest{BaseDir: s.base,
		Parallelism: 2})
	require.NoError(s, err)
	defer func() { require.NoError(s, pool.Close()) }()
	run, err := pool.CreateRun(ctx, engines.TrainRunConfig{Rank: runConfig.Rank, Alpha: runConfig.Alpha,
		Seed: runConfig.Seed, TrainAttn: true, TrainMLP: true})
	require.NoError(s, err)
	defer func() { require.NoError(s, run.Close()) }()
	for _, o := range l {
		var out engines.TrainOperationResult
		switch {
		case o.Forward != nil:
			pass, err := run.Forward(ctx, *o.Forward)
			require.NoError(s, err)
			out.Pass = &pass
		case o.ForwardBackward != nil:
			pass, err := run.ForwardBackward(ctx, *o.ForwardBackward)
			require.NoError(s, err)
			out.Pass = &pass
		case o.Step != nil:
			step, err := run.Step(ctx, *o.Step)
			require.NoError(s, err)
			out.Step = &step
		}
		body, err := out.Encode()
		require.NoError(s, err)
		results = append(results, body)
	}
	var saved bytes.Buffer
	require.NoError(s, run.Save(ctx, &saved))
	return results, saved.Bytes()
}

// saveState saves the run with an operation and returns the stored state.
func (s *service) saveState(run, name string) []byte {
	s.Helper()
	seq := s.submit(run, engines.TrainOperation{Save: &engines.TrainSave{Name: name}})
	result := s.await(s.lane(run), seq)
	require.Nil(s, result.Err)
	out, err := engines.DecodeTrainOperationResult(result.Body)
	require.NoError(s, err)
	require.Equal(s, name, out.Saved.Name)
	checkpoint, ok := s.run(run).Checkpoint(domain.TrainingCheckpointTraining, name)
	require.True(s, ok)
	require.Equal(s, checkpoint.Files, out.Saved.Files)
	return s.state(checkpoint)
}

// state returns the state in a checkpoint.
func (s *service) state(checkpoint domain.TrainingCheckpoint) []byte {
	s.Helper()
	content, err := s.blobs.Get(s.Context(), checkpoint.Files.Prefix+"state")
	require.NoError(s, err)
	defer content.Close()
	var state bytes.Buffer
	_, err = state.ReadFrom(content)
	require.NoError(s, err)
	return state.Bytes()
}

// requireResults checks the results of all operations of a loop that a run has executed.
func (s *service) requireResults(run string, expected [][]byte) {
	s.Helper()
	for i, body := range expected {
		result := s.await(s.lane(run), int64(i+1))
		require.Nil(s, result.Err, "operation %d of %s", i+1, run)
		require.Equal(s, body, result.Body, "operation %d of %s", i+1, run)
	}
}

func embeddedEngine() engines.Engine { return embedded.New(embedded.Options{Parallelism: 2}) }

// TestServiceEqualsPool checks that two runs of a job, whose operations are interleaved, have the
// results and the final states that they have on a pool without a service.
func TestServiceEqualsPool(t *testing.T) {
	s := startService(t)
	s.agent("n1", embeddedEngine())
	s.place("n1")
	loops := map[string]loop{"first": newLoop(1, 20), "second": newLoop(2, 20)}
	s.create("first", 1)
	s.create("second", 2)
	for i := range loops["first"] {
		for id, l := range loops {
			s.submit(id, l[i])
		}
	}
	for id, l := range loops {
		results, state := s.direct(l)
		require.Equal(t, 1, s.await(s.lane(id), 0).Attempt)
		s.requireResults(id, results)
		require.Equal(t, state, s.saveState(id, "final"))
		opening := s.run(id).Opening
		require.Equal(t, 1, opening.Attempt)
		require.NotEmpty(t, opening.Kernel)
		require.NotEmpty(t, opening.BaseHash)
	}
}

// TestServiceContinuesOnAnotherNode checks that the runs of a job that leaves its node continue on
// another one from the recovery checkpoints that the first one stores.
func TestServiceContinuesOnAnotherNode(t *testing.T) {
	s := startService(t)
	stop := s.agent("n1", embeddedEngine())
	s.agent("n2", embeddedEngine())
	s.place("n1")
	s.create("run", 1)
	l := newLoop(3, 10)
	results, state := s.direct(l)
	half := len(l)/2 + 1 // between a pass and its step
	for _, o := range l[:half] {
		s.submit("run", o)
	}
	s.requireResults("run", results[:half])
	stop()
	require.EqualValues(t, half, s.run("run").RecoverySeq())
	s.replace("n2")
	for _, o := range l[half:] {
		s.submit("run", o)
	}
	s.requireResults("run", results)
	require.Equal(t, state, s.saveState("run", "final"))
	require.Equal(t, 2, s.run("run").Opening.Attempt)
}

// TestStoppedService checks that an attempt that is preempted, paused or cancelled stores its runs
// first.
func TestStoppedService(t *testing.T) {
	for state, command := range map[string]domain.Command[domain.JobLife]{
		domain.JobReQueueingState: domain.PreemptJob{Attempt: 1, Reason: "the node is drained"},
		domain.JobPausedState:     domain.PauseJob{Reason: "the account is suspended"},
		domain.JobCancelledState:  domain.CancelJob{},
	} {
		t.Run(state, func(t *testing.T) {
			s := startService(t)
			s.agent("n1", embeddedEngine())
			s.place("n1")
			s.create("run", 1)
			l := newLoop(4, 3)
			results, expected := s.direct(l)
			for _, o := range l {
				s.submit("run", o)
			}
			s.requireResults("run", results)
			s.do(domain.IntendJob(serviceName, command))
			s.untilJob("the attempt has ended", func(j domain.TrainerJob) bool { return j.State == state })
			last, ok := s.run("run").Newest(domain.TrainingCheckpointRecovery)
			require.True(t, ok)
			require.EqualValues(t, len(l), last.Seq)
			require.Equal(t, expected, s.state(last))
		})
	}
}

// TestLoadedCheckpoint checks that a run continues the run whose checkpoint it loads, and that a
// restart needs the checkpoint no more once the run has a recovery checkpoint.
func TestLoadedCheckpoint(t *testing.T) {
	s := startService(t)
	stop := s.agent("n1", embeddedEngine())
	s.place("n1")
	s.create("first", 1)
	l := newLoop(12, 4)
	results, expected := s.direct(l)
	half := len(l) / 2
	for _, o := range l[:half] {
		s.submit("first", o)
	}
	s.saveState("first", "half")
	checkpoint, _ := s.run("first").Checkpoint(domain.TrainingCheckpointTraining, "half")
	s.create("second", 2)
	loaded := s.submit("second", engines.TrainOperation{Load: &engines.TrainLoad{Checkpoint: checkpoint.Files.Prefix,
		Optimizer: true}})
	require.Nil(t, s.await(s.lane("second"), loaded).Err)
	s.untilRun("second", func(r domain.TrainingRun) bool { return r.RecoverySeq() == loaded })
	require.NoError(t, s.blobs.DeletePrefix(t.Context(), checkpoint.Files.Prefix))
	stop()
	s.agent("n2", embeddedEngine())
	s.replace("n2")
	for i, o := range l[half:] {
		seq := s.submit("second", o)
		require.Equal(t, results[half+i], s.await(s.lane("second"), seq).Body)
	}
	require.Equal(t, expected, s.saveState("second", "final"))
}

// reopen restarts the coordinator with another time after which services stop.
func (s *service) reopen(idleAfter time.Duration) {
	s.stop()
	s.idleAfter = idleAfter
	s.open()
}

// TestIdleService checks that a service stops without use, after it has stored its runs, and
// continues when it is used again.
func TestIdleService(t *testing.T) {
	s := startService(t)
	s.agent("n1", embeddedEngine())
	s.place("n1")
	s.create("run", 1)
	l := newLoop(4, 4)
	results, state := s.direct(l)
	for _, o := range l[:5] {
		s.submit("run", o)
	}
	s.requireResults("run", results[:5])
	s.reopen(time.Millisecond)
	s.untilJob("the service has stopped", func(j domain.TrainerJob) bool { return j.State == domain.JobIdleState })
	require.EqualValues(t, 5, s.run("run").RecoverySeq())
	require.Empty(t, s.job().State.Nodes)
	s.reopen(0)
	for _, o := range l[5:] {
		s.submit("run", o)
	}
	s.do(domain.Intend(domain.TrainerJobs, serviceName, domain.Command[domain.TrainerJob](domain.StartService{})))
	s.place("n1")
	s.requireResults("run", results)
	require.Equal(t, state, s.saveState("run", "final"))
}
