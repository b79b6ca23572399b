package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

// wantsJSON reports whether the user wants JSON (-o json). It returns a usage error for an unknown
// format.
func wantsJSON(c *cobra.Command) (bool, error) {
	switch format, _ := c.Flags().GetString("output"); format {
	case "json":
		return true, nil
	case "table":
		return false, nil
	default:
		return false, usage.Errorf("-o %q must be table or json%s", format,
			domain.DidYouMean(format, []string{"table", "json"}))
	}
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// A column is a column of a table: its title, and the dotted path of its values in a resource.
type column struct{ title, path string }

// noRows is what a command prints on standard error if a table has no rows: that there are none
// (what), and what the user can do (hint).
type noRows struct{ what, hint string }

// filterFlags are the flags that select rows. If one is given, it is the likely reason for an empty table.
var filterFlags = []string{"filter", "resource", "since", "from", "to", "as-of"}

// print prints the text on the standard error of c.
func (n noRows) print(c *cobra.Command) {
	var given []string
	for _, name := range filterFlags {
		if f := c.Flags().Lookup(name); f != nil && f.Changed {
			given = append(given, fmt.Sprintf("--%s %s", name, strconv.Quote(f.Value.String())))
		}
	}
	what, hint := n.what, n.hint
	if len(given) > 0 {
		what, hint = what+" with "+strings.Join(given, " "), "give another value, or leave it out"
	}
	if hint != "" {
		what += ": " + hint
	}
	fmt.Fprintln(c.ErrOrStderr(), withArguments(c, what))
}

// printItems prints resources as a table or as JSON. If a table has no rows, it prints empty on
// standard error.
func printItems(c *cobra.Command, empty noRows, items []map[string]any, columns ...column) error {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if inJSON {
		return printJSON(c.OutOrStdout(), items)
	}
	rows := make([][]string, 1, 1+len(items))
	for _, col := range columns {
		rows[0] = append(rows[0], col.title)
	}
	for _, item := range items {
		cells := make([]string, len(columns))
		for i, col := range columns {
			cells[i] = lineBreaks.Replace(cell(item, col.path))
			if col.path == statusMessage {
				cells[i] = shorten(cells[i], maxStatus)
			}
		}
		rows = append(rows, cells)
	}
	if len(items) == 0 {
		defer empty.print(c)
	}
	return printTable(c.OutOrStdout(), rows)
}

// lineBreaks replaces tabs and newlines, so that a value fits into one row of a table.
var lineBreaks = strings.NewReplacer("\t", " ", "\n", " ")

// statusMessage is the dotted path of the message in a resource's status.
const statusMessage = "status.message"

// maxStatus is the maximum number of characters of a status message in a table, because the message
// of a dataset with invalid rows lists up to 100 violations. The get command prints the whole
// message.
const maxStatus = 200

// printItem prints a resource: one field per line, or JSON.
func printItem(c *cobra.Command, item map[string]any, columns ...column) error {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if inJSON {
		return printJSON(c.OutOrStdout(), item)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 8, 2, ' ', 0)
	for _, col := range columns {
		if text := cell(item, col.path); text != "-" {
			// Further lines of the value are indented.
			text = strings.NewReplacer("\t", " ", "\n", "\n\t").Replace(text)
			fmt.Fprintf(w, "%s:\t%s\n", col.title, text)
		}
	}
	return w.Flush()
}

// cell returns the value at a dotted path of a resource as text; "-" if there is none. If the path
// begins with "#", the value is a resource name, of which cell returns the last part.
func cell(item map[string]any, path string) string {
	short := strings.HasPrefix(path, "#")
	var value any = item
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "#"), ".") {
		object, ok := value.(map[string]any)
		if !ok {
			return "-"
		}
		value = object[part]
	}
	switch v := value.(type) {
	case nil:
		return "-"
	case string:
		if v == "" || v == zeroTime || strings.HasSuffix(v, "_UNSPECIFIED") {
			return "-"
		}
		if short {
			return id(v)
		}
		if path == "time" || path == "queue.since" || strings.HasSuffix(path, "Time") {
			return localTime(v)
		}
		return v
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 { // an integer is shown with all its digits
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
		return strconv.FormatFloat(v, 'g', 6, 64)
	case bool:
		return fmt.Sprint(v)
	case map[string]any:
		if path == queuePath {
			return queueText(v, time.Now())
		}
		pairs, separator := make([]string, 0, len(v)), " "
		if path == "labels" || path == selectorPath { // as flags take them
			separator = "="
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			text, ok := v[key].(string)
			if !ok || separator == " " {
				text = cell(v, key)
			}
			pairs = append(pairs, key+separator+text)
		}
		return strings.Join(pairs, ", ")
	case []any:
		if path == "taints" || path == tolerationsPath {
			return taintTexts(v)
		}
		return listed(v)
	default:
		text, _ := json.Marshal(v)
		return string(text)
	}
}

// listed returns a list as text: strings separated by commas, and any other list as JSON.
func listed(values []any) string {
	texts := make([]string, len(values))
	for i, value := range values {
		text, ok := value.(string)
		if !ok {
			data, _ := json.Marshal(values)
			return string(data)
		}
		texts[i] = text
	}
	return strings.Join(texts, ", ")
}

// zeroTime is the JSON of Go's zero time, which stands for an unset time and is never shown.
const zeroTime = "0001-01-01T00:00:00Z"

func localTime(text string) string {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return text
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// note prints a line on standard output, unless the output format is JSON.
func note(c *cobra.Command, format string, args ...any) {
	if inJSON, _ := wantsJSON(c); !inJSON {
		fmt.Fprintf(c.OutOrStdout(), format+"\n", args...)
	}
}

// bar returns a progress bar of width characters. done is between 0 and 1.
func bar(done float64, width int) string {
	filled := min(width, max(0, int(done*float64(width)+0.5)))
	return strings.Repeat("█", filled) + strings.Repeat("░", width-filled)
}

// sparkline returns a curve of the values, as one line of at most width characters.
func sparkline(values []float64, width int) string {
	if len(values) == 0 {
		return ""
	}
	low, high := values[0], values[0]
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	ticks := []rune("▁▂▃▄▅▆▇█")
	var text strings.Builder
	width = min(width, len(values))
	for i := range width {
		v := values[i*len(values)/width]
		level := 0
		if high > low {
			level = int((v - low) / (high - low) * float64(len(ticks)-1))
		}
		text.WriteRune(ticks[level])
	}
	return text.String()
}
