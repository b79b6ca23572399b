package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sandbox"
	"anneal/internal/testutil"
)

// newSandbox returns a sandbox, and skips the test if the machine does not support one.
func newSandbox(t *testing.T, o sandbox.Options) *sandbox.Sandbox {
	t.Helper()
	s := sandbox.New(o)
	if err := s.Check(t.Context()); err != nil {
		t.Skip(err)
	}
	return s
}

// writeFiles writes files, given as pairs of name and content, to a new directory.
func writeFiles(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(files[i+1]), 0o600))
	}
	return dir
}

func codeOf(t *testing.T, files ...string) engines.EvaluatorCode {
	return engines.EvaluatorCode{Dir: writeFiles(t, files...), EntryFile: "main.py", EntryFunc: "evaluate"}
}

func open(t *testing.T, s *sandbox.Sandbox, code engines.EvaluatorCode) engines.Evaluation {
	t.Helper()
	e, err := s.Open(t.Context(), code)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

type row = map[string]any

// rowOf returns a dataset row that ends with a response of the assistant.
func rowOf(answer string) row {
	return row{"messages": []any{row{"role": "user", "content": "?"}, row{"role": "assistant", "content": answer}},
		"ground_truth": "yes"}
}

func score(t *testing.T, e engines.Evaluation, rows ...row) []engines.Score {
	t.Helper()
	scores, err := e.Score(t.Context(), rows)
	require.NoError(t, err)
	require.Len(t, scores, len(rows))
	return scores
}

func TestScore(t *testing.T) {
	s := newSandbox(t, sandbox.Options{})
	for _, c := range []struct {
		name, code string
		want       engines.Score
	}{
		{"a number", "def evaluate(messages): return 0.5", engines.Score{Value: 0.5, Valid: true}},
		{"a boolean", "def evaluate(messages, ground_truth=None): return messages[-1]['content'] == ground_truth",
			engines.Score{Value: 1, Valid: true}},
		{"an object", "def evaluate(messages, **kwargs): return {'score': 1, 'reason': 'right', 'metrics': {'length': 3, " +
			"'style': {'score': 0.5}, 'word': 'no'}}",
			engines.Score{Value: 1, Valid: true, Reason: "right", Metrics: map[string]float64{"length": 3, "style": 0.5}}},
		{"all fields", "def evaluate(**row): return len(row) / 2", engines.Score{Value: 1, Valid: true}},
		{"a coroutine", "async def evaluate(messages): return 0.25", engines.Score{Value: 0.25, Valid: true}},
		{"output", "import sys\ndef evaluate(messages):\n  print('ä')\n  print('b', file=sys.stderr)\n  return 1",
			engines.Score{Value: 1, Valid: true, Stdout: "ä\n", Stderr: "b\n"}},
		{"an imported module", "import helper\ndef evaluate(messages): return helper.half",
			engines.Score{Value: 0.5, Valid: true}},
		{"a reward kit", "from reward_kit import reward_function, EvaluateResult, MetricResult\n@reward_function\ndef " +
			"evaluate(messages, ground_truth=None, **kwargs):\n" +
			"  right = messages[-1].content == ground_truth\n  return EvaluateResult(score=float(right), reason='compared', " +
			"metrics={'exact': MetricResult(score=1.0, reason='', is_score_valid=True)})",
			engines.Score{Value: 1, Valid: true, Reason: "compared", Metrics: map[string]float64{"exact": 1}}},
		{"above 1", "def evaluate(messages): return 1.5",
			engines.Score{Reason: "the score 1.5 is not between 0 and 1: return a number in this range"}},
		{"not a number", "def evaluate(messages): return float('nan')",
			engines.Score{Reason: "the score nan is not a number: return a number between 0 and 1, or an object with a score"}},
		{"None", "def evaluate(messages): pass",
			engines.Score{Reason: "the score None is not a number: return a number between 0 and 1, or an object with a score"}},
		{"an invalid score", "def evaluate(messages): return {'score': 1, 'is_score_valid': False, 'reason': 'unsure'}",
			engines.Score{Reason: "unsure"}},
		{"an exception", "def evaluate(messages):\n  raise ValueError('bad')",
			engines.Score{Reason: "ValueError: bad (main.py:2)",
				Stderr: "  File \"/code/main.py\", line 2, in evaluate\n    raise ValueError('bad')\nValueError: bad\n"}},
		{"a missing field", "def evaluate(messages, missing): return 1",
			engines.Score{Reason: "TypeError: evaluate() missing 1 required positional argument: 'missing'",
				Stderr: "TypeError: evaluate() missing 1 required positional argument: 'missing'\n"}},
		{"an exit", "def evaluate(messages):\n  raise SystemExit(0)",
			engines.Score{Reason: "the code called sys.exit (main.py:2): return a score instead",
				Stderr: "  File \"/code/main.py\", line 2, in evaluate\n    raise SystemExit(0)\nSystemExit: 0\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := open(t, s, codeOf(t, "main.py", c.code, "helper.py", "half = 0.5"))
			if c.want.Metrics == nil {
				c.want.Metrics = map[string]float64{}
			}
			require.Equal(t, c.want, score(t, e, rowOf("yes"))[0])
		})
	}
}

func TestCriteriaAreAveraged(t *testing.T) {
	s := newSandbox(t, sandbox.Options{})
	code := codeOf(t, "criteria.json",
		`[{"name": "long", "file": "0/main.py", "function": "evaluate"}, `+
			`{"name": "exact", "file": "1/main.py", "function": "right"}]`,
		"0/main.py", "import rule\ndef evaluate(messages): return {'score': rule.value, 'metrics': {'n': 3}}", "0/rule.py",
		"value = 0.5",
		"1/main.py", "import rule\ndef right(messages, ground_truth): return rule.value if messages[-1]['content'] == "+
			"ground_truth else 7", "1/rule.py", "value = 1")
	code.EntryFile = "criteria.json"
	scores := score(t, open(t, s, code), rowOf("yes"), rowOf("no"))
	require.Equal(t, engines.Score{Value: 0.75, Valid: true, Metrics: map[string]float64{"long": 0.5, "exact": 1,
		"long/n": 3}}, scores[0])
	require.Equal(t, "exact: the score 7 is not between 0 and 1: return a number in this range", scores[1].Reason)
}

// TestFailedRowsDoNotAffectOthers checks that a row that makes the worker fail does not affect
// other rows.
func TestFailedRowsDoNotAffectOthers(t *testing.T) {
	s := newSandbox(t, sandbox.Options{RowTime: 3 * time.Second, Rows: 4})
	e := open(t, s, codeOf(t, "main.py", `
import os
def evaluate(messages):
    answer = messages[-1]["content"]
    if answer == "exit": os._exit(3)
    if answer == "kill": os.kill(os.getpid(), 11)
    if answer == "hang":
        while True: pass
    return float(answer)`))
	scores := score(t, e, rowOf("0.1"), rowOf("exit"), rowOf("0.2"), rowOf("kill"), rowOf("hang"),
		rowOf("0.3"), rowOf("0.4"),
		rowOf("0.5"), rowOf("0.6"), rowOf("0.7"), rowOf("0.8"))
	for i, want := range map[int]float64{0: 0.1, 2: 0.2, 5: 0.3, 6: 0.4, 7: 0.5, 8: 0.6, 9: 0.7, 10: 0.8} {
		require.Equal(t, want, scores[i].Value, i)
		require.True(t, scores[i].Valid, i)
	}
	require.Contains(t, scores[1].Reason, "exit status 3")
	require.Contains(t, scores[3].Reason, "signal 11")
	require.Equal(t, "the code took longer than 3s", scores[4].Reason)
}

// TestRowsAreScoredConcurrently checks that several workers score rows concurrently. The scores
// are in the order of the rows, and a failed worker affects only its row.
func TestRowsAreScoredConcurrently(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	s := newSandbox(t, sandbox.Options{Rows: 4})
	code := codeOf(t, "main.py", `
import os, time
ME = os.urandom(8).hex()
def evaluate(messages):
    answer = messages[-1]["content"]
    if answer == "exit": os._exit(3)
    time.sleep(0.2 if answer == "0.0" else 0.01)
    return {"score": float(answer), "reason": ME}`)
	for parallelism, want := range map[int]int{0: 1, 2: 2, 100: 3} {
		code.Parallelism = parallelism
		scores, workers := score(t, open(t, s, code), rowOf("0.0"), rowOf("0.1"), rowOf("0.2")), map[string]bool{}
		for i, one := range scores {
			require.Equal(t, float64(i)/10, one.Value)
			workers[one.Reason] = true
		}
		require.Len(t, workers, want, "with a parallelism of %d", parallelism)
	}
	code.Parallelism = 2
	rows := make([]row, 100)
	for i := range rows {
		if rows[i] = rowOf(fmt.Sprint(float64(i) / 100)); i%10 == 5 {
			rows[i] = rowOf("exit")
		}
	}
	for i, one := range score(t, open(t, s, code), rows...) {
		require.Equal(t, i%10 != 5, one.Valid, "row %d: %s", i, one.Reason)
		if one.Valid {
			require.Equal(t, float64(i)/100, one.Value)
		} else {
			require.Contains(t, one.Reason, "exit status 3")
		}
	}
}

// TestEvaluationsLeaveWorkersToOthers checks that an evaluation with a high parallelism leaves
// workers to later evaluations.
func TestEvaluationsLeaveWorkersToOthers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	s := newSandbox(t, sandbox.Options{Workers: 4})
	code := codeOf(t, "main.py", "def evaluate(messages): return 1")
	code.Parallelism = 8
	for range 3 {
		require.True(t, score(t, open(t, s, code), rowOf("x"), rowOf("y"), rowOf("z"))[2].Valid)
	}
}

func TestSecretsAreEnvironmentVariables(t *testing.T) {
	s := newSandbox(t, sandbox.Options{})
	t.Setenv("ANNEAL_TEST_PARENT", "canary")
	code := codeOf(t, "main.py", "import os\nTOKEN = os.environ['JUDGE_TOKEN']\ndef evaluate(messages): return {'score': "+
		"1, 'reason': TOKEN + ' ' + ' '.join(sorted(os.environ))}")
	code.Env = map[string]string{"JUDGE_TOKEN": "t0ken"}
	reason := score(t, open(t, s, code), rowOf("x"))[0].Reason
	require.Contains(t, reason, "t0ken ")
	require.Contains(t, reason, "JUDGE_TOKEN")
	require.NotContains(t, reason, "ANNEAL_TEST_PARENT")
}

func TestConcurrentAndCanceledCalls(t *testing.T) {
	s := newSandbox(t, sandbox.Options{RowTime: time.Minute})
	e := open(t, s, codeOf(t, "main.py", "def evaluate(messages):\n  while messages[-1]['content'] == 'hang': pass\n  "+
		"return float(messages[-1]['content'])"))
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 20 {
				scores, err := e.Score(t.Context(), []map[string]any{rowOf(fmt.Sprint(float64(n) / 4)),
					rowOf(fmt.Sprint(float64(i) / 20))})
				if err != nil || scores[0].Value != float64(n)/4 || scores[1].Value != float64(i)/20 {
					t.Error(scores, err)
				}
			}
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := e.Score(ctx, []map[string]any{rowOf("1"), rowOf("hang")})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 0.5, score(t, e, rowOf("0.5"))[0].Value)
	require.NoError(t, e.Close())
	_, err = e.Score(t.Context(), []map[string]any{rowOf("1")})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestOpenRejectsInvalidCode(t *testing.T) {
	defaults := newSandbox(t, sandbox.Options{})
	shortTimeout := newSandbox(t, sandbox.Options{OpenTime: 2 * time.Second, RowTime: time.Second})
	link := codeOf(t, "main.py", "def evaluate(messages): return 1")
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(link.Dir, "passwords")))
	for _, c := range []struct {
		name    string
		code    engines.EvaluatorCode
		message string
	}{
		{"no file", codeOf(t, "other.py", "x = 1"), "main.py: the code has no Python file of this name"},
		{"no function", codeOf(t, "main.py", "x = 1"), "main.py: has no function evaluate"},
		{"failed import", codeOf(t, "main.py", "import nothing_like_it"),
			"main.py: cannot be imported: ModuleNotFoundError: No module named 'nothing_like_it' (main.py:1)"},
		{"exit", codeOf(t, "main.py", "import os; os._exit(0)"),
			"the process exited during the import of the code: exit status 0"},
		{"hang", codeOf(t, "main.py", "while True: pass"), "was not imported within"},
		{"positional", codeOf(t, "main.py", "def evaluate(messages, /): return 1"), "remove the /"},
		{"a link", link, "passwords: is a link or device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := defaults
			if c.name == "hang" {
				s = shortTimeout
			}
			_, err := s.Open(t.Context(), c.code)
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, c.message)
			_, err = s.Build(t.Context(), c.code, "")
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, c.message)
		})
	}
}

func TestBuildLog(t *testing.T) {
	s := newSandbox(t, sandbox.Options{})
	built, err := s.Build(t.Context(), codeOf(t, "main.py", "print('hello')\ndef evaluate(messages): return 0.5",
		"more/other.py", "x = 1"), "# nothing\n\nreward-kit>=1 # offered\n")
	require.NoError(t, err)
	for _, line := range []string{"compiled 2 files: main.py, more/other.py", "reward-kit",
		"imported main.py and found evaluate", "called the function with an example row: score 0.5", "--- stdout\nhello"} {
		require.Contains(t, built.Log, line)
	}
	require.Empty(t, built.Trial)
	for code, message := range map[string]string{
		"def evaluate(messages, expected): return 0.5":           "TypeError",
		"def evaluate(messages): raise ValueError('always')":     "ValueError: always",
		"def evaluate(messages): return 2":                       "the score 2 is not between 0 and 1",
		"import sys\ndef evaluate(messages): sys.exit('leaves')": "the code called sys.exit",
	} {
		built, err = s.Build(t.Context(), codeOf(t, "main.py", code), "")
		require.NoError(t, err, "the evaluator may require other fields")
		require.Contains(t, built.Log, "called the function with an example row: no valid score: ")
		require.Contains(t, built.Trial, message)
	}
	_, err = s.Build(t.Context(), codeOf(t, "main.py", "def evaluate(messages): return 1"),
		"no-such-thing==1.0\njson\nneither_this\n-r other.txt")
	require.ErrorContains(t, err, "requirements: not installed: no-such-thing==1.0, neither_this, -r other.txt: install")
	_, err = s.Build(t.Context(), codeOf(t, "main.py", "def evaluate(messages): return 1", "broken.py", "x = (\n"), "")
	require.ErrorContains(t, err, "broken.py: SyntaxError: '(' was never closed (broken.py:1)")
}

func TestPlainEvaluators(t *testing.T) {
	s := sandbox.New(sandbox.Options{Plain: true})
	if err := s.Check(t.Context()); err != nil {
		t.Skip(err)
	}
	e := open(t, s, codeOf(t, "main.py",
		"import os\ndef evaluate(messages):\n  while messages[-1]['content'] == 'hang': os.fork()\n  return 1"))
	scores := score(t, e, rowOf("x"), rowOf("y"))
	require.True(t, scores[0].Valid && scores[1].Valid, "%v", scores)
	t.Setenv("PATH", "/nowhere")
	err := sandbox.New(sandbox.Options{}).Check(t.Context())
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.ErrorContains(t, err, "apt-get install bubblewrap python3")
}

func BenchmarkScore(b *testing.B) {
	dir := b.TempDir()
	require.NoError(b, os.WriteFile(filepath.Join(dir, "main.py"), []byte("def evaluate(messages, **kw): return 1"),
		0o600))
	s := sandbox.New(sandbox.Options{Rows: 1 << 30})
	e, err := s.Open(b.Context(), engines.EvaluatorCode{Dir: dir, EntryFile: "main.py", EntryFunc: "evaluate"})
	if err != nil {
		b.Skip(err)
	}
	rows := make([]map[string]any, 1000)
	for i := range rows {
		rows[i] = rowOf(strings.Repeat("x", 100))
	}
	for b.Loop() {
		if _, err := e.Score(b.Context(), rows); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(rows))/b.Elapsed().Seconds(), "rows/s")
	_ = e.Close()
}

// TestLeftoversAreRemoved checks that Check removes the copies of code that a killed process
// left behind, but no copies in use.
func TestLeftoversAreRemoved(t *testing.T) {
	dir, err := os.MkdirTemp("", "anneal-left-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	e := open(t, newSandbox(t, sandbox.Options{Dir: dir}), codeOf(t, "main.py", "def evaluate(messages):\n  return 1"))
	inUse := testutil.Glob(t, filepath.Join(dir, "*"))
	require.Len(t, inUse, 1)
	leftover, recent := filepath.Join(dir, "anneal-evaluator-leftover"), filepath.Join(dir, "anneal-evaluator-recent")
	for _, one := range []string{leftover, recent} {
		require.NoError(t, os.Mkdir(one, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(one, "main.py"), nil, 0o600))
	}
	hourAgo := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(inUse[0], hourAgo, hourAgo))
	require.NoError(t, os.Chtimes(leftover, hourAgo, hourAgo))
	require.NoError(t, sandbox.New(sandbox.Options{Dir: dir}).Check(t.Context()))
	require.NoDirExists(t, leftover)
	require.DirExists(t, recent)
	require.DirExists(t, inUse[0])
	require.True(t, score(t, e, rowOf("x"))[0].Valid)
	require.NoError(t, e.Close())
	require.NoDirExists(t, inUse[0])
}
