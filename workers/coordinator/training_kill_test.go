package coordinator_test

import (
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
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/workers/protocol"
)

// TestKilledService kills the process of the agent at random points of two training loops, and
// restarts the coordinator between. No operation is lost or executed twice: all results and the
// final states are those of the loops without a service, and results do not change.
func TestKilledService(t *testing.T) {
	kills := testutil.Variable(t, "ANNEAL_SERVICE_KILLS", 4)
	random := rand.New(rand.NewPCG(7, 7))
	s := startService(t)
	dir := t.TempDir()
	loops := map[string]loop{"first": newLoop(5, 4*kills), "second": newLoop(6, 4*kills)}
	for i, id := range []string{"first", "second"} {
		s.create(id, int64(i+1))
	}
	done := 0
	for i := range kills {
		kill := s.child("n1", dir, hangNever)
		if i == 0 {
			s.place("n1")
		} else {
			s.replace("n1")
		}
		limit := min(len(loops["first"]), len(loops["first"])*(i+1)/kills)
		for id, l := range loops {
			for _, o := range l[done:limit] {
				s.submit(id, o)
			}
		}
		at := done + 1 + random.IntN(limit-done)
		s.await(s.lane("first"), int64(at))
		kill()
		if i%2 == 1 {
			s.reopen(0)
		}
		done = limit
	}
	s.agentIn("n1", dir, embeddedEngine())
	s.replace("n1")
	for id, l := range loops {
		results, state := s.direct(l)
		s.requireResults(id, results)
		require.Equal(t, state, s.saveState(id, "final"))
		require.Equal(t, kills+1, s.run(id).Opening.Attempt)
	}
	s.requireAttempts("first", kills+1)
}

// requireAttempts checks that the results of a run are of several attempts, in order.
func (s *service) requireAttempts(run string, attempts int) {
	s.Helper()
	last := 1
	for seq := int64(1); seq <= s.next[run]; seq++ {
		result := s.await(s.lane(run), seq)
		require.GreaterOrEqual(s, result.Attempt, last, "operation %d", seq)
		last = result.Attempt
	}
	require.Equal(s, attempts, last)
}

// TestStaleAttempt checks that an attempt that is not the current one can neither pull operations
// nor store results and checkpoints.
func TestStaleAttempt(t *testing.T) {
	s := startService(t)
	old, current := s.registerNode("n1", "a"), s.registerNode("n2", "b")
	s.place("n1")
	s.create("run", 1)
	o := newLoop(1, 1)[0]
	s.submit("run", o)
	id := protocol.TrainingAttempt{Job: serviceName, Attempt: 1, CreateTime: s.job().CreateTime}
	var reply protocol.TrainingOperations
	pull := func(id protocol.TrainingAttempt) any {
		return protocol.TrainingPull{Version: protocol.Version, TrainingAttempt: id, Run: "run"}
	}
	require.NoError(t, s.send(old, protocol.TrainingSubject("n1", protocol.TrainingPulls), pull(id), &reply))
	require.Equal(t, protocol.Accepted, reply.Outcome)
	require.Len(t, reply.Operations, 1)

	s.do(domain.IntendJob(serviceName, domain.RequeueJob{Attempt: 1, Reason: "lost", Preempted: true}))
	s.replace("n2")
	next := id
	next.Attempt = 2
	for what, message := range map[string]any{
		protocol.TrainingPulls:   pull(id),
		protocol.TrainingRuns:    protocol.TrainingRunsRequest{Version: protocol.Version, TrainingAttempt: id},
		protocol.TrainingSamples: protocol.TrainingSamplesPull{Version: protocol.Version, TrainingAttempt: id, Max: 1},
		protocol.TrainingBodies: protocol.TrainingBodyRequest{Version: protocol.Version, TrainingAttempt: id, Lane: "run",
			Seq: 1},
		protocol.TrainingResults: protocol.TrainingResult{Version: protocol.Version, TrainingAttempt: id, Lane: "run",
			Seq: 1, Body: []byte("stale")},
		protocol.TrainingCheckpoints: protocol.TrainingCheckpoint{Version: protocol.Version, TrainingAttempt: id,
			Run: "run", Seq: 1, Saved: protocol.SavedTraining{Kind: domain.TrainingCheckpointRecovery,
				Checkpoint: "1-1-recovery"}},
	} {
		var stale protocol.TrainingReply
		require.NoError(t, s.send(old, protocol.TrainingSubject("n1", what), message, &stale), what)
		require.Equal(t, protocol.Stale, stale.Outcome, what)
	}
	// the attempt is the current one, but it runs on another node
	var stale protocol.TrainingReply
	require.NoError(t, s.send(old, protocol.TrainingSubject("n1", protocol.TrainingPulls), pull(next), &stale))
	require.Equal(t, protocol.Stale, stale.Outcome)
	_, finished, err := s.journal.Result(t.Context(), s.lane("run"), 1)
	require.NoError(t, err)
	require.False(t, finished)
	require.NoError(t, s.send(current, protocol.TrainingSubject("n2", protocol.TrainingPulls), pull(next), &reply))
	require.Equal(t, protocol.Accepted, reply.Outcome)
}

// TestOutdatedPull checks that a delayed request for operations that a newer recovery checkpoint contains
// does not corrupt the run: the agent opens it again.
func TestOutdatedPull(t *testing.T) {
	s := startService(t)
	nats := s.registerNode("n1", "a")
	s.place("n1")
	s.create("run", 1)
	s.submit("run", newLoop(1, 1)[0])
	require.NoError(t, s.journal.Finish(t.Context(), s.lane("run"), 1, operations.Result{Attempt: 1}))
	do := func(c domain.Command[domain.TrainingRun]) {
		s.do(domain.Intend(domain.TrainingRuns, runName("run"), c))
	}
	do(domain.OpenTrainingRun{Attempt: 1, BaseHash: "h", Kernel: "k"})
	do(domain.SaveTrainingCheckpoint{TrainingCheckpoint: domain.TrainingCheckpoint{
		Kind: domain.TrainingCheckpointRecovery, Name: "1-1-recovery", Seq: 1, Attempt: 1}})
	require.NoError(t, s.journal.Trim(t.Context(), s.lane("run"), 1, time.Now()))
	var reply protocol.TrainingOperations
	require.NoError(t, s.send(nats, protocol.TrainingSubject("n1", protocol.TrainingPulls), protocol.TrainingPull{
		Version: protocol.Version, TrainingAttempt: protocol.TrainingAttempt{Job: serviceName, Attempt: 1,
			CreateTime: s.job().CreateTime}, Run: "run"}, &reply))
	require.Equal(t, protocol.RunEnded, reply.Outcome)
	require.Equal(t, domain.TrainingRunOpenState, s.run("run").State)
}

// TestRunThatCannotOpen checks that a run which was trained on another base model, or which cannot be
// restored, becomes CORRUPTED instead of waiting forever, and that a report of files that are missing is
// refused instead of being sent again forever.
func TestRunThatCannotOpen(t *testing.T) {
	s := startService(t)
	nats := s.registerNode("n1", "a")
	s.place("n1")
	id := protocol.TrainingAttempt{Job: serviceName, Attempt: 1, CreateTime: s.job().CreateTime}
	for i, result := range []protocol.TrainingResult{
		{Lane: "other-base", Opened: &protocol.Opened{BaseHash: "other", Kernel: "k"}},
		{Lane: "other-engine", Error: protocol.ErrorOf(domain.Errorf(domain.InvalidArgument, "unknown version"))},
	} {
		run := result.Lane
		s.create(run, int64(i))
		s.do(domain.Intend(domain.TrainingRuns, runName(run), domain.Command[domain.TrainingRun](
			domain.OpenTrainingRun{Attempt: 1, BaseHash: "h", Kernel: "k"})))
		result.Version, result.TrainingAttempt = protocol.Version, id
		var reply protocol.TrainingReply
		require.NoError(t, s.send(nats, protocol.TrainingSubject("n1", protocol.TrainingResults), result, &reply))
		require.Equal(t, protocol.Accepted, reply.Outcome, reply.Message)
		require.Equal(t, domain.TrainingRunCorruptedState, s.run(run).State)
	}
	s.create("incomplete", 2)
	var reply protocol.TrainingReply
	err := s.send(nats, protocol.TrainingSubject("n1", protocol.TrainingCheckpoints),
		protocol.TrainingCheckpoint{Version: protocol.Version, TrainingAttempt: id, Run: "incomplete", Seq: 1,
			Saved: protocol.SavedTraining{Kind: domain.TrainingCheckpointRecovery, Checkpoint: "1-1-recovery",
				Sizes: map[string]int64{"state": 7}}}, &reply)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err), "other codes fail the job: %v", err)
}

// TestCorruptedRun checks that a run whose journal or recovery checkpoint is lost or damaged becomes
// CORRUPTED, with the name of its last checkpoint, and that other runs continue.
func TestCorruptedRun(t *testing.T) {
	for name, damage := range map[string]func(s *service, journal string){
		"damaged operation": func(s *service, journal string) {
			path := filepath.Join(s.bucket, journal, "0000000005.op")
			content := testutil.ReadFile(s, path)
			content[len(content)-1] ^= 1
			require.NoError(s, os.WriteFile(path, content, 0o600))
		},
		"lost operation": func(s *service, journal string) {
			require.NoError(s, s.blobs.Delete(s.Context(), journal+"0000000003.op"))
		},
		"damaged result": func(s *service, journal string) {
			path := filepath.Join(s.bucket, journal, "0000000003.result")
			content := testutil.ReadFile(s, path)
			content[len(content)-1] ^= 1
			require.NoError(s, os.WriteFile(path, content, 0o600))
		},
		"lost journal": func(s *service, journal string) {
			require.NoError(s, s.blobs.DeletePrefix(s.Context(), journal))
		},
		"lost recovery checkpoint": func(s *service, _ string) {
			last, ok := s.run("run").Newest(domain.TrainingCheckpointRecovery)
			require.True(s, ok)
			require.NoError(s, s.blobs.DeletePrefix(s.Context(), last.Files.Prefix))
		},
		"damaged recovery checkpoint": func(s *service, _ string) {
			last, _ := s.run("run").Newest(domain.TrainingCheckpointRecovery)
			path := filepath.Join(s.bucket, last.Files.Prefix, "state")
			content := testutil.ReadFile(s, path)
			content[len(content)/2] ^= 1
			require.NoError(s, os.WriteFile(path, content, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startService(t)
			stop := s.agent("n1", embeddedEngine())
			s.place("n1")
			s.create("run", 1)
			s.create("other", 2)
			l := newLoop(8, 4)
			s.submit("run", l[0])
			s.submit("other", l[0])
			s.saveState("run", "kept")
			s.await(s.lane("other"), 1)
			replays := name == "lost operation" || name == "damaged result"
			if !replays {
				stop()
			}
			if replays { // before the first recovery checkpoint
				s.submit("run", l[1])
				s.await(s.lane("run"), 3)
				kill := s.job().State.Attempt
				damage(s, blobsJournal(s, "run"))
				s.do(domain.IntendJob(serviceName, domain.RequeueJob{Attempt: kill, Reason: "lost", Preempted: true}))
			} else {
				for _, o := range l[1:4] {
					s.submit("run", o)
				}
				damage(s, blobsJournal(s, "run"))
				s.agent("n2", embeddedEngine())
			}
			if replays {
				s.replace("n1")
			} else {
				s.replace("n2")
			}
			s.untilRun("run", func(r domain.TrainingRun) bool { return r.State == domain.TrainingRunCorruptedState })
			require.Equal(t, "kept", s.run("run").Corruption.LastCheckpoint)
			require.NotEmpty(t, s.run("run").Corruption.Reason)
			seq := s.submit("other", l[1])
			require.Nil(t, s.await(s.lane("other"), seq).Err)
		})
	}
}

func (s *service) untilRun(id string, met func(domain.TrainingRun) bool) {
	s.Helper()
	s.until("the run "+id, func(v *projections.View) bool {
		row, ok := v.Runs.Get(runName(id))
		return ok && met(row.State)
	})
}

func blobsJournal(s *service, run string) string {
	return "jobs/acme/" + s.event() + "/journal/runs/" + run + "/"
}

// TestLongOperation checks operations and results that are longer than a NATS message.
func TestLongOperation(t *testing.T) {
	s := startService(t)
	s.agent("n1", embeddedEngine())
	s.place("n1")
	s.create("run", 1)
	var pass engines.TrainPass
	for range 400 {
		tokens, targets := make([]int32, 250), make([]int32, 250)
		for i := range tokens {
			tokens[i], targets[i] = int32(i%vocab), int32((i+1)%vocab)
		}
		pass.Data = append(pass.Data, engines.TrainDatum{Tokens: tokens, Targets: targets})
	}
	o := engines.TrainOperation{Forward: &pass}
	body, err := o.Encode()
	require.NoError(t, err)
	require.Greater(t, len(body), protocol.MaxMessage)
	results, _ := s.direct(loop{o})
	require.Greater(t, len(results[0]), protocol.MaxMessage)
	s.submit("run", o)
	s.requireResults("run", results)
}

// TestSamplingSession checks that samples of the base model and of a saved adapter are those of a
// pool without a service.
func TestSamplingSession(t *testing.T) {
	s := startService(t)
	s.agent("n1", embeddedEngine())
	s.place("n1")
	s.create("run", 1)
	l := newLoop(9, 2)
	for _, o := range l {
		s.submit("run", o)
	}
	seq := s.submit("run", engines.TrainOperation{SaveSampler: &engines.TrainSave{Name: "weights", Ephemeral: true}})
	result := s.await(s.lane("run"), seq)
	require.Nil(t, result.Err)
	out, err := engines.DecodeTrainOperationResult(result.Body)
	require.NoError(t, err)

	lane := s.lane("session")
	lane.Samples = true
	requests := map[int64]engines.TrainSampleRequest{}
	for i := range int64(8) {
		requests[i] = engines.TrainSampleRequest{Prompt: []int32{1, 2, 3}, N: 2, MaxTokens: 5, Temperature: 1,
			Seed: uint64(i)}
		if i%2 == 1 {
			request := requests[i]
			request.Weights = out.Saved.Files.Prefix
			requests[i] = request
		}
	}
	requests[8] = engines.TrainSampleRequest{Prompt: []int32{1}, N: 1, Weights: out.Saved.Files.Prefix + "none/"}
	for seq, request := range requests {
		body, err := engines.TrainOperation{Sample: &request}.Encode()
		require.NoError(t, err)
		_, err = s.journal.Submit(t.Context(), lane, operations.Operation{Seq: seq, Kind: engines.TrainSampleKind, Body: body,
			Hash: sha256.Sum256(body)})
		require.NoError(t, err)
	}
	expected := s.directSamples(l, requests)
	for seq := range requests {
		result := s.await(lane, seq)
		if seq == 8 {
			require.Equal(t, domain.NotFound, result.Err.Code)
			continue
		}
		require.Nil(t, result.Err)
		out, err := engines.DecodeTrainOperationResult(result.Body)
		require.NoError(t, err)
		out.Samples.CachedTokens = 0 // depends on earlier samples
		body, err := out.Encode()
		require.NoError(t, err)
		require.Equal(t, expected[seq], body, "sample %d", seq)
	}
}

// directSamples returns the encoded results of requests on a pool without a service. Weights are
// those of a run after the loop.
func (s *service) directSamples(l loop, requests map[int64]engines.TrainSampleRequest) map[int64][]byte {
	s.Helper()
	ctx := s.Context()
	pool, err := embeddedEngine().TrainPools.OpenTrainPool(ctx, engines.TrainPoolRequest{BaseDir: s.base})
	require.NoError(s, err)
	defer func() { require.NoError(s, pool.Close()) }()
	run, err := pool.CreateRun(ctx, engines.TrainRunConfig{Rank: runConfig.Rank, Alpha: runConfig.Alpha,
		Seed: runConfig.Seed, TrainAttn: true, TrainMLP: true})
	require.NoError(s, err)
	defer func() { require.NoError(s, run.Close()) }()
	for _, o := range l {
		switch {
		case o.ForwardBackward != nil:
			_, err = run.ForwardBackward(ctx, *o.ForwardBackward)
		case o.Step != nil:
			_, err = run.Step(ctx, *o.Step)
		}
		require.NoError(s, err)
	}
	dir := s.TempDir()
	require.NoError(s, run.Export(ctx, dir))
	results := map[int64][]byte{}
	for seq, request := range requests {
		if seq == 8 {
			continue
		}
		adapter := ""
		if request.Weights != "" {
			adapter = dir
		}
		sampler, err := pool.OpenSampler(ctx, adapter)
		require.NoError(s, err)
		samples, err := sampler.Sample(ctx, request)
		require.NoError(s, err)
		samples.CachedTokens = 0
		require.NoError(s, sampler.Close())
		results[seq], err = engines.TrainOperationResult{Samples: &samples}.Encode()
		require.NoError(s, err)
	}
	return results
}
