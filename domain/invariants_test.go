package domain_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/internal/testutil"
)

// once lists the commands that are refused when they are repeated immediately, because they create
// a resource or leave the state that they require.
var once = []string{
	"CreateAPIKey", "CreateAccount", "CreateDataset", "CreateDeployment", "CreateModel", "CreateSecret",
	"CreateSupervisedJob",
	"DeleteAPIKey", "DeleteDataset", "DeleteModel", "DeleteSecret", "PurgeJob", "PurgeDeployment", "RemoveNode",
	"CreateDeployedModel", "CreateEvaluator", "DeleteEvaluator", "CreateDPOJob", "CreateReinforcementJob",
	"CreateTrainerJob", "CreateDeploymentShape", "DeleteDeploymentShape", "DeleteBatchFile", "CreateBatch", "RemoveBatch",
	"CreateSubscription", "DeleteSubscription", "CreateTrainingSession", "DeleteTrainingCheckpoint",
	"SaveTrainingCheckpoint", // of an ephemeral checkpoint that newer ones have replaced
	"DeleteDeployment",       // refused with Hard set, on a deployment that is already DELETED
	"RequeueJob",             // when the attempt was the last one that could fail, so that the job has failed
	"ResumeJob",              // because a resumed job is PENDING
	"UndeleteDeployment",     // because an undeleted deployment is CREATING
}

// TestInvariants decides random commands on resources of every kind and checks these invariants:
//
//   - a command leads to an event, to nothing, or to an error that has a message
//   - Decide and Evolve never change the previous state
//   - decoding an encoded event returns the event
//   - an intent records the name of the state after the event
//   - a repeated command records nothing new, or is refused if once lists it
//   - the state of a resource that was deleted is the zero value
//   - folding the events again gives the same state
//   - every event of the kind occurs in a run
func TestInvariants(t *testing.T) {
	checkInvariants(t, domain.Accounts, randomAccountCommand)
	checkInvariants(t, domain.APIKeys, randomAPIKeyCommand)
	checkInvariants(t, domain.Secrets, randomSecretCommand)
	checkInvariants(t, domain.Models, randomModelCommand)
	checkInvariants(t, domain.Datasets, randomDatasetCommand)
	checkInvariants(t, domain.Nodes, randomNodeCommand)
	checkInvariants(t, domain.Quotas, randomQuotaCommand)
	checkInvariants(t, domain.BatchFiles, randomBatchFileCommand)
	checkInvariants(t, domain.Batches, randomBatchCommand)
	checkInvariants(t, domain.Subscriptions, randomSubscriptionCommand)
	checkInvariants(t, domain.UsageRollups, randomUsageCommand)
	checkInvariants(t, domain.DeploymentShapes, randomDeploymentShapeCommand)
	checkInvariants(t, domain.Deployments, randomDeploymentCommand)
	checkInvariants(t, domain.DeployedModels, randomDeployedModelCommand)
	checkInvariants(t, domain.Evaluators, randomEvaluatorCommand)
	checkInvariants(t, domain.SupervisedJobs, randomSupervisedJobCommand)
	checkInvariants(t, domain.DPOJobs, randomDPOJobCommand)
	checkInvariants(t, domain.ReinforcementJobs, randomReinforcementJobCommand)
	checkInvariants(t, domain.TrainerJobs, randomTrainerJobCommand)
	checkInvariants(t, domain.TrainingSessions, randomTrainingSessionCommand)
	checkInvariants(t, domain.TrainingRuns, randomTrainingRunCommand)
}

func checkInvariants[S domain.State](t *testing.T, kind *domain.Kind[S], random func(*rapid.T, S) domain.Command[S]) {
	t.Run(kind.Collection, func(t *testing.T) {
		runs, seen := 0, map[string]int{} // number of runs in which an event has occurred, by its stored name
		lives := func(t *rapid.T) {
			l := life[S]{kind: kind, now: noon}
			for range rapid.IntRange(1, 200).Draw(t, "commands") {
				l.now = l.now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
				l.apply(t, random(t, l.state))
			}
			l.refold(t)
			runs++
			for name := range l.types() {
				seen[name]++
			}
		}
		rapid.Check(t, lives)
		for name := range kind.EventTypes() {
			if isRetired(name) {
				require.Zero(t, seen[name], "a command records the event %s of earlier versions", name)
				continue
			}
			for more := 0; seen[name] == 0 && more < 20; more++ { // runs for events that are rare
				rapid.Check(t, lives)
			}
			require.NotZero(t, seen[name], "the random commands never recorded the event %s", name)
			if runs >= 1000 { // with -rapid.checks=1000; in fewer runs, an event may occur too rarely by chance
				require.Greater(t, seen[name], runs/50, "the random commands record the event %s too rarely", name)
			}
		}
	})
}

// isRetired reports whether an event is in logs of earlier versions only, and no command records it.
func isRetired(name string) bool {
	return strings.HasSuffix(name, ".idled.v1") || strings.HasSuffix(name, ".woken.v1")
}

// A life is one resource on which random commands are decided.
type life[S domain.State] struct {
	kind    *domain.Kind[S]
	state   S
	now     time.Time
	records []domain.Record
}

// types returns the stored names of the events that have occurred.
func (l *life[S]) types() map[string]bool {
	types := map[string]bool{}
	for _, r := range l.records {
		types[r.Type] = true
	}
	return types
}

func (l *life[S]) apply(t *rapid.T, cmd domain.Command[S]) {
	before := text(t, l.state)
	event := l.decide(t, l.state, cmd)
	require.Equal(t, before, text(t, l.state), "Decide of %T changed the state", cmd)
	if event == nil {
		return
	}
	record, err := l.kind.Encode(event)
	require.NoError(t, err)
	intended, err := domain.Intend(l.kind, "accounts/a/kind/id", cmd).Decide(l.state, l.now)
	require.NoError(t, err)
	after := l.state
	event.Evolve(&after)
	if named, ok := any(after).(domain.StateNamer); ok {
		require.Equal(t, named.StateName(), intended.State, "the state after %s", record.Type)
	}
	read, err := l.kind.Decode(record)
	require.NoError(t, err)
	again, err := l.kind.Encode(read)
	require.NoError(t, err)
	require.Equal(t, string(record.Data), string(again.Data), "%s changes when it is decoded and encoded", record.Type)

	next := l.state
	read.Evolve(&next)
	require.Equal(t, before, text(t, l.state), "Evolve of %s changed the previous state", record.Type)
	if !next.Exists() {
		var none S
		require.Equal(t, text(t, none), text(t, next), "%s deleted the resource, but its state is not zero", record.Type)
	}

	if repeated, err := cmd.Decide(next, l.now); err != nil {
		require.Contains(t, once, wordOf(cmd), "the repeated command must record nothing, but was refused: %v", err)
	} else {
		require.Nil(t, repeated, "the repeated %T recorded another event", cmd)
	}
	l.state, l.records = next, append(l.records, record)
}

// decide returns the event that the command leads to. It requires that an error is a domain.Error
// with a code and a message.
func (l *life[S]) decide(t *rapid.T, state S, cmd domain.Command[S]) domain.Event[S] {
	event, err := cmd.Decide(state, l.now)
	if err == nil {
		return event
	}
	var fault *domain.Error
	require.True(t, errors.As(err, &fault), "%T returned an error that is not a domain.Error: %v", cmd, err)
	require.NotEmpty(t, fault.Message)
	require.NotEmpty(t, fault.Reason)
	require.NotContains(t, []domain.Code{domain.OK, domain.Unknown, domain.Internal}, fault.Code)
	return nil
}

func (l *life[S]) refold(t *rapid.T) {
	var state S
	for _, record := range l.records {
		require.NoError(t, l.kind.Fold(&state, record))
	}
	require.Equal(t, text(t, l.state), text(t, state))
}

func text(t *rapid.T, v any) string {
	data := testutil.Marshal(t, v)
	return string(data)
}

// wordOf returns the name of a command; for a lifted command, the name of the command on the part.
func wordOf(cmd any) string {
	if l, ok := cmd.(interface{ word() string }); ok {
		return l.word()
	}
	return reflect.TypeOf(cmd).Name()
}

func pick[T any](t *rapid.T, what string, from ...T) T { return rapid.SampledFrom(from).Draw(t, what) }
