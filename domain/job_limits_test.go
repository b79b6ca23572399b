package domain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// A span is a numeric field that accepts values from low to high, both included. It refuses the next lower and
// the next higher value.
type span[S any] struct {
	field           string
	low, high, step float64
	set             func(*S, float64)
}

// spans requires that create accepts both bounds of each field, and returns a violation of the field
// for the next lower and the next higher value.
func spans[S any](t *testing.T, right S, create func(S) error, table []span[S]) {
	t.Helper()
	for _, line := range table {
		for value, accepted := range map[float64]bool{line.low: true, line.high: true, line.low - line.step: false,
			line.high + line.step: false} {
			t.Run(fmt.Sprintf("%s %v", line.field, value), func(t *testing.T) {
				spec := right
				line.set(&spec, value)
				err := create(spec)
				if accepted {
					require.NoError(t, err)
					return
				}
				var fault *domain.Error
				require.ErrorAs(t, err, &fault)
				require.Equal(t, []string{line.field}, fieldsOf(fault.Violations), fault.Message)
			})
		}
	}
}

// trainingSpans returns the accepted ranges of the settings that all kinds of jobs have. config
// returns the settings in a spec.
func trainingSpans[S any](prefix string, config func(*S) *domain.TrainingConfig) []span[S] {
	count := func(field string, set func(*domain.TrainingConfig, int)) span[S] {
		return span[S]{prefix + field, 0, 1 << 30, 1, func(s *S, n float64) { set(config(s), int(n)) }}
	}
	return []span[S]{
		{prefix + "learningRate", 0, 1, 1e-6, func(s *S, n float64) { config(s).LearningRate = n }},
		{prefix + "epochs", 0, domain.MaxEpochs, 1, func(s *S, n float64) { config(s).Epochs = int(n) }},
		count("maxContextLength", func(c *domain.TrainingConfig, n int) { c.MaxContextLength = n }),
		count("batchSize", func(c *domain.TrainingConfig, n int) { c.BatchSize = n }),
		count("gradientAccumulationSteps", func(c *domain.TrainingConfig, n int) { c.GradientAccumulationSteps = n }),
		count("learningRateWarmupSteps", func(c *domain.TrainingConfig, n int) { c.LearningRateWarmupSteps = n }),
	}
}

// sampleSpans returns the accepted ranges of trainingSpans, and of the settings that DPO jobs do not
// have.
func sampleSpans[S any](prefix string, of func(*S) *domain.TrainingConfig) []span[S] {
	return append(trainingSpans(prefix, of), []span[S]{
		{prefix + "batchSizeSamples", 0, 1 << 30, 1, func(s *S, n float64) { of(s).BatchSizeSamples = int(n) }},
		{prefix + "optimizerWeightDecay", 0, 1, 1e-6, func(s *S, n float64) { of(s).OptimizerWeightDecay = n }},
	}...)
}

// sharedRules returns invalid requests for the settings that all kinds of jobs have.
func sharedRules[S any](prefix string, of func(*S) *domain.TrainingConfig,
	track func(*S, *domain.TrackerConfig)) []wrong[S] {
	var table []wrong[S]
	add := func(name string, change func(*S), field, says string) {
		line := wrong[S]{name: name, change: change, says: says}
		if field != "" {
			line.fields = []string{field}
		}
		table = append(table, line)
	}
	for _, rank := range []int{0, 1, 2, 4, 8, 16, 32, 64} {
		add(fmt.Sprint("rank ", rank), func(s *S) { of(s).LoraRank = &rank }, "", "")
	}
	for _, rank := range []int{-1, 3, 63, 65, 128} {
		add(fmt.Sprint("rank ", rank), func(s *S) { of(s).LoraRank = &rank }, prefix+"loraRank", "a power of two up to 64")
	}
	add("the longest template", func(s *S) { of(s).JinjaTemplate = strings.Repeat("x", 64<<10) }, "", "")
	add("a longer template", func(s *S) { of(s).JinjaTemplate = strings.Repeat("x", 64<<10+1) }, prefix+"jinjaTemplate",
		"64 KiB")
	add("a region", func(s *S) { of(s).Region = "EU_PARIS_1" }, "", "")
	add("an unknown region", func(s *S) { of(s).Region = "ATLANTIS_1" }, prefix+"region", "must be one of")
	add("a model's name as outputModel", func(s *S) { of(s).OutputModel = "accounts/a/models/tuned" }, "", "")
	add("no ID", func(s *S) { of(s).OutputModel = "T U" }, prefix+"outputModel", "1 to 63")
	add("no model", func(s *S) { of(s).BaseModel = "accounts/a/datasets/d" }, prefix+"baseModel", "models/ID")

	whole := domain.TrackerConfig{Enabled: true, APIKey: &domain.Sealed{}, Project: "p", Entity: "e"}
	tracker := func(name string, change func(*domain.TrackerConfig), field string) {
		add("tracker: "+name, func(s *S) { c := whole; change(&c); track(s, &c) }, field, "")
	}
	tracker("whole", func(*domain.TrackerConfig) {}, "")
	tracker("no key", func(c *domain.TrackerConfig) { c.APIKey = nil }, "trackerConfig.apiKey")
	tracker("no project", func(c *domain.TrackerConfig) { c.Project = " " }, "trackerConfig.project")
	tracker("the default entity of the key", func(c *domain.TrackerConfig) { c.Entity = "" }, "")
	tracker("a project with a slash", func(c *domain.TrackerConfig) { c.Project = "p/q" }, "trackerConfig.project")
	tracker("an entity with slashes", func(c *domain.TrackerConfig) { c.Entity = "/Users/e" }, "")
	tracker("an entity with a query", func(c *domain.TrackerConfig) { c.Entity = "e?x" }, "trackerConfig.entity")
	tracker("the longest runId", func(c *domain.TrackerConfig) { c.RunID = strings.Repeat("ä", 128) }, "")
	tracker("a longer runId", func(c *domain.TrackerConfig) { c.RunID = strings.Repeat("x", 129) }, "trackerConfig.runId")
	tracker("a runId with a control character", func(c *domain.TrackerConfig) { c.RunID = "a\x1b" }, "trackerConfig.runId")
	tracker("not enabled", func(c *domain.TrackerConfig) { *c = domain.TrackerConfig{} }, "")
	return table
}

// losses returns test cases for the loss methods that a kind of job supports, and for some that it
// does not support.
func losses[S any](set func(*S, *domain.LossConfig), supported []string, unsupported ...string) []wrong[S] {
	var table []wrong[S]
	for _, method := range append(supported, "", domain.LossUnspecified) {
		table = append(table, wrong[S]{name: "loss " + method,
			change: func(s *S) { set(s, &domain.LossConfig{Method: method}) }})
	}
	for _, method := range append(unsupported, "PPO", "grpo") {
		table = append(table, wrong[S]{"loss " + method, func(s *S) { set(s, &domain.LossConfig{Method: method}) },
			[]string{"lossConfig.method"}, strings.Join(supported, ", ")})
	}
	return table
}

func TestLimitsOfSupervisedJobs(t *testing.T) {
	type spec = domain.SupervisedSpec
	right := spec{Dataset: "accounts/a/datasets/d", TrainingConfig: someBase}
	create := func(s spec) error {
		_, err := domain.CreateSupervisedJob{SupervisedSpec: s, ID: "j"}.Decide(domain.SupervisedJob{}, noon)
		return err
	}
	training := func(s *spec) *domain.TrainingConfig { return &s.TrainingConfig }
	spans(t, right, create, append(sampleSpans("", training), []span[spec]{
		{"nodes", 0, domain.MaxJobNodes, 1, func(s *spec, n float64) { s.Nodes = int(n) }},
		{"mtpNumDraftTokens", 0, 64, 1, func(s *spec, n float64) { s.MTPNumDraftTokens = int(n) }},
	}...))
	refuses(t, right, create,
		append(sharedRules("", training, func(s *spec, c *domain.TrackerConfig) { s.TrackerConfig = c }), []wrong[spec]{
			{"no dataset", func(s *spec) { s.Dataset = "" }, []string{"dataset"}, "is required"},
			{"both bases", func(s *spec) { s.WarmStartFrom = "accounts/a/models/n" }, []string{"warmStartFrom"}, "not both"},
			{"evaluationDataset and evalAutoCarveout",
				func(s *spec) { s.EvaluationDataset, s.EvalAutoCarveout = "accounts/a/datasets/e", true },
				[]string{"evalAutoCarveout"}, "not both"},
		}...))
}

func TestLimitsOfDPOJobs(t *testing.T) {
	type spec = domain.DPOSpec
	right := spec{Dataset: "accounts/a/datasets/d", TrainingConfig: someBase}
	create := func(s spec) error {
		_, err := domain.CreateDPOJob{DPOSpec: s, ID: "j"}.Decide(domain.DPOJob{}, noon)
		return err
	}
	training := func(s *spec) *domain.TrainingConfig { return &s.TrainingConfig }
	dpo := func(s *spec, l domain.DPOLoss) { s.LossConfig = &domain.LossConfig{DPO: &l} }
	spans(t, right, create, append(trainingSpans("trainingConfig.", training), []span[spec]{
		{"lossConfig.dpo.beta", 0, 100, 1e-3, func(s *spec, n float64) { dpo(s, domain.DPOLoss{Beta: n}) }},
		{"lossConfig.dpo.refCacheConcurrency", 0, 1024, 1,
			func(s *spec, n float64) { dpo(s, domain.DPOLoss{RefCacheConcurrency: int(n)}) }},
		{"lossConfig.dpo.refCacheBatchSize", 0, 1 << 20, 1,
			func(s *spec, n float64) { dpo(s, domain.DPOLoss{RefCacheBatchSize: int(n)}) }},
		{"lossConfig.orpo.lambda", 0, 100, 1e-3, func(s *spec, n float64) {
			s.LossConfig = &domain.LossConfig{Method: domain.LossORPO, ORPO: &domain.ORPOLoss{Lambda: n}}
		}},
	}...))
	refuses(t, right, create,
		sharedRules("trainingConfig.", training, func(s *spec, c *domain.TrackerConfig) { s.TrackerConfig = c }))
	refuses(t, right, create,
		losses(func(s *spec, l *domain.LossConfig) { s.LossConfig = l }, []string{domain.LossDPO, domain.LossORPO},
			domain.LossGRPO, domain.LossDAPO, domain.LossGSPO))
}

func TestLimitsOfReinforcementJobs(t *testing.T) {
	type spec = domain.ReinforcementSpec
	right := spec{Dataset: "accounts/a/datasets/d", Evaluator: "accounts/a/evaluators/e", TrainingConfig: someBase}
	create := func(s spec) error {
		_, err := domain.CreateReinforcementJob{ReinforcementSpec: s, ID: "j"}.Decide(domain.ReinforcementJob{}, noon)
		return err
	}
	training := func(s *spec) *domain.TrainingConfig { return &s.TrainingConfig }
	rollout := func(field string, low, high, step float64, set func(*domain.InferenceParameters, float64)) span[spec] {
		return span[spec]{"inferenceParameters." + field, low, high, step, func(s *spec, n float64) {
			s.InferenceParameters = &domain.InferenceParameters{}
			set(s.InferenceParameters, n)
		}}
	}
	spans(t, right, create, append(sampleSpans("trainingConfig.", training), []span[spec]{
		{"chunkSize", 0, domain.MaxChunkSize, 1, func(s *spec, n float64) { s.ChunkSize = int(n) }},
		{"nodeCount", 0, domain.MaxJobNodes, 1, func(s *spec, n float64) { s.NodeCount = int(n) }},
		{"maxInferenceReplicaCount", 0, 1000, 1, func(s *spec, n float64) { s.MaxInferenceReplicaCount = int(n) }},
		{"maxConcurrentRollouts", 0, domain.MaxConcurrent, 1, func(s *spec, n float64) { s.MaxConcurrentRollouts = int(n) }},
		{"maxStaleness", 0, domain.MaxStaleness, 1, func(s *spec, n float64) { s.MaxStaleness = int(n) }},
		{"maxConcurrentEvaluations", 0, domain.MaxConcurrent, 1,
			func(s *spec, n float64) { s.MaxConcurrentEvaluations = int(n) }},
		{"lossConfig.klBeta", 0, 10, 1e-3, func(s *spec, n float64) { s.LossConfig = &domain.LossConfig{KLBeta: &n} }},
		rollout("maxOutputTokens", 0, 1<<20, 1,
			func(p *domain.InferenceParameters, n float64) { p.MaxOutputTokens = int(n) }),
		rollout("temperature", 1e-3, 2, 1e-3, func(p *domain.InferenceParameters, n float64) { p.Temperature = &n }),
		rollout("topP", 0, 1, 1e-3, func(p *domain.InferenceParameters, n float64) { p.TopP = n }),
		rollout("topK", 0, 100, 1, func(p *domain.InferenceParameters, n float64) { p.TopK = int(n) }),
		rollout("responseCandidatesCount", 2, domain.MaxCandidates, 1,
			func(p *domain.InferenceParameters, n float64) { p.ResponseCandidatesCount = int(n) }),
	}...))
	refuses(t, right, create,
		sharedRules("trainingConfig.", training, func(s *spec, c *domain.TrackerConfig) { s.TrackerConfig = c }))
	refuses(t, right, create,
		losses(func(s *spec, l *domain.LossConfig) { s.LossConfig = l },
			[]string{domain.LossGRPO, domain.LossDAPO, domain.LossGSPO}, domain.LossDPO, domain.LossORPO))

	extra := func(body string) func(*spec) {
		return func(s *spec) { s.InferenceParameters = &domain.InferenceParameters{ExtraBody: body} }
	}
	const field = "inferenceParameters.extraBody"
	long := `{"a": "` + strings.Repeat("x", 64<<10-9) + `"}`
	blobs := func(c domain.BlobStoreConfig) func(*spec) { return func(s *spec) { s.BlobStoreConfig = &c } }
	refuses(t, right, create, []wrong[spec]{
		{"the default count of candidates", func(s *spec) { s.InferenceParameters = &domain.InferenceParameters{} }, nil, ""},
		{"no extra fields", extra(`{}`), nil, ""},
		{"extra fields", extra(` {"top_n": 1} `), nil, ""},
		{"the longest", extra(long), nil, ""},
		{"a longer object", extra(long + " "), []string{field}, "64 KiB"},
		{"a list", extra(`[]`), []string{field}, "JSON object"},
		{"null", extra(`null`), []string{field}, "JSON object"},
		{"a text", extra(`"{}"`), []string{field}, "JSON object"},
		{"a truncated object", extra(`{"a": `), []string{field}, "JSON object"},
		{"two objects", extra(`{} {}`), []string{field}, "JSON object"},
		{"metrics", func(s *spec) { s.OutputMetrics, s.MCPServer = strings.Repeat("x", 4096), strings.Repeat("x", 2048) },
			nil, ""},
		{"names and groups of metrics", func(s *spec) { s.OutputMetrics = "reward/mean, train/,steps" }, nil, ""},
		{"no metrics", func(s *spec) { s.OutputMetrics = "reward mean" }, []string{"outputMetrics"}, "is neither"},
		{"longer ones", func(s *spec) { s.OutputMetrics, s.MCPServer = strings.Repeat("x", 4097), strings.Repeat("x", 2049) },
			[]string{"outputMetrics", "mcpServer"}, "at most"},
		{"a secret", blobs(domain.BlobStoreConfig{CredentialsSecret: "accounts/a/secrets/s",
			TenantID: strings.Repeat("x", 256)}), nil, ""},
		{"an identity", blobs(domain.BlobStoreConfig{ManagedIdentityClientID: strings.Repeat("x", 256)}), nil, ""},
		{"longer names", blobs(domain.BlobStoreConfig{ManagedIdentityClientID: strings.Repeat("x", 257),
			TenantID: strings.Repeat("x", 257)}),
			[]string{"blobStoreConfig.managedIdentityClientId", "blobStoreConfig.tenantId"}, "256 bytes"},
		{"a purpose", func(s *spec) { s.Purpose = "PURPOSE_PILOT" }, nil, ""},
	})
}

func TestLimitsOfTrainerJobs(t *testing.T) {
	type spec = domain.TrainerSpec
	right := spec{Dataset: "accounts/a/datasets/d", TrainingConfig: someBase}
	create := func(s spec) error {
		_, err := domain.CreateTrainerJob{TrainerSpec: s, ID: "j"}.Decide(domain.TrainerJob{}, noon)
		return err
	}
	training := func(s *spec) *domain.TrainingConfig { return &s.TrainingConfig }
	spans(t, right, create, append(sampleSpans("trainingConfig.", training), []span[spec]{
		{"nodeCount", 0, domain.MaxJobNodes, 1, func(s *spec, n float64) { s.NodeCount = int(n) }},
		{"lossConfig.klBeta", 0, 10, 1e-3, func(s *spec, n float64) { s.LossConfig = &domain.LossConfig{KLBeta: &n} }},
	}...))
	refuses(t, right, create,
		sharedRules("trainingConfig.", training, func(s *spec, c *domain.TrackerConfig) { s.TrackerConfig = c }))
	refuses(t, right, create,
		losses(func(s *spec, l *domain.LossConfig) { s.LossConfig = l },
			[]string{domain.LossGRPO, domain.LossDAPO, domain.LossGSPO}, domain.LossDPO, domain.LossORPO))
	weights := func(n int, entry string) func(*spec) {
		return func(s *spec) {
			for i := range n {
				s.RewardWeights = append(s.RewardWeights, fmt.Sprintf(entry, i))
			}
		}
	}
	longest := "r%03d" + strings.Repeat("x", 124)
	refuses(t, right, create, []wrong[spec]{
		{"the maximum number of rewards", weights(domain.MaxRewards, "r%d=1"), nil, ""},
		{"one reward more", weights(domain.MaxRewards+1, "r%d=1"), []string{"rewardWeights"}, "at most 64 entries"},
		{"the longest reward name", weights(1, longest+"=1"), nil, ""},
		{"a longer name", weights(1, longest+"x=1"), []string{"rewardWeights[0]"}, "accuracy=0.8"},
		{"an infinite weight", weights(1, "r%d=Inf"), []string{"rewardWeights[0]"}, "a number"},
		{"a space", weights(1, "r%d= 1"), []string{"rewardWeights[0]"}, "a number"},
		{"hot load, kept alive", func(s *spec) { s.HotLoadDeploymentID, s.KeepAlive = "d", true }, nil, ""},
	})
}
