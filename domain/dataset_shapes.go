package domain

import (
	"fmt"
	"slices"
	"strings"
)

// FormatOf is the dataset format that a shape belongs to.
func FormatOf(shape string) string {
	switch shape {
	case ShapeChat, ShapePreference:
		return FormatChat
	case ShapeCompletion:
		return FormatCompletion
	}
	return FormatRL
}

// Unfit is why the dataset is of no use to what takes rows of some shapes, as
// far as its rows, or the format that it was created with, are known; "" when
// it may be.
func (d Dataset) Unfit(shapes ...string) string {
	switch {
	case slices.Contains(shapes, d.Shape) || d.Shape == "" && unspecified(d.Format):
		return ""
	case d.Shape == "" && slices.ContainsFunc(shapes, func(shape string) bool { return FormatOf(shape) == d.Format }):
		return ""
	case d.Shape == "":
		return fmt.Sprintf("is of format %s, and this takes %s: name another dataset", d.Format, inFormats(shapes))
	}
	return fmt.Sprintf("has %s rows (format %s), and this takes %s: name another dataset", d.Shape, FormatOf(d.Shape), inFormats(shapes))
}

// inFormats is "chat rows (format CHAT) or completion rows (format COMPLETION)".
func inFormats(shapes []string) string {
	words := make([]string, len(shapes))
	for i, shape := range shapes {
		words[i] = fmt.Sprintf("%s rows (format %s)", shape, FormatOf(shape))
	}
	return strings.Join(words, " or ")
}
