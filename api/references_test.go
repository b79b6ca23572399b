package api

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

// A racingLog calls do once before it appends an event whose type ends in before, and once after it
// has appended an event whose type ends in after, before the append is acknowledged.
type racingLog struct {
	*eventlog.Memory
	before, after string // suffixes of event types; "" means never
	do            func()
}

func (l *racingLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	typed := func(suffix string) bool { return suffix != "" && strings.HasSuffix(w.Type, suffix) }
	if typed(l.before) {
		l.before = ""
		l.do()
	}
	position, err := l.Memory.Append(ctx, w)
	if err == nil && typed(l.after) {
		l.after = ""
		l.do()
	}
	return position, err
}

// A referencePair is a resource, used, and a resource that refers to it, user.
type referencePair struct {
	used, user domain.Name
	make       domain.Intent // creates used, unless used is a dataset
	begin      domain.Intent // creates user with the reference
	// failed returns the message with which the resource user fails because used was deleted first.
	// It is nil if user does not run: then user keeps the reference, and requests that depend on it
	// are rejected.
	failed func(*projections.View, domain.Name) string
}

func (p referencePair) String() string {
	return p.used.Collection() + "_by_" + p.user.Collection()
}

// path returns the path at which the resource used is deleted.
func (p referencePair) path() string {
	if p.used.Collection() == domain.BatchFiles.Collection {
		return "/v1/files/" + p.used.ID()
	}
	return "/v1/" + string(p.used)
}

// create creates the resource used, and further resources that user needs.
func (p referencePair) create(s *harness) {
	s.readyDataset("other")
	s.do(domain.Intend(domain.Evaluators, "accounts/acme/evaluators/other", domain.CreateEvaluator{}))
	if p.used.Collection() == domain.Datasets.Collection {
		s.readyDataset(p.used.ID())
		return
	}
	s.do(p.make)
}

func jobFailed(v *projections.View, name domain.Name) string {
	job, ok := v.Job(name)
	if !ok || job.State.Life().State != domain.JobFailedState {
		return ""
	}
	return job.State.Life().Status.Message
}

func batchFailed(v *projections.View, name domain.Name) string {
	row, ok := v.Batches.Get(name)
	if !ok || row.State.State != domain.BatchFailedState {
		return ""
	}
	return row.State.Failures[0].Message
}

func deploymentFailed(v *projections.View, name domain.Name) string {
	row, ok := v.Deployments.Get(name)
	if !ok || row.State.State != domain.DeploymentFailedState {
		return ""
	}
	return row.State.Status.Message
}

func deployedModelFailed(v *projections.View, name domain.Name) string {
	row, ok := v.DeployedModels.Get(name)
	if !ok || row.State.State != domain.ModelFailedState {
		return ""
	}
	return row.State.Status.Message
}

const (
	usedDataset    = "accounts/acme/datasets/rows"
	usedModel      = "accounts/acme/models/base"
	usedAddon      = "accounts/acme/models/addon"
	usedEvaluator  = "accounts/acme/evaluators/exact"
	usedShape      = "accounts/acme/deploymentShapes/small"
	usedSecret     = "accounts/acme/secrets/token"
	usedDeployment = "accounts/acme/deployments/served"
	usedFile       = "accounts/acme/batchFiles/file-1"
	publicModel    = "accounts/default/models/anneal-base"
)

// referencePairs returns all kinds of references.
func referencePairs() (pairs []referencePair) {
	create := map[domain.Name]domain.Intent{
		usedModel: register(usedModel, false),
		usedEvaluator: domain.Intend(domain.Evaluators, usedEvaluator,
			domain.CreateEvaluator{}),
		usedShape: domain.Intend(domain.DeploymentShapes, usedShape,
			domain.CreateDeploymentShape{
				ShapeSpec: domain.ShapeSpec{BaseModel: publicModel}}),
		usedSecret: domain.Intend(domain.Secrets, usedSecret,
			domain.CreateSecret{KeyName: "TOKEN",
				Value: domain.Sealed{KeyID: "k", Ciphertext: []byte("sealed")}}),
		usedDeployment: domain.Intend(domain.Deployments, usedDeployment,
			domain.CreateDeployment{
				DeploymentSpec: domain.DeploymentSpec{BaseModel: publicModel, EnableHotLoad: true}}),
		usedAddon: domain.Intend(domain.Models, usedAddon, domain.RegisterModel{
			ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: publicModel},
			Files:     domain.Files{Prefix: "models/addon/"}}),
	}
	pair := func(used domain.Name, begin domain.Intent, failed func(*projections.View, domain.Name) string) {
		pairs = append(pairs, referencePair{used, begin.Name, create[used], begin, failed})
	}
	training := func(model string) domain.TrainingConfig {
		return domain.TrainingConfig{BaseModel: model, OutputModel: "out"}
	}
	credentials := &domain.ObjectStoreConfig{CredentialsSecret: usedSecret}
	const other = "accounts/acme/datasets/other"
	for _, rows := range []struct {
		used                       domain.Name
		dataset, model, evaluation string
		store                      *domain.ObjectStoreConfig
	}{
		{used: usedDataset, dataset: usedDataset, model: publicModel},
		{used: usedDataset, dataset: other, model: publicModel, evaluation: usedDataset},
		{used: usedModel, dataset: other, model: usedModel},
		{used: usedSecret, dataset: other, model: publicModel, store: credentials},
	} {
		pair(rows.used, domain.Intend(domain.SupervisedJobs, "accounts/acme/supervisedFineTuningJobs/j",
			domain.CreateSupervisedJob{
				ID: "j", SupervisedSpec: domain.SupervisedSpec{Dataset: rows.dataset, EvaluationDataset: rows.evaluation,
					TrainingConfig: training(rows.model), ObjectStoreConfig: rows.store}}), jobFailed)
		pair(rows.used, domain.Intend(domain.TrainerJobs, "accounts/acme/rlorTrainerJobs/j",
			domain.CreateTrainerJob{
				ID: "j", TrainerSpec: domain.TrainerSpec{Dataset: rows.dataset, EvaluationDataset: rows.evaluation,
					TrainingConfig: training(rows.model), ObjectStoreConfig: rows.store}}), jobFailed)
		pair(rows.used, domain.Intend(domain.ReinforcementJobs, "accounts/acme/reinforcementFineTuningJobs/j",
			domain.CreateReinforcementJob{
				ID: "j", ReinforcementSpec: domain.ReinforcementSpec{Dataset: rows.dataset, EvaluationDataset: rows.evaluation,
					Evaluator:      "accounts/acme/evaluators/other",
					TrainingConfig: training(rows.model), ObjectStoreConfig: rows.store}}), jobFailed)
		if rows.evaluation == "" && rows.store == nil {
			pair(rows.used, domain.Intend(domain.DPOJobs, "accounts/acme/dpoJobs/j", domain.CreateDPOJob{ID: "j",
				DPOSpec: domain.DPOSpec{Dataset: rows.dataset, TrainingConfig: training(rows.model)}}), jobFailed)
		}
	}
	pair(usedEvaluator, domain.Intend(domain.ReinforcementJobs, "accounts/acme/reinforcementFineTuningJobs/j",
		domain.CreateReinforcementJob{
			ID: "j", ReinforcementSpec: domain.ReinforcementSpec{Dataset: other, Evaluator: usedEvaluator,
				TrainingConfig: training(publicModel)}}), jobFailed)
	pair(usedDeployment, domain.Intend(domain.TrainerJobs, "accounts/acme/rlorTrainerJobs/j",
		domain.CreateTrainerJob{
			ID: "j", TrainerSpec: domain.TrainerSpec{Dataset: other, TrainingConfig: training(publicModel), KeepAlive: true,
				HotLoadDeploymentID: "served"}}), nil)

	drafter := string(usedModel)
	for used, spec := range map[domain.Name]domain.DeploymentSpec{
		usedModel: {BaseModel: usedModel}, usedShape: {BaseModel: publicModel, DeploymentShape: usedShape + "/versions/1"},
		usedModel + "#": {BaseModel: publicModel, DraftModel: &drafter},
	} {
		pair(domain.Name(strings.TrimSuffix(string(used), "#")), domain.Intend(domain.Deployments,
			"accounts/acme/deployments/d", domain.CreateDeployment{DeploymentSpec: spec}), deploymentFailed)
	}
	pair(usedAddon, domain.Intend(domain.DeployedModels, "accounts/acme/deployedModels/a",
		domain.CreateDeployedModel{
			DeployedModelSpec: domain.DeployedModelSpec{Model: usedAddon, Deployment: "accounts/acme/deployments/addons"}}),
		deployedModelFailed)
	pair(usedModel, domain.Intend(domain.DeploymentShapes, "accounts/acme/deploymentShapes/s",
		domain.CreateDeploymentShape{ShapeSpec: domain.ShapeSpec{BaseModel: usedModel}}), nil)
	pair(usedModel, domain.Intend(domain.Models, "accounts/acme/models/over",
		domain.RegisterModel{
			ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: usedModel},
			Files:     domain.Files{Prefix: "models/over/"}}), nil)
	pair(usedSecret, domain.Intend(domain.Evaluators, "accounts/acme/evaluators/e", domain.CreateEvaluator{
		EvaluatorSpec: domain.EvaluatorSpec{Secrets: []string{usedSecret}}}), nil)
	pair(usedDataset, domain.Intend(domain.Datasets, "accounts/acme/datasets/derived",
		domain.CreateDataset{
			DatasetSpec: domain.DatasetSpec{Format: domain.FormatChat},
			From:        &domain.Derivation{Source: usedDataset, Prefix: "s/1/", Filter: "n > 1"}}), nil)
	pair(usedSecret, domain.Intend(domain.Subscriptions, "accounts/acme/subscriptions/s",
		domain.CreateSubscription{SubscriptionSpec: domain.SubscriptionSpec{
			Files: &domain.EventFiles{ExternalURL: "s3://bucket/events/", CredentialsSecret: usedSecret}}}), nil)
	pairs = append(pairs, referencePair{used: usedFile, user: "accounts/acme/batches/batch-1",
		make: createsBatchFile(usedFile), begin: createsBatch("accounts/acme/batches/batch-1", usedFile),
		failed: batchFailed})
	return pairs
}

// TestDeletesAndUsesRace checks a concurrent delete of a resource and create of a reference to the
// resource: the request that the log records first succeeds, and the other request is rejected or
// its work fails, with an error that names the resource.
func TestDeletesAndUsesRace(t *testing.T) {
	for _, p := range referencePairs() {
		for _, race := range []struct {
			name, before, after string
			deleted             bool
		}{
			{name: "use first"},
			{name: "use before the request", before: ".deletionRequested.v1"},
			{name: "use after the request", after: ".deletionRequested.v1"},
			{name: "use before the delete is recorded", before: ".deleted.v1", deleted: true},
			{name: "use after the delete", after: ".deleted.v1", deleted: true},
		} {
			if p.used.Collection() == domain.Deployments.Collection {
				race.before = strings.Replace(race.before, ".deleted.", ".deleting.", 1)
				race.after = strings.Replace(race.after, ".deleted.", ".deleting.", 1)
			}
			t.Run(p.String()+"/"+race.name, func(t *testing.T) { runRace(t, p, race.before, race.after, race.deleted) })
		}
	}
}

func runRace(t *testing.T, p referencePair, before, after string, deleted bool) {
	s := newHarness(t, request.Limits{})
	if p.user.Collection() == domain.DeployedModels.Collection {
		s.do(domain.Intend(domain.Deployments, "accounts/acme/deployments/addons", domain.CreateDeployment{
			DeploymentSpec: domain.DeploymentSpec{BaseModel: publicModel, EnableAddons: true}}))
	}
	p.create(s)
	if before+after == "" {
		s.do(p.begin)
	}
	var other *harness
	log := &racingLog{Memory: s.log, before: before, after: after, do: func() {
		s.do(p.begin)
		require.NoError(t, other.world.WaitFor(t.Context(), s.world.Position()))
	}}
	other = s.another(func(o *Options) { o.Log = log })
	a := other.call(http.MethodDelete, p.path(), "admin", "")
	require.Empty(t, log.before+log.after, "the race has happened: %s", a.body)
	last := s.last()
	require.NoError(t, s.world.WaitFor(t.Context(), last.Position))
	if !deleted {
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		require.Contains(t, string(a.body), "IN_USE")
		require.Contains(t, string(a.body), p.user)
		require.Contains(t, s.world.View().Referrers(p.used), p.user)
		require.Empty(t, s.world.View().BeingDeleted(p.user, nil, stateOf(t, s, p.user), s.clock.tick()),
			"the deletion was abandoned")
		s.runPlans()
		if p.failed != nil {
			require.NotRegexp(t, "no [a-z]+ "+string(p.used)+"|"+string(p.used)+" was deleted", p.failed(s.world.View(), p.user),
				"the use continues")
		}
		return
	}
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	s.runPlans()
	if p.failed != nil {
		require.Contains(t, p.failed(s.world.View(), p.user), p.used, "the use fails for that reason")
		return
	}
	if p.used.Collection() == domain.Deployments.Collection {
		return // a deployment that is DELETING loads no weights
	}
	require.Contains(t, s.world.View().Lost(p.user, stateOf(t, s, p.user).(domain.Referrer)), p.used)
	s.requireRejected(t, p)
}

// requireRejected requires that requests to the resource p.user are rejected, or that their work
// fails, after p.used was deleted.
func (s *harness) requireRejected(t *testing.T, p referencePair) {
	var a response
	switch p.user.Collection() {
	case domain.DeploymentShapes.Collection:
		a = s.call(http.MethodPost, "/v1/accounts/acme/deployments?deploymentId=d", "user",
			`{"deploymentShape": "`+string(p.user)+`"}`)
	case domain.Models.Collection: // an addon whose base model is deleted
		a = s.call(http.MethodPost, "/v1/accounts/acme/deployments?deploymentId=d", "user",
			`{"baseModel": "`+string(p.user)+`"}`)
	// for all other references, a worker or task reports the error
	default:
		return
	}
	if a.status == http.StatusOK { // the deployment is created, and fails before it has a replica
		s.runPlans()
		require.Contains(t, deploymentFailed(s.world.View(), "accounts/acme/deployments/d"), p.used)
		return
	}
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
}

// readyDataset creates a dataset of chat rows that jobs can use.
func (s *harness) readyDataset(id string) {
	s.Helper()
	s.readyRows(id, domain.FormatChat,
		`{"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}`)
}

// readyRows creates a dataset of 30 rows that jobs can use.
func (s *harness) readyRows(id, format, row string) {
	s.Helper()
	name := domain.NewName("acme", domain.Datasets.Collection, id)
	s.do(domain.Intend(domain.Datasets, name, domain.CreateDataset{DatasetSpec: domain.DatasetSpec{Format: format}}))
	require.Equal(s, http.StatusOK, s.upload("/v1/"+string(name)+":upload", "user", "file", "rows.jsonl",
		strings.NewReader(strings.Repeat(row+"\n", 30))).status)
	dataset, _ := s.world.View().Datasets.Get(name)
	require.Equal(s, domain.DatasetReady, dataset.State.State)
}

func stateOf(t *testing.T, s *harness, name domain.Name) any {
	state, _ := s.world.Row(name)
	require.NotNil(t, state)
	return state
}

// runPlans executes the plans of the schedulers until the plans are empty.
func (s *harness) runPlans() {
	s.Helper()
	for range 20 {
		planned := 0
		for _, scheduler := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{}, schedulers.Addons{},
			schedulers.Batches{}} {
			for _, step := range scheduler.Plan(s.world.View(), s.clock.tick()).Steps {
				planned++
				s.do(step.Intents()...)
			}
		}
		if planned == 0 {
			return
		}
	}
	s.Fatal("the plans of schedulers do not end")
}

// TestWorkThatLostRaceFails checks that running work fails when the server has deleted an input of
// the work, because the work began after the server had checked that the input was unused.
func TestWorkThatLostRaceFails(t *testing.T) {
	for _, p := range referencePairs() {
		if p.failed == nil || p.user.Collection() == domain.DeployedModels.Collection ||
			p.used.Collection() == domain.DeploymentShapes.Collection {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			p.create(s)
			log := &racingLog{Memory: s.log, before: ".deleted.v1", do: func() {
				s.do(p.begin)
				s.start(p.user)
			}}
			other := s.another(func(o *Options) { o.Log = log })
			a := other.call(http.MethodDelete, p.path(), "admin", "")
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
			s.runPlans()
			require.Contains(t, p.failed(s.world.View(), p.user), p.used)
		})
	}
}

// start records the first attempt of a job, or that a deployment or a batch runs, without checking the
// references of the resource.
func (s *harness) start(name domain.Name) {
	s.Helper()
	switch name.Collection() {
	case domain.Deployments.Collection:
		s.serve(name)
		return
	case domain.Batches.Collection:
		s.do(domain.Intend(domain.Batches, name, domain.StartBatch{Total: 1, Model: "m"}))
		return
	}
	for _, command := range []domain.Command[domain.JobLife]{domain.StartValidation{}, domain.QueueJob{},
		domain.StartJob{Attempt: 1, Nodes: []domain.Name{"accounts/system/nodes/n1"}}} {
		s.do(domain.IntendJob(name, command))
	}
}

// TestEveryReferenceIsRaced checks that referencePairs contains every kind that refers to other
// resources, and every kind to which other resources refer.
func TestEveryReferenceIsRaced(t *testing.T) {
	used, users := map[string]bool{}, map[string]bool{}
	for _, p := range referencePairs() {
		used[p.used.Collection()], users[p.user.Collection()] = true, true
	}
	for _, kind := range domain.Kinds {
		raced(t, kind, used, users)
	}
}

func raced(t *testing.T, kind domain.AnyKind, used, users map[string]bool) {
	collection := kind.CollectionID()
	_, uses := kind.NewRow("").Value().(domain.Referrer)
	require.Equal(t, uses, users[collection], "%s as users", collection)
	require.Equal(t, kind.Referenceable(), used[collection], "%s as used", collection)
	if kind.Referenceable() {
		field, ok := kind.StateType().FieldByName("Deletion")
		require.True(t, ok && field.Anonymous, "%s shows that its deletion is requested", collection)
	}
}

// TestNoNewUsesDuringDeletion checks that a new reference to a resource is rejected after a
// deletion request for the resource, until the deletion request expires.
func TestNoNewUsesDuringDeletion(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(register(usedModel, false))
	s.do(domain.Intend(domain.Models, usedModel, domain.RequestDeletion(domain.Models)))
	create := func() response {
		return s.call(http.MethodPost, "/v1/accounts/acme/deployments?deploymentId=d", "user",
			`{"baseModel": "`+usedModel+`"}`)
	}
	a := create()
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	require.Contains(t, string(a.body), usedModel+" is being deleted")
	s.clock.at(epoch.Add(domain.DeletionWithin + time.Minute))
	require.Equal(t, http.StatusOK, create().status)
}

// TestUsedShapesAndSecretsAreNotDeleted checks that shapes and secrets to which live resources
// refer cannot be deleted, and that the error names the referring resources.
func TestUsedShapesAndSecretsAreNotDeleted(t *testing.T) {
	s := newHarness(t, request.Limits{})
	response := s.call("POST", "/v1/accounts/acme/deploymentShapes", "user",
		`{"deploymentShapeId": "small", "deploymentShape": {"baseModel": "accounts/default/models/anneal-base"}}`)
	require.Equal(t, 200, response.status, "%s", response.body)
	s.do(domain.Intend(domain.Deployments, "accounts/acme/deployments/shaped",
		domain.CreateDeployment{
			DeploymentSpec: domain.DeploymentSpec{BaseModel: "accounts/default/models/anneal-base",
				DeploymentShape: "accounts/acme/deploymentShapes/small/versions/1"}}))
	s.do(domain.Intend(domain.Secrets, "accounts/acme/secrets/token", domain.CreateSecret{KeyName: "TOKEN",
		Value: domain.Sealed{KeyID: "k", Ciphertext: []byte("sealed")}}))
	s.do(domain.Intend(domain.Evaluators, "accounts/acme/evaluators/exact", domain.CreateEvaluator{
		EvaluatorSpec: domain.EvaluatorSpec{Secrets: []string{"accounts/acme/secrets/token"}}}))
	for used, user := range map[string]string{
		"accounts/acme/deploymentShapes/small": "accounts/acme/deployments/shaped",
		"accounts/acme/secrets/token":          "accounts/acme/evaluators/exact",
	} {
		response := s.call("DELETE", "/v1/"+used, "admin", "")
		require.Equal(t, 400, response.status, "%s: %s", used, response.body)
		require.Contains(t, string(response.body), user)
	}
}
