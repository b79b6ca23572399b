package domain_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
)

// once are the commands that by nature are refused when they are repeated
// right after they were recorded: they make what may exist only once, or bring
// to an end what they act on.
var once = []string{
	"CreateAPIKey", "CreateAccount", "CreateDataset", "CreateDeployment", "CreateModel", "CreateSecret", "CreateSupervisedJob",
	"DeleteAPIKey", "DeleteDataset", "DeleteModel", "DeleteSecret", "PurgeJob", "PurgeDeployment", "RemoveNode",
	"CreateDeployedModel", "CreateEvaluator", "DeleteEvaluator", "CreateDPOJob", "CreateReinforcementJob", "CreateTrainerJob", "CreateDeploymentShape", "DeleteDeploymentShape",
	"DeleteDeployment",   // when it is hard, and of a deployment that is already DELETED
	"RequeueJob",         // when it was the last attempt, and so failed the job
	"ResumeJob",          // a resumed job is PENDING like any other
	"UndeleteDeployment", // an undeleted deployment is CREATING like any other
}

// TestInvariants takes every kind through random lives and checks its invariants:
//
//   - a command is answered by an event, by nothing, or by a fault with words
//   - deciding and evolving never change the state before
//   - every fact reads back as it was written
//   - a repeated command records nothing new
//   - what no longer exists is nothing at all
//   - the facts, folded again, give the same state
//   - every command and every fact of the kind occurs in some life
func TestInvariants(t *testing.T) {
	checkInvariants(t, domain.Accounts, randomAccountCommand)
	checkInvariants(t, domain.APIKeys, randomAPIKeyCommand)
	checkInvariants(t, domain.Secrets, randomSecretCommand)
	checkInvariants(t, domain.Models, randomModelCommand)
	checkInvariants(t, domain.Datasets, randomDatasetCommand)
	checkInvariants(t, domain.Nodes, randomNodeCommand)
	checkInvariants(t, domain.Quotas, randomQuotaCommand)
	checkInvariants(t, domain.DeploymentShapes, randomDeploymentShapeCommand)
	checkInvariants(t, domain.Deployments, randomDeploymentCommand)
	checkInvariants(t, domain.DeployedModels, randomDeployedModelCommand)
	checkInvariants(t, domain.Evaluators, randomEvaluatorCommand)
	checkInvariants(t, domain.SupervisedJobs, randomSupervisedJobCommand)
	checkInvariants(t, domain.DPOJobs, randomDPOJobCommand)
	checkInvariants(t, domain.ReinforcementJobs, randomReinforcementJobCommand)
	checkInvariants(t, domain.TrainerJobs, randomTrainerJobCommand)
}

func checkInvariants[S domain.State](t *testing.T, kind *domain.Kind[S], random func(*rapid.T, S) domain.Command[S]) {
	t.Run(kind.Collection, func(t *testing.T) {
		seen := map[string]bool{} // stored names
		lives := func(t *rapid.T) {
			l := life[S]{kind: kind, now: noon}
			for range rapid.IntRange(1, 200).Draw(t, "commands") {
				l.now = l.now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
				l.apply(t, random(t, l.state))
			}
			l.refold(t)
			for _, r := range l.records {
				seen[r.Type] = true
			}
		}
		rapid.Check(t, lives)
		for name := range kind.EventTypes() {
			for more := 0; !seen[name] && more < 20; more++ { // rare facts need more lives
				rapid.Check(t, lives)
			}
			require.True(t, seen[name], "%s never happened: the random lives do not reach it", name)
		}
	})
}

// A life is one resource on its way through random commands.
type life[S domain.State] struct {
	kind    *domain.Kind[S]
	state   S
	now     time.Time
	records []domain.Record
}

func (l *life[S]) apply(t *rapid.T, cmd domain.Command[S]) {
	before := text(t, l.state)
	event := l.decide(t, l.state, cmd)
	require.Equal(t, before, text(t, l.state), "%T changed the state that it decided on", cmd)
	if event == nil {
		return
	}
	record, err := l.kind.Encode(event)
	require.NoError(t, err)
	read, err := l.kind.Decode(record)
	require.NoError(t, err)
	again, err := l.kind.Encode(read)
	require.NoError(t, err)
	require.Equal(t, string(record.Data), string(again.Data), "%s does not read back as it was written", record.Type)

	next := l.state
	read.Evolve(&next)
	require.Equal(t, before, text(t, l.state), "%s changed the state before", record.Type)
	if !next.Exists() {
		var none S
		require.Equal(t, text(t, none), text(t, next), "%s ended the resource and left something", record.Type)
	}

	if repeated, err := cmd.Decide(next, l.now); err != nil {
		require.Contains(t, once, wordOf(cmd), "repeated, it must record nothing instead of being refused: %v", err)
	} else {
		require.Nil(t, repeated, "%T was recorded twice", cmd)
	}
	l.state, l.records = next, append(l.records, record)
}

// decide answers what the command leads to, after checking that a refusal is a
// fault with a code and words.
func (l *life[S]) decide(t *rapid.T, state S, cmd domain.Command[S]) domain.Event[S] {
	event, err := cmd.Decide(state, l.now)
	if err == nil {
		return event
	}
	var fault *domain.Error
	require.True(t, errors.As(err, &fault), "%T was refused without a fault: %v", cmd, err)
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
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}

// wordOf is a command's name; that of the part that a lifted command carries.
func wordOf(cmd any) string {
	if l, ok := cmd.(interface{ word() string }); ok {
		return l.word()
	}
	return reflect.TypeOf(cmd).Name()
}

func pick[T any](t *rapid.T, what string, from ...T) T { return rapid.SampledFrom(from).Draw(t, what) }
