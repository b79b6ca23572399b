package api

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/internal/testutil"
	"anneal/projections/live"
)

// Models that the operator of the story publishes.
const (
	exampleBase   domain.Name = "accounts/default/models/llama-3-8b-instruct"
	exampleSpeech domain.Name = "accounts/default/models/speech-large-v3"
	exampleEmbed  domain.Name = "accounts/default/models/modernbert-embed-base"
)

// exampleTargets are the modules of the base model that the story's jobs train.
var exampleTargets = []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}

const exampleRank = 16

// publish creates the operator's key, the account default and its public models.
func (s *exampleStory) publish() {
	s.Helper()
	s.do(domain.Intend(domain.Accounts, "accounts/default", domain.CreateAccount{AccountSpec: domain.AccountSpec{
		Email: "platform@anneal.example.com", DisplayName: "Public models"}}))
	s.mint("operator", domain.System, domain.RoleAdmin, nil)
	s.do(domain.Intend(domain.Models, exampleBase, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: "Llama 3 8B Instruct", Kind: domain.BaseModel, Public: true,
			Description: "Instruction-tuned model for dialogue."},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 8_030_261_248, ContextLength: 8192,
			Precision: "BF16"},
		Files: domain.Files{Prefix: "models/default/llama-3-8b-instruct/", Sizes: map[string]int64{"config.json": 654,
			"model.safetensors": 16_060_522_496, "tokenizer.json": 9_085_698}}}))
	s.do(domain.Intend(domain.Models, exampleSpeech, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: "Speech large v3", Kind: domain.SpeechModel, Public: true,
			Description: "Multilingual speech recognition.",
			Speech: &domain.SpeechSettings{Format: domain.SpeechFasterWhisper, DiarizationModel: "speaker-diarization-3",
				VADModels:       map[string]string{"silero": "silero-v5"},
				AlignmentModels: map[string]string{"tdnn_ffn": "wav2vec2-base-960h"}}},
		Files: domain.Files{Prefix: "models/default/speech-large-v3/", Sizes: map[string]int64{"config.json": 2_394,
			"model.bin": 3_087_284_237}}}))
	s.do(domain.Intend(domain.Models, exampleEmbed, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: "ModernBERT embed base", Kind: domain.BaseModel, Public: true,
			Description: "Embeddings for search, of up to 768 dimensions."},
		ModelMetadata: domain.ModelMetadata{ModelType: "modernbert", ParameterCount: 149_014_272, ContextLength: 8192,
			Precision: "FP32", Embedding: true},
		Files: domain.Files{Prefix: "models/default/modernbert-embed-base/", Sizes: map[string]int64{"config.json": 1_218,
			"model.safetensors": 596_070_136, "tokenizer.json": 3_583_228}}}))
}

// exampleRevision is the revision of the evaluator with which the story's reinforcement job starts.
const exampleRevision = 3

// act executes an action of another part of the platform.
func (s *exampleStory) act(words []string) {
	s.Helper()
	actions := map[string]func(name domain.Name, words []string){
		"node": s.registerNode, "serve": s.serveReplica, "removed": s.removeReplicas, "start": s.startJob,
		"report":   s.reportJob,
		"complete": s.completeJob, "step": s.finishStep, "cancelled": s.confirmCancel, "built": s.finishBuild,
		"loaded": s.loadAddon, "unloaded": s.unloadAddon, "filled": s.fillDataset,
		"import-failed": s.failImport, "prepared": s.prepareCopy,
		"reject": s.rejectUpload, "batch": s.createBatch, "answered": s.answerBatch,
		"used": s.useModel, "train": s.useTrainingService,
	}
	switch action, ok := actions[words[0]]; {
	case words[0] == "at":
		at, err := time.Parse(time.RFC3339, words[1])
		require.NoError(s, err)
		s.clock.at(at)
	case words[0] == "put":
		s.putSigned(words[1])
	case ok:
		action(domain.Name(words[1]), words[2:])
	default:
		require.Fail(s, "the story has no such action", "%v", words)
	}
}

// number returns an argument of an action.
func (s *exampleStory) number(text string) float64 {
	s.Helper()
	n, err := strconv.ParseFloat(text, 64)
	require.NoError(s, err)
	return n
}

// registerNode executes the action "node NAME POOL TYPE DEVICES ENGINE…", which registers a node.
func (s *exampleStory) registerNode(name domain.Name, words []string) {
	s.Helper()
	s.do(domain.Intend(domain.Nodes, name, domain.RegisterNode{NodeSpec: domain.NodeSpec{
		Pool: words[0], Engines: words[3:], Version: "0.12.0", Capacity: domain.Resources{CPUMilli: 96_000,
			MemoryMiB: 786_432, Accelerators: map[string]int{words[1]: int(s.number(words[2]))}}}}))
	s.world.Live().Heartbeat(name, s.clock.tick())
}

// serveReplica executes the action "serve DEPLOYMENT NODE", which adds a ready replica.
func (s *exampleStory) serveReplica(name domain.Name, words []string) {
	s.Helper()
	row := mustRow(s.harness, name)
	id, node := row.NextReplica(), domain.Name(words[0])
	s.deployment(name, domain.PlaceReplica{ID: id, Node: node, Generation: row.Generation})
	s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: node})
	s.deployment(name, domain.MarkDeploymentReady{Generation: row.Generation})
}

// removeReplicas executes the action "removed DEPLOYMENT", which finishes a deletion.
func (s *exampleStory) removeReplicas(name domain.Name, _ []string) {
	s.Helper()
	for id := range mustRow(s.harness, name).Replicas {
		s.deployment(name, domain.RemoveReplica{ID: id, Reason: "the deployment is deleted"})
	}
	s.deployment(name, domain.FinishDeletion{Keep: domain.RecentUse})
}

// startJob executes the action "start JOB NODE", which starts the next attempt.
func (s *exampleStory) startJob(name domain.Name, words []string) {
	s.Helper()
	row, ok := s.world.View().Job(name)
	require.True(s, ok, "%s", name)
	if row.State.Life().State == domain.JobCreatingState {
		s.do(domain.IntendJob(name, domain.StartValidation{}))
		s.do(domain.IntendJob(name, domain.QueueJob{}))
	}
	evaluator := 0
	if name.Collection() == domain.ReinforcementJobs.Collection {
		evaluator = exampleRevision
	}
	s.do(domain.IntendJob(name,
		domain.StartJob{Attempt: row.State.Life().NextAttempt(), Nodes: []domain.Name{domain.Name(words[0])},
			Resources: domain.Resources{CPUMilli: 8_000, MemoryMiB: 65_536,
				Accelerators: map[string]int{"VENDOR_A_H100_80GB": 1}}, Evaluator: evaluator}))
}

// reportJob executes the action "report JOB STEP STEPS TOKENS METRIC=VALUE…", which reports progress
// and records a checkpoint.
func (s *exampleStory) reportJob(name domain.Name, words []string) {
	s.Helper()
	row, ok := s.world.View().Job(name)
	require.True(s, ok, "%s", name)
	now := s.clock.tick()
	at := s.progress(words)
	s.world.Live().Report(name, live.Progress{Made: row.CreateTime, Attempt: row.State.Life().Attempt, Step: at.Step,
		Steps: at.Steps, Epoch: at.Epoch, LearningRate: 0.0001, Tokens: at.Tokens, Time: now},
		live.MetricRow{Step: at.Step, Steps: at.Steps, Epoch: at.Epoch, Time: now, LearningRate: 0.0001, Tokens: at.Tokens,
			Values: at.Metrics})
	attempt := row.State.Life().Attempt
	s.do(domain.IntendJob(name, domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Step: at.Step,
		Attempt: attempt, Files: s.storeCheckpoint(name, attempt, at.Step), Metrics: at.Metrics}, Progress: &at}))
	s.putFile(blobs.MetricsFile(name, s.world.Lookup(name).CreateEvent), `{"step":`+words[0]+`,"train/loss":1.0}`+"\n")
	if name.Collection() == domain.ReinforcementJobs.Collection {
		s.storeRollouts(name, attempt, exampleRollouts(at, now)...)
	}
	s.putFile(blobs.TrainerLog(name, s.world.Lookup(name).CreateEvent, attempt), "step "+words[0]+" of "+words[1]+"\n")
}

// progress parses the arguments STEP STEPS TOKENS METRIC=VALUE… of an action.
func (s *exampleStory) progress(words []string) domain.JobProgress {
	s.Helper()
	at := domain.JobProgress{Step: int(s.number(words[0])), Steps: int(s.number(words[1])),
		Tokens: int64(s.number(words[2])), Metrics: map[string]float64{}}
	at.Epoch = math.Round(float64(at.Step)/float64(at.Steps)*200) / 100
	for _, word := range words[3:] {
		metric, value, _ := strings.Cut(word, "=")
		at.Metrics[metric] = s.number(value)
	}
	return at
}

// registerOutput registers the model of a job.
func (s *exampleStory) registerOutput(job domain.Name, model string) domain.Name {
	s.Helper()
	name := domain.NewName(job.Account(), domain.Models.Collection, model)
	s.do(domain.Intend(domain.Models, name, domain.RegisterModel{SourceJob: job,
		ModelSpec: domain.ModelSpec{DisplayName: model, Kind: domain.PEFTAddon, BaseModel: string(exampleBase)},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 8_030_261_248, ContextLength: 8192,
			Precision: "BF16", LoraRank: exampleRank, LoraTargets: exampleTargets},
		Files: domain.Files{Prefix: "models/" + name.Account() + "/" + model + "/", Sizes: map[string]int64{
			"adapter_config.json": 712, "adapter_model.safetensors": 83_945_296}}}))
	return name
}

// storeCheckpoint stores the files of a checkpoint, and returns them. The adapter trains the first
// layer of the base model.
func (s *exampleStory) storeCheckpoint(job domain.Name, attempt, step int) domain.Files {
	s.Helper()
	targets := testutil.Marshal(s, exampleTargets)
	files := domain.Files{Prefix: blobs.CheckpointPrefix(job, s.world.Lookup(job).CreateEvent, attempt, step),
		Sizes: map[string]int64{}}
	for name, content := range map[string]string{"state.json": `{"step": ` + strconv.Itoa(step) + "}\n",
		"model/adapter_config.json": fmt.Sprintf(`{"peft_type": "LORA", "base_model_name_or_path": %q, "r": %d, `+
			`"lora_alpha": %d, "target_modules": %s}`, exampleBase, exampleRank, 2*exampleRank, targets),
		"model/adapter_model.safetensors": exampleAdapter()} {
		size := s.putFile(files.Prefix+name, content)
		files.Sizes[name] = size
	}
	return files
}

// exampleAdapter returns the weights of an adapter: zeros in BF16.
func exampleAdapter() string {
	in, out := map[string]int{"down_proj": 14336}, map[string]int{"k_proj": 1024, "v_proj": 1024, "gate_proj": 14336,
		"up_proj": 14336}
	var tensors []string
	end := 0
	add := func(name string, rows, columns int) {
		tensors = append(tensors, fmt.Sprintf(`%q:{"dtype":"BF16","shape":[%d,%d],"data_offsets":[%d,%d]}`, name, rows,
			columns, end, end+2*rows*columns))
		end += 2 * rows * columns
	}
	for _, target := range exampleTargets {
		part := "self_attn."
		if slices.Contains([]string{"gate_proj", "up_proj", "down_proj"}, target) {
			part = "mlp."
		}
		name := "base_model.model.model.layers.0." + part + target
		add(name+".lora_A.weight", exampleRank, cmp.Or(in[target], 4096))
		add(name+".lora_B.weight", cmp.Or(out[target], 4096), exampleRank)
	}
	header := "{" + strings.Join(tensors, ",") + "}"
	weights := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return string(weights) + header + strings.Repeat("\x00", end)
}

// completeJob executes the action "complete JOB MODEL STEP STEPS TOKENS METRIC=VALUE…", which registers
// the model of a job and completes the job.
func (s *exampleStory) completeJob(name domain.Name, words []string) {
	s.Helper()
	row, ok := s.world.View().Job(name)
	require.True(s, ok, "%s", name)
	at := s.progress(words[1:])
	s.do(domain.IntendJob(name,
		domain.CompleteJob{Attempt: row.State.Life().Attempt, Output: s.registerOutput(name, words[0]),
			Progress: &at}))
}

// finishStep executes the action "step JOB NODE MODEL", which completes a train step.
func (s *exampleStory) finishStep(name domain.Name, words []string) {
	s.Helper()
	s.startJob(name, words)
	row, ok := s.world.View().Job(name)
	require.True(s, ok, "%s", name)
	s.reportJob(name, []string{"24", "24", "48211", "train/loss=0.412", "reward/mean=0.71"})
	s.do(domain.Intend(domain.TrainerJobs, name, domain.FinishTrainStep{Attempt: row.State.Life().Attempt,
		Output: s.registerOutput(name, words[1])}))
}

// confirmCancel executes the action "cancelled JOB", which confirms that a job has stopped.
func (s *exampleStory) confirmCancel(name domain.Name, _ []string) {
	s.Helper()
	row, ok := s.world.View().Job(name)
	require.True(s, ok, "%s", name)
	s.do(domain.IntendJob(name, domain.ConfirmCancel{Attempt: row.State.Life().Attempt}))
}

// finishBuild executes the action "built EVALUATOR", which accepts the build of an evaluator.
func (s *exampleStory) finishBuild(name domain.Name, _ []string) {
	s.Helper()
	row := evaluatorRow(s.harness, name)
	log := "evaluators/" + name.ID() + "/build-" + strconv.Itoa(row.State.Revision) + ".log"
	s.putFile(log, "compiled main.py\n")
	s.do(domain.Intend(domain.Evaluators, name, domain.AcceptBuild{
		Revision: row.State.Revision, BuildLog: log, Files: domain.Files{Prefix: "evaluators/" + name.ID() + "/",
			Sizes: map[string]int64{"main.py": 412}}, Entry: domain.Entry{File: "main.py", Func: "evaluate"}}))
}

// loadAddon executes the action "loaded DEPLOYED_MODEL", which marks an addon as DEPLOYED.
func (s *exampleStory) loadAddon(name domain.Name, _ []string) {
	s.Helper()
	s.do(domain.Intend(domain.DeployedModels, name, domain.MarkModelDeployed{}))
}

// unloadAddon executes the action "unloaded DEPLOYED_MODEL", which finishes the removal of an addon.
func (s *exampleStory) unloadAddon(name domain.Name, _ []string) {
	s.Helper()
	s.do(domain.Intend(domain.DeployedModels, name, domain.FinishUndeployment{}))
}

// fillDataset executes the action "filled DATASET ROWS TOKENS", which stores the rows of a derived
// dataset.
func (s *exampleStory) fillDataset(name domain.Name, words []string) {
	s.Helper()
	s.do(domain.Intend(domain.Datasets, name, domain.FillDataset{
		Files: domain.Files{Prefix: "datasets/" + name.ID() + "/", Sizes: map[string]int64{"rows.jsonl": 1842}},
		DatasetStats: domain.DatasetStats{Format: domain.FormatChat, Shape: domain.ShapeChat,
			ExampleCount: domain.Count(s.number(words[0])), EstimatedTokenCount: domain.Count(s.number(words[1])),
			AverageTurnCount: 1}}))
}

// failImport executes the action "import-failed DATASET", which ends an import with an error.
func (s *exampleStory) failImport(name domain.Name, _ []string) {
	s.Helper()
	s.do(domain.Intend(domain.Datasets, name, domain.FailImport{Import: 1,
		Status: domain.Status{Code: "NOT_FOUND", Message: "the rows could not be imported: the directory that " +
			"externalUrl names has no objects: correct externalUrl"}}))
}

// prepareCopy executes the action "prepared MODEL PRECISION", which finishes a copy of a model in a
// precision.
func (s *exampleStory) prepareCopy(name domain.Name, words []string) {
	s.Helper()
	s.do(domain.Intend(domain.Models, name, domain.FinishCopy{Precision: words[0], Attempt: 1, Files: domain.Files{
		Prefix: "models/" + name.ID() + "/" + words[0] + "/", Sizes: map[string]int64{"model.safetensors": 2_097_304}}}))
}

// rejectUpload executes the action "reject MODEL FILE…", which uploads files that are not a complete
// model.
func (s *exampleStory) rejectUpload(name domain.Name, files []string) {
	s.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for _, file := range files {
		part, err := w.CreateFormFile("file", file)
		require.NoError(s, err)
		_, err = part.Write(exampleFile(s, file))
		require.NoError(s, err)
	}
	require.NoError(s, w.Close())
	r := s.request(http.MethodPost, "/v1/"+string(name)+":upload", "training", &form)
	r.Header.Set("Content-Type", w.FormDataContentType())
	a := s.harness.send(r)
	require.Equal(s, http.StatusBadRequest, a.status, "%s", a.body)
}
