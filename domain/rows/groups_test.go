package rows_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain/rows"
)

// TestEqualReasonsShareOneText checks that the message of invalid rows states equal reasons once,
// while its violations list every line.
func TestEqualReasonsShareOneText(t *testing.T) {
	var errs []rows.LineError
	add := func(file, reason string, lines ...int) {
		for _, line := range lines {
			errs = append(errs, rows.LineError{File: file, Line: line, Reason: reason})
		}
	}
	add("a.jsonl", "is binary", 1, 2, 3, 7)
	add("a.jsonl", "is empty", 4)
	add("b.jsonl", "is binary", 1)
	add("dataset", "has 2 rows", 0)
	invalid := rows.InvalidRows(errs, 8)
	require.Len(t, invalid.Violations, 7)
	require.Equal(t, "a.jsonl: lines 1-3, 7: is binary; a.jsonl:4: is empty; b.jsonl:1: is binary; dataset: has 2 rows; "+
		"and 8 more: correct the file and upload it again", invalid.Message)
	require.Equal(t, "lines 2, 4, 6, 8, 10, 12, 14, 16 and 2 more",
		rows.Ranges([]int{2, 4, 6, 8, 10, 12, 14, 16, 18, 20}))
	require.Equal(t, "lines 1-2", rows.Ranges([]int{2, 1, 2}), "a line may be wrong for one reason twice")
}

// TestBinaryFilesHaveOneReason checks that the message of a binary file is short.
func TestBinaryFilesHaveOneReason(t *testing.T) {
	c := rows.NewChecker("")
	require.NoError(t, c.Read("rows.jsonl", strings.NewReader(strings.Repeat("\xff\xfe\n", 120))))
	_, errs, more := c.Result()
	require.Equal(t, "rows.jsonl: lines 1-100: the line is not valid UTF-8; and 20 more: correct the file and upload it "+
		"again", rows.InvalidRows(errs, more).Message)
}
