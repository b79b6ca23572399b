package domain_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

var (
	someCode = domain.EvaluatorSpec{
		EvaluatorCode: domain.EvaluatorCode{Criteria: []domain.Criterion{{Type: "CODE_SNIPPETS",
			CodeSnippets: &domain.CodeSnippets{FileContents: map[string]string{"main.py": "def evaluate(): ..."},
				EntryFile: "main.py"}}}}}
	uploadedCode = domain.Files{Prefix: "e/1/", Sizes: map[string]int64{"main.py": 9}}
)

func TestEvaluators(t *testing.T) {
	create := func(s domain.EvaluatorSpec) error {
		_, err := domain.CreateEvaluator{EvaluatorSpec: s}.Decide(domain.Evaluator{}, noon)
		return err
	}
	type spec = domain.EvaluatorSpec
	snippets := func(c domain.Criterion) func(*spec) { return func(s *spec) { s.Criteria = []domain.Criterion{c} } }
	refuses(t, someCode, create, []wrong[spec]{
		{"valid", func(*spec) {}, nil, ""},
		{"without code", func(s *spec) { *s = spec{} }, nil, ""},
		{"no repository", func(s *spec) { s.Source = &domain.EvaluatorSource{Type: "TYPE_CODE_HOST"} },
			[]string{"source.codeHostRepositoryName"}, "required"},
		{"unknown types", func(s *spec) {
			s.Source, s.Criteria = &domain.EvaluatorSource{Type: "X"}, []domain.Criterion{{Type: "Y"}}
		},
			[]string{"source.type", "criteria[0].type"}, "TYPE_UPLOAD"},
		{"snippets without files", snippets(domain.Criterion{Type: "CODE_SNIPPETS"}), []string{"criteria[0].codeSnippets"},
			"must contain a file"},
		{"an entry file that is missing",
			snippets(domain.Criterion{CodeSnippets: &domain.CodeSnippets{FileContents: map[string]string{"a": ""},
				EntryFile: "b"}}),
			[]string{"criteria[0].codeSnippets.entryFile"}, "one of the files"},
		{"too much code", func(s *spec) { s.Requirements = string(make([]byte, domain.MaxInlineCode)) }, []string{"criteria"},
			"upload larger code"},
		{"not the name of a dataset", func(s *spec) { s.DefaultDataset = "d" }, []string{"defaultDataset"}, "datasets/ID"},
	})
}

func TestEvaluatorTransitions(t *testing.T) {
	f := events[domain.Evaluator]
	other := someCode
	other.Requirements = "numpy"
	named := someCode
	named.DisplayName = "mine"
	made := domain.EvaluatorCreated{EvaluatorSpec: someCode}
	active := f(made, domain.EvaluatorBuilt{Revision: 1})
	situations := []situation[domain.Evaluator]{
		{name: "(none)"},
		{name: "BUILDING, inline code", facts: f(made)},
		{name: "BUILDING, code uploaded", facts: f(made, domain.EvaluatorUploaded{Revision: 1, Files: uploadedCode})},
		{name: "ACTIVE", facts: active},
		{name: "BUILD_FAILED", facts: f(made, domain.EvaluatorBuildFailed{Revision: 1, Status: someStatus})},
		{name: "BUILDING again, with the code uploaded before",
			facts: f(made, domain.EvaluatorUploaded{Revision: 1, Files: uploadedCode},
				domain.EvaluatorBuilt{Revision: 1}, domain.EvaluatorUpdated{EvaluatorSpec: other, Rebuild: true})},
	}
	commands := []domain.Command[domain.Evaluator]{domain.CreateEvaluator{EvaluatorSpec: someCode},
		changed{"UpdateEvaluator", domain.UpdateEvaluator{EvaluatorSpec: named}},
		changed{"… its code", domain.UpdateEvaluator{EvaluatorSpec: other}},
		changed{"… for an upload", domain.UpdateEvaluator{EvaluatorSpec: someCode, PrepareCodeUpload: true}},
		domain.UploadEvaluator{Revision: 1, Files: uploadedCode}, domain.AcceptBuild{Revision: 1},
		domain.RejectBuild{Revision: 1, Status: someStatus},
		requested[domain.Evaluator]{domain.DeleteEvaluator{}, domain.Evaluators}}
	golden(t, "evaluator_transitions.txt",
		transitions(t, domain.Evaluators, situations, commands, func(e domain.Evaluator) string {
			return fmt.Sprintf("%s revision %d, active %d, %d files", orNone(e.State), e.Revision, e.Active, len(e.Files.Sizes))
		}))
}

// changed is an UpdateEvaluator that the golden file lists under the given name.
type changed struct {
	name string
	domain.UpdateEvaluator
}

func (u changed) word() string { return u.name }

func TestBuildsAreKept(t *testing.T) {
	history := []domain.Event[domain.Evaluator]{
		domain.EvaluatorCreated{EvaluatorSpec: domain.EvaluatorSpec{EvaluatorCode: domain.EvaluatorCode{CommitHash: "c1"}}}}
	for revision := 1; revision <= domain.MaxBuilds+1; revision++ {
		files := domain.Files{Prefix: "e/" + strconv.Itoa(revision) + "/", Sizes: map[string]int64{"main.py": 1}}
		history = append(history, domain.EvaluatorUploaded{Revision: revision, Files: files},
			domain.EvaluatorBuilt{Revision: revision},
			domain.EvaluatorUpdated{EvaluatorSpec: domain.EvaluatorSpec{EvaluatorCode: domain.EvaluatorCode{CommitHash: "c" +
				strconv.Itoa(revision+1)}}, Rebuild: true, Upload: true})
	}
	e := fold(t, domain.Evaluators, history...)
	require.Equal(t, domain.MaxBuilds+2, e.Revision)
	build, ok := e.BuildOf(2)
	require.True(t, ok)
	require.Equal(t, "c2", build.Code.CommitHash)
	require.Equal(t, "e/2/", build.Files.Prefix)
	_, ok = e.BuildOf(1)
	require.False(t, ok, "the oldest build is deleted")
	_, ok = e.BuildOf(e.Revision)
	require.False(t, ok, "the revision is not built yet")
}

func TestJobsKeepTheirEvaluatorsRevision(t *testing.T) {
	life := domain.JobLife{State: domain.JobPendingState}
	start := func(attempt, revision int) {
		event, err := domain.StartJob{Attempt: attempt, Nodes: someNodes[:1], Evaluator: revision}.Decide(life, noon)
		require.NoError(t, err)
		event.Evolve(&life)
	}
	start(1, 3)
	require.Equal(t, 3, life.EvaluatorRevision)
	life.State = domain.JobPendingState
	start(2, 5)
	require.Equal(t, 3, life.EvaluatorRevision, "a newer revision is for newer jobs")
}
