package api

import (
	"context"
	"fmt"
	"go/ast"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/api/wire"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	sealed "anneal/eventlog/secrets"
	"anneal/internal/testutil"
	"anneal/projections"
)

func (s *harness) intercept(change, key string, do func() error) error {
	if before := s.before.Load(); before != nil {
		(*before)(change)
	}
	return s.plan.Load().Do(change, key, do)
}

// A plannedSealer is a rest.Sealer that injects the faults of a plan into Seal.
type plannedSealer struct {
	rest.Sealer
	plan *faults.Plan
}

func (p plannedSealer) Seal(ctx context.Context, name domain.Name, value []byte) (sealed domain.Sealed, err error) {
	err = p.plan.Do("seal", string(name), func() (err error) {
		sealed, err = p.Sealer.Seal(ctx, name, value)
		return err
	})
	return sealed, err
}

// An effect is a request that has side effects outside of the log.
type effect struct {
	covers  []string // functions of the package that have the side effect
	prepare func(s *harness)
	act     func(s *harness) response
	holds   func(v *projections.View) bool // reports whether the change is in the world
	ends    bool                           // the request deletes the resource: a repeated request gets 404
}

const (
	secretsPath = "/v1/accounts/acme/secrets"
	rowsOfThree = `{"prompt": "a", "completion": "b"}` + "\n" + `{"prompt": "a", "completion": "b"}` + "\n" +
		`{"prompt": "a", "completion": "b"}` + "\n"
)

func sends(method, path, body string) func(*harness) response {
	return func(s *harness) response { return s.call(method, path, "admin", body) }
}

func has[S domain.State](kind *domain.Kind[S], id string, is func(S) bool) func(*projections.View) bool {
	return func(v *projections.View) bool {
		row, ok := projections.TableOf(v, kind).Get(domain.NewName("acme", kind.Collection, id))
		return ok && is(row.State)
	}
}

func gone[S domain.State](kind *domain.Kind[S], id string) func(*projections.View) bool {
	return func(v *projections.View) bool { return !has(kind, id, func(S) bool { return true })(v) }
}

// puts requests signed URLs for the files of the resource at path, and sends the files to them with
// PUT.
func puts(s *harness, path string, files map[string]string) {
	s.Helper()
	var sizes []string
	for _, name := range wire.SortedKeys(files) {
		sizes = append(sizes, fmt.Sprintf("%q: %d", name, len(files[name])))
	}
	a := s.call("POST", path+":getUploadEndpoint", "admin", `{"filenameToSize": {`+strings.Join(sizes, ", ")+`}}`)
	require.Equal(s, 200, a.status, "%s", a.body)
	for name, url := range a.json(s)["filenameToSignedUrls"].(map[string]any) {
		require.Equal(s, 200, s.put(url.(string), files[name]).status)
	}
}

func made(path, body string) func(*harness) {
	return func(s *harness) {
		s.Helper()
		a := s.call("POST", path, "admin", body)
		require.Equal(s, 200, a.status, "%s", a.body)
	}
}

func after(steps ...func(*harness)) func(*harness) {
	return func(s *harness) {
		for _, step := range steps {
			step(s)
		}
	}
}

var (
	secretMade    = made(secretsPath, `{"name": "s", "keyName": "K", "value": "v"}`)
	datasetMade   = made("/v1/accounts/acme/datasets", `{"datasetId": "d"}`)
	modelMade     = made("/v1/accounts/acme/models", `{"modelId": "m"}`)
	evaluatorMade = made("/v1/accounts/acme/evaluators", `{"evaluatorId": "e", "evaluator": {}}`)
	rowsSent      = func(s *harness) response {
		return s.upload("/v1/accounts/acme/datasets/d:upload", "admin", "file", "rows.jsonl", strings.NewReader(rowsOfThree))
	}
	jobMade = func(s *harness) response {
		return s.call("POST", "/v1/accounts/acme/supervisedFineTuningJobs?supervisedFineTuningJobId=j", "admin",
			`{"dataset": "accounts/acme/datasets/d", "baseModel": "accounts/default/models/anneal-base", "trackerConfig": `+
				`{"enabled": true, "project": "p", "entity": "e", "apiKey": "k"}, `+
				`"metricsFileSignedUrl": "https://files.example.com/m.jsonl?signature=s"}`)
	}
	datasetReady = has(domain.Datasets, "d", func(d domain.Dataset) bool { return d.State == domain.DatasetReady })
	modelReady   = has(domain.Models, "m", func(m domain.Model) bool { return m.State == domain.ModelReady })
)

// fileReady reports whether the account has a file that is READY.
func fileReady(v *projections.View) bool {
	for row := range v.Datasets.In("acme") {
		if row.State.State == domain.DatasetReady {
			return true
		}
	}
	return false
}

// effects are the requests with side effects outside the log.
var effects = map[string]effect{
	"create a secret": {covers: []string{"sealSecret", "seal", "sealOnce", "command"},
		act:   sends("POST", secretsPath, `{"name": "s", "keyName": "K", "value": "v"}`),
		holds: has(domain.Secrets, "s", domain.Secret.HasValue)},
	"update a secret": {prepare: secretMade, act: sends("PATCH", secretsPath+"/s", `{"value": "w", "keyName": "L"}`),
		holds: has(domain.Secrets, "s", func(s domain.Secret) bool { return s.KeyName == "L" && s.Version >= 2 })},
	"rename a secret": {prepare: secretMade, act: sends("PATCH", secretsPath+"/s", `{"keyName": "L"}`),
		holds: has(domain.Secrets, "s", func(s domain.Secret) bool { return s.KeyName == "L" && s.HasValue() })},
	"delete a secret": {prepare: secretMade, act: sends("DELETE", secretsPath+"/s", ""), holds: gone(domain.Secrets, "s"),
		ends: true},
	"create a subscription": {covers: []string{"newSigningSecret"},
		act:   sends("POST", "/v1/accounts/acme/subscriptions", aSubscriptionBody),
		holds: has(domain.Subscriptions, "ledger", func(s domain.Subscription) bool { return s.Signing != nil })},
	"rotate a signing secret": {prepare: made("/v1/accounts/acme/subscriptions", aSubscriptionBody),
		act:   sends("POST", "/v1/accounts/acme/subscriptions/ledger:rotateSecret", "{}"),
		holds: has(domain.Subscriptions, "ledger", func(s domain.Subscription) bool { return s.Previous != nil })},
	"create a job": {covers: []string{"requireInputs", "sealURL"}, prepare: func(s *harness) {
		s.makeDataset("d")
		s.upload("/v1/accounts/acme/datasets/d:upload", "admin", "file", "rows.jsonl", strings.NewReader(rowsOfThree))
	},
		act: jobMade, holds: has(domain.SupervisedJobs, "j",
			func(j domain.SupervisedJob) bool { return j.TrackerConfig.APIKey != nil && j.SealedMetricsURL != nil })},
	"upload rows": {covers: []string{"post", "File", "record"}, prepare: datasetMade, act: rowsSent,
		holds: datasetReady},
	"upload a file": {covers: []string{"createFile"}, act: func(s *harness) response {
		return s.send(s.form("/v1/files", "admin", "file", "rows.jsonl", strings.NewReader(rowsOfThree),
			"purpose=fine-tune"))
	}, holds: fileReady},
	"upload a file of requests": {act: func(s *harness) response {
		return s.send(s.form("/v1/files", "admin", "file", "in.jsonl", strings.NewReader("{}\n"), "purpose=batch"))
	}, holds: func(v *projections.View) bool { return v.BatchFiles.Count("acme") > 0 }},
	"refuse a file": {act: func(s *harness) response {
		return s.send(s.form("/v1/files", "admin", "file", "rows.jsonl", strings.NewReader("no JSON"), "purpose=fine-tune"))
	}, ends: true},
	"validate rows": {covers: []string{"validate", "Take"}, prepare: after(datasetMade, func(s *harness) {
		puts(s, "/v1/accounts/acme/datasets/d", map[string]string{"a.jsonl": rowsOfThree, "b.jsonl": rowsOfThree})
	}),
		act: sends("POST", "/v1/accounts/acme/datasets/d:validateUpload", ""), holds: datasetReady},
	"refuse rows": {covers: []string{"Discard"}, prepare: datasetMade, act: func(s *harness) response {
		return s.upload("/v1/accounts/acme/datasets/d:upload", "admin", "file", "rows.jsonl",
			strings.NewReader(strings.Repeat("x", int(s.server.Limits.Upload)+1)))
	}, ends: true},
	"delete rows": {prepare: after(datasetMade, func(s *harness) { rowsSent(s) }),
		act: sends("DELETE", "/v1/accounts/acme/datasets/d", ""), holds: gone(domain.Datasets, "d"), ends: true},
	"upload a model": {covers: []string{"post", "Form"}, prepare: modelMade,
		act: func(s *harness) response { return s.uploadModel("m", "admin", tinyModel) }, holds: modelReady},
	"validate a model": {covers: []string{"validate"},
		prepare: after(modelMade, func(s *harness) { puts(s, "/v1/accounts/acme/models/m", tinyModel) }),
		act:     sends("POST", "/v1/accounts/acme/models/m:validateUpload", ""), holds: modelReady},
	"delete a model": {prepare: after(modelMade, func(s *harness) { s.uploadModel("m", "admin", tinyModel) }),
		act: sends("DELETE", "/v1/accounts/acme/models/m", ""), holds: gone(domain.Models, "m"), ends: true},
	"promote a checkpoint": {covers: []string{"promoteCheckpoint", "Take"}, prepare: checkpointMade,
		act:   sends("POST", promotePath, `{"modelId": "kept"}`),
		holds: has(domain.Models, "kept", func(m domain.Model) bool { return len(m.Files.Sizes) == 2 })},
	"upload code": {covers: []string{"post", "Form"}, prepare: evaluatorMade, act: func(s *harness) response {
		return s.upload("/v1/accounts/acme/evaluators/e:upload", "admin", "file", "main.py",
			strings.NewReader("def evaluate(): ...\n"))
	}, holds: has(domain.Evaluators, "e", func(e domain.Evaluator) bool { return len(e.Files.Sizes) == 1 })},
	"validate code": {covers: []string{"validate", "Take"}, prepare: after(evaluatorMade, func(s *harness) {
		puts(s, "/v1/accounts/acme/evaluators/e", map[string]string{"main.py": "def evaluate(): ...\n"})
	}),
		act:   sends("POST", "/v1/accounts/acme/evaluators/e:validateUpload", ""),
		holds: has(domain.Evaluators, "e", func(e domain.Evaluator) bool { return len(e.Files.Sizes) == 1 })},
	"delete code": {prepare: after(evaluatorMade,
		func(s *harness) { puts(s, "/v1/accounts/acme/evaluators/e", map[string]string{"main.py": "x"}) }),
		act: sends("DELETE", "/v1/accounts/acme/evaluators/e", ""), holds: gone(domain.Evaluators, "e"), ends: true},
}

// checkpointHarness returns a harness with a job that has a checkpoint.
func checkpointHarness(t testing.TB) *harness {
	s := newHarness(t, request.Limits{})
	checkpointMade(s)
	return s
}

// checkpointMade creates a job with two checkpoints.
func checkpointMade(s *harness) {
	s.Helper()
	s.makeDataset("rows")
	a := s.createJob("dpoJobs", "j", "result")
	require.Equal(s, 200, a.status, "%s", a.body)
	executeAction(s, []string{"checkpoint", "accounts/acme/dpoJobs/j"})
}

// TestFaultsAtEveryEffect checks that the world, the files and the data keys agree, and that
// acknowledged changes are present, after a fault at any side effect of a request, a restart and a
// reconciliation.
func TestFaultsAtEveryEffect(t *testing.T) {
	for name, e := range effects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps := e.run(t, faults.NewPlan("", 0))
			require.NotEmpty(t, steps)
			for _, mode := range faults.Modes {
				for at := range len(steps) {
					t.Run(fmt.Sprintf("%s: %s", mode, steps[at]), func(t *testing.T) { e.run(t, faults.NewPlan(mode, at+1)) })
				}
			}
		})
	}
}

// run sends the request on a new harness that injects the faults of plan. It then restarts,
// reconciles, and requires that the state is consistent, that an acknowledged change is present, and
// that an unacknowledged request can be repeated. It returns the side effects of the request, also
// those that failed.
func (e effect) run(t *testing.T, plan *faults.Plan) []string {
	s := newHarness(t, request.Limits{Upload: 4096})
	s.validateModels()
	if e.prepare != nil {
		e.prepare(s)
	}
	s.plan.Store(plan)
	s.server.core.Log, s.server.rest.Sealer = plan.Log(s.log), plannedSealer{sealed.ObservedVault{Vault: s.vault}, plan}
	acknowledged := e.act(s).status == 200
	s.plan.Store(nil)
	s.server.core.Log, s.server.rest.Sealer = s.log, sealed.ObservedVault{Vault: s.vault}

	steps := plan.Steps()
	world, err := faults.Restart(t.Context(), s.log, s.store, s.vault)
	require.NoError(t, err)
	require.NoError(t, faults.Agree(t.Context(), world.View(), s.store, s.vault))
	if e.holds == nil {
		return steps
	}
	if acknowledged {
		require.True(t, e.holds(world.View()), "what was acknowledged is not there")
		return steps
	}
	if again := e.act(s); !e.ends {
		require.Contains(t, []int{200, 400, 409}, again.status, "%s", again.body) // possibly created already
	}
	last := s.last()
	require.NoError(t, s.world.WaitFor(t.Context(), last.Position))
	require.True(t, e.holds(s.world.View()), "the request cannot be repeated")
	return steps
}

// hasEffect reports whether a call expression has a side effect outside of the log, directly or
// through a function whose calls all have one. name is the name of the called function.
func hasEffect(call *ast.CallExpr) (name string, yes bool) {
	selected, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	owner := ""
	if of, ok := selected.X.(*ast.SelectorExpr); ok {
		owner = of.Sel.Name
	}
	switch name = selected.Sel.Name; name {
	case "Put", "Copy", "Delete", "DeletePrefix":
		return name, owner == "Blobs"
	case "Seal":
		return name, owner == "Sealer"
	}
	return name, name == "seal" || name == "NewIntake"
}

// effectElsewhere maps the functions whose side effects other tests cover to those effects and tests.
var effectElsewhere = map[string]string{
	"readForm": "files of a request that nothing refers to: requireNoRecordings in the tests of transcriptions, " +
		"and " +
		"reconcile.Grace",
	"fetch":       "the same",
	"storeImages": "files of a request that nothing refers to: TestImagesReachReplicas checks that none is left",
	"storeImage":  "the same",
	"store":       "seals a response for the idempotency store, where it expires",
}

// TestEveryEffectIsTested checks that every function with a side effect is in effects or in
// effectElsewhere.
func TestEveryEffectIsTested(t *testing.T) {
	covered := map[string]bool{}
	for _, e := range effects {
		for _, f := range e.covers {
			covered[f] = true
		}
	}
	found := 0
	testutil.InspectFiles(t, func(_ string, f *ast.FuncDecl) {
		testutil.Inspect(f, func(call *ast.CallExpr) {
			if name, yes := hasEffect(call); yes {
				found++
				require.True(t, covered[f.Name.Name] || effectElsewhere[f.Name.Name] != "",
					"%s calls %s and is in no effect of the table", f.Name.Name, name)
			}
		})
	}, "*.go", "*/*.go")
	require.Greater(t, found, 8)
}
