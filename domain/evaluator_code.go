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

// CriteriaFile is the entry file of a build of several criteria: it lists the
// name, file and function of each.
const CriteriaFile = "criteria.json"

// An Entry says where in the files of a build scoring begins.
type Entry struct {
	File string `json:"entryFile,omitempty"`
	Func string `json:"entryFunc,omitempty"`
}

// DefaultEntry is where scoring begins when nothing else is said.
var DefaultEntry = Entry{"main.py", "evaluate"}

var codePath = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

// CodePathRule says what CheckCodePath requires.
const CodePathRule = "must be a path within the code: names of letters, digits, _, - and dots that begin with no dot or dash, with / between them, at most 256 bytes"

// CheckCodePath reports whether a file of code may have a name.
func CheckCodePath(name string) bool { return len(name) <= 256 && codePath.MatchString(name) }

// Inline is the code of the criteria as files, nil when they have none; all is
// wrong that v holds after.
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
		s, folder := c.Criteria[i].CodeSnippets, ""
		if len(with) > 1 {
			folder = fmt.Sprintf("criterion_%d/", i)
		}
		for name, content := range s.FileContents {
			files[folder+name] = content
		}
		at := indexed("criteria", i) + ".codeSnippets"
		v.Require(slices.Contains([]string{"", "python", "python3"}, strings.ToLower(s.Language)), at+".language", "must be python: no other can be run")
		given := Entry{s.EntryFile, s.EntryFunc}
		if len(with) == 1 {
			given = cmp.Or(given, c.entryPoint())
		}
		entry = given.among(v, at+".entryFile", slices.Sorted(maps.Keys(s.FileContents)))
		parts = append(parts, part{cmp.Or(c.Criteria[i].Name, fmt.Sprintf("criterion_%d", i)), folder + entry.File, entry.Func})
	}
	if len(with) > 1 {
		list, _ := json.Marshal(parts) // texts only
		files[CriteriaFile], entry = string(list), Entry{CriteriaFile, DefaultEntry.Func}
	}
	return files, entry
}

// Uploaded is where scoring begins in files that were uploaded.
func (c EvaluatorCode) Uploaded(v *Violations, names []string) Entry {
	given := c.entryPoint()
	if given == (Entry{}) && len(c.Criteria) == 1 && c.Criteria[0].CodeSnippets != nil {
		given = Entry{c.Criteria[0].CodeSnippets.EntryFile, c.Criteria[0].CodeSnippets.EntryFunc}
	}
	return given.among(v, "entryPoint", names)
}

// entryPoint reads FILE::FUNCTION, or FILE alone.
func (c EvaluatorCode) entryPoint() Entry {
	file, function, _ := strings.Cut(c.EntryPoint, "::")
	return Entry{strings.TrimPrefix(file, "./"), function}
}

// among fills what is not said from the names of the files: main.py, or the
// only file of Python at the top.
func (e Entry) among(v *Violations, field string, names []string) Entry {
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
			v.Add(field, "says not where to begin, and there is no main.py among the files: give it as FILE.py::FUNCTION")
			return e
		}
	}
	v.Require(slices.Contains(names, e.File), field, "names %q, which is not among the files", e.File)
	v.Require(path.Ext(e.File) == ".py", field, "names %q, which is not a file of Python", e.File)
	return e
}
