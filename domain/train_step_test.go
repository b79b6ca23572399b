package domain_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestTrainSteps(t *testing.T) {
	type event = domain.Event[domain.TrainerJob]
	life := func(commands ...domain.Command[domain.JobLife]) func([]event) []event {
		return func(history []event) []event {
			for _, command := range commands {
				fact, err := whole[domain.TrainerJob]{domain.TrainerJobs, command}.Decide(fold(t, domain.TrainerJobs, history...),
					noon)
				require.NoError(t, err)
				history = append(history, fact)
			}
			return history
		}
	}
	start := func(attempt int) domain.StartJob { return domain.StartJob{Attempt: attempt, Nodes: someNodes[:1]} }
	spec := domain.TrainerSpec{Dataset: "accounts/a/datasets/d", KeepAlive: true,
		TrainingConfig: domain.TrainingConfig{OutputModel: "m1"}}
	plain, empty := spec, spec
	plain.KeepAlive, empty.Dataset = false, ""
	queued := life(domain.StartValidation{}, domain.QueueJob{}, start(1))
	running := queued([]event{domain.TrainerJobCreated{TrainerSpec: spec}})
	results := domain.Files{Prefix: "r/1/", Sizes: map[string]int64{"a": 1}}
	finish := domain.FinishTrainStep{Attempt: 1, Output: "accounts/a/models/m1", Results: results}
	finished := domain.TrainerStepFinished{Attempt: 1, Output: "accounts/a/models/m1", Results: results, Time: noon}
	idle := also(running, event(finished))
	step := domain.ExecuteTrainStep{Dataset: "accounts/a/datasets/e", OutputModel: "m2"}
	given := domain.TrainerStepGiven{TrainStep: domain.TrainStep{Number: 2, Dataset: step.Dataset, OutputModel: "m2"},
		Time: noon}
	second := life(start(2))(also(idle, event(given)))
	validating := life(domain.StartValidation{})([]event{domain.TrainerJobCreated{TrainerSpec: empty}})

	decide(t, domain.TrainerJobs, []decision[domain.TrainerJob]{
		{"a missing job", nil, step, nil, "NOT_FOUND", ""},
		{"no dataset, no model", idle, domain.ExecuteTrainStep{}, nil, "INVALID_FIELDS",
			"dataset: is required; outputModel: must be"},
		{"a job without keepAlive", queued([]event{domain.TrainerJobCreated{TrainerSpec: plain}}), step, nil,
			"TAKES_NO_STEPS", "keepAlive nor serviceMode"},
		{"a step is running", running, step, nil, "STEP_UNDER_WAY", "step 1: wait until it is JOB_STATE_IDLE"},
		{"the first step ends", running, finish, finished, "", ""},
		{"finish the step twice", idle, finish, nil, "", ""},
		{"the second step", idle, step, given, "", ""},
		{"a model's full name", idle, domain.ExecuteTrainStep{Dataset: step.Dataset, OutputModel: "accounts/a/models/m2"},
			given, "", ""},
		{"the same step again", second, step, nil, "", ""},
		{"a third step too early", second, domain.ExecuteTrainStep{Dataset: step.Dataset, OutputModel: "m3"}, nil,
			"STEP_UNDER_WAY", "step 2"},
		{"finish an earlier attempt", second, finish, nil, "STALE_ATTEMPT", ""},
		{"a cancelled job", life(domain.CancelJob{}, domain.ConfirmCancel{Attempt: 1})(idle), step, nil, "JOB_STATE",
			"requires JOB_STATE_IDLE"},
		{"no step to run", validating, domain.AwaitStep{}, domain.TrainerAwaiting{}, "", ""},
		{"no step to run, recorded", also(validating, event(domain.TrainerAwaiting{})), domain.AwaitStep{}, nil, "", ""},
		{"a step to run", running, domain.AwaitStep{}, nil, "STEP_TO_DO", "step 1"},
		{"the first step of a job created without one", also(validating, event(domain.TrainerAwaiting{})), step,
			domain.TrainerStepGiven{TrainStep: domain.TrainStep{Number: 1, Dataset: step.Dataset, OutputModel: "m2"},
				Time: noon}, "", ""},
	})
	at := fold(t, domain.TrainerJobs, second...)
	require.Equal(t, domain.JobRunningState, at.State)
	require.Equal(t, domain.Name("accounts/a/models/m1"), at.From(), "a step starts from the output of the previous step")
	require.Empty(t, fold(t, domain.TrainerJobs, idle...).Nodes, "a job that waits for a step holds no node")
}

// TestIdleEventsOfEarlierVersions checks that a log in which the attempt of a trainer job waited for
// a train step, as earlier versions could record it, still folds.
func TestIdleEventsOfEarlierVersions(t *testing.T) {
	for kind := range domain.JobKinds() {
		var prefix string
		for name := range kind.EventTypes() {
			if p, ok := strings.CutSuffix(name, ".idled.v1"); ok {
				prefix = p
			}
		}
		require.NotEmpty(t, prefix, "%s has no event idled.v1", kind.CollectionID())
		var state any
		for _, c := range []struct{ event, data, want string }{
			{".started.v1", `{"attempt":1,"nodes":["accounts/system/nodes/n1"]}`, domain.JobRunningState},
			{".idled.v1", `{"attempt":1}`, domain.JobIdleState},
			{".woken.v1", `{"attempt":1}`, domain.JobRunningState},
		} {
			var err error
			state, err = kind.FoldRecord(state, domain.Record{Type: prefix + c.event, Data: json.RawMessage(c.data)})
			require.NoError(t, err)
			require.Equal(t, c.want, state.(domain.StateNamer).StateName(), "%s%s", prefix, c.event)
		}
	}
}
