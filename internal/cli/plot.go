package cli

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

const (
	plotHeight   = 10 // height of a plot, in lines
	plotLabels   = 10 // width of the labels to the left of a plot, in characters
	minPlotWidth = 20 // minimum width of a plot without its labels, in characters
	maxPlotWidth = 120
	defaultWidth = 80 // width of an output that is not a terminal, in characters
)

// plotMetrics draws a curve over the steps for each metric that at least one step has. rows are the
// metrics of the steps.
func plotMetrics(out io.Writer, rows []map[string]any, metrics []column) error {
	width := widthOf(out)
	if width == 0 {
		width = defaultWidth
	}
	width = min(max(width-plotLabels-2, minPlotWidth), maxPlotWidth)
	var text strings.Builder
	for _, metric := range metrics {
		var steps, values []float64
		for _, row := range rows {
			step, ok := row["step"].(float64)
			if value, known := row[metric.path].(float64); ok && known {
				steps, values = append(steps, step), append(values, value)
			}
		}
		if len(values) == 0 {
			continue
		}
		if text.Len() > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "%s (%s)\n%s", metric.title, metric.path, plot(steps, values, width, plotHeight))
	}
	if text.Len() == 0 {
		text.WriteString("no step has a metric yet\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// Bits of the dots in a braille character, by column and row. A character has 2 columns and 4 rows
// of dots.
const (
	brailleBase = 0x2800
	dotColumns  = 2
	dotRows     = 4
)

var brailleDots = [dotColumns][dotRows]rune{{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}

// plot draws the values over the numbers xs as a curve of width × height characters. The labels on
// the left show the range of the values, and those below the curve the range of xs.
func plot(xs, values []float64, width, height int) string {
	low, high, begin, end := slices.Min(values), slices.Max(values), slices.Min(xs), slices.Max(xs)
	cells := make([][]rune, height)
	for i := range cells {
		cells[i] = []rune(strings.Repeat(string(rune(brailleBase)), width))
	}
	place := func(v, from, to float64, dots int) float64 { // coordinate of a number on an axis, in dots
		if to == from {
			return float64(dots-1) / 2
		}
		return (v - from) / (to - from) * float64(dots-1)
	}
	set := func(x, y float64) {
		column, row := int(math.Round(x)), height*dotRows-1-int(math.Round(y))
		cells[row/dotRows][column/dotColumns] |= brailleDots[column%dotColumns][row%dotRows]
	}
	for i := range xs {
		x, y := place(xs[i], begin, end, width*dotColumns), place(values[i], low, high, height*dotRows)
		set(x, y)
		if i == 0 {
			continue
		}
		x0, y0 := place(xs[i-1], begin, end, width*dotColumns), place(values[i-1], low, high, height*dotRows)
		parts := int(max(math.Abs(x-x0), math.Abs(y-y0)))
		for part := 1; part < parts; part++ { // draw the line from the previous point to this one
			share := float64(part) / float64(parts)
			set(x0+(x-x0)*share, y0+(y-y0)*share)
		}
	}
	var text strings.Builder
	for i, line := range cells {
		label := ""
		switch i {
		case 0:
			label = shortNumber(high)
		case height - 1:
			label = shortNumber(low)
		}
		fmt.Fprintf(&text, "%*s │%s\n", plotLabels, label, strings.TrimRight(string(line), string(rune(brailleBase))))
	}
	first := shortNumber(begin)
	fmt.Fprintf(&text, "%*s └%s\n", plotLabels, "", strings.Repeat("─", width))
	fmt.Fprintf(&text, "%*s  %s%*s\n", plotLabels, "step", first, width-len(first), shortNumber(end))
	return text.String()
}

// shortNumber formats a number: an integer below 1e9 with all digits, any other number with at most
// four significant digits.
func shortNumber(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e9 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
