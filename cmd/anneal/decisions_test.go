package main_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const maxDecisionLines = 120

var (
	decisionHeading = regexp.MustCompile(`(?m)^## (.*)$`)
	mergedDecision  = regexp.MustCompile(`(?m)^\| (\d{4}) \| [^|]+ \| \[(\d{4})\]\((\S+\.md)\) \|$`)
	decisionNumber  = regexp.MustCompile(`docs/adr/(\d{4})`)
)

// TestDecisionsAreWellFormed checks the form of the decision records and their index: each record is
// listed, each number of a merged record leads to the record that has its content, and each number
// that the source names is that of a record.
func TestDecisionsAreWellFormed(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "adr")
	files, err := filepath.Glob(filepath.Join(dir, "[0-9]*.md"))
	require.NoError(t, err)
	index := readPage(t, "docs/adr/README.md")
	records := map[string]string{} // by number
	for _, file := range files {
		name := filepath.Base(file)
		number := name[:4]
		require.Empty(t, records[number], "two records with one number: %s", name)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		text := string(data)
		records[number] = text
		require.Regexp(t, `^# `+number+` .*[^.]\n`, text, name)
		require.Regexp(t, `(?m)\bStatus: [a-z]+`, text, name)
		require.LessOrEqual(t, strings.Count(text, "\n"), maxDecisionLines, name)
		require.True(t, strings.Contains(index, "- ["+number+"]("+name+") "), "docs/adr/README.md does not list %s", name)
		var headings []string
		for _, match := range decisionHeading.FindAllStringSubmatch(text, -1) {
			headings = append(headings, match[1])
		}
		require.GreaterOrEqual(t, len(headings), 3, name)
		require.Equal(t, []string{"Context", "Decision"}, headings[:2], name)
		require.Equal(t, []string{"Alternatives considered", "Consequences"}, headings[len(headings)-2:], name)
	}
	merged := mergedDecision.FindAllStringSubmatch(index, -1)
	require.NotEmpty(t, merged)
	for _, match := range merged {
		number, into, file := match[1], match[2], match[3]
		require.Empty(t, records[number], "%s is a merged record and a record", number)
		require.True(t, strings.HasPrefix(file, into+"-"), match[0])
		require.True(t, strings.Contains(records[into], number), "%s does not name %s, which it includes", file, number)
	}
	err = filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git") {
			return errorOrSkip(err)
		}
		if entry.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		source, err := os.ReadFile(path)
		for _, match := range decisionNumber.FindAllStringSubmatch(string(source), -1) {
			require.NotEmpty(t, records[match[1]], "%s names docs/adr/%s, which does not exist", path, match[1])
		}
		return err
	})
	require.NoError(t, err)
}

// errorOrSkip returns the error of a walk, or else that its directory is not read.
func errorOrSkip(err error) error {
	if err != nil {
		return err
	}
	return fs.SkipDir
}
