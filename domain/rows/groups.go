package rows

import (
	"fmt"
	"slices"
	"strings"
)

// A Group holds the lines of one file that have the same error, Reason.
type Group struct {
	File   string
	Lines  []int // line numbers in ascending order; empty if the whole file has the error
	Reason string
}

// Groups returns the errors, grouped by file and reason, in the order of their first lines.
func Groups(errs []LineError) (groups []Group) {
	type key struct{ file, reason string }
	places := map[key]int{}
	for _, e := range errs {
		at, known := places[key{e.File, e.Reason}]
		if !known || e.Line == 0 {
			at = len(groups)
			places[key{e.File, e.Reason}] = at
			groups = append(groups, Group{File: e.File, Reason: e.Reason})
		}
		if e.Line > 0 {
			groups[at].Lines = append(groups[at].Lines, e.Line)
		}
	}
	return groups
}

// String returns the group on one line, such as "rows.jsonl: lines 1-20, 25: reason".
func (g Group) String() string {
	switch len(g.Lines) {
	case 0:
		return g.File + ": " + g.Reason
	case 1:
		return fmt.Sprintf("%s:%d: %s", g.File, g.Lines[0], g.Reason)
	}
	return fmt.Sprintf("%s: %s: %s", g.File, Ranges(g.Lines), g.Reason)
}

// maxRanges is the maximum number of ranges in a result of Ranges.
const maxRanges = 8

// Ranges formats the numbers of several lines as ranges for a message: "lines 1-20, 25 and 11
// more".
func Ranges(lines []int) string {
	lines = slices.Compact(slices.Sorted(slices.Values(lines)))
	var ranges []string
	shown := 0
	for first := 0; first < len(lines) && len(ranges) < maxRanges; {
		last := first
		for last+1 < len(lines) && lines[last+1] == lines[last]+1 {
			last++
		}
		text := fmt.Sprint(lines[first])
		if last > first {
			text += fmt.Sprintf("-%d", lines[last])
		}
		ranges, first = append(ranges, text), last+1
		shown = first
	}
	text := "lines " + strings.Join(ranges, ", ")
	if more := len(lines) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
