package tasks_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sandbox"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
	"anneal/workers/tasks"
)

// A reader is an engines.Builder that records its arguments.
type reader struct {
	code         engines.EvaluatorCode
	requirements string
	files        map[string]string
	err          error
	trial        string
}

func (r *reader) Build(_ context.Context, code engines.EvaluatorCode, requirements string) (engines.BuildReport,
	error) {
	r.code, r.requirements, r.files = code, requirements, map[string]string{}
	err := filepath.WalkDir(code.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(code.Dir, path)
		r.files[name] = string(content)
		return err
	})
	if err == nil {
		err = r.err
	}
	return engines.BuildReport{Log: "looked at it, with " + code.Env["TOKEN"] + "\n", Trial: r.trial}, err
}

func evaluatorName(id string) domain.Name {
	return domain.NewName("acme", domain.Evaluators.Collection, id)
}

// evaluator records a command on an evaluator and returns its event.
func (b *harness) evaluator(id string, cmd domain.Command[domain.Evaluator]) eventlog.Event {
	b.Helper()
	result, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: time.Now()},
		domain.Intend(domain.Evaluators, evaluatorName(id), cmd))
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), result.Position()))
	e, err := b.log.At(b.Context(), result.Position())
	require.NoError(b, err)
	return e
}

func (b *harness) evaluatorState(id string) domain.Evaluator {
	b.Helper()
	last := b.last()
	require.NoError(b, b.world.WaitFor(b.Context(), last.Position))
	state, _ := b.world.Row(evaluatorName(id))
	return state.(domain.Evaluator)
}

func (b *harness) read(key string) string {
	b.Helper()
	content, err := b.blobs.Get(b.Context(), key)
	require.NoError(b, err)
	text, err := io.ReadAll(content)
	require.NoError(b, errors.Join(err, content.Close()))
	return string(text)
}

func (b *harness) builder(with engines.Builder) tasks.EvaluatorBuilder {
	return tasks.EvaluatorBuilder{Log: b.log, World: b.world, Blobs: b.blobs, Now: time.Now, Builder: with,
		Open: func(_ context.Context, _ secrets.Reader, name domain.Name, _ domain.Sealed) (domain.SecretValue, error) {
			return domain.SecretValue("value of " + name.ID()), nil
		}}
}

// uploadCode stores files as the code of the revision that is being built, and returns the event.
func (b *harness) uploadCode(id string, revision int, files map[string]string) eventlog.Event {
	b.Helper()
	stored := domain.Files{Prefix: "evaluators/acme/" + id + "/x/", Sizes: map[string]int64{}}
	for name, content := range files {
		size := b.put(stored.Prefix+name, strings.NewReader(content))
		stored.Sizes[name] = size
	}
	return b.evaluator(id, domain.UploadEvaluator{Revision: revision, Files: stored})
}

type member struct {
	name, content string
	kind          byte // type flag of a tar header
}

func tarOf(t *testing.T, members ...member) string {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Mode: 0o644, Size: int64(len(m.content)), Typeflag: m.kind}
		if m.kind == tar.TypeSymlink || m.kind == tar.TypeLink {
			h.Linkname, h.Size, m.content = m.content, 0, ""
		}
		require.NoError(t, w.WriteHeader(h))
		_, err := io.WriteString(w, m.content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.String()
}

func gzipped(t *testing.T, text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.String()
}

func zipOf(t *testing.T, members ...member) string {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		if m.kind == tar.TypeSymlink {
			h.SetMode(fs.ModeSymlink | 0o777)
		}
		f, err := w.CreateHeader(h)
		require.NoError(t, err)
		_, err = io.WriteString(f, m.content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.String()
}

func TestUploadedCodeIsUnpacked(t *testing.T) {
	const main = "def evaluate(messages): return 1"
	zeros := strings.Repeat("\x00", 1<<20)
	for _, c := range []struct {
		name    string
		files   map[string]string
		want    []string // expected names of the unpacked files
		message string   // expected part of the error's message
	}{
		{"files", map[string]string{"main.py": main, "data.json": "{}"}, []string{"data.json", "main.py"}, ""},
		{"a zip", map[string]string{"code.zip": zipOf(t, member{name: "main.py", content: main},
			member{name: "lib/__init__.py"}, member{name: "lib/"})}, []string{"lib/__init__.py", "main.py"}, ""},
		{"a tar", map[string]string{"code.tar": tarOf(t, member{name: "./main.py", content: main},
			member{name: "./.git/config", content: "x"}, member{name: "./__pycache__/main.pyc"})}, []string{"main.py"},
			""},
		{"a directory", map[string]string{"code.tar.gz": gzipped(t,
			tarOf(t, member{name: "right/", kind: tar.TypeDir}, member{name: "right/main.py", content: main},
				member{name: "right/a/b.py"}))}, []string{"a/b.py", "main.py"}, ""},
		{"both", map[string]string{"code.tgz": gzipped(t, tarOf(t, member{name: "lib.py"})), "main.py": main},
			[]string{"lib.py", "main.py"}, ""},
		{"twice", map[string]string{"code.zip": zipOf(t, member{name: "main.py", content: main}), "main.py": main}, nil,
			"main.py: occurs twice"},
		{"up", map[string]string{"code.tar": tarOf(t, member{name: "../main.py", content: main})}, nil,
			`code.tar: the name "../main.py" must be a path within the code`},
		{"up and down", map[string]string{"code.zip": zipOf(t, member{name: "main.py", content: main},
			member{name: "a/../../x.py"})}, nil, `the name "a/../../x.py" must be`},
		{"absolute", map[string]string{"code.zip": zipOf(t, member{name: "/tmp/x.py", content: main})}, nil,
			`the name "/tmp/x.py" must be`},
		{"backwards", map[string]string{"code.zip": zipOf(t, member{name: `..\x.py`, content: main})}, nil,
			"must be a path within the code"},
		{"a link", map[string]string{"code.tar": tarOf(t, member{"main.py", "/etc/passwd", tar.TypeSymlink})}, nil,
			`code.tar: "main.py" is a link or device`},
		{"a hard link", map[string]string{"code.tar": tarOf(t, member{"main.py", "/etc/passwd", tar.TypeLink})}, nil,
			"is a link or device"},
		{"a link in a zip", map[string]string{"code.zip": zipOf(t, member{"main.py", "/etc/passwd", tar.TypeSymlink})},
			nil, `code.zip: "main.py" is a link or device`},
		{"a device", map[string]string{"code.tar": tarOf(t, member{"main.py", "", tar.TypeChar})}, nil,
			"is a link or device"},
		{"a file that is a directory", map[string]string{"code.tar": tarOf(t, member{name: "main.py", content: main},
			member{name: "main.py/x.py"})}, nil,
			"main.py/x.py: the name of a directory in this path is also the name of a file"},
		{"a bomb", map[string]string{"code.zip": zipOf(t, member{name: "main.py", content: main},
			member{name: "zeros", content: strings.Repeat(zeros, 33)})}, nil,
			"the code has more than 500 files or 33554432 bytes"},
		{"a packed bomb", map[string]string{"code.tgz": gzipped(t,
			tarOf(t, member{name: "zeros", content: strings.Repeat(zeros, 33)}))}, nil, "the code has more than"},
		{"an endless tar", map[string]string{"code.tgz": gzipped(t, strings.Repeat(zeros, 70))}, nil,
			"is not a valid archive"},
		{"many files", map[string]string{"code.zip": zipOf(t, manyMembers(501)...)}, nil,
			"the code has more than 500 files"},
		{"no archive", map[string]string{"code.zip": "PK nothing"}, nil, "code.zip: is not a valid archive"},
		{"half an archive", map[string]string{"code.tar.gz": gzipped(t,
			tarOf(t, member{name: "main.py", content: main}))[:60]}, nil, "code.tar.gz: is not a valid archive"},
		{"nowhere to begin", map[string]string{"a.py": "", "b.py": ""}, nil, "entryPoint: is required as FILE.py::FUNCTION"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, looked := newHarness(t), &reader{}
			b.evaluator("e", domain.CreateEvaluator{})
			require.NoError(t, b.builder(looked).Build(t.Context(), b.uploadCode("e", 1, c.files)))
			state := b.evaluatorState("e")
			if c.message != "" {
				require.Equal(t, domain.EvaluatorFailed, state.State)
				require.Equal(t, "INVALID_ARGUMENT", state.Status.Code)
				require.Contains(t, state.Status.Message, c.message)
				require.Contains(t, b.read(state.BuildLog), "not built: ")
				return
			}
			require.Equal(t, domain.EvaluatorActive, state.State, state.Status.Message)
			require.Equal(t, c.want, slices.Sorted(maps.Keys(looked.files)))
			build, ok := state.BuildOf(1)
			require.True(t, ok)
			require.Equal(t, domain.Entry{File: "main.py", Func: "evaluate"}, build.Entry)
			require.Equal(t, c.want, slices.Sorted(maps.Keys(build.Files.Sizes)))
			require.Equal(t, main, b.read(build.Files.Prefix+"main.py"), "the stored code is the tested code")
			require.Len(t, build.Files.Sums["main.py"], 64)
		})
	}
}

func manyMembers(n int) (all []member) {
	for i := range n {
		all = append(all, member{name: "f" + strings.Repeat("x", i%200) + string(rune('a'+i%26)) +
			strings.Repeat("y", i/200) + ".py"})
	}
	return all
}

var inline = domain.EvaluatorCode{Criteria: []domain.Criterion{{CodeSnippets: &domain.CodeSnippets{
	FileContents: map[string]string{"main.py": "def evaluate(messages): return 1"}}}}}

// TestRevisionsAreBuilt checks which events build a revision, from which code, and with which
// secrets.
func TestRevisionsAreBuilt(t *testing.T) {
	b, looked := newHarness(t), &reader{}
	builder := b.builder(looked)
	_, err := eventlog.Do(t.Context(), b.log, b.world, eventlog.Request{Time: time.Now()},
		domain.Intend(domain.Secrets, domain.NewName("acme", "secrets", "judge"),
			domain.CreateSecret{KeyName: "TOKEN",
				Value: domain.Sealed{Ciphertext: []byte("x")}}))
	require.NoError(t, err)
	spec := domain.EvaluatorSpec{EvaluatorCode: inline, Secrets: []string{"accounts/acme/secrets/judge"}}
	created := b.evaluator("e", domain.CreateEvaluator{EvaluatorSpec: spec})
	require.NoError(t, builder.Build(t.Context(), created))
	state := b.evaluatorState("e")
	require.Equal(t, 1, state.Active, state.Status.Message)
	require.Equal(t, map[string]string{"TOKEN": "value of judge"}, looked.code.Env)
	require.Contains(t, b.read(state.BuildLog), "looked at it, with [redacted]\nbuilt\n")

	last := b.last()
	require.NoError(t, builder.Build(t.Context(), created), "a built revision is not built again")
	again := b.last()
	require.Equal(t, last.Position, again.Position)

	spec.Description = "Other words"
	require.NoError(t, builder.Build(t.Context(), b.evaluator("e", domain.UpdateEvaluator{EvaluatorSpec: spec})))
	require.Equal(t, 1, b.evaluatorState("e").Revision, "the code is the same")

	prepared := b.evaluator("e", domain.UpdateEvaluator{EvaluatorSpec: spec, PrepareCodeUpload: true})
	require.NoError(t, builder.Build(t.Context(), prepared))
	require.NoError(t, builder.Build(t.Context(), created), "an event of an old revision")
	require.Equal(t, domain.EvaluatorBuilding, b.evaluatorState("e").State, "its code is not uploaded yet")
	require.NoError(t, builder.Build(t.Context(), b.uploadCode("e", 2,
		map[string]string{"judge.py": "x", "requirements.txt": "numpy"})))
	require.Equal(t, domain.Entry{File: "judge.py", Func: "evaluate"}, b.evaluatorState("e").Built[1].Entry)
	require.Equal(t, "\nnumpy", looked.requirements)

	spec.Requirements, looked.err = "torch", domain.Errorf(domain.Unavailable,
		"evaluators cannot run on this machine: bubblewrap is not installed: %s", sandbox.Install)
	require.NoError(t, builder.Build(t.Context(), b.evaluator("e", domain.UpdateEvaluator{EvaluatorSpec: spec})))
	state = b.evaluatorState("e")
	require.Equal(t, domain.EvaluatorFailed, state.State)
	require.Contains(t, state.Status.Message, "apt-get install bubblewrap python3")
	require.Equal(t, 2, state.Active, "jobs continue with the active revision")

	spec.Requirements, spec.Secrets = "", []string{"accounts/acme/secrets/none"}
	require.NoError(t, builder.Build(t.Context(), b.evaluator("e", domain.UpdateEvaluator{EvaluatorSpec: spec})))
	require.Contains(t, b.evaluatorState("e").Status.Message,
		"secrets: secret accounts/acme/secrets/none does not exist in account acme")

	require.NoError(t, builder.Build(t.Context(), b.evaluator("later", domain.CreateEvaluator{})))
	require.Equal(t, domain.EvaluatorBuilding, b.evaluatorState("later").State)
}

// TestFailedTrialIsInStatus checks that an evaluator whose trial call fails is ACTIVE with a status
// that says so, without the values of secrets, until a build whose trial call succeeds.
func TestFailedTrialIsInStatus(t *testing.T) {
	b, looked := newHarness(t), &reader{trial: "ValueError: no luck with value of judge"}
	_, err := eventlog.Do(t.Context(), b.log, b.world, eventlog.Request{Time: time.Now()},
		domain.Intend(domain.Secrets, domain.NewName("acme", "secrets", "judge"),
			domain.CreateSecret{KeyName: "TOKEN",
				Value: domain.Sealed{Ciphertext: []byte("x")}}))
	require.NoError(t, err)
	spec := domain.EvaluatorSpec{EvaluatorCode: inline, Secrets: []string{"accounts/acme/secrets/judge"}}
	builder := b.builder(looked)
	require.NoError(t, builder.Build(t.Context(), b.evaluator("e", domain.CreateEvaluator{EvaluatorSpec: spec})))
	state := b.evaluatorState("e")
	require.Equal(t, domain.EvaluatorActive, state.State)
	require.Equal(t, "FAILED_PRECONDITION", state.Status.Code)
	require.Contains(t, state.Status.Message,
		"the trial call with an example row returned no valid score (ValueError: no luck with [redacted]): preview the")
	spec.EntryPoint, looked.trial = "main.py::evaluate", ""
	require.NoError(t, builder.Build(t.Context(), b.evaluator("e", domain.UpdateEvaluator{EvaluatorSpec: spec})))
	require.Equal(t, domain.StatusOf(nil), b.evaluatorState("e").Status)
}

// TestCodeIsBuiltInTheSandbox checks that the build of a revision runs on the router of an embedded
// server and in a sandbox.
func TestCodeIsBuiltInTheSandbox(t *testing.T) {
	s := sandbox.New(sandbox.Options{})
	if err := s.Check(t.Context()); err != nil {
		t.Skip(err)
	}
	b := routedHarness(t, func(b *harness, r *pubsub.Router) error { return b.builder(s).Handle(r) })
	built := func(id string) domain.Evaluator {
		for {
			view := b.world.View()
			if row, ok := view.Evaluators.Get(evaluatorName(id)); ok && row.State.State != domain.EvaluatorBuilding {
				return row.State
			}
			select {
			case <-b.world.Changed(view.Position):
			case <-t.Context().Done():
				t.Fatal("not built")
			}
		}
	}
	b.evaluator("good", domain.CreateEvaluator{EvaluatorSpec: domain.EvaluatorSpec{EvaluatorCode: inline}})
	b.evaluator("bad", domain.CreateEvaluator{EvaluatorSpec: domain.EvaluatorSpec{EvaluatorCode: domain.EvaluatorCode{
		Criteria: inline.Criteria, Requirements: "nothing-like-it"}}})
	require.Equal(t, domain.EvaluatorActive, built("good").State, built("good").Status.Message)
	require.Contains(t, b.read(built("good").BuildLog), "called the function with an example row: score 1")
	require.Equal(t, domain.EvaluatorFailed, built("bad").State)
	require.Contains(t, built("bad").Status.Message, "requirements: not installed: nothing-like-it")
}
