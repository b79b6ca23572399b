package domain

import (
	"fmt"
	"slices"
	"strings"
)

// FormatOf returns the dataset format of a row shape.
func FormatOf(shape string) string {
	switch shape {
	case ShapeChat, ShapePreference:
		return FormatChat
	case ShapeCompletion:
		return FormatCompletion
	}
	return FormatRL
}

// ShapeMismatch returns why the dataset cannot be used where rows of the given shapes are needed,
// or "" when it can. Before the rows are validated, their shape is unknown, and ShapeMismatch
// compares the format that the dataset was created with, if one was given.
func (d Dataset) ShapeMismatch(shapes ...string) string {
	switch {
	case slices.Contains(shapes, d.Shape) || d.Shape == "" && unspecified(d.Format):
		return ""
	case d.Shape == "" && slices.ContainsFunc(shapes, func(shape string) bool { return FormatOf(shape) == d.Format }):
		return ""
	case d.Shape == "":
		return fmt.Sprintf("has format %s, but %s are needed: choose another dataset", d.Format, inFormats(shapes))
	}
	return fmt.Sprintf("has %s rows (format %s), but %s are needed: choose another dataset", d.Shape, FormatOf(d.Shape),
		inFormats(shapes))
}

// inFormats returns text such as "chat rows (format CHAT) or completion rows (format COMPLETION)".
func inFormats(shapes []string) string {
	words := make([]string, len(shapes))
	for i, shape := range shapes {
		words[i] = fmt.Sprintf("%s rows (format %s)", shape, FormatOf(shape))
	}
	return strings.Join(words, " or ")
}
