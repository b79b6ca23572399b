package domain

import (
	"cmp"
	"strings"
)

// OneOfRule returns the message about an invalid value: it lists the allowed values, and suggests
// those that are most similar to value.
func OneOfRule(value string, allowed []string) string {
	return "must be one of " + join(allowed) + DidYouMean(value, allowed)
}

// DidYouMean returns the end of a message that suggests the allowed values that are most similar to an
// invalid value; "" if none is similar.
func DidYouMean(value string, allowed []string) string {
	similar := Similar(value, allowed)
	if len(similar) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(similar, " or ") + "?"
}

// UnknownName returns the end of a message about a name that is not among the known names: it
// suggests the most similar ones, and then lists all known names after label, such as "valid
// fields: ".
func UnknownName(name, label string, known []string) string {
	all := label + cmp.Or(join(known), "none")
	if similar := DidYouMean(name, known); similar != "" {
		return similar + " " + strings.ToUpper(all[:1]) + all[1:]
	}
	return "; " + all
}

// maxSuggestions is the maximum number of similar values that a message suggests.
const maxSuggestions = 3

// Similar returns the allowed values that are most similar to value, at most maxSuggestions. If
// allowed values contain value, as VENDOR_A_H100_80GB contains h100, these are the similar ones.
// Otherwise it returns those with the smallest EditDistance, if that is at most a third of the
// length of value. Upper and lower case are equal, and so are hyphens and underscores.
func Similar(value string, allowed []string) (similar []string) {
	plain := func(text string) string { return strings.ReplaceAll(strings.ToUpper(text), "-", "_") }
	wanted := plain(strings.TrimSpace(value))
	if wanted == "" || len(wanted) > 64 {
		return nil
	}
	smallest := len([]rune(wanted)) / 3
	var near []string
	for _, one := range allowed {
		name := plain(one)
		contained := len(wanted) > 1 && strings.Contains(name, wanted)
		if !contained && max(len(name)-len(wanted), len(wanted)-len(name)) > smallest {
			continue // the edit distance is at least the difference of the lengths
		}
		distance := EditDistance(wanted, name)
		switch {
		case distance == 0:
			return []string{one}
		case contained:
			similar = append(similar, one)
		case distance < smallest:
			near, smallest = []string{one}, distance
		case distance == smallest && smallest > 0:
			near = append(near, one)
		}
	}
	if len(similar) == 0 {
		similar = near
	}
	return similar[:min(len(similar), maxSuggestions)]
}

// EditDistance returns the minimum number of edits that turn a into b: to insert, delete or replace
// a letter, or to swap two adjacent ones (the Damerau-Levenshtein distance with optimal string
// alignment).
func EditDistance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, above, row = above, row, before
		row[0] = i + 1
		for j := range len(b) {
			replaced := above[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
