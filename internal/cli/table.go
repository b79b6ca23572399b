package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"anneal/domain"
)

const (
	columnGap      = 3 // number of spaces between two columns
	minColumnWidth = 8 // minimum width in characters to which a column is shortened
)

// printTable prints rows of cells in aligned columns. On a terminal, lines are at most as wide as
// the terminal.
func printTable(out io.Writer, rows [][]string) error {
	if width := widthOf(out); width > 0 {
		rows = narrow(rows, width)
	}
	w := tabwriter.NewWriter(out, 0, 8, columnGap, ' ', 0)
	for _, cells := range rows {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// narrow returns a table whose lines have at most width characters. It shortens cells in the widest
// columns, and if that does not suffice, leaves out columns from the right. It never changes the
// first column, because users copy the IDs in it.
func narrow(rows [][]string, width int) [][]string {
	shown := make([][]string, len(rows))
	widths := make([]int, len(rows[0]))
	for i, cells := range rows {
		shown[i] = make([]string, len(cells))
		for j, text := range cells {
			shown[i][j] = domain.Printable(text) // text as the terminal shows it: with control characters escaped
			widths[j] = max(widths[j], utf8.RuneCountInString(shown[i][j]))
		}
	}
	total := func() (sum int) {
		for _, w := range widths {
			sum += w + columnGap
		}
		return sum - columnGap
	}
	for excess := total() - width; excess > 0; excess = total() - width {
		widest := 0
		for j := 1; j < len(widths); j++ {
			if widths[j] > minColumnWidth && (widest == 0 || widths[j] > widths[widest]) {
				widest = j
			}
		}
		switch {
		case widest > 0:
			widths[widest]--
		case len(widths) > 1:
			widths = widths[:len(widths)-1]
		default:
			excess = 0 // a table with one column cannot become narrower
		}
		if excess == 0 {
			break
		}
	}
	for i, cells := range shown {
		shown[i] = cells[:len(widths)]
		for j, text := range shown[i] {
			if utf8.RuneCountInString(text) > widths[j] {
				shown[i][j] = string([]rune(text)[:widths[j]-1]) + "…"
			}
		}
	}
	return shown
}
