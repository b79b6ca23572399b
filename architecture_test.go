package anneal_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// mayImport lists, for each package, the packages of this module that it may
// import besides those below it. A key that ends in /... covers all packages
// below it too; the longest matching key counts.
var mayImport = map[string][]string{
	"domain":             {},
	"disk":               {"domain"},
	"tracing":            {"domain"},
	"domain/rows":        {"domain"},
	"domain/weights":     {"domain"},
	"examples":           {},
	"eventlog":           {"domain", "disk", "eventlog/integrity", "tracing"},
	"eventlog/archive":   {"domain", "disk", "eventlog"},
	"eventlog/audit":     {"domain", "disk", "eventlog"},
	"eventlog/integrity": {"domain", "disk"},
	"eventlog/keyfile":   {},
	"eventlog/kv":        {"domain", "disk", "eventlog", "eventlog/keyfile"},
	"eventlog/secrets": {"domain", "disk", "eventlog", "eventlog/keyfile", "eventlog/kv",
		"eventlog/transparency"},
	"eventlog/transparency": {"domain", "disk", "eventlog/integrity"},
	"eventlog/witness":      {"disk", "eventlog/transparency"},
	"eventlog/idempotency":  {"domain", "disk", "eventlog", "eventlog/keyfile", "eventlog/kv"},
	"eventlog/metering":     {"domain", "disk", "eventlog"},
	"eventlog/schemas":      {},
	"eventlog/installation": {"domain", "eventlog", "eventlog/kv"},
	"eventlog/natsconn":     {},
	"eventlog/streamcopy":   {"eventlog", "eventlog/integrity"},
	"eventlog/pubsub":       {"domain", "eventlog"},
	"eventlog/natsserver": {"domain", "disk", "eventlog", "eventlog/audit", "eventlog/idempotency", "eventlog/integrity",
		"eventlog/metering", "eventlog/natsconn", "eventlog/pubsub", "eventlog/secrets"},
	"eventlog/logtest":    {"domain", "eventlog"},
	"eventlog/servertest": {"eventlog", "eventlog/natsserver"},
	"projections": {"domain", "eventlog", "eventlog/archive", "disk", "projections/live",
		"projections/waits", "tracing"},
	"projections/live":      {"domain"},
	"projections/waits":     {"domain"},
	"projections/query":     {"domain", "projections"},
	"projections/toytest":   {"domain", "eventlog"},
	"blobs":                 {"domain", "disk"},
	"blobs/outbound":        {},
	"blobs/delivery":        {"domain", "blobs"},
	"blobs/external":        {"domain", "blobs/outbound"},
	"blobs/operations":      {"domain", "blobs"},
	"blobs/external/s3test": {},
	"blobs/reconcile":       {"domain", "eventlog", "eventlog/secrets", "projections", "blobs", "projections/live"},
	"blobs/reconcile/faults": {"domain", "eventlog", "eventlog/secrets", "projections", "blobs", "blobs/reconcile",
		"projections/live"},
	"engines":               {"domain", "tracing"},
	"engines/embedded/...":  {"domain", "disk", "domain/rows", "domain/weights", "engines"},
	"engines/sandbox":       {"domain", "engines", "engines/process"},
	"engines/simulated/...": {"domain", "domain/rows", "engines"},
	"engines/process":       {"domain"},
	"engines/external":      {"domain", "engines", "engines/process", "engines/sandbox", "engines/sound"},
	"engines/sound":         {"domain", "engines", "engines/process", "engines/sandbox"},
	"engines/sphinx":        {"domain", "engines", "engines/process", "engines/sandbox", "engines/sound"},
	"engines/torch":         {"domain", "engines", "engines/process", "engines/sandbox"},
	"engines/enginetest":    {"domain", "engines"},
	"schedulers/...":        {"domain", "eventlog", "projections", "projections/live", "tracing"},
	"schedulers/replay":     {"domain", "eventlog", "projections", "schedulers"},
	"workers/protocol":      {"domain", "engines"},
	"workers/coordinator": {"domain", "domain/weights", "eventlog", "eventlog/natsserver", "eventlog/secrets",
		"projections", "blobs", "blobs/operations", "engines", "workers/protocol", "projections/live", "tracing"},
	"workers/tasks": {"projections", "domain", "disk", "domain/rows", "domain/weights", "eventlog", "eventlog/pubsub",
		"eventlog/secrets", "blobs", "blobs/outbound", "blobs/external", "engines", "projections/live"},
	"workers/tracking": {"domain", "eventlog", "eventlog/secrets", "projections", "projections/live", "blobs",
		"blobs/outbound"},
	"workers/tracking/trackertest": {},
	"workers/sessions":             {"domain", "projections"},
	"workers/batches":              {"domain", "eventlog", "projections", "blobs", "workers/sessions"},
	"workers/rollups":              {"domain", "eventlog", "eventlog/metering", "projections"},
	"workers/subscriptions": {"domain", "eventlog", "eventlog/secrets", "projections", "blobs", "blobs/delivery",
		"blobs/external", "blobs/outbound", "workers/sessions"},
	"workers/agent/...": {"domain", "disk", "domain/weights", "engines", "eventlog/natsconn",
		"workers/protocol", "tracing"},
	"tinker":                   {"domain", "engines"},
	"tinker/client":            {"tinker"},
	"examples/arithmetic-loop": {"tinker", "tinker/client"},
	"api/described":            {},
	"api/wire":                 {"domain"},
	"api/request": {"domain", "disk", "engines", "eventlog", "eventlog/idempotency", "eventlog/secrets", "projections",
		"projections/query", "api/wire"},
	"api/connection":        {"domain", "api/request", "api/wire"},
	"api/console":           {"api/request"},
	"api/inert":             {"api/wire"},
	"api/download":          {"domain", "blobs/outbound", "api/connection"},
	"api/oidc":              {"domain", "api/request"},
	"api/openapi":           {"domain", "api/inert", "api/request", "api/wire", "api/connection"},
	"api/upload":            {"domain", "eventlog", "blobs", "projections", "api/request", "api/wire", "api/connection"},
	"api/routing/balance":   {},
	"api/routing/admission": {},
	"api/routing/twin":      {"api/routing/balance", "api/routing/admission"},
	"api/routing": {"domain", "engines", "eventlog/metering", "projections", "projections/live", "api/request",
		"api/wire", "api/routing/balance", "tracing"},
	"api/events": {"domain", "eventlog", "eventlog/audit", "eventlog/schemas", "eventlog/secrets",
		"eventlog/transparency", "projections",
		"projections/query", "api/request", "api/wire", "api/openapi"},
	"api/inference": {"domain", "blobs", "engines", "eventlog/metering", "projections", "api/download", "api/inert",
		"api/request", "api/wire", "api/openapi", "api/routing", "api/upload"},
	"api/tinker": {"domain", "blobs", "blobs/operations", "engines", "projections", "api/request", "tinker"},
	"api/audio": {"domain", "blobs", "api/download", "engines", "eventlog/metering", "api/inert", "api/request",
		"api/wire", "api/openapi",
		"api/routing", "api/upload", "api/connection"},
	"api/rest": {"domain", "domain/rows", "domain/weights", "blobs", "engines", "eventlog", "eventlog/natsserver",
		"eventlog/secrets", "projections", "projections/live", "projections/query", "api/inert", "api/request",
		"api/wire", "api/openapi", "api/routing", "api/upload", "api/events", "blobs/delivery"},
	"api": {"domain", "disk", "eventlog", "eventlog/audit", "eventlog/idempotency", "eventlog/natsserver",
		"projections", "blobs", "blobs/operations", "engines", "tracing"},
	"internal/usage":       {},
	"internal/telemetry":   {"internal/usage"},
	"internal/install":     {},
	"internal/settings":    {"domain", "internal/usage"},
	"internal/hub":         {},
	"internal/hub/hubtest": {},
	"internal/testutil":    {},
	"internal/certs":       {"internal/usage"},
	"internal/datadir": {"domain", "disk", "eventlog/installation", "eventlog/secrets", "eventlog/kv", "blobs/reconcile",
		"workers/coordinator", "internal/certs"},
	"internal/backup": {"domain", "disk", "eventlog", "eventlog/archive", "eventlog/idempotency",
		"eventlog/installation", "eventlog/integrity", "eventlog/kv",
		"eventlog/metering", "eventlog/natsserver", "eventlog/secrets", "eventlog/streamcopy",
		"eventlog/transparency", "blobs", "blobs/reconcile", "projections", "internal/datadir"},
	"internal/metrics": {"domain", "disk", "eventlog", "projections", "projections/live"},
	"internal/node": {"domain", "disk", "eventlog/natsconn", "eventlog/natsserver", "engines", "engines/embedded",
		"engines/embedded/gguf", "engines/external",
		"engines/sandbox", "engines/sound", "engines/sphinx", "engines/torch", "workers/agent",
		"internal/certs", "internal/datadir", "internal/metrics", "internal/usage"},
}

// wiring lists the packages that may import every other package of this module.
var wiring = []string{"internal/server", "internal/cli"}

// onlyIn maps the import path prefix of a third-party module to the packages that may import the
// module. Test files may import any module.
var onlyIn = map[string][]string{
	"github.com/nats-io/": {"eventlog", "eventlog/audit", "eventlog/idempotency", "eventlog/integrity",
		"eventlog/kv", "eventlog/metering",
		"eventlog/natsconn", "eventlog/installation",
		"eventlog/natsserver", "eventlog/pubsub", "eventlog/secrets", "eventlog/servertest", "eventlog/streamcopy",
		"internal/backup",
		"workers/coordinator", "workers/agent", "internal/datadir", "internal/node",
		"internal/server", "internal/cli"},
	"github.com/ThreeDotsLabs/watermill": {"eventlog/pubsub"},
	"github.com/transparency-dev/":       {"eventlog/transparency", "eventlog/witness"},
	"github.com/stretchr/testify": {"engines/enginetest", "eventlog/logtest", "eventlog/servertest",
		"internal/hub/hubtest", "internal/testutil", "projections/toytest"},
	"gocloud.dev/":                   {"blobs", "blobs/external"},
	"github.com/aws/aws-sdk-go-v2":   {"blobs/external"},
	"github.com/spf13/cobra":         {"internal/cli"},
	"github.com/go-chi/chi":          {"api", "api/request"},
	"golang.org/x/net/bpf":           {"engines/sandbox"},
	"filippo.io/age":                 {"internal/backup"},
	"github.com/parquet-go/":         {"workers/subscriptions"},
	"go.einride.tech/aip":            {"projections/query"},
	"github.com/go-json-experiment/": {"domain/rows", "projections"},
	"github.com/getkin/kin-openapi":  {"api/described"},
	"github.com/coreos/go-oidc":      {"api/oidc"},
	"github.com/go-jose/go-jose":     {"api/oidc"},
	"golang.org/x/oauth2":            {"api/oidc", "internal/cli"},
	"go.opentelemetry.io/":           {"tracing", "internal/telemetry"},
	"google.golang.org/protobuf/":    {"tinker"},
}

// forTests lists the packages that only tests may import.
var forTests = []string{"anneal/blobs/reconcile/faults", "anneal/api/described", "anneal/eventlog/logtest",
	"anneal/eventlog/servertest", "anneal/projections/toytest", "anneal/blobs/external/s3test",
	"anneal/workers/tracking/trackertest", "anneal/internal/testutil"}

// impure lists the packages that a pure package (see isPure) may not import.
var impure = []string{
	"os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "syscall", "os/exec", "log", "log/slog",
	"database/sql",
}

// clockFunctions lists the functions of the package time that a pure package (see isPure) may not
// call.
var clockFunctions = []string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker"}

const (
	maxFileLines     = 500
	maxFunctionLines = 80
)

type pkg struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	require.NoError(t, err)
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p pkg
		require.NoError(t, dec.Decode(&p))
		all = append(all, p)
	}
	require.NotEmpty(t, all)
	return all
}

// relative returns an import path without the prefix of this module.
func relative(importPath string) string { return strings.TrimPrefix(importPath, "anneal/") }

// allowedImports returns the imports that mayImport allows in a package. found is false when no key
// of mayImport covers the package.
func allowedImports(importer string) (list []string, found bool) {
	best := -1
	for pattern, imports := range mayImport {
		base, tree := strings.CutSuffix(pattern, "/...")
		if (importer == base || tree && strings.HasPrefix(importer, base+"/")) && len(base) > best {
			best, list, found = len(base), imports, true
		}
	}
	return list, found
}

// top returns the first two directories of a path.
func top(name string) string {
	parts := strings.Split(name, "/")
	return strings.Join(parts[:min(2, len(parts))], "/")
}

func TestImportRules(t *testing.T) {
	for _, p := range packages(t) {
		from := relative(p.ImportPath)
		list, found := allowedImports(from)
		if !found {
			require.True(t, from == "anneal" || strings.HasPrefix(from, "cmd/") || slices.Contains(wiring, from),
				"%s has no place in the plan", from)
			continue
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, "anneal/")
			if !ours || slices.Contains(list, to) || strings.HasPrefix(to, from+"/") {
				continue
			}
			if top(to) == top(from) && strings.Contains(from, "/") {
				continue // both packages are below the same package
			}
			t.Errorf("%s may not import %s", from, to)
		}
	}
}

func TestTestPackagesAreImportedByTestsOnly(t *testing.T) {
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			if slices.Contains(forTests, imported) {
				t.Errorf("%s may import %s in its tests only", relative(p.ImportPath), imported)
			}
		}
	}
}

func TestThirdPartyImports(t *testing.T) {
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			for prefix, importers := range onlyIn {
				if strings.HasPrefix(imported, prefix) && !slices.Contains(importers, relative(p.ImportPath)) {
					t.Errorf("%s may not import %s", relative(p.ImportPath), imported)
				}
			}
		}
	}
}

// eachFile calls visit with each Go file of the module that is not generated.
func eachFile(t *testing.T, visit func(path string, file *ast.File, set *token.FileSet)) {
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err == nil && !ast.IsGenerated(file) {
			visit(path, file, set)
		}
		return err
	}))
}

// TestDecisionsIgnoreTheControlPlane checks that only the log, lists of events and the wiring of the
// server use the control plane in the envelope of events, so that the same log gives the same
// decisions, whichever control planes wrote it.
func TestDecisionsIgnoreTheControlPlane(t *testing.T) {
	uses := 0
	eachFile(t, func(path string, file *ast.File, _ *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		may := strings.HasPrefix(path, "eventlog/") || strings.HasPrefix(path, "api/events/")
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name == "ControlPlane" {
				uses++
				require.True(t, may, "%s uses the control plane of an event", path)
			}
			return true
		})
	})
	require.Positive(t, uses)
}

func TestDomainAndSchedulersArePure(t *testing.T) {
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") || !isPure(path) {
			return
		}
		for _, spec := range file.Imports {
			name := strings.Trim(spec.Path.Value, `"`)
			if name == "log/slog" && path == "domain/secret_value.go" {
				continue // imported for the result type of LogValue: the file does not log
			}
			if slices.Contains(impure, name) {
				t.Errorf("%s imports %s, but its package is pure", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockFunctions, s.Sel.Name) {
				t.Errorf("%s: calls time.%s; take the time as a parameter", set.Position(s.Pos()), s.Sel.Name)
			}
			return true
		})
	})
}

// isPure reports whether a file belongs to the pure core: domain, and schedulers without run.go,
// the loop that applies plans. Pure code has no effects and reads no clock.
func isPure(path string) bool {
	return strings.HasPrefix(path, "domain/") || strings.HasPrefix(path, "schedulers/") && path != "schedulers/run.go"
}

// TestSleepsAreVirtual checks that only test files that import testing/synctest call time.Sleep: a
// test that sleeps in real time is slow, and fails on a slow machine.
func TestSleepsAreVirtual(t *testing.T) {
	sleeps := 0
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		virtual := slices.ContainsFunc(file.Imports,
			func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && call.Sel.Name == "Sleep" && isPackage(call.X, "time") {
				sleeps++
				if !virtual {
					t.Errorf("%s: time.Sleep outside of testing/synctest: wait for a position or a signal", set.Position(n.Pos()))
				}
			}
			return true
		})
	})
	require.NotZero(t, sleeps)
}

// inProcess lists the files that connect to the NATS server of their own process.
var inProcess = []string{"eventlog/natsserver/account_readers.go", "eventlog/natsserver/connect.go"}

// TestNetworkConnectionsNoticeHungServers checks that connections to NATS over a network are made by
// package natsconn: with the defaults of nats.go a client waits for minutes when its server hangs.
func TestNetworkConnectionsNoticeHungServers(t *testing.T) {
	connects := 0
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Connect" && isPackage(s.X, "nats") {
				connects++
				if !strings.HasPrefix(path, "eventlog/natsconn/") && !slices.Contains(inProcess, path) {
					t.Errorf("%s: nats.Connect: use natsconn.Connect", set.Position(n.Pos()))
				}
			}
			return true
		})
	})
	require.NotZero(t, connects)
}

func isPackage(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

func TestFilesAndFunctionsAreShort(t *testing.T) {
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if n := set.File(file.Pos()).LineCount(); n > maxFileLines {
			t.Errorf("%s has %d lines, more than %d", path, n, maxFileLines)
		}
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			start := set.Position(f.Pos())
			if lines := set.Position(f.End()).Line - start.Line + 1; lines > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, more than %d", start, f.Name.Name, lines, maxFunctionLines)
			}
		}
	})
}

// TestEveryKindIsListedAndHasItsAPI checks that each variable of package domain that is made by
// NewKind or newJobKind is in domain.Kinds and has a file in api/rest.
func TestEveryKindIsListedAndHasItsAPI(t *testing.T) {
	list := testutil.ReadFile(t, "domain/kinds.go")
	kinds := 0
	eachFile(t, func(path string, file *ast.File, _ *token.FileSet) {
		if filepath.Dir(path) != "domain" || strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, decl := range file.Decls {
			for variable, collection := range kindsOf(decl) {
				if collection == "jobs" || collection == "deletions" {
					continue // tables that several kinds share, not kinds of resources
				}
				kinds++
				require.Contains(t, string(list), "\t"+variable+",\n", "domain.Kinds lacks %s", variable)
				byCollection := "api/rest/" + snake(collection) + ".go"
				byVariable := "api/rest/" + snake(strings.ToLower(variable[:1])+variable[1:]) + ".go"
				_, err := os.Stat(byCollection)
				if _, other := os.Stat(byVariable); err != nil && other != nil {
					t.Errorf("the kind %s has neither %s nor %s", variable, byCollection, byVariable)
				}
			}
		}
	})
	require.GreaterOrEqual(t, kinds, 8)
}

// kindsOf returns the variables that a declaration sets by NewKind or newJobKind, with the
// collection of each kind.
func kindsOf(decl ast.Decl) map[string]string {
	kinds := map[string]string{}
	general, ok := decl.(*ast.GenDecl)
	if !ok || general.Tok != token.VAR {
		return kinds
	}
	for _, spec := range general.Specs {
		value := spec.(*ast.ValueSpec)
		for i, v := range value.Values {
			ast.Inspect(v, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				if f, ok := call.Fun.(*ast.Ident); ok && (f.Name == "NewKind" || f.Name == "newJobKind") {
					kinds[value.Names[i].Name] = strings.Trim(call.Args[0].(*ast.BasicLit).Value, `"`)
				}
				return true
			})
		}
	}
	return kinds
}

func snake(camel string) string {
	var b strings.Builder
	for _, r := range camel {
		if r >= 'A' && r <= 'Z' {
			fmt.Fprintf(&b, "_%c", r+'a'-'A')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
