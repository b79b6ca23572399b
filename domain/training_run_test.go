package domain_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
)

const serviceJob = domain.Name("accounts/a/rlorTrainerJobs/j")

func randomTrainingSessionCommand(t *rapid.T, _ domain.TrainingSession) domain.Command[domain.TrainingSession] {
	spec := domain.TrainingSessionSpec{Job: serviceJob, JobEvent: pick(t, "event", "e", "e", ""),
		Tags: pick(t, "tags", nil, []string{"a"}), UserMetadata: pick(t, "metadata", nil, map[string]string{"k": "v"})}
	return pick[domain.Command[domain.TrainingSession]](t, "command",
		domain.CreateTrainingSession{TrainingSessionSpec: spec},
		domain.EndTrainingSession{Reason: pick(t, "reason", "no heartbeats", "by its client")},
		domain.DeleteTrainingSession{})
}

func someRunSpec() domain.TrainingRunSpec {
	return domain.TrainingRunSpec{Job: serviceJob, JobEvent: "e", Session: "accounts/a/trainingSessions/s", ModelSeq: 1,
		BaseModel: "accounts/a/models/base", Config: domain.TrainingRunConfig{Rank: 8, Alpha: 32, TrainAttn: true}}
}

func randomTrainingRunCommand(t *rapid.T, r domain.TrainingRun) domain.Command[domain.TrainingRun] {
	spec := someRunSpec()
	spec.ModelSeq = pick[int64](t, "seq", 1, 1, 2, -1)
	attempt := 1
	if r.Opening != nil {
		attempt = near(t, r.Opening.Attempt)
	}
	kind := pick(t, "kind", domain.TrainingCheckpointTraining, domain.TrainingCheckpointSampler,
		domain.TrainingCheckpointRecovery, "")
	name := pick(t, "name", "a", "b", "c", ".x")
	saved := domain.SaveTrainingCheckpoint{TrainingCheckpoint: domain.TrainingCheckpoint{Kind: kind, Name: name,
		Seq: pick[int64](t, "at", 1, 2, 3, 4), Files: someFiles(t), Attempt: attempt,
		Ephemeral: pick(t, "ephemeral", false, false, true)}, Overwrite: pick(t, "overwrite", false, true)}
	return pick[domain.Command[domain.TrainingRun]](t, "command", domain.CreateTrainingRun{TrainingRunSpec: spec},
		domain.CreateTrainingRun{TrainingRunSpec: spec},
		domain.OpenTrainingRun{Attempt: attempt, BaseHash: pick(t, "hash", "h", "h", "i"), Kernel: "avx2"},
		domain.OpenTrainingRun{Attempt: attempt + 1, BaseHash: "h", Kernel: "avx2"}, saved, saved, saved, saved,
		domain.DeleteTrainingCheckpoint{Kind: kind, Name: name},
		domain.SetTrainingCheckpointExpiry{Kind: kind, Name: name,
			ExpireTime: pick(t, "expire", nil, later(time.Hour), later(1e6*time.Hour))},
		pick[domain.Command[domain.TrainingRun]](t, "end", saved, saved, saved, saved, domain.UnloadTrainingRun{},
			domain.CorruptTrainingRun{Reason: "the journal is lost"}, domain.DeleteTrainingRun{}))
}

func TestTrainingSession(t *testing.T) {
	type D = decision[domain.TrainingSession]
	f := events[domain.TrainingSession]
	spec := domain.TrainingSessionSpec{Job: serviceJob, JobEvent: "e", SDKVersion: "0.25.0"}
	made := domain.TrainingSessionCreated{TrainingSessionSpec: spec}
	create := func(change func(*domain.TrainingSessionSpec)) domain.CreateTrainingSession {
		changed := spec
		change(&changed)
		return domain.CreateTrainingSession{TrainingSessionSpec: changed}
	}
	ended := domain.TrainingSessionEnded{Reason: "no heartbeats", Time: noon}
	decide(t, domain.TrainingSessions, []D{
		{name: "create", when: create(func(*domain.TrainingSessionSpec) {}), then: made},
		{name: "create twice", given: f(made), when: create(func(*domain.TrainingSessionSpec) {}), fault: "ALREADY_EXISTS"},
		{name: "many tags", when: create(func(s *domain.TrainingSessionSpec) { s.Tags = make([]string, 65) }),
			fault: "INVALID_FIELDS", says: "tags: has 65 tags: a session must have at most 64"},
		{name: "a long tag",
			when:  create(func(s *domain.TrainingSessionSpec) { s.Tags = []string{strings.Repeat("é", 257)} }),
			fault: "INVALID_FIELDS", says: "tags[0]: has 257 characters"},
		{name: "much metadata", when: create(func(s *domain.TrainingSessionSpec) {
			s.UserMetadata = map[string]string{"k": strings.Repeat("v", 16<<10)}
		}), fault: "INVALID_FIELDS", says: "user_metadata: has 16385 bytes"},
		{name: "another kind of job", when: create(func(s *domain.TrainingSessionSpec) { s.Job = "accounts/a/dpoJobs/j" }),
			fault: "INVALID_FIELDS", says: "job: must be the name of a trainer job"},
		{name: "end", given: f(made), when: domain.EndTrainingSession{Reason: "no heartbeats"}, then: ended},
		{name: "end twice", given: f(made, ended), when: domain.EndTrainingSession{Reason: "again"}},
		{name: "end a missing session", when: domain.EndTrainingSession{}, fault: "NOT_FOUND"},
		{name: "delete", given: f(made, ended), when: domain.DeleteTrainingSession{}, then: domain.TrainingSessionDeleted{}},
		{name: "delete twice", when: domain.DeleteTrainingSession{}},
	})
}

func TestTrainingRun(t *testing.T) {
	type D = decision[domain.TrainingRun]
	f := events[domain.TrainingRun]
	spec := someRunSpec()
	made := domain.TrainingRunCreated{TrainingRunSpec: spec}
	create := func(change func(*domain.TrainingRunSpec)) domain.CreateTrainingRun {
		changed := spec
		change(&changed)
		return domain.CreateTrainingRun{TrainingRunSpec: changed}
	}
	opened := func(attempt int) domain.TrainingRunOpened {
		return domain.TrainingRunOpened{TrainingRunOpening: domain.TrainingRunOpening{Attempt: attempt, BaseHash: "h",
			Kernel: "avx2", Time: noon}}
	}
	open := func(attempt int) domain.OpenTrainingRun {
		return domain.OpenTrainingRun{Attempt: attempt, BaseHash: "h", Kernel: "avx2"}
	}
	ready := f(made, opened(2))
	unloaded, corrupted := domain.TrainingRunUnloaded{Time: noon}, domain.TrainingRunCorrupted{
		TrainingRunCorruption: domain.TrainingRunCorruption{Reason: "operation 7 is lost", Time: noon}}
	decide(t, domain.TrainingRuns, []D{
		{name: "create", when: create(func(*domain.TrainingRunSpec) {}), then: made},
		{name: "create twice", given: f(made), when: create(func(*domain.TrainingRunSpec) {})},
		{name: "create another", given: f(made), when: create(func(s *domain.TrainingRunSpec) { s.Config.Rank = 4 }),
			fault: "ALREADY_EXISTS"},
		{name: "rank 65", when: create(func(s *domain.TrainingRunSpec) { s.Config.Rank = 65 }), fault: "INVALID_FIELDS",
			says: "lora_config.rank: is 65: it must be from 1 to 64"},
		{name: "no layers", when: create(func(s *domain.TrainingRunSpec) { s.Config.TrainAttn = false }),
			fault: "INVALID_FIELDS", says: "set train_attn, train_mlp or train_unembed"},
		{name: "a large seed", when: create(func(s *domain.TrainingRunSpec) { s.Config.Seed = 1 << 53 }),
			fault: "INVALID_FIELDS", says: "lora_config.seed"},
		{name: "open", given: f(made), when: open(2), then: opened(2)},
		{name: "open twice", given: ready, when: open(2)},
		{name: "open by the next attempt", given: ready, when: open(3), then: opened(3)},
		{name: "open by an earlier attempt", given: ready, when: open(1), fault: "STALE_ATTEMPT"},
		{name: "open on another base model", given: ready, when: domain.OpenTrainingRun{Attempt: 3, BaseHash: "i"},
			fault: "BASE_MODEL_CHANGED"},
		{name: "open after unload", given: also(ready, unloaded), when: open(3), fault: "RUN_UNLOADED",
			says: "create another run"},
		{name: "unload", given: ready, when: domain.UnloadTrainingRun{}, then: unloaded},
		{name: "unload twice", given: also(ready, unloaded), when: domain.UnloadTrainingRun{}},
		{name: "corrupt", given: ready, when: domain.CorruptTrainingRun{Reason: "operation 7 is lost"}, then: corrupted},
		{name: "corrupt by an outdated checkpoint", given: also(ready, domain.TrainingCheckpointSaved{
			TrainingCheckpoint: domain.TrainingCheckpoint{Kind: domain.TrainingCheckpointRecovery, Name: "r", Seq: 7}}),
			when: domain.CorruptTrainingRun{Reason: "operation 6 is lost", Recovery: new(int64(5))}, fault: "NEWER_CHECKPOINT"},
		{name: "corrupt twice", given: also(ready, corrupted), when: domain.CorruptTrainingRun{Reason: "again"}},
		{name: "open after corruption", given: also(ready, corrupted), when: open(3), fault: "RUN_CORRUPTED",
			says: "operation 7 is lost"},
		{name: "delete", given: ready, when: domain.DeleteTrainingRun{}, then: domain.TrainingRunDeleted{}},
		{name: "delete twice", when: domain.DeleteTrainingRun{}},
	})
}

func TestTrainingCheckpoints(t *testing.T) {
	type D = decision[domain.TrainingRun]
	f := events[domain.TrainingRun]
	ready := f(domain.TrainingRunCreated{TrainingRunSpec: someRunSpec()}, domain.TrainingRunOpened{
		TrainingRunOpening: domain.TrainingRunOpening{Attempt: 2, BaseHash: "h", Time: noon}})
	checkpoint := func(kind, name string, seq int64) domain.TrainingCheckpoint {
		return domain.TrainingCheckpoint{Kind: kind, Name: name, Seq: seq, Attempt: 2, Time: noon}
	}
	saved := func(kind, name string, seq int64) domain.TrainingCheckpointSaved {
		return domain.TrainingCheckpointSaved{TrainingCheckpoint: checkpoint(kind, name, seq)}
	}
	save := func(kind, name string, seq int64) domain.SaveTrainingCheckpoint {
		return domain.SaveTrainingCheckpoint{TrainingCheckpoint: checkpoint(kind, name, seq)}
	}
	const training, sampler, recovery = domain.TrainingCheckpointTraining, domain.TrainingCheckpointSampler,
		domain.TrainingCheckpointRecovery
	one := also(ready, saved(training, "one", 5))
	overwrite := save(training, "one", 9)
	overwrite.Overwrite = true
	stale := save(training, "one", 9)
	stale.Attempt = 1
	full := ready
	for i := range domain.MaxTrainingCheckpoints {
		full = also(full, saved(training, strconv.Itoa(i), int64(i)))
	}
	ephemeral := save(training, "one", 5)
	ephemeral.Ephemeral = true
	decide(t, domain.TrainingRuns, []D{
		{name: "save", given: ready, when: save(training, "one", 5), then: saved(training, "one", 5)},
		{name: "save before an attempt has opened the run", given: ready[:1], when: save(training, "one", 5),
			fault: "STALE_ATTEMPT"},
		{name: "replayed", given: one, when: save(training, "one", 5)},
		{name: "the same name", given: one, when: save(training, "one", 9), fault: "CHECKPOINT_EXISTS", says: "overwrite"},
		{name: "the same name of another kind", given: one, when: save(sampler, "one", 9), then: saved(sampler, "one", 9)},
		{name: "overwrite", given: one, when: overwrite, then: saved(training, "one", 9)},
		{name: "an earlier operation", given: also(one, saved(training, "one", 9)), when: save(training, "one", 5),
			fault: "STALE_CHECKPOINT"},
		{name: "another attempt", given: one, when: stale, fault: "STALE_ATTEMPT"},
		{name: "an invalid name", given: ready, when: save(training, "a/b", 5), fault: "INVALID_FIELDS",
			says: "name: must be"},
		{name: "an ephemeral training checkpoint", given: ready, when: ephemeral, fault: "INVALID_FIELDS"},
		{name: "too many", given: full, when: save(training, "more", 900), fault: "TOO_MANY_CHECKPOINTS",
			says: "delete some"},
		{name: "recovery beside too many", given: full, when: save(recovery, "r", 900), then: saved(recovery, "r", 900)},
		{name: "an older recovery", given: also(one, saved(recovery, "b", 9)), when: save(recovery, "a", 5)},
		{name: "delete", given: one, when: domain.DeleteTrainingCheckpoint{Kind: training, Name: "one"},
			then: domain.TrainingCheckpointDeleted{Kind: training, Name: "one"}},
		{name: "delete a missing one", given: one, when: domain.DeleteTrainingCheckpoint{Kind: sampler, Name: "one"},
			fault: "CHECKPOINT_NOT_FOUND"},
		{name: "delete a recovery checkpoint", given: also(one, saved(recovery, "r", 9)),
			when: domain.DeleteTrainingCheckpoint{Kind: recovery, Name: "r"}, fault: "CHECKPOINT_NOT_FOUND"},
		{name: "expire", given: one,
			when: domain.SetTrainingCheckpointExpiry{Kind: training, Name: "one", ExpireTime: later(time.Hour)},
			then: domain.TrainingCheckpointExpiryChanged{Kind: training, Name: "one", ExpireTime: later(time.Hour)}},
		{name: "never expire", given: one, when: domain.SetTrainingCheckpointExpiry{Kind: training, Name: "one"}},
		{name: "expire in the past", given: one,
			when:  domain.SetTrainingCheckpointExpiry{Kind: training, Name: "one", ExpireTime: later(-time.Hour)},
			fault: "INVALID_FIELDS", says: "must be in the future"},
		{name: "corrupted names the last checkpoint", given: also(one, saved(sampler, "s", 6)),
			when: domain.CorruptTrainingRun{Reason: "lost"}, then: domain.TrainingRunCorrupted{
				TrainingRunCorruption: domain.TrainingRunCorruption{Reason: "lost", LastCheckpoint: "one", Time: noon}}},
	})
}

// TestCheckpointsThatARunKeeps checks that a run keeps one recovery checkpoint until it is unloaded, the
// newest MaxEphemeralSamplers ephemeral ones, and all others.
func TestCheckpointsThatARunKeeps(t *testing.T) {
	r := fold(t, domain.TrainingRuns, domain.Event[domain.TrainingRun](
		domain.TrainingRunCreated{TrainingRunSpec: someRunSpec()}))
	for i := range 40 {
		for _, c := range []domain.TrainingCheckpoint{
			{Kind: domain.TrainingCheckpointRecovery, Name: "r" + strconv.Itoa(i), Seq: int64(i)},
			{Kind: domain.TrainingCheckpointSampler, Name: "e" + strconv.Itoa(i), Seq: int64(i), Ephemeral: true},
			{Kind: domain.TrainingCheckpointSampler, Name: "s" + strconv.Itoa(i), Seq: int64(i)},
		} {
			domain.TrainingCheckpointSaved{TrainingCheckpoint: c}.Evolve(&r)
		}
	}
	require.Len(t, r.Checkpoints, 1+domain.MaxEphemeralSamplers+40)
	require.EqualValues(t, 39, r.RecoverySeq())
	_, found := r.Checkpoint(domain.TrainingCheckpointSampler, "e23")
	require.False(t, found)
	_, found = r.Checkpoint(domain.TrainingCheckpointSampler, "e24")
	require.True(t, found)
	newest, _ := r.Newest(domain.TrainingCheckpointSampler)
	require.Equal(t, "s39", newest.Name)

	domain.TrainingRunUnloaded{Time: noon}.Evolve(&r)
	require.Len(t, r.Checkpoints, domain.MaxEphemeralSamplers+40)
	_, found = r.Newest(domain.TrainingCheckpointRecovery)
	require.False(t, found, "no attempt continues the run")
}

func TestTrainingService(t *testing.T) {
	type D = decision[domain.TrainerJob]
	job := func(service bool, state string, attempt int, serving bool) domain.TrainerJob {
		return domain.TrainerJob{TrainerSpec: domain.TrainerSpec{ServiceMode: service, KeepAlive: true}, Serving: serving,
			JobLife: domain.JobLife{State: state, Attempt: attempt, Nodes: []domain.Name{"n"}[:min(attempt, 1)]}}
	}
	started, stopped := domain.TrainerServiceStarted{Time: noon}, domain.TrainerServiceStopped{Attempt: 1, Time: noon}
	for _, line := range []struct {
		D
		state domain.TrainerJob
	}{
		{D{name: "start", when: domain.StartService{}, then: started}, job(true, domain.JobIdleState, 0, false)},
		{D{name: "start a new job", when: domain.StartService{}, then: started},
			job(true, domain.JobCreatingState, 0, false)},
		{D{name: "start twice", when: domain.StartService{}}, job(true, domain.JobRunningState, 1, true)},
		{D{name: "start without serviceMode", when: domain.StartService{}, fault: "NO_TRAINING_SERVICE"},
			job(false, domain.JobIdleState, 0, false)},
		{D{name: "start a failed job", when: domain.StartService{}, fault: "JOB_STATE"},
			job(true, domain.JobFailedState, 0, true)},
		{D{name: "stop", when: domain.StopService{Attempt: 1}, then: stopped}, job(true, domain.JobRunningState, 1, true)},
		{D{name: "stop an earlier attempt", when: domain.StopService{Attempt: 2}, fault: "STALE_ATTEMPT"},
			job(true, domain.JobRunningState, 1, true)},
		{D{name: "stop a step", when: domain.StopService{Attempt: 1}, fault: "NOT_SERVING"},
			job(true, domain.JobRunningState, 1, false)},
		{D{name: "stop twice", when: domain.StopService{Attempt: 1}}, job(true, domain.JobIdleState, 1, false)},
		{D{name: "finish a step", when: domain.FinishTrainStep{Attempt: 1}, fault: "SERVING"},
			job(true, domain.JobRunningState, 1, true)},
		{D{name: "begin a step", when: domain.ExecuteTrainStep{Dataset: "accounts/a/datasets/d", OutputModel: "m"},
			fault: "SERVING"}, job(true, domain.JobRunningState, 1, true)},
		{D{name: "await a step", when: domain.AwaitStep{}, fault: "SERVING"},
			job(true, domain.JobPendingState, 0, true)},
	} {
		t.Run(line.name, func(t *testing.T) {
			event, err := line.when.Decide(line.state, noon)
			if line.fault != "" {
				require.Error(t, err)
				require.Equal(t, line.fault, reasonOf(err), err.Error())
				return
			}
			require.NoError(t, err)
			require.Equal(t, line.then, event)
		})
	}
	serving := job(true, domain.JobIdleState, 0, false)
	started.Evolve(&serving)
	require.Equal(t, domain.JobPendingState, serving.State)
	require.False(t, serving.Spec().AwaitsStep())
	require.True(t, serving.Spec().Service)
	stopped.Evolve(&serving)
	require.Equal(t, domain.JobIdleState, serving.State)
	require.True(t, serving.Spec().AwaitsStep())
}
