package domain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// CriteriaFile is the entry file of an evaluator with several criteria. It lists the name, file and
// function of each criterion.
const CriteriaFile = "criteria.json"

// An Entry is the entry point of an evaluator's code: a function in a file.
type Entry struct {
	File string `json:"entryFile,omitempty"`
	Func string `json:"entryFunc,omitempty"`
}

// DefaultEntry is the entry point of an evaluator that sets none.
var DefaultEntry = Entry{"main.py", "evaluate"}

var codePath = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

// CodePathRule describes what CheckCodePath requires.
const CodePathRule = "must be a path within the code of at most 256 bytes: names of letters, digits, '_', '-' and " +
	"'.', separated by '/'; no name may begin with '-' or '.'"

// CheckCodePath reports whether name may be the path of a file of code: see CodePathRule.
func CheckCodePath(name string) bool { return len(name) <= 256 && codePath.MatchString(name) }

// Inline returns the code in the criteria as files, which maps paths to contents, and its entry
// point. files is nil when no criterion has code. If Inline adds violations to v, its results must
// not be used.
func (c EvaluatorCode) Inline(v *Violations) (files map[string]string, entry Entry) {
	var with []int
	for i, one := range c.Criteria {
		if one.CodeSnippets != nil && len(one.CodeSnippets.FileContents) > 0 {
			with = append(with, i)
		}
	}
	if len(with) == 0 {
		return nil, Entry{}
	}
	files = map[string]string{}
	type part struct {
		Name     string `json:"name"`
		File     string `json:"file"`
		Function string `json:"function"`
	}
	var parts []part
	for _, i := range with {
		s, dir := c.Criteria[i].CodeSnippets, ""
		if len(with) > 1 {
			dir = fmt.Sprintf("criterion_%d/", i)
		}
		for name, content := range s.FileContents {
			files[dir+name] = content
		}
		at := indexed("criteria", i) + ".codeSnippets"
		v.Require(slices.Contains([]string{"", "python", "python3"}, strings.ToLower(s.Language)), at+".language",
			"must be python, the only supported language")
		given := Entry{s.EntryFile, s.EntryFunc}
		if len(with) == 1 {
			given = cmp.Or(given, c.entryPoint())
		}
		entry = given.resolve(v, at+".entryFile", slices.Sorted(maps.Keys(s.FileContents)))
		parts = append(parts, part{cmp.Or(c.Criteria[i].Name, fmt.Sprintf("criterion_%d", i)), dir + entry.File,
			entry.Func})
	}
	if len(with) > 1 {
		list, _ := json.Marshal(parts) // cannot fail, because parts has only strings
		files[CriteriaFile], entry = string(list), Entry{CriteriaFile, DefaultEntry.Func}
	}
	return files, entry
}

// Uploaded returns the entry point of uploaded code. names are the paths of the uploaded files. It
// adds a violation to v when the entry file is not among them, is not a Python file, or cannot be
// determined.
func (c EvaluatorCode) Uploaded(v *Violations, names []string) Entry {
	given := c.entryPoint()
	if given == (Entry{}) && len(c.Criteria) == 1 && c.Criteria[0].CodeSnippets != nil {
		given = Entry{c.Criteria[0].CodeSnippets.EntryFile, c.Criteria[0].CodeSnippets.EntryFunc}
	}
	return given.resolve(v, "entryPoint", names)
}

// entryPoint parses c.EntryPoint, which has the form FILE::FUNCTION or FILE.
func (c EvaluatorCode) entryPoint() Entry {
	file, function, _ := strings.Cut(c.EntryPoint, "::")
	return Entry{strings.TrimPrefix(file, "./"), function}
}

// resolve returns the entry point with its defaults: the function evaluate, and the file main.py or
// the only Python file at the top level. names are the paths of all files. It adds a violation of
// field to v when the file is not among them, is not a Python file, or cannot be determined.
func (e Entry) resolve(v *Violations, field string, names []string) Entry {
	e.Func = cmp.Or(e.Func, DefaultEntry.Func)
	if e.File == "" {
		var top []string
		for _, name := range names {
			if path.Ext(name) == ".py" && !strings.Contains(name, "/") {
				top = append(top, name)
			}
		}
		switch {
		case slices.Contains(top, DefaultEntry.File):
			e.File = DefaultEntry.File
		case len(top) == 1:
			e.File = top[0]
		default:
			v.Add(field, "is required as FILE.py::FUNCTION, because the top level has neither main.py nor exactly one "+
				"Python file")
			return e
		}
	}
	v.Require(slices.Contains(names, e.File), field, "names %q, which is not among the files", e.File)
	v.Require(path.Ext(e.File) == ".py", field, "names %q, which is not a Python file", e.File)
	return e
}
