package anneal_test

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

var (
	counts = flag.Bool("counts", false, "print how often each word of the list occurs, by directory, and check nothing")
	tree   = flag.String("tree", ".", "count the words of another checkout")
)

const (
	maxColumns = 120 // characters of a line; a tab counts as one
	maxMethods = 30  // methods of one type, without those in test files
)

// A word is an entry of the list: bad is a word that must not be used, and good is the word to use
// instead. scope is where bad is forbidden: in names (a part of an identifier or of a file's name),
// in text (comments, strings, documents) or in both.
type word struct {
	scope, bad, good string
}

const (
	names  = "names"
	text   = "text"
	either = "either"
)

var words = []word{
	{either, "desk", "coordinator"},
	{names, "beat", "heartbeat"},
	{names, "beats", "heartbeats"},
	{either, "pulse", "live status"},
	{either, "pulses", "live status"},
	{either, "prospect", "feasibility"},
	{either, "hopeless", "infeasible"},
	{either, "deserted", "all lost"},
	{either, "overhear", "observe a heartbeat"},
	{either, "overheard", "observed"},
	{names, "feel", "record status"},
	{names, "felt", "status"},
	{names, "inquiry", "request"},
	{names, "seat", "replica, worker slot"},
	{names, "guess", "draft token"},
	{names, "guesses", "draft tokens"},
	{names, "guessed", "drafted"},
	{names, "guessing", "speculation"},
	{either, "guesser", "drafter"},
	{names, "listened", "transcript event"},
	{names, "heard", "transcript; heartbeat received"},
	{names, "hear", "receive, record"},
	{names, "settle", "resolve, finish"},
	{names, "unsifted", "ignoresFilter"},
	{names, "asks", "requests"},
	{names, "refusal", "abort, error"},
	{names, "least", "min"},
	{names, "most", "max"},
	{names, "crime", "fault"},
	{names, "crimes", "faults"},
	{names, "town", "cluster"},
	{names, "chorus", "clients"},
	{names, "wish", "expectation"},
	{names, "wishes", "expectations"},
	{names, "law", "invariant"},
	{names, "laws", "invariants"},
	{names, "judge", "checker"},
	{names, "undone", "pending"},
	{names, "room", "capacity"},
	{names, "rooms", "packages"},
	{names, "told", "reported"},
	{names, "folder", "directory"},
	{names, "folders", "directories"},
	{either, "enrol", "enroll"},
	{either, "enrols", "enrolls"},
	{either, "enrolment", "enrollment"},
	{either, "verdict", "validation result"},
	{text, "tells whether", "reports whether"},
	{text, "tell whether", "report whether"},
	{text, "whoever", "a client that, any caller"},
	{text, "anew", "again, from scratch"},
	{text, "so that it may", "so that it can"},
	{text, "goes on", "continues"},
	{text, "lies in", "is stored in"},
	{text, "lie in", "are stored in"},
	{text, "gives back", "releases, returns"},
	{text, "thousandths of a core", "millicores (100m)"},
	{text, "nobody listens", "the client has disconnected"},
	{text, "of what is", "subject, verb, object"},
	{text, "plan of the house", "import rules"},
}

// allowedWords maps each allowed use of a word to the reason. A key is a path, a space and the
// word; a path alone covers all words. The path of a directory covers all files below it.
var allowedWords = map[string]string{
	"language_test.go":               "the list itself",
	"compose desk":                   "a NATS user in the configuration of deployed clusters",
	"api/inference refusal":          "a field of OpenAI's chat messages",
	"engines/embedded/pretrain desk": "training data",

	"internal/cli/help_test.go":                 "words that help must not have",
	"workers/coordinator desk":                  "a NATS queue group and an actor, which keep their names",
	"eventlog/natsserver desk":                  "a NATS user in the configuration of deployed clusters",
	"workers/protocol/protocol_test.go verdict": "the JSON name of a report's outcome",
}

// textFiles lists the suffixes of the names of the files that are checked in addition to Go files.
var textFiles = []string{".md", ".py", ".sh", ".yaml", ".txtar", ".mjs", ".js", ".css", ".html", ".conf", "Makefile"}

// A use is one occurrence of a word of the list.
type use struct {
	path string
	line int
	word word
}

func TestLanguage(t *testing.T) {
	allowances := map[string]bool{}
	uses := slices.DeleteFunc(usesIn(t, os.DirFS(*tree)), func(u use) bool { return isAllowed(u, allowances) })
	if *counts {
		printCounts(uses)
		return
	}
	for key := range allowedWords {
		require.True(t, allowances[key], "no use needs this entry of allowedWords: %s", key)
	}
	for _, u := range uses {
		t.Errorf("%s:%d: %q: write %s, or allow it in allowedWords", u.path, u.line, u.word.bad, u.word.good)
	}
}

const maxTerms = 40 // of the glossary

// TestGlossary checks that the glossary of ARCHITECTURE.md has at most maxTerms terms, one a row.
func TestGlossary(t *testing.T) {
	page := testutil.ReadFile(t, "ARCHITECTURE.md")
	_, glossary, found := strings.Cut(string(page), "| term | meaning |\n|---|---|\n")
	require.True(t, found)
	seen := map[string]bool{}
	for row := range strings.Lines(glossary) {
		cells := strings.Split(row, "|")
		if len(cells) < 4 {
			break
		}
		term := strings.TrimSpace(cells[1])
		require.NotContains(t, term, ",", "one term a row")
		require.False(t, seen[term], "%s has two meanings", term)
		seen[term] = true
	}
	require.NotEmpty(t, seen)
	require.LessOrEqual(t, len(seen), maxTerms)
}

// longLines lists the files that may have lines of more than maxColumns characters, and the reason.
var longLines = []struct {
	files  *regexp.Regexp
	reason string
}{
	{regexp.MustCompile(`^docs/(reference/|clients\.md$)|^api/openapi/examples\.json$|^eventlog/schemas/data/`),
		"generated by a test"},
	{regexp.MustCompile(`^engines/embedded/base/model/`), "generated by engines/embedded/pretrain"},
	{regexp.MustCompile(`^(api|domain|schedulers)/testdata/\w+\.txt$|\.golden$`), "transcripts with long responses"},
	{regexp.MustCompile(`^api/testdata/examples/`), "a request is one line"},
	{regexp.MustCompile(`^api/console/static/vendor/`), "libraries as their projects publish them"},
	{regexp.MustCompile(`^observability/.*\.json$`), "an expression of PromQL is one string of JSON"},
	{regexp.MustCompile(`(^|/)(package-lock\.json|go\.sum)$`), "written by a package manager"},
}

// rowOfData matches a row of JSON Lines in another file, which cannot be wrapped.
var rowOfData = regexp.MustCompile(`^(<pre data-shape="\w+">)?\{.*\}(</pre>)?$`)

// TestLayout checks that no line of a text file that git tracks exceeds maxColumns, unless the file
// is generated or in longLines, and that no type has more than maxMethods methods.
// TestFilesAndFunctionsAreShort checks the length of files and functions.
func TestLayout(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("needs a git checkout: " + err.Error())
	}
	allowances := map[string]bool{}
	for path := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		require.NoError(t, err)
		if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 || isGenerated(data) {
			continue
		}
		checkColumns(t, path, string(data), allowances)
	}
	for _, long := range longLines {
		require.True(t, allowances[long.reason], "no line needs this entry of longLines: %s", long.reason)
	}
	checkMethods(t)
}

// isGenerated reports whether a file of Go or assembly has the header of a generator.
func isGenerated(data []byte) bool {
	head, _, _ := bytes.Cut(data, []byte("\n"))
	return bytes.HasPrefix(head, []byte("// Code generated")) && bytes.HasSuffix(head, []byte("DO NOT EDIT."))
}

// checkColumns reports the lines of a file that exceed maxColumns, and records in allowances the
// reasons of longLines that apply.
func checkColumns(t *testing.T, path, content string, allowances map[string]bool) {
	for i, line := range strings.Split(content, "\n") {
		n := utf8.RuneCountInString(line)
		if n <= maxColumns || rowOfData.MatchString(line) {
			continue
		}
		allowed := false
		for _, long := range longLines {
			if long.files.MatchString(path) {
				allowed, allowances[long.reason] = true, true
			}
		}
		if !allowed {
			t.Errorf("%s:%d: has %d columns, more than %d", path, i+1, n, maxColumns)
		}
	}
}

// checkMethods reports the types that have more than maxMethods methods.
func checkMethods(t *testing.T) {
	methods := map[string]int{}
	eachFile(t, func(path string, file *ast.File, _ *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[filepath.Dir(path)+"."+receiver(f.Recv.List[0].Type)]++
			}
		}
	})
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if n := methods[name]; n > maxMethods {
			t.Errorf("%s has %d methods, more than %d", name, n, maxMethods)
		}
	}
}

// receiver returns the name of the type in a method's receiver.
func receiver(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return fmt.Sprintf("%T", expr)
}

// fileName matches text that looks like the name of a source file or document.
var fileName = regexp.MustCompile(`[\w.-]+(/[\w.-]+)*\.(go|md|py|sh)\b`)

// foreignFiles maps names in comments that look like files of this tree, but are not, to what they
// are.
var foreignFiles = map[string]string{
	"nats.go":  "the client of NATS",
	"orbit.go": "extensions of that client",
	"main.py":  "an example of a user's file",
}

// TestCommentsReferToFiles checks that a file that a comment names exists: beside the comment, from
// the root, or, for a name without directory, anywhere.
func TestCommentsReferToFiles(t *testing.T) {
	bases := map[string]bool{}
	for path := range sources(t, os.DirFS(".")) {
		bases[filepath.Base(path)] = true
	}
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		for _, group := range file.Comments {
			for _, name := range fileName.FindAllString(group.Text(), -1) {
				_, foreign := foreignFiles[name]
				_, atRoot := os.Stat(name)
				_, beside := os.Stat(filepath.Join(filepath.Dir(path), name))
				if !foreign && atRoot != nil && beside != nil && !bases[name] {
					t.Errorf("%s: the comment names %s, which is not there", set.Position(group.Pos()), name)
				}
			}
		}
	})
}

func within(path, dir string) bool {
	return dir == "." || path == dir || strings.HasPrefix(path, dir+"/")
}

// sources returns the content of the text files of a tree, by path.
func sources(t *testing.T, root fs.FS) map[string][]byte {
	files := map[string][]byte{}
	require.NoError(t, fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(name, ".") && path != "." || name == "node_modules" || path == "bin"):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		isText := func(end string) bool { return strings.HasSuffix(name, end) }
		if !isText(".go") && !slices.ContainsFunc(textFiles, isText) {
			return nil
		}
		files[path], err = fs.ReadFile(root, path)
		return err
	}))
	return files
}

// usesIn finds the uses of the words of the list, in the order of path and line.
func usesIn(t *testing.T, root fs.FS) []use {
	files := sources(t, root)
	var all []use
	for _, path := range slices.Sorted(maps.Keys(files)) {
		var uses []use
		add := func(line int, w word) { uses = append(uses, use{path, line, w}) }
		for _, part := range camel(strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))) {
			findName(part, 1, add)
		}
		if strings.HasSuffix(path, ".go") {
			findGo(files[path], add)
		} else {
			findText(string(files[path]), 1, add)
		}
		all = append(all, uses...)
	}
	return all
}

// isAllowed reports whether allowedWords allows a use, and records the keys that do in allowances.
func isAllowed(u use, allowances map[string]bool) bool {
	allowed := false
	for key := range allowedWords {
		dir, bad, one := strings.Cut(key, " ")
		if within(u.path, dir) && (!one || bad == u.word.bad) {
			allowed, allowances[key] = true, true
		}
	}
	return allowed
}

// findGo calls add with the line and the word for each word of the list in the identifiers,
// comments and strings of a Go file. Struct tags are left out because wire names are contracts.
func findGo(src []byte, add func(int, word)) {
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(src))
	if parsed, err := parser.ParseFile(token.NewFileSet(), "", src,
		parser.PackageClauseOnly|parser.ParseComments); err == nil &&
		ast.IsGenerated(parsed) {
		return
	}
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		line := file.Line(pos)
		switch kind {
		case token.EOF:
			return
		case token.IDENT:
			for _, part := range camel(literal) {
				findName(part, line, add)
			}
		case token.COMMENT:
			findText(literal, line, add)
		case token.STRING:
			if !strings.Contains(literal, `json:"`) {
				findText(literal, line, add)
			}
		}
	}
}

func findName(part string, line int, add func(int, word)) {
	for _, w := range words {
		if w.scope != text && w.bad == part {
			add(line, w)
		}
	}
}

// letters matches a word of text, or an identifier in it.
var letters = regexp.MustCompile(`\pL+`)

// findText calls add with the line and the word for each word or phrase of the list in s; line is
// the number of the first line of s. A phrase may continue on the next line, also of a comment.
func findText(s string, line int, add func(int, word)) {
	var seen []string // words since the last punctuation
	last := 0
	for _, at := range letters.FindAllStringIndex(s, -1) {
		between := s[last:at[0]]
		line += strings.Count(between, "\n")
		if strings.Trim(between, " \t\n/*#") != "" {
			seen = seen[:0]
		}
		found := s[at[0]:at[1]]
		if parts := camel(found); len(parts) > 1 {
			for _, part := range parts {
				findName(part, line, add)
			}
		}
		seen = append(seen, strings.ToLower(found))
		for _, w := range words {
			if w.scope != names && endsWith(seen, w.bad) {
				add(line, w)
			}
		}
		last = at[1]
	}
}

func endsWith(seen []string, phrase string) bool {
	n := strings.Count(phrase, " ") + 1
	return len(seen) >= n && strings.HasSuffix(phrase, seen[len(seen)-1]) &&
		strings.Join(seen[len(seen)-n:], " ") == phrase
}

// camel returns the words of an identifier in lower case.
func camel(name string) (parts []string) {
	start := 0
	runes := []rune(name)
	for i := range runes {
		newWord := i > 0 && unicode.IsUpper(runes[i]) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if newWord || !unicode.IsLetter(runes[i]) {
			parts = append(parts, strings.ToLower(string(runes[start:i])))
			start = i
			if !unicode.IsLetter(runes[i]) {
				start++
			}
		}
	}
	parts = append(parts, strings.ToLower(string(runes[start:])))
	return slices.DeleteFunc(parts, func(part string) bool { return part == "" })
}

// printCounts prints a line for each word: the number of its uses in total, and in each directory.
func printCounts(uses []use) {
	byWord := map[word]map[string]int{}
	for _, u := range uses {
		if byWord[u.word] == nil {
			byWord[u.word] = map[string]int{}
		}
		byWord[u.word][top(filepath.Dir(u.path))]++
	}
	total := 0
	for _, w := range words {
		sum, dirs := 0, ""
		byCount := func(a, b string) int { return cmp.Or(byWord[w][b]-byWord[w][a], strings.Compare(a, b)) }
		for _, dir := range slices.SortedFunc(maps.Keys(byWord[w]), byCount) {
			sum += byWord[w][dir]
			dirs += fmt.Sprintf(" %s %d", dir, byWord[w][dir])
		}
		total += sum
		fmt.Printf("%-24s %-7s %5d %s\n", w.bad, w.scope, sum, dirs)
	}
	fmt.Printf("%-24s %-7s %5d\n", "all", "", total)
}
