package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

var someBase = domain.TrainingConfig{BaseModel: "accounts/a/models/m"}

// wrong is one test case of an invalid request, with the fields that have violations, in order, and
// a part of the expected message.
type wrong[S any] struct {
	name   string
	change func(*S)
	fields []string
	says   string
}

// refuses requires, for each test case in table, that create returns violations of the fields of
// the test case, or accepts a test case without fields. right is a valid request, which the test
// case changes.
func refuses[S any](t *testing.T, right S, create func(S) error, table []wrong[S]) {
	t.Helper()
	for _, line := range table {
		t.Run(line.name, func(t *testing.T) {
			spec := right
			line.change(&spec)
			err := create(spec)
			if len(line.fields) == 0 {
				require.NoError(t, err)
				return
			}
			var fault *domain.Error
			require.ErrorAs(t, err, &fault)
			require.Equal(t, line.fields, fieldsOf(fault.Violations), fault.Message)
			require.Contains(t, fault.Message, line.says)
		})
	}
}

func TestDPOJobs(t *testing.T) {
	right := domain.DPOSpec{Dataset: "accounts/a/datasets/d", TrainingConfig: someBase}
	create := func(s domain.DPOSpec) error {
		_, err := domain.CreateDPOJob{DPOSpec: s, ID: "j"}.Decide(domain.DPOJob{}, noon)
		return err
	}
	type spec = domain.DPOSpec
	loss := func(l domain.LossConfig) func(*spec) { return func(s *spec) { s.LossConfig = &l } }
	refuses(t, right, create, []wrong[spec]{
		{"valid", func(*spec) {}, nil, ""},
		{"ORPO", loss(domain.LossConfig{Method: domain.LossORPO, ORPO: &domain.ORPOLoss{Lambda: 0.2}}), nil, ""},
		{"nothing", func(s *spec) { *s = spec{} }, []string{"dataset"}, "is required"},
		{"both bases", func(s *spec) { s.TrainingConfig.WarmStartFrom = "accounts/a/models/n" },
			[]string{"trainingConfig.warmStartFrom"}, "not both"},
		{"settings of other kinds of jobs",
			func(s *spec) { s.TrainingConfig.BatchSizeSamples, s.TrainingConfig.OptimizerWeightDecay = 1, 0.1 },
			[]string{"trainingConfig.batchSizeSamples", "trainingConfig.optimizerWeightDecay"}, "leave it out"},
		{"GRPO", loss(domain.LossConfig{Method: domain.LossGRPO}), []string{"lossConfig.method"},
			"METHOD_UNSPECIFIED, DPO, ORPO"},
		{"klBeta", loss(domain.LossConfig{KLBeta: ptr(0.1)}), []string{"lossConfig.klBeta"}, "DPO has no KL term"},
		{"settings of the other loss", loss(domain.LossConfig{ORPO: &domain.ORPOLoss{}}), []string{"lossConfig.orpo"},
			"not DPO"},
		{"beta", loss(domain.LossConfig{DPO: &domain.DPOLoss{Beta: -1}}), []string{"lossConfig.dpo.beta"},
			"0 stands for the default, 0.1"},
	})
	event, err := domain.CreateDPOJob{DPOSpec: right, ID: "j"}.Decide(domain.DPOJob{}, noon)
	require.NoError(t, err)
	made := event.(domain.DPOJobCreated)
	require.Equal(t, &domain.LossConfig{Method: domain.LossDPO, DPO: &domain.DPOLoss{Beta: 0.1}}, made.LossConfig)
	require.Equal(t, "j", made.TrainingConfig.OutputModel)
	require.Equal(t, 1, made.TrainingConfig.Epochs)
}

func TestReinforcementJobs(t *testing.T) {
	right := domain.ReinforcementSpec{Dataset: "accounts/a/datasets/d", Evaluator: "accounts/a/evaluators/e",
		TrainingConfig: someBase}
	create := func(s domain.ReinforcementSpec) error {
		_, err := domain.CreateReinforcementJob{ReinforcementSpec: s, ID: "j"}.Decide(domain.ReinforcementJob{}, noon)
		return err
	}
	type spec = domain.ReinforcementSpec
	loss := func(l domain.LossConfig) func(*spec) { return func(s *spec) { s.LossConfig = &l } }
	rollout := func(p domain.InferenceParameters) func(*spec) { return func(s *spec) { s.InferenceParameters = &p } }
	refuses(t, right, create, []wrong[spec]{
		{"valid", func(*spec) {}, nil, ""},
		{"nothing", func(s *spec) { *s = spec{} }, []string{"dataset", "evaluator"}, "is required"},
		{"not the name of an evaluator", func(s *spec) { s.Evaluator = "mine" }, []string{"evaluator"},
			"accounts/ACCOUNT/evaluators/ID"},
		{"chunks too large", func(s *spec) { s.ChunkSize = 10_001 }, []string{"chunkSize"}, "1 to 10000"},
		{"chunks below zero", func(s *spec) { s.ChunkSize = -1 }, []string{"chunkSize"}, "0 is the default, 200"},
		{"the largest chunks", func(s *spec) { s.ChunkSize = 10_000 }, nil, ""},
		{"klBeta of GRPO", loss(domain.LossConfig{KLBeta: ptr(0.1)}), nil, ""},
		{"klBeta of DAPO", loss(domain.LossConfig{Method: domain.LossDAPO, KLBeta: ptr(0.1)}), []string{"lossConfig.klBeta"},
			"DAPO has no KL term"},
		{"klBeta of GSPO", loss(domain.LossConfig{Method: domain.LossGSPO, KLBeta: ptr(0.1)}), []string{"lossConfig.klBeta"},
			"choose the method GRPO"},
		{"klBeta below zero", loss(domain.LossConfig{KLBeta: ptr(-0.1)}), []string{"lossConfig.klBeta"}, "0 to 10"},
		{"DPO", loss(domain.LossConfig{Method: domain.LossDPO}), []string{"lossConfig.method"}, "GRPO, DAPO, GSPO_TOKEN"},
		{"temperature 0", rollout(domain.InferenceParameters{Temperature: ptr(0.0)}),
			[]string{"inferenceParameters.temperature"}, "above 0"},
		{"one candidate", rollout(domain.InferenceParameters{ResponseCandidatesCount: 1}),
			[]string{"inferenceParameters.responseCandidatesCount"}, "2 to 128"},
		{"extraBody is not an object", rollout(domain.InferenceParameters{ExtraBody: "[1]", TopP: 1.1, TopK: 101}),
			[]string{"inferenceParameters.topP", "inferenceParameters.topK", "inferenceParameters.extraBody"}, "JSON object"},
		{"two credentials", func(s *spec) {
			s.BlobStoreConfig = &domain.BlobStoreConfig{CredentialsSecret: "accounts/a/secrets/s", ManagedIdentityClientID: "c"}
		}, []string{"blobStoreConfig.managedIdentityClientId"}, "not both"},
		{"purpose", func(s *spec) { s.Purpose = "FUN" }, []string{"purpose"}, "PURPOSE_PILOT"},
		{"below zero", func(s *spec) {
			s.NodeCount, s.MaxInferenceReplicaCount, s.MaxConcurrentRollouts, s.MaxConcurrentEvaluations = -1, -1, -1, -1
			s.MaxStaleness = -1
		}, []string{"maxInferenceReplicaCount", "nodeCount", "maxConcurrentRollouts", "maxConcurrentEvaluations",
			"maxStaleness"}, "from 0"},
		{"evaluationDataset and evalAutoCarveout",
			func(s *spec) { s.EvaluationDataset, s.EvalAutoCarveout = "accounts/a/datasets/e", true },
			[]string{"evalAutoCarveout"}, "not both"},
		{"a tracker without a key",
			func(s *spec) { s.TrackerConfig = &domain.TrackerConfig{Enabled: true, Project: "p", Entity: "e"} },
			[]string{"trackerConfig.apiKey"}, "required when trackerConfig.enabled is true"},
	})
	event, err := domain.CreateReinforcementJob{ReinforcementSpec: right, ID: "j"}.Decide(domain.ReinforcementJob{}, noon)
	require.NoError(t, err)
	made := event.(domain.ReinforcementJobCreated)
	require.Equal(t, domain.LossGRPO, made.LossConfig.Method)
	require.Equal(t, &domain.InferenceParameters{Temperature: ptr(0.7), ResponseCandidatesCount: 4},
		made.InferenceParameters)
	require.Equal(t, 200, made.ChunkSize)
	require.Equal(t, 1, made.NodeCount)
}

func TestTrainerJobs(t *testing.T) {
	right := domain.TrainerSpec{Dataset: "accounts/a/datasets/d", TrainingConfig: someBase}
	create := func(s domain.TrainerSpec) error {
		_, err := domain.CreateTrainerJob{TrainerSpec: s, ID: "j"}.Decide(domain.TrainerJob{}, noon)
		return err
	}
	type spec = domain.TrainerSpec
	weights := func(w ...string) func(*spec) { return func(s *spec) { s.RewardWeights = w } }
	refuses(t, right, create, []wrong[spec]{
		{"valid", func(*spec) {}, nil, ""},
		{"no dataset", func(s *spec) { s.Dataset = "" }, []string{"dataset"}, "unless keepAlive or serviceMode"},
		{"no dataset, with keepAlive", func(s *spec) { s.Dataset, s.KeepAlive = "", true }, nil, ""},
		{"weights", weights("accuracy=0.8", "format/strict=-1e-3"), nil, ""},
		{"invalid weights", weights("accuracy", "accuracy=", "=1", "a=much", "a=NaN", "a=1=2"),
			[]string{"rewardWeights[0]", "rewardWeights[1]", "rewardWeights[2]", "rewardWeights[3]", "rewardWeights[4]",
				"rewardWeights[5]"}, `"accuracy=0.8"`},
		{"a reward twice", weights("a=1", "a=2"), []string{"rewardWeights[1]"}, "name each reward once"},
		{"hotLoadDeploymentId without serviceMode",
			func(s *spec) { s.HotLoadDeploymentID = "d" }, []string{"hotLoadDeploymentId"},
			"serviceMode or keepAlive"},
		{"hotLoadDeploymentId with serviceMode", func(s *spec) { s.HotLoadDeploymentID, s.ServiceMode = "d", true }, nil, ""},
		{"not the ID of a deployment", func(s *spec) { s.HotLoadDeploymentID, s.KeepAlive = "D 1", true },
			[]string{"hotLoadDeploymentId"}, "1 to 63"},
		{"not the name of a deployment", func(s *spec) { s.RolloutDeploymentName = "d" }, []string{"rolloutDeploymentName"},
			"deployments/ID"},
		{"a preference loss", func(s *spec) { s.LossConfig = &domain.LossConfig{Method: domain.LossORPO} },
			[]string{"lossConfig.method"}, "GRPO"},
	})
	reward, weight, ok := domain.RewardWeight("accuracy=0.8")
	require.True(t, ok)
	require.Equal(t, "accuracy", reward)
	require.InDelta(t, 0.8, weight, 0)
}

func TestJobsAreHeld(t *testing.T) {
	life := domain.JobLife{State: domain.JobPendingState, Status: domain.StatusOf(nil)}
	event, err := domain.HoldJob{For: "a node"}.Decide(life, noon)
	require.NoError(t, err)
	event.Evolve(&life)
	require.Equal(t, domain.Status{Code: "UNAVAILABLE", Message: "waiting for a node"}, life.Status)
	require.True(t, life.Held())
	again, err := domain.HoldJob{For: "a node"}.Decide(life, noon)
	require.NoError(t, err)
	require.Nil(t, again)
	event, err = domain.HoldJob{}.Decide(life, noon)
	require.NoError(t, err)
	event.Evolve(&life)
	require.Equal(t, domain.StatusOf(nil), life.Status)
	life.State = domain.JobRunningState
	_, err = domain.HoldJob{For: "a node"}.Decide(life, noon)
	require.Equal(t, "JOB_STATE", reasonOf(err))
}
