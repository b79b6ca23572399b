package api

import (
	"context"
	"go/ast"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
	"anneal/projections"
)

// A pausedWorld is the log of a server to which events arrive late: the server's world has stopped
// following the log, and follows it again when a request reads the end of the log with Last.
type pausedWorld struct {
	*eventlog.Memory
	resume func()
}

func (l pausedWorld) Last(ctx context.Context) (eventlog.Checkpoint, error) {
	l.resume()
	return l.Memory.Last(ctx)
}

// late returns a server that receives later events late: see pausedWorld.
func (s *harness) late() *harness {
	ctx, stop := context.WithCancel(context.Background())
	world := projections.NewWorld()
	follow := func() (stopFollowing func()) {
		following, end := context.WithCancel(ctx)
		var all sync.WaitGroup
		all.Go(func() { _ = world.Run(following, s.log) })
		return func() {
			end()
			all.Wait()
		}
	}
	pause := follow()
	require.NoError(s, world.WaitFor(s.Context(), s.events()))
	pause()
	var end func()
	var once sync.Once
	other := s.another(func(o *Options) {
		o.World, o.Log = world, pausedWorld{s.log, func() { once.Do(func() { end = follow() }) }}
	})
	s.Cleanup(func() {
		stop()
		if end != nil {
			end()
		}
	})
	return other
}

// A fileReader is a request that reads files of a resource.
type fileReader struct {
	prepare  func(*harness)
	path     string
	body     string // "" for a GET
	resource domain.Name
	files    func(*harness) domain.Files // the files that the request reads
	remove   func(*harness)
}

// fileReaders are the requests that read files of a resource.
var fileReaders = map[string]fileReader{
	"previewDataset": {prepare: chatsMade, path: acme + "/datasets/chats:preview", resource: chats, files: chatFiles,
		remove: chatsDeleted},
	"previewEvaluator of a defaultDataset": {prepare: chatsMade, path: previewPath,
		body:     `{"evaluator": {` + someCode + `, "defaultDataset": "` + string(chats) + `"}}`,
		resource: chats, files: chatFiles, remove: chatsDeleted},
	"previewEvaluator of a build": {prepare: codeBuilt, path: previewPath,
		body:     `{"evaluator": {"name": "accounts/acme/evaluators/e"}, "sampleData": [` + lima + `]}`,
		resource: "accounts/acme/evaluators/e",
		files: func(s *harness) domain.Files {
			build, _ := evaluatorRow(s, "accounts/acme/evaluators/e").State.BuildOf(1)
			return build.Files
		},
		remove: func(s *harness) { s.ok("DELETE", acme+"/evaluators/e", "") }},
}

const chats = domain.Name("accounts/acme/datasets/chats")

func chatsMade(s *harness) {
	s.ok("POST", acme+"/datasets", `{"datasetId": "chats"}`)
	a := s.upload(acme+"/datasets/chats:upload", "user", "file", "rows.jsonl", strings.NewReader(strings.Repeat(
		`{"messages": [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "Lima"}]}`+"\n", 3)))
	require.Equal(s, 200, a.status, "%s", a.body)
}

func chatFiles(s *harness) domain.Files {
	row, ok := s.world.View().Datasets.Get(chats)
	require.True(s, ok)
	return row.State.Files
}

func chatsDeleted(s *harness) { s.ok("DELETE", acme+"/datasets/chats", "") }

func codeBuilt(s *harness) {
	s.ok("POST", acme+"/evaluators", `{"evaluatorId": "e"}`)
	size := s.putFile("evaluators/acme/e/builds/1/main.py", "# fine")
	s.do(domain.Intend(domain.Evaluators, "accounts/acme/evaluators/e",
		domain.AcceptBuild{Revision: 1, Entry: domain.Entry{File: "main.py", Func: "f"},
			Files: domain.Files{Prefix: "evaluators/acme/e/builds/1/", Sizes: map[string]int64{"main.py": size}}}))
}

func (r fileReader) send(s *harness) response {
	s.Helper()
	if r.body == "" {
		return s.call("GET", r.path, "user", "")
	}
	return s.call("POST", r.path, "user", r.body)
}

// TestFilesThatAreDeletedDuringARequest checks that a request whose resource is deleted before it
// reads the files fails with NOT_FOUND, that a request fails with DATA_LOSS when the file store has
// lost a file, and that no error names a file of the store.
func TestFilesThatAreDeletedDuringARequest(t *testing.T) {
	for name, r := range fileReaders {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			r.prepare(s)
			require.Equal(t, 200, r.send(s).status)
			late, files := s.late(), r.files(s)
			require.NotEmpty(t, files.Prefix)
			require.NoError(t, s.store.DeletePrefix(t.Context(), files.Prefix))
			a := r.send(s)
			require.Equal(t, http.StatusInternalServerError, a.status, "%s", a.body)
			require.Equal(t, "FILE_MISSING", reasonOf(t, a))
			require.Contains(t, a.json(t)["message"], string(r.resource)+": a file is missing in the file store")
			require.NotContains(t, string(a.body), files.Prefix)
			r.remove(s)
			a = r.send(late)
			require.Equal(t, http.StatusNotFound, a.status, "%s", a.body)
			require.Contains(t, a.json(t)["message"], string(r.resource))
			require.NotContains(t, string(a.body), files.Prefix)
		})
	}
}

// TestUploadedFilesThatAreDeletedDuringValidation checks that the validation of an upload fails with
// ABORTED when another request has validated the same files, and with NOT_FOUND when the dataset is
// deleted, before it copies them.
func TestUploadedFilesThatAreDeletedDuringValidation(t *testing.T) {
	const one = acme + "/datasets/d"
	for _, race := range []struct {
		name    string
		do      func(*harness)
		status  int
		message string
	}{
		{"validated", func(s *harness) { s.ok("POST", one+":validateUpload", "") }, http.StatusConflict,
			"accounts/acme/datasets/d was changed or deleted during the request: try again"},
		{"deleted", func(s *harness) { s.ok("DELETE", one, "") }, http.StatusNotFound,
			"there is no dataset named accounts/acme/datasets/d"},
	} {
		t.Run(race.name, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			datasetMade(s)
			puts(s, one, map[string]string{"a.jsonl": rowsOfThree})
			other := s.another(func(*Options) {})
			interrupt := func(change string) {
				if change == "copy" {
					s.before.Store(nil)
					race.do(other)
					require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
					s.reconcile()
				}
			}
			s.before.Store(&interrupt)
			a := s.call("POST", one+":validateUpload", "user", "")
			require.Equal(t, race.status, a.status, "%s", a.body)
			require.Contains(t, a.json(t)["message"], race.message)
			require.NotContains(t, string(a.body), "arrivals/")
			s.agrees()
		})
	}
}

// TestRefusedPreviewReadsNoFile checks that a preview beyond the limit of concurrent previews is
// refused before it reads rows.
func TestRefusedPreviewReadsNoFile(t *testing.T) {
	s := newHarness(t, request.Limits{})
	r := fileReaders["previewEvaluator of a defaultDataset"]
	r.prepare(s)
	require.NoError(t, s.store.DeletePrefix(t.Context(), r.files(s).Prefix), "a read would fail")
	for range rest.MaxPreviews {
		leave, ok := s.server.core.Busy.Enter("previews acme", rest.MaxPreviews)
		require.True(t, ok)
		defer leave()
	}
	a := r.send(s)
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
}

// A source is the non-test code of the package api and the packages below it, by the directory of
// the package.
type source map[string][]*ast.FuncDecl

func parseSource(t *testing.T) source {
	all := source{}
	testutil.InspectFiles(t, func(path string, f *ast.FuncDecl) {
		if f.Body != nil {
			all[filepath.Dir(path)] = append(all[filepath.Dir(path)], f)
		}
	}, "*.go", "*/*.go")
	return all
}

// callsIn returns the calls in a piece of code, in the order of the source. owner is the selector
// before the name of the called function, such as Blobs in c.Uploads.Blobs.Get, or "".
func callsIn(code ast.Node) (calls []calledFunc) {
	testutil.Inspect(code, func(call *ast.CallExpr) {
		switch f := call.Fun.(type) {
		case *ast.Ident:
			calls = append(calls, calledFunc{name: f.Name, call: call})
		case *ast.SelectorExpr:
			owner := ""
			if of, ok := f.X.(*ast.SelectorExpr); ok {
				owner = of.Sel.Name
			}
			calls = append(calls, calledFunc{owner, f.Sel.Name, call})
		}
	})
	slices.SortFunc(calls, func(a, b calledFunc) int { return int(a.call.Pos() - b.call.Pos()) })
	return calls
}

type calledFunc struct {
	owner, name string
	call        *ast.CallExpr
}

func (c calledFunc) isBlobs(methods ...string) bool {
	return c.owner == "Blobs" && slices.Contains(methods, c.name)
}

// openers returns the names of the functions of a package that open, store or copy files of the blob
// store, directly or through functions of the same package or of api/upload.
func (s source) openers(directory string) map[string]bool {
	found := map[string]bool{"File": true, "Form": true, "Take": true} // methods of upload.Intake
	for size := 0; size != len(found); {
		size = len(found)
		for _, f := range s[directory] {
			for _, call := range callsIn(f.Body) {
				if call.isBlobs("Get", "Range", "Put", "Copy") || found[call.name] {
					found[f.Name.Name] = true
				}
			}
		}
	}
	return found
}

// TestFilesAreReadAfterAdmission checks for every handler with a limit of concurrent requests that it
// counts the request before it opens, stores or copies a file, so that a refused request does no
// such work and a flood of requests holds no more files and memory than the limit allows.
func TestFilesAreReadAfterAdmission(t *testing.T) {
	code, handlers := parseSource(t), map[string]bool{}
	for directory, functions := range code {
		opens := code.openers(directory)
		for _, f := range functions {
			var before []string
			for _, call := range callsIn(f.Body) {
				if call.owner == "Busy" && call.name == "Enter" {
					require.Empty(t, before, "%s/%s touches files before Busy.Enter", directory, f.Name.Name)
					handlers[f.Name.Name] = true
				}
				if opens[call.name] || call.isBlobs("Get", "Range", "Put", "Copy") {
					before = append(before, call.name)
				}
			}
		}
	}
	require.Subset(t, handlers, map[string]bool{"previewEvaluator": true, "transcribe": true})
	require.Subset(t, code.openers("rest"), map[string]bool{"firstRows": true, "fetchCode": true, "promoted": true})
}

// TestResourcesStoreFilesThroughCountedIntakes checks that package rest stores and copies files only
// through intakes that count against the quota storage-bytes, and that every function with an intake
// releases its reservation on every path and records the event with Commit.
func TestResourcesStoreFilesThroughCountedIntakes(t *testing.T) {
	intakes := 0
	for _, f := range parseSource(t)["rest"] {
		calls := callsIn(f.Body)
		has := func(name string) bool {
			return slices.ContainsFunc(calls, func(c calledFunc) bool { return c.name == name })
		}
		counted := map[ast.Expr]bool{}
		for _, call := range calls {
			require.False(t, call.isBlobs("Put", "Copy", "Delete", "DeletePrefix"), "%s calls Blobs.%s: use an upload.Intake",
				f.Name.Name, call.name)
			if selected, ok := call.call.Fun.(*ast.SelectorExpr); ok && call.name == "Counting" {
				counted[selected.X] = true
			}
		}
		for _, call := range calls {
			if call.name != "NewIntake" {
				continue
			}
			intakes++
			require.True(t, counted[call.call], "%s stores files that do not count: call Counting", f.Name.Name)
			require.True(t, defersRelease(f.Body), "%s does not defer Release", f.Name.Name)
			require.True(t, has("Commit") || has("record"), "%s does not record its files with Commit", f.Name.Name)
		}
	}
	require.GreaterOrEqual(t, intakes, 3)
}

func defersRelease(body *ast.BlockStmt) (found bool) {
	for _, statement := range body.List {
		if deferred, ok := statement.(*ast.DeferStmt); ok {
			selected, ok := deferred.Call.Fun.(*ast.SelectorExpr)
			found = found || ok && selected.Sel.Name == "Release"
		}
	}
	return found
}
