package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func snippets(name, entryFile, entryFunc string, files ...string) domain.Criterion {
	s := &domain.CodeSnippets{Language: "Python", EntryFile: entryFile, EntryFunc: entryFunc,
		FileContents: map[string]string{}}
	for _, file := range files {
		s.FileContents[file] = "# " + file
	}
	return domain.Criterion{Type: "CODE_SNIPPETS", Name: name, CodeSnippets: s}
}

// TestEntries checks entry points that a request sets, and those that are derived from the file
// names.
func TestEntries(t *testing.T) {
	for _, c := range []struct {
		about    string
		code     domain.EvaluatorCode
		uploaded []string
		entry    domain.Entry
		wrong    string
	}{
		{"main.py", domain.EvaluatorCode{Criteria: []domain.Criterion{snippets("a", "", "", "main.py", "other.py")}}, nil,
			domain.Entry{File: "main.py", Func: "evaluate"}, ""},
		{"the only file", domain.EvaluatorCode{Criteria: []domain.Criterion{snippets("a", "", "", "judge.py", "data.json")}},
			nil, domain.Entry{File: "judge.py", Func: "evaluate"}, ""},
		{"entry of the criterion",
			domain.EvaluatorCode{EntryPoint: "main.py",
				Criteria: []domain.Criterion{snippets("a", "b/c.py", "f", "main.py", "b/c.py")}}, nil,
			domain.Entry{File: "b/c.py", Func: "f"}, ""},
		{"entry of entryPoint",
			domain.EvaluatorCode{EntryPoint: "./x.py::g", Criteria: []domain.Criterion{snippets("a", "", "", "x.py", "y.py")}},
			nil, domain.Entry{File: "x.py", Func: "g"}, ""},
		{"several criteria", domain.EvaluatorCode{Criteria: []domain.Criterion{snippets("a", "", "", "main.py"),
			snippets("", "x.py", "f", "x.py")}}, nil, domain.Entry{File: "criteria.json", Func: "evaluate"}, ""},
		{"another language", domain.EvaluatorCode{
			Criteria: []domain.Criterion{
				{CodeSnippets: &domain.CodeSnippets{Language: "ruby", FileContents: map[string]string{"main.py": ""}}}}}, nil,
			domain.Entry{File: "main.py", Func: "evaluate"}, "criteria[0].codeSnippets.language: must be python"},
		{"uploaded", domain.EvaluatorCode{}, []string{"lib/a.py", "main.py"}, domain.Entry{File: "main.py", Func: "evaluate"},
			""},
		{"uploaded, said", domain.EvaluatorCode{EntryPoint: "lib/a.py"}, []string{"lib/a.py", "main.py"},
			domain.Entry{File: "lib/a.py", Func: "evaluate"}, ""},
		{"uploaded, nowhere", domain.EvaluatorCode{}, []string{"a.py", "b.py"}, domain.Entry{Func: "evaluate"},
			"entryPoint: is required as FILE.py::FUNCTION"},
		{"uploaded, not there", domain.EvaluatorCode{EntryPoint: "c.py::f"}, []string{"a.py"},
			domain.Entry{File: "c.py", Func: "f"}, `entryPoint: names "c.py", which is not among the files`},
		{"uploaded, not Python", domain.EvaluatorCode{EntryPoint: "a.sh"}, []string{"a.sh"},
			domain.Entry{File: "a.sh", Func: "evaluate"}, "which is not a Python file"},
	} {
		t.Run(c.about, func(t *testing.T) {
			var v domain.Violations
			var entry domain.Entry
			var files map[string]string
			if c.uploaded != nil {
				entry = c.code.Uploaded(&v, c.uploaded)
			} else {
				files, entry = c.code.Inline(&v)
			}
			require.Equal(t, c.entry, entry)
			if c.wrong == "" {
				require.NoError(t, v.Err())
			} else {
				require.ErrorContains(t, v.Err(), c.wrong)
			}
			if c.about == "several criteria" {
				require.Equal(t, map[string]string{"criterion_0/main.py": "# main.py", "criterion_1/x.py": "# x.py",
					"criteria.json": `[{"name":"a","file":"criterion_0/main.py","function":"evaluate"},{"name":"criterion_1",` +
						`"file":"criterion_1/x.py","function":"f"}]`}, files)
			}
		})
	}
}

func TestCodePaths(t *testing.T) {
	for name, fits := range map[string]bool{"main.py": true, "a/b_c/__init__.py": true, "x-1.txt": true, "": false,
		"/etc/passwd": false, "../x": false, "a/../b": false, "a//b": false,
		".hidden": false, "a/.git/config": false, "-rf": false, "a b": false, "a\x00b": false, "ä.py": false, "a/": false} {
		require.Equal(t, fits, domain.CheckCodePath(name), name)
	}
}
