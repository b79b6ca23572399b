package api

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/projections"
)

func (s *stage) intercept(change, key string, do func() error) error {
	return s.plan.Load().Do(change, key, do)
}

// A plannedSealer seals as a plan says.
type plannedSealer struct {
	Sealer
	plan *faults.Plan
}

func (p plannedSealer) Seal(ctx context.Context, name domain.Name, value []byte) (sealed domain.Sealed, err error) {
	err = p.plan.Do("seal", string(name), func() (err error) {
		sealed, err = p.Sealer.Seal(ctx, name, value)
		return err
	})
	return sealed, err
}

// An effect is a request that touches more than the log.
type effect struct {
	covers  []string // functions of this package that bring about effects
	prepare func(s *stage)
	act     func(s *stage) answer
	holds   func(v *projections.View) bool // once it is acknowledged
	ends    bool                           // repeated, it finds nothing
}

const (
	secretsPath = "/v1/accounts/acme/secrets"
	rowsOfThree = `{"prompt": "a", "completion": "b"}` + "\n" + `{"prompt": "a", "completion": "b"}` + "\n" + `{"prompt": "a", "completion": "b"}` + "\n"
)

func sends(method, path, body string) func(*stage) answer {
	return func(s *stage) answer { return s.call(method, path, "admin", body) }
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

// puts asks where files of a resource can be PUT, and puts them there.
func puts(s *stage, one string, files map[string]string) {
	s.Helper()
	var sizes []string
	for _, name := range wire.SortedKeys(files) {
		sizes = append(sizes, fmt.Sprintf("%q: %d", name, len(files[name])))
	}
	a := s.call("POST", one+":getUploadEndpoint", "admin", `{"filenameToSize": {`+strings.Join(sizes, ", ")+`}}`)
	require.Equal(s, 200, a.status, "%s", a.body)
	for name, url := range a.json(s)["filenameToSignedUrls"].(map[string]any) {
		require.Equal(s, 200, s.put(url.(string), files[name]).status)
	}
}

func made(path, body string) func(*stage) {
	return func(s *stage) {
		s.Helper()
		a := s.call("POST", path, "admin", body)
		require.Equal(s, 200, a.status, "%s", a.body)
	}
}

func after(steps ...func(*stage)) func(*stage) {
	return func(s *stage) {
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
	rowsSent      = func(s *stage) answer {
		return s.upload("/v1/accounts/acme/datasets/d:upload", "admin", "file", "rows.jsonl", strings.NewReader(rowsOfThree))
	}
	jobMade = func(s *stage) answer {
		return s.call("POST", "/v1/accounts/acme/supervisedFineTuningJobs?supervisedFineTuningJobId=j", "admin",
			`{"dataset": "accounts/acme/datasets/d", "baseModel": "accounts/default/models/anneal-base", "trackerConfig": {"enabled": true, "project": "p", "entity": "e", "apiKey": "k"}}`)
	}
	datasetReady = has(domain.Datasets, "d", func(d domain.Dataset) bool { return d.State == domain.DatasetReady })
	modelReady   = has(domain.Models, "m", func(m domain.Model) bool { return m.State == domain.ModelReady })
)

// effects are the requests that touch more than the log.
var effects = map[string]effect{
	"create a secret": {covers: []string{"sealSecret", "seal", "command"}, act: sends("POST", secretsPath, `{"name": "s", "keyName": "K", "value": "v"}`),
		holds: has(domain.Secrets, "s", domain.Secret.HasValue)},
	"update a secret": {prepare: secretMade, act: sends("PATCH", secretsPath+"/s", `{"value": "w", "keyName": "L"}`),
		holds: has(domain.Secrets, "s", func(s domain.Secret) bool { return s.KeyName == "L" && s.Version >= 2 })},
	"rename a secret": {prepare: secretMade, act: sends("PATCH", secretsPath+"/s", `{"keyName": "L"}`),
		holds: has(domain.Secrets, "s", func(s domain.Secret) bool { return s.KeyName == "L" && s.HasValue() })},
	"delete a secret": {prepare: secretMade, act: sends("DELETE", secretsPath+"/s", ""), holds: gone(domain.Secrets, "s"), ends: true},
	"create a job": {covers: []string{"wantInputs"}, prepare: func(s *stage) {
		s.makeDataset("d")
		s.upload("/v1/accounts/acme/datasets/d:upload", "admin", "file", "rows.jsonl", strings.NewReader(rowsOfThree))
	},
		act: jobMade, holds: has(domain.SupervisedJobs, "j", func(j domain.SupervisedJob) bool { return j.TrackerConfig.APIKey != nil })},
	"upload rows": {covers: []string{"uploadDataset", "file", "rows", "recordFiles"}, prepare: datasetMade, act: rowsSent, holds: datasetReady},
	"validate rows": {covers: []string{"validateUpload", "take"}, prepare: after(datasetMade, func(s *stage) {
		puts(s, "/v1/accounts/acme/datasets/d", map[string]string{"a.jsonl": rowsOfThree, "b.jsonl": rowsOfThree})
	}),
		act: sends("POST", "/v1/accounts/acme/datasets/d:validateUpload", ""), holds: datasetReady},
	"refuse rows": {covers: []string{"discard"}, prepare: datasetMade, act: func(s *stage) answer {
		return s.upload("/v1/accounts/acme/datasets/d:upload", "admin", "file", "rows.jsonl", strings.NewReader(strings.Repeat("x", int(s.server.Limits.Upload)+1)))
	}, ends: true},
	"delete rows":    {prepare: after(datasetMade, func(s *stage) { rowsSent(s) }), act: sends("DELETE", "/v1/accounts/acme/datasets/d", ""), holds: gone(domain.Datasets, "d"), ends: true},
	"upload a model": {covers: []string{"uploadModel", "form"}, prepare: modelMade, act: func(s *stage) answer { return s.uploadModel("m", "admin", tinyModel) }, holds: modelReady},
	"validate a model": {covers: []string{"validateModel"}, prepare: after(modelMade, func(s *stage) { puts(s, "/v1/accounts/acme/models/m", tinyModel) }),
		act: sends("POST", "/v1/accounts/acme/models/m:validateUpload", ""), holds: modelReady},
	"delete a model": {prepare: after(modelMade, func(s *stage) { s.uploadModel("m", "admin", tinyModel) }), act: sends("DELETE", "/v1/accounts/acme/models/m", ""), holds: gone(domain.Models, "m"), ends: true},
	"upload code": {covers: []string{"uploadCode"}, prepare: evaluatorMade, act: func(s *stage) answer {
		return s.upload("/v1/accounts/acme/evaluators/e:upload", "admin", "file", "main.py", strings.NewReader("def evaluate(): ...\n"))
	}, holds: has(domain.Evaluators, "e", func(e domain.Evaluator) bool { return len(e.Files.Sizes) == 1 })},
	"validate code": {covers: []string{"takeCode"}, prepare: after(evaluatorMade, func(s *stage) {
		puts(s, "/v1/accounts/acme/evaluators/e", map[string]string{"main.py": "def evaluate(): ...\n"})
	}),
		act: sends("POST", "/v1/accounts/acme/evaluators/e:validateUpload", ""), holds: has(domain.Evaluators, "e", func(e domain.Evaluator) bool { return len(e.Files.Sizes) == 1 })},
	"delete code": {prepare: after(evaluatorMade, func(s *stage) { puts(s, "/v1/accounts/acme/evaluators/e", map[string]string{"main.py": "x"}) }),
		act: sends("DELETE", "/v1/accounts/acme/evaluators/e", ""), holds: gone(domain.Evaluators, "e"), ends: true},
}

// Whatever happens at whichever effect of a request: after a restart and
// reconciliation the world, the files and the data keys agree, and what was
// acknowledged is there.
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

// run answers the steps of the request.
func (e effect) run(t *testing.T, plan *faults.Plan) []string {
	s := newStage(t, Limits{Upload: 4096})
	s.judgeModels()
	if e.prepare != nil {
		e.prepare(s)
	}
	s.plan.Store(plan)
	s.server.core.Log, s.server.Sealer = plan.Log(s.log), plannedSealer{s.vault, plan}
	acknowledged := e.act(s).status == 200
	s.plan.Store(nil)
	s.server.core.Log, s.server.Sealer = s.log, s.vault

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
		require.Contains(t, []int{200, 400, 409}, again.status, "%s", again.body) // or it is there already
	}
	last, err := s.log.Last(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.world.WaitFor(t.Context(), last.Position))
	require.True(t, e.holds(s.world.View()), "the request cannot be repeated")
	return steps
}

// bringsEffects tells whether a call brings about effects outside of the log, or
// stands for several that do.
func bringsEffects(call *ast.CallExpr) (name string, yes bool) {
	selected, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	owner := ""
	if of, ok := selected.X.(*ast.SelectorExpr); ok {
		owner = of.Sel.Name
	}
	switch name = selected.Sel.Name; name {
	case "Put", "Copy", "Delete", "DeleteFolder":
		return name, owner == "Blobs"
	case "Seal":
		return name, owner == "Sealer"
	}
	return name, name == "seal" || name == "newIntake"
}

// effectElsewhere are functions whose effects are covered elsewhere, and where.
var effectElsewhere = map[string]string{
	"readRecording": "files of a request that nothing refers to: nothingStays in the tests of transcriptions, and reconcile.Grace",
	"fetch":         "the same",
	"keep":          "seals an answer for the idempotency store, where it expires",
}

// Every function that brings about effects is in the table.
func TestEveryEffectIsTried(t *testing.T) {
	covered := map[string]bool{}
	for _, e := range effects {
		for _, f := range e.covers {
			covered[f] = true
		}
	}
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	below, err := filepath.Glob("*/*.go")
	require.NoError(t, err)
	paths = append(paths, below...)
	found := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for _, declared := range file.Decls {
			f, ok := declared.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if name, yes := bringsEffects(call); yes {
					found++
					require.True(t, covered[f.Name.Name] || effectElsewhere[f.Name.Name] != "", "%s calls %s and is in no effect of the table", f.Name.Name, name)
				}
				return true
			})
		}
	}
	require.Greater(t, found, 8)
}
