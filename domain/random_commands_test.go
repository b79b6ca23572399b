package domain_test

import (
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"

	"anneal/domain"
)

// The functions of this file draw a random command for a resource. Most of the commands are
// possible in the resource's state, but many are not.

var (
	someNodes  = []domain.Name{"accounts/system/nodes/n1", "accounts/system/nodes/n2", "accounts/system/nodes/n3"}
	someStatus = domain.Status{Code: "INVALID_ARGUMENT", Message: "line 2: not JSON"}
)

func someFiles(t *rapid.T) domain.Files {
	return domain.Files{Prefix: pick(t, "folder", "a/1/", "a/2/"), Sizes: map[string]int64{"rows.jsonl": 7}}
}

func someSealed(t *rapid.T) domain.Sealed {
	return domain.Sealed{KeyID: "k", Ciphertext: []byte(pick(t, "ciphertext", "", "one", "two"))}
}

func someTakes(t *rapid.T) domain.Resources {
	return pick(t, "takes", domain.Resources{CPUMilli: 400, MemoryMiB: 10},
		domain.Resources{CPUMilli: 100, Accelerators: map[string]int{"L4": 1}}, domain.Resources{CPUMilli: 9000})
}

// near returns n, usually, or a number next to n.
func near(t *rapid.T, n int) int { return max(0, n+pick(t, "distance", 0, 0, 0, 0, 1, -1)) }

func randomAccountCommand(t *rapid.T, _ domain.Account) domain.Command[domain.Account] {
	spec := domain.AccountSpec{Email: pick(t, "email", "a@example.org", "b@example.org"),
		AccountType: pick(t, "type", "", domain.Enterprise, "HUGE")}
	return pick[domain.Command[domain.Account]](t, "command", domain.CreateAccount{AccountSpec: spec},
		domain.UpdateAccount{AccountSpec: spec},
		domain.SuspendAccount{SuspendState: pick(t, "why", append(domain.SuspendStates, domain.Unsuspended, "")...)},
		domain.SetAccountNodes{NodePolicy: domain.NodePolicy{Selector: map[string]string{"tier": pick(t, "tier", "a", "-")}}},
		domain.SetQueueWeight{QueueWeight: pick(t, "weight", 0, 1, 2, 1001)},
		domain.SetJobAccelerators{Rows: someJobAccelerators(t)},
		domain.RestoreAccount{})
}

func someJobAccelerators(t *rapid.T) domain.JobAccelerators {
	row := domain.JobAcceleratorRow{Method: pick(t, "method", "", domain.MethodDPO),
		MaxParameterCount: pick[domain.Count](t, "bound", 0, 8),
		AcceleratorType:   pick(t, "accelerator", "", domain.AcceleratorTypes[0], "ABACUS"),
		AcceleratorCount:  pick(t, "count", -1, 0, 2)}
	return pick(t, "rows", nil, domain.JobAccelerators{row},
		domain.JobAccelerators{{MaxParameterCount: 8, AcceleratorCount: 1}, row})
}

func randomAPIKeyCommand(t *rapid.T, _ domain.APIKey) domain.Command[domain.APIKey] {
	spec := domain.APIKeySpec{Role: pick(t, "role", domain.RoleAdmin, domain.RoleInference, ""),
		Email:      pick(t, "email", "", "kim@example.com"),
		ExpireTime: pick(t, "expire", nil, later(time.Hour))}
	return pick[domain.Command[domain.APIKey]](t, "command",
		domain.CreateAPIKey{APIKeySpec: spec, Hash: []byte{1, 2}, Prefix: "k"}, domain.DeleteAPIKey{})
}

func randomSecretCommand(t *rapid.T, _ domain.Secret) domain.Command[domain.Secret] {
	name, value := pick(t, "name", "TOKEN", "OTHER", "9"), someSealed(t)
	return pick[domain.Command[domain.Secret]](t, "command", domain.CreateSecret{KeyName: name, Value: value},
		domain.UpdateSecret{KeyName: name}, domain.UpdateSecret{KeyName: name, Value: &value},
		domain.RequestDeletion(domain.Secrets), domain.AbandonDeletion(domain.Secrets, "IN_USE"), domain.DeleteSecret{})
}

func randomQuotaCommand(t *rapid.T, _ domain.Quota) domain.Command[domain.Quota] {
	return pick[domain.Command[domain.Quota]](t, "command",
		domain.SetQuota{MaxValue: pick[domain.Count](t, "max", 0, 1, 5, -1)}, domain.LiftQuota{})
}

func randomModelCommand(t *rapid.T, m domain.Model) domain.Command[domain.Model] {
	spec := domain.ModelSpec{DisplayName: pick(t, "name", "", "mine"),
		Kind:      pick(t, "kind", domain.BaseModel, domain.PEFTAddon, ""),
		BaseModel: pick(t, "base", "", "accounts/a/models/m", "nonsense")}
	weights := domain.ModelMetadata{ModelType: "llama", ContextLength: 512, Precision: pick(t, "stored", "FP32", "BF16"),
		LoraTargets: []string{"q_proj"}}
	precision := pick(t, "precision", "BF16", "FP16", "FP8", "")
	attempt := near(t, m.Copies[precision].Attempt)
	return pick[domain.Command[domain.Model]](t, "command", domain.CreateModel{ModelSpec: spec},
		domain.CreateModel{ModelSpec: spec},
		domain.UploadModel{Upload: near(t, m.Upload+1), Files: someFiles(t)}, domain.UploadModel{Upload: m.Upload + 1},
		domain.AcceptModel{Upload: near(t, m.Upload), ModelMetadata: weights, Note: pick(t, "note", "", "nobody speaks it")},
		domain.RejectModel{Upload: near(t, m.Upload), Status: someStatus},
		domain.RegisterModel{ModelSpec: spec, ModelMetadata: weights, Files: someFiles(t)},
		domain.PrepareModel{Precision: precision}, domain.PrepareModel{Precision: precision},
		domain.FinishCopy{Precision: precision, Attempt: attempt, Files: someFiles(t)},
		domain.FailCopy{Precision: precision, Attempt: attempt, Status: someStatus},
		domain.UpdateModel{ModelSpec: spec}, domain.RequestDeletion(domain.Models),
		domain.AbandonDeletion(domain.Models, "IN_USE"), domain.DeleteModel{})
}

func randomDatasetCommand(t *rapid.T, d domain.Dataset) domain.Command[domain.Dataset] {
	spec := domain.DatasetSpec{DisplayName: pick(t, "name", "", "mine"),
		Format:       pick(t, "format", "", domain.FormatChat, "POEM"),
		ExampleCount: domain.Count(pick(t, "count", 0, 3, -1)), UserUploaded: pick(t, "uploaded", nil, &struct{}{})}
	rows := domain.DatasetStats{Format: domain.FormatChat, Shape: domain.ShapeChat, ExampleCount: 3}
	from := pick(t, "from", nil,
		&domain.Derivation{Source: "accounts/a/datasets/d", Prefix: "d/1/",
			Split: pick(t, "split", nil, domain.SplitOf(9, 0.3, 7, true))})
	store := domain.TransferSpec{ExternalURL: pick(t, "url", "s3://rows/a/", "s3://rows/a.jsonl", "file:///a", ""),
		CredentialsSecret: pick(t, "secret", "accounts/a/secrets/s", "", "nonsense")}
	imported := spec
	imported.ExternalURL, imported.CredentialsSecret = store.ExternalURL, store.CredentialsSecret
	return pick[domain.Command[domain.Dataset]](t, "command", domain.CreateDataset{DatasetSpec: spec, From: from},
		domain.CreateDataset{DatasetSpec: imported}, domain.UpdateDataset{DatasetSpec: imported},
		domain.FillDataset{Files: someFiles(t), DatasetStats: rows}, domain.FailFill{Status: someStatus},
		domain.UploadDataset{Upload: near(t, d.Upload+1), Files: someFiles(t)}, domain.UploadDataset{Upload: 1},
		domain.AcceptDataset{Upload: near(t, d.Upload), DatasetStats: rows},
		domain.RejectDataset{Upload: near(t, d.Upload), Status: someStatus},
		domain.UpdateDataset{DatasetSpec: spec}, domain.RequestDeletion(domain.Datasets),
		domain.AbandonDeletion(domain.Datasets, "IN_USE"), domain.DeleteDataset{},
		domain.RequestImport{TransferSpec: store}, domain.CompleteImport{Import: near(t, 1), Files: someFiles(t)},
		domain.FailImport{Import: near(t, 1), Status: someStatus}, domain.RequestExport{TransferSpec: store},
		domain.CompleteExport{Export: near(t, 1)}, domain.FailExport{Export: near(t, 1), Status: someStatus})
}

var oneKey, otherKey = "U" + strings.Repeat("A", 55), "U" + strings.Repeat("B", 55)

func randomNodeCommand(t *rapid.T, _ domain.Node) domain.Command[domain.Node] {
	spec := domain.NodeSpec{Pool: pick(t, "pool", "", domain.PoolTraining, "garden"),
		Engines: pick(t, "engines", nil, []string{"train"}),
		Capacity: domain.Resources{CPUMilli: pick[int64](t, "cpu", 1000, 400, 0), MemoryMiB: 100,
			Accelerators: map[string]int{"L4": 2}}}
	allocation := domain.Allocation{ID: pick(t, "id", "j@1", "k@1", "d#r1"),
		For:       pick[domain.Name](t, "for", "accounts/a/supervisedFineTuningJobs/j", "accounts/a/deployments/d"),
		Resources: someTakes(t)}
	if pick(t, "shared", false, true) {
		allocation.Resources = domain.Resources{CPUMilli: 10, Accelerators: map[string]int{"L4": 1},
			Share: domain.DeviceShare{Milli: pick(t, "milli", 300, 600, 1000), Slot: pick(t, "slot", 1, 2, 0)}}
	}
	return pick[domain.Command[domain.Node]](t, "command", domain.RegisterNode{NodeSpec: spec},
		domain.PlaceAllocation{Allocation: allocation},
		domain.PlaceAllocation{Allocation: allocation}, domain.ReleaseAllocation{ID: allocation.ID, Reason: "over"},
		domain.LoseNode{Reason: "silent"}, domain.RemoveNode{},
		domain.EnrollNode{PublicKey: pick(t, "key", oneKey, otherKey, "none"), JoinToken: pick(t, "token", "t1", "t2")},
		domain.RevokeNode{Reason: "stolen"}, domain.CordonNode{Reason: "new driver"}, domain.UncordonNode{},
		domain.UncordonNode{}, domain.UncordonNode{}, domain.FinishDrain{},
		domain.TaintNode{Taint: domain.Taint{Key: "dedicated", Value: pick(t, "value", "a", "b"), Effect: domain.NoSchedule}},
		domain.UntaintNode{Key: "dedicated"},
		domain.DrainNode{Reason: "new driver", Within: pick(t, "within", time.Minute, 0, -time.Second)},
		domain.RegisterNode{NodeSpec: spec, Enrolled: true})
}

func randomEvaluatorCommand(t *rapid.T, e domain.Evaluator) domain.Command[domain.Evaluator] {
	spec := domain.EvaluatorSpec{DisplayName: pick(t, "name", "", "mine"),
		EvaluatorCode: domain.EvaluatorCode{Requirements: pick(t, "requirements", "", "numpy"),
			Source: pick(t, "source", nil, &domain.EvaluatorSource{Type: "TYPE_UPLOAD"},
				&domain.EvaluatorSource{Type: "TYPE_CODE_HOST"})}}
	revision := near(t, e.Revision)
	return pick[domain.Command[domain.Evaluator]](t, "command", domain.CreateEvaluator{EvaluatorSpec: spec},
		domain.UpdateEvaluator{EvaluatorSpec: spec, PrepareCodeUpload: pick(t, "upload", true, false)},
		domain.UploadEvaluator{Revision: revision, Files: someFiles(t)},
		domain.UploadEvaluator{Revision: revision}, domain.AcceptBuild{Revision: revision, BuildLog: "log"},
		domain.RejectBuild{Revision: revision, Status: someStatus}, domain.RequestDeletion(domain.Evaluators),
		domain.AbandonDeletion(domain.Evaluators, "IN_USE"), domain.DeleteEvaluator{})
}

func randomDeploymentShapeCommand(t *rapid.T, s domain.DeploymentShape) domain.Command[domain.DeploymentShape] {
	spec := domain.ShapeSpec{BaseModel: pick(t, "model", "accounts/a/models/m", "accounts/a/models/m",
		"accounts/a/models/n", "nonsense"),
		Precision: pick(t, "precision", "", "FP8", "FP4", "HUGE"), DraftTokenCount: pick(t, "draft", 0, 3)}
	traits := domain.ModelTraits{ModelType: "llama", ParameterCount: pick[domain.Count](t, "parameters", 7e9, 7e9, 70e9)}
	version := "v" + strconv.Itoa(near(t, len(s.Versions)))
	return pick[domain.Command[domain.DeploymentShape]](t, "command",
		domain.CreateDeploymentShape{ShapeSpec: spec, Model: traits},
		domain.UpdateDeploymentShape{ShapeSpec: spec, Model: traits},
		domain.UpdateDeploymentShape{ShapeSpec: spec, Model: traits},
		domain.ReviewShapeVersion{Version: version, Validated: pick(t, "validated", true, false),
			Public: pick(t, "public", true, false)},
		domain.ReviewShapeVersion{Version: version, Validated: true}, domain.RequestDeletion(domain.DeploymentShapes),
		domain.AbandonDeletion(domain.DeploymentShapes, "IN_USE"), domain.DeleteDeploymentShape{})
}

func randomDeploymentCommand(t *rapid.T, d domain.Deployment) domain.Command[domain.Deployment] {
	spec := domain.DeploymentSpec{BaseModel: pick(t, "model", "accounts/a/models/m", "accounts/a/models/m",
		"accounts/a/models/n"),
		MinReplicaCount: pick(t, "min", 0, 1, 2), MaxReplicaCount: pick(t, "max", nil, ptr(0), ptr(3)),
		Precision:   pick(t, "precision", "", "FP8"),
		DisplayName: pick(t, "name", "", "chat"), ExpireTime: pick(t, "expire", nil, later(time.Hour), later(90*time.Hour)),
		EnableHotLoad: pick(t, "hot", true, true, false)}
	weights := hotWeights(pick(t, "step", 1, 2, 3))
	node := pick(t, "node", someNodes...)
	replica := domain.Replica{ID: "r1", Node: node}
	if replicas := d.Ordered(); len(replicas) > 0 {
		replica = pick(t, "replica", append(replicas, replica)...)
	}
	if rare := rareDeploymentCommands(d, node); len(rare) > 0 && pick(t, "rare", true, false) {
		return pick(t, "command", rare...)
	}
	return pick[domain.Command[domain.Deployment]](t, "command", randomReleaseCommand(t, d),
		domain.CreateDeployment{DeploymentSpec: spec},
		domain.UpdateDeployment{DeploymentSpec: spec},
		domain.PlaceReplica{ID: d.NextReplica(), Node: node, Generation: near(t, d.Generation)},
		domain.PlaceReplica{ID: d.NextReplica(), Node: node, Generation: d.Generation},
		domain.AdvanceReplica{ID: replica.ID, Node: replica.Node,
			State: pick(t, "state", domain.ReplicaInitializing, domain.ReplicaReady, "dancing")},
		domain.AdvanceReplica{ID: replica.ID, Node: replica.Node, State: domain.ReplicaReady},
		domain.AbandonReplica{ID: d.NextReplica(), Reason: "the reservation was not committed in time"},
		domain.RemoveReplica{ID: replica.ID, Reason: "broken", Failed: pick(t, "failed", true, false)},
		domain.MarkDeploymentReady{Generation: d.Generation}, domain.FailDeployment{Status: someStatus},
		domain.ScaleDeployment{Replicas: pick(t, "replicas", 0, 1, 2, 3)}, domain.WakeDeployment{},
		domain.RequestDeletion(domain.Deployments), domain.AbandonDeletion(domain.Deployments, "IN_USE"),
		domain.DeleteDeployment{Hard: pick(t, "hard", false, false, true), LastServed: pick(t, "served", time.Time{}, noon)},
		domain.FinishDeletion{Keep: time.Hour}, domain.UndeleteDeployment{}, domain.PurgeDeployment{},
		domain.OfferWeights{HotWeights: weights}, domain.SwapWeights{ID: weights.ID(), Replicas: []string{replica.ID}},
		domain.RefuseWeights{HotWeights: weights, Status: someStatus},
		domain.WithdrawWeights{ID: weights.ID(), Reason: "its job was deleted"})
}

// randomReleaseCommand returns a command about a release of the deployment.
func randomReleaseCommand(t *rapid.T, d domain.Deployment) domain.Command[domain.Deployment] {
	number, step := 0, 0
	if d.Release != nil {
		number, step = pick(t, "number", 0, d.Release.Number, d.Release.Number, d.Release.Number+1), near(t, d.Release.Step)
	}
	figures := domain.ReleaseSamples{Stable: domain.ArmSamples{Requests: 9, FirstToken: domain.Latencies{0, 9}}}.Figures()
	return pick[domain.Command[domain.Deployment]](t, "release",
		domain.StartRelease{CreatedBy: "accounts/a/apiKeys/k", ReleaseSpec: domain.ReleaseSpec{
			Candidate: pick(t, "candidate", "accounts/a/deployments/e", "accounts/a/deployments/e", "e"),
			Steps:     pick(t, "steps", nil, []int{5}, []int{5, 50}, []int{50, 5}),
			Promotion: pick(t, "promotion", "", domain.PromoteManual), MinSamples: pick(t, "samples", nil, ptr(10), ptr(1))}},
		domain.AdvanceRelease{ReleaseFigures: figures, Number: number, Step: step, Reason: "passed"},
		domain.PromoteRelease{ReleaseFigures: figures, Number: number, Reason: "passed"},
		domain.RollBackRelease{ReleaseFigures: figures, Number: number, Reason: "failed"})
}

// rareDeploymentCommands returns commands that the deployment may accept in its state, and that random
// draws rarely produce.
func rareDeploymentCommands(d domain.Deployment, node domain.Name) []domain.Command[domain.Deployment] {
	type commands = []domain.Command[domain.Deployment]
	var all []string
	for _, r := range d.Ordered() {
		all = append(all, r.ID)
	}
	switch {
	case !d.Exists():
		return nil
	case d.State == domain.DeploymentDeletedState:
		return commands{domain.UndeleteDeployment{}, domain.PurgeDeployment{}, domain.DeleteDeployment{Hard: true}}
	case d.State == domain.DeploymentDeletingState && len(all) > 0:
		return commands{domain.RemoveReplica{ID: all[0], Reason: "deletion"}}
	case d.State == domain.DeploymentDeletingState:
		return commands{domain.FinishDeletion{Keep: time.Hour}, domain.AbandonDeletion(domain.Deployments, "IN_USE")}
	case d.Hot.Offered != nil:
		return commands{domain.SwapWeights{ID: d.Hot.Offered.ID(), Replicas: all},
			domain.WithdrawWeights{ID: d.Hot.Offered.ID(), Reason: "its job was deleted"}}
	}
	return commands{domain.PlaceReplica{ID: d.NextReplica(), Node: node, Generation: d.Generation},
		domain.WakeDeployment{}, domain.DeleteDeployment{IgnoreChecks: true}}
}

func randomDeployedModelCommand(t *rapid.T, _ domain.DeployedModel) domain.Command[domain.DeployedModel] {
	spec := domain.DeployedModelSpec{Model: pick(t, "model", "accounts/a/models/m", "accounts/a/models/m", "nonsense"),
		Deployment:  "accounts/a/deployments/d",
		DisplayName: pick(t, "name", "", "mine"), Default: pick(t, "default", true, false)}
	rank := rapid.IntRange(0, 3).Draw(t, "rank")
	return pick[domain.Command[domain.DeployedModel]](t, "command",
		domain.CreateDeployedModel{DeployedModelSpec: spec, DefaultRank: rank},
		domain.UpdateDeployedModel{DeployedModelSpec: spec, DefaultRank: rank}, domain.CedeDefault{Rank: rank},
		domain.MarkModelDeployed{}, domain.FailDeployedModel{Status: someStatus},
		domain.UndeployModel{Reason: "by its user"}, domain.UndeployModel{Restorable: true}, domain.FinishUndeployment{},
		domain.RestoreDeployedModel{})
}

func randomJobCommand(t *rapid.T, l domain.JobLife) domain.Command[domain.JobLife] {
	type commands = []domain.Command[domain.JobLife]
	attempt := near(t, l.Attempt)
	checkpoint := domain.JobCheckpoint{Attempt: attempt, Step: rapid.IntRange(1, 9).Draw(t, "step"), Files: someFiles(t),
		Metrics: map[string]float64{"train/loss": 0.5}}
	start := domain.StartJob{Attempt: near(t, l.NextAttempt()), Nodes: pick(t, "nodes", someNodes[:1], someNodes, nil),
		Resources: someTakes(t)}
	mark := domain.RecordCheckpoint{JobCheckpoint: checkpoint}
	requeue := domain.RequeueJob{Attempt: attempt, Reason: "node lost", Preempted: pick(t, "preempted", true, false),
		Orphan: pick(t, "orphan", true, false)}
	complete := domain.CompleteJob{Attempt: attempt, StoppedEarly: pick(t, "early", true, false),
		Output: "accounts/a/models/m", Results: someFiles(t)}
	store := domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: attempt, Output: "accounts/a/models/m",
		Results: someFiles(t)}}
	abandon := domain.AbandonAttempt{Attempt: near(t, l.NextAttempt()),
		Reason: "the reservation was not committed in time"}
	write := domain.WriteResults{Attempt: attempt}
	hold := domain.HoldJob{For: pick(t, "held for", "", "a node", domain.HeldForCapacity),
		Promised: pick(t, "promised", true, false),
		Wait:     pick[*domain.JobWait](t, "wait", nil, &domain.JobWait{Situation: domain.QueueSituation{Size: 1}})}
	paused := domain.ConfirmPause{Attempt: attempt}
	preempt := domain.PreemptJob{Attempt: attempt, Reason: "node n1 is being drained"}
	confirm, fail := domain.ConfirmCancel{Attempt: attempt},
		domain.FailJob{Attempt: pick(t, "by", 0, attempt), Status: someStatus}
	prepare := domain.PrepareInput{
		Inputs: domain.JobInputs{Train: pick[domain.Name](t, "train", "accounts/a/datasets/j-train",
			"accounts/a/datasets/j-train-2"), Evaluation: "accounts/a/datasets/j-eval"}}
	track := domain.RecordTracking{JobTracking: domain.JobTracking{RunID: "r", URL: "https://t/r",
		Problem: pick(t, "problem", "", "it does not respond")}}
	cancel, pause, expire, resume, remove := domain.CancelJob{}, domain.PauseJob{Reason: "account suspended"},
		domain.ExpireJob{}, domain.ResumeJob{}, domain.DeleteJob{}
	prioritize := domain.SetJobPriority{Priority: pick(t, "priority", domain.PriorityLow, domain.PriorityNormal,
		domain.PriorityHigh)}

	fitting := map[string]commands{
		domain.JobCreatingState:      {domain.StartValidation{}},
		domain.JobValidatingState:    {domain.QueueJob{}, domain.QueueJob{}, prepare, fail, hold},
		domain.JobCreatingInputState: {domain.QueueJob{}},
		domain.JobPendingState:       {start, start, start, expire, hold, prepare, abandon, prioritize},
		domain.JobRunningState: {mark, mark, write, requeue, complete, store, cancel, pause, paused, fail,
			track, preempt},
		domain.JobIdleState:           {preempt, write, track},
		domain.JobWritingResultsState: {complete, complete, store, requeue, cancel, pause},
		domain.JobReQueueingState:     {domain.QueueJob{}},
		domain.JobFailedState:         {resume, resume, remove, track},
		domain.JobCancellingState:     {mark, confirm},
		domain.JobCancelledState:      {resume, resume, remove},
		domain.JobPausedState:         {resume, resume, expire, cancel},
		domain.JobCompletedState:      {remove},
		domain.JobEarlyStoppedState:   {remove},
		domain.JobExpiredState:        {remove},
		domain.JobDeletingState:       {domain.CleanJob{}},
		domain.JobCleaningUpState:     {domain.PurgeJob{}},
	}[l.State]
	if len(fitting) > 0 && rapid.IntRange(0, 9).Draw(t, "fit") < 7 {
		return pick(t, "command", fitting...)
	}
	return pick(t, "any command", commands{domain.StartValidation{}, prepare, domain.QueueJob{}, start, mark,
		write, complete,
		hold, requeue, fail, cancel, confirm, pause, paused, expire, resume, remove, domain.CleanJob{}, domain.PurgeJob{},
		track}...)
}

func randomSupervisedJobCommand(t *rapid.T, j domain.SupervisedJob) domain.Command[domain.SupervisedJob] {
	if !j.Exists() || rapid.IntRange(0, 9).Draw(t, "create") == 0 {
		spec := domain.SupervisedSpec{Dataset: pick(t, "dataset", "accounts/a/datasets/d", "accounts/a/datasets/d",
			"nonsense"),
			TrainingConfig: domain.TrainingConfig{BaseModel: "accounts/a/models/m",
				LoraRank: pick(t, "rank", nil, ptr(0), ptr(16))}}
		return domain.CreateSupervisedJob{SupervisedSpec: spec, ID: "j",
			Deadline: pick(t, "deadline", nil, later(time.Hour), later(99*time.Hour))}
	}
	return whole[domain.SupervisedJob]{domain.SupervisedJobs, randomJobCommand(t, j.JobLife)}
}

func someTraining(t *rapid.T) domain.TrainingConfig {
	return domain.TrainingConfig{BaseModel: pick(t, "base", "accounts/a/models/m", "accounts/a/models/m", ""),
		LoraRank: pick(t, "rank", nil, ptr(0), ptr(16))}
}

func randomDPOJobCommand(t *rapid.T, j domain.DPOJob) domain.Command[domain.DPOJob] {
	if !j.Exists() || rapid.IntRange(0, 9).Draw(t, "create") == 0 {
		loss := pick(t, "loss", nil, &domain.LossConfig{Method: domain.LossORPO}, &domain.LossConfig{Method: domain.LossGRPO})
		return domain.CreateDPOJob{DPOSpec: domain.DPOSpec{Dataset: "accounts/a/datasets/d", TrainingConfig: someTraining(t),
			LossConfig: loss},
			ID: "j", Deadline: pick(t, "deadline", nil, later(time.Hour), later(99*time.Hour))}
	}
	return whole[domain.DPOJob]{domain.DPOJobs, randomJobCommand(t, j.JobLife)}
}

func randomReinforcementJobCommand(t *rapid.T, j domain.ReinforcementJob) domain.Command[domain.ReinforcementJob] {
	if !j.Exists() || rapid.IntRange(0, 9).Draw(t, "create") == 0 {
		spec := domain.ReinforcementSpec{Dataset: "accounts/a/datasets/d",
			Evaluator:           pick(t, "evaluator", "accounts/a/evaluators/e", ""),
			TrainingConfig:      someTraining(t),
			InferenceParameters: pick(t, "inference", nil, &domain.InferenceParameters{Temperature: ptr(1.0)})}
		return domain.CreateReinforcementJob{ReinforcementSpec: spec, ID: "j",
			Deadline: pick(t, "deadline", nil, later(time.Hour), later(99*time.Hour))}
	}
	return whole[domain.ReinforcementJob]{domain.ReinforcementJobs, randomJobCommand(t, j.JobLife)}
}

func randomTrainerJobCommand(t *rapid.T, j domain.TrainerJob) domain.Command[domain.TrainerJob] {
	if !j.Exists() || rapid.IntRange(0, 9).Draw(t, "create") == 0 {
		spec := domain.TrainerSpec{KeepAlive: pick(t, "keep", true, true, false),
			ServiceMode:   pick(t, "service", true, false),
			RewardWeights: pick(t, "weights", nil, []string{"a=1"}), TrainingConfig: someTraining(t)}
		return domain.CreateTrainerJob{TrainerSpec: spec, ID: "j",
			Deadline: pick(t, "deadline", nil, later(time.Hour), later(99*time.Hour))}
	}
	if rapid.IntRange(0, 2).Draw(t, "step") == 0 {
		step := domain.ExecuteTrainStep{Dataset: pick(t, "rows", "accounts/a/datasets/d", "accounts/a/datasets/e", ""),
			OutputModel: pick(t, "model", "m1", "m2", "M")}
		return pick[domain.Command[domain.TrainerJob]](t, "command", step, domain.AwaitStep{}, domain.AwaitStep{},
			domain.StartService{}, domain.StopService{Attempt: near(t, j.Attempt)},
			domain.FinishTrainStep{Attempt: near(t, j.Attempt), Output: "accounts/a/models/m1", Results: someFiles(t)})
	}
	return whole[domain.TrainerJob]{domain.TrainerJobs, randomJobCommand(t, j.JobLife)}
}

// whole is a command on a JobLife, applied to a job of a kind as domain.IntendJob does.
type whole[S domain.State] struct {
	kind *domain.Kind[S]
	part domain.Command[domain.JobLife]
}

func (w whole[S]) word() string { return wordOf(w.part) }

func (w whole[S]) Decide(j S, now time.Time) (domain.Event[S], error) {
	record, err := domain.IntendJob(domain.NewName("a", w.kind.Collection, "j"), w.part).Decide(j, now)
	if err != nil || record.Type == "" {
		return nil, err
	}
	return w.kind.Decode(record)
}
