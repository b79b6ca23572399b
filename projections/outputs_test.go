package projections

import (
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
)

// TestReservationsAreInTheOrderOfTheLog checks with random jobs that each name of an output model is
// reserved by the job whose own event reserved it first, in a world that followed the log, in a
// replay, and in a world that was loaded from a snapshot at any position.
func TestReservationsAreInTheOrderOfTheLog(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		require.NoError(t, err)
		log, w := eventlog.NewMemory(), NewWorld()
		at := map[domain.Name]uint64{} // job → position of its event that reserved the name
		var fromSnapshots []*World
		for range rapid.IntRange(1, 40).Draw(t, "commands") {
			intent := randomReservation(t)
			before, _ := w.Row(intent.Name)
			request := eventlog.Request{Time: time.Unix(rapid.Int64Range(0, 1000).Draw(t, "clock"), 0)}
			change, err := eventlog.Do(t.Context(), log, w, request, intent)
			if err != nil || change.Position() == 0 {
				continue
			}
			require.NoError(t, w.Apply(change.Event))
			if rapid.Bool().Draw(t, "look") { // later changes must not change the rows of a view
				requireIndexOfUnfinishedJobs(t, w.View())
			}
			if reserves(change.Event.Type, before) {
				at[intent.Name] = change.Position()
			}
			if rapid.IntRange(0, 9).Draw(t, "save") == 0 {
				require.NoError(t, w.Save(dir))
				loaded, err := Load(dir)
				require.NoError(t, err)
				fromSnapshots = append(fromSnapshots, loaded)
			}
		}
		want := map[domain.Name]domain.Name{}
		for row := range w.View().Jobs() {
			model := domain.ReservedOutput(row.Name, row.State)
			if holder := want[model]; model != "" && (holder == "" || at[row.Name] < at[holder]) {
				want[model] = row.Name
			}
		}
		for _, other := range append(fromSnapshots, w, NewWorld()) {
			for e, err := range log.Read(t.Context(), everything, other.Position()) {
				require.NoError(t, err)
				require.NoError(t, other.Apply(e))
			}
			requireIndexOfUnfinishedJobs(t, other.View())
			for _, model := range []domain.Name{"accounts/acme/models/m1", "accounts/acme/models/m2"} {
				found, reserved := other.View().ReservedBy(model, "")
				require.Equal(t, want[model], found)
				require.Equal(t, want[model] != "", reserved)
			}
		}
	})
}

// requireIndexOfUnfinishedJobs checks that the index of unfinished jobs has the rows that a scan of all
// jobs finds.
func requireIndexOfUnfinishedJobs(t require.TestingT, v *View) {
	scan := func(all iter.Seq[Row[domain.Job]]) (rows []Row[domain.Job]) {
		for row := range all {
			if row.State.Life().Unfinished() {
				rows = append(rows, row)
			}
		}
		return rows
	}
	require.Equal(t, scan(v.Jobs()), slices.Collect(UnfinishedJobs(v)))
	for kind := range domain.JobKinds() {
		table := v.tables[kind.CollectionID()]
		reserved := map[domain.Name][]Reservation{}
		for row := range table.all() {
			job, _ := JobOf(row)
			if r, ok := reservationOf(job); ok {
				reserved[r.Model] = append(reserved[r.Model], r)
			}
		}
		require.Len(t, reserved, table.outputs.Len())
		for model, want := range reserved {
			require.ElementsMatch(t, want, slices.Collect(table.reservations(model)))
			past := table.copy()
			past.openJobs, past.outputs = nil, nil
			require.ElementsMatch(t, want, slices.Collect(past.reservations(model)))
		}
	}
	for _, account := range []string{"acme", "a", "b", "zz"} {
		require.Equal(t, scan(v.JobsIn(account)), slices.Collect(UnfinishedJobsIn(v, account)))
	}
}

// reserves reports whether an event of the type reserves the name of a job's output model. before is
// the state of the job before the event.
func reserves(event string, before any) bool {
	_, kind, _ := strings.Cut(event, ".")
	trainer, waits := before.(domain.TrainerJob)
	switch kind {
	case "created.v1":
		return !strings.HasPrefix(event, "rlorTrainerJob") // the trainers of this test wait for a step
	case "resumed.v1":
		state := lifeOf(before).State
		return state != domain.JobPausedState && (!waits || trainer.HasStep())
	}
	return kind == "stepGiven.v1"
}

func lifeOf(state any) domain.JobLife {
	if job, ok := state.(domain.SupervisedJob); ok {
		return job.JobLife
	}
	return state.(domain.TrainerJob).JobLife
}

// randomReservation returns an intent for one of a few jobs, which name a few output models.
func randomReservation(t *rapid.T) domain.Intent {
	model := rapid.SampledFrom([]string{"m1", "m2"}).Draw(t, "model")
	job := domain.NewName("acme", domain.SupervisedJobs.Collection,
		rapid.SampledFrom([]string{"a", "b"}).Draw(t, "job"))
	if rapid.Bool().Draw(t, "trainer") {
		job = domain.NewName("acme", domain.TrainerJobs.Collection, job.ID())
	}
	config := domain.TrainingConfig{BaseModel: "accounts/default/models/m", OutputModel: model}
	commands := []domain.Command[domain.JobLife]{domain.CancelJob{}, domain.ConfirmCancel{}, domain.ResumeJob{},
		domain.PauseJob{Reason: "r"}, domain.FailJob{}, domain.StartValidation{}, domain.QueueJob{}, domain.DeleteJob{},
		domain.CleanJob{}, domain.PurgeJob{}}
	var others []domain.Intent
	if job.Collection() == domain.SupervisedJobs.Collection {
		others = append(others, domain.Intend(domain.SupervisedJobs, job, domain.CreateSupervisedJob{ID: job.ID(),
			SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/d", TrainingConfig: config}}))
	} else {
		for _, command := range []domain.Command[domain.TrainerJob]{
			domain.CreateTrainerJob{ID: job.ID(), TrainerSpec: domain.TrainerSpec{TrainingConfig: config, KeepAlive: true}},
			domain.AwaitStep{}, domain.ExecuteTrainStep{Dataset: "accounts/acme/datasets/d", OutputModel: model},
		} {
			others = append(others, domain.Intend(domain.TrainerJobs, job, command))
		}
	}
	for _, command := range commands {
		others = append(others, domain.IntendJob(job, command))
	}
	return rapid.SampledFrom(slices.Clip(others)).Draw(t, "intent")
}
