package rest

import (
	"encoding/csv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// usageColumns lists the columns of the CSV response: the JSON name of a field of UsageRow, and a
// function that formats it.
var usageColumns = []struct {
	name string
	text func(*UsageRow) string
}{
	{"startTime", func(r *UsageRow) string { return r.StartTime.Format(time.RFC3339) }},
	{"endTime", func(r *UsageRow) string { return r.EndTime.Format(time.RFC3339) }},
	{"account", func(r *UsageRow) string { return plainCell(r.Account) }},
	{"apiKey", func(r *UsageRow) string { return plainCell(r.APIKey) }},
	{"model", func(r *UsageRow) string { return plainCell(r.Model) }},
	{"deployment", func(r *UsageRow) string { return plainCell(r.Deployment) }},
	{"job", func(r *UsageRow) string { return plainCell(r.Job) }},
	{"acceleratorType", func(r *UsageRow) string { return plainCell(r.AcceleratorType) }},
	{"requests", func(r *UsageRow) string { return countCell(r.Requests) }},
	{"promptTokens", func(r *UsageRow) string { return countCell(r.PromptTokens) }},
	{"cachedPromptTokens", func(r *UsageRow) string { return countCell(r.CachedPromptTokens) }},
	{"completionTokens", func(r *UsageRow) string { return countCell(r.CompletionTokens) }},
	{"audioSeconds", func(r *UsageRow) string { return secondsCell(r.AudioSeconds) }},
	{"acceleratorSeconds", func(r *UsageRow) string { return secondsCell(r.AcceleratorSeconds) }},
	{"complete", func(r *UsageRow) string { return strconv.FormatBool(r.Complete) }},
}

// plainCell returns text, with a ' before it if a spreadsheet would interpret it as a formula.
// Clients choose the model names in requests, so these can be malicious.
func plainCell(text string) string {
	if text != "" && strings.Contains("=+-@\t\r", text[:1]) {
		return "'" + text
	}
	return text
}

func countCell(n domain.Count) string { return strconv.FormatInt(int64(n), 10) }

func secondsCell(s float64) string { return strconv.FormatFloat(s, 'f', -1, 64) }

// writeUsage writes the rows as CSV, with the columns in the mask; an empty mask means all columns.
func writeUsage(c *call, rows []UsageRow, mask wire.Mask) error {
	c.Writer.Header().Set("Content-Type", csvMedia+"; charset=utf-8")
	c.Writer.WriteHeader(http.StatusOK)
	out := csv.NewWriter(c.Writer)
	columns := slices.Clone(usageColumns)
	if len(mask) > 0 {
		columns = columns[:0]
		for _, column := range usageColumns {
			if _, selected := mask[column.name]; selected {
				columns = append(columns, column)
			}
		}
	}
	cells := make([]string, len(columns))
	for i, column := range columns {
		cells[i] = column.name
	}
	_ = out.Write(cells)
	for _, row := range rows {
		for i, column := range columns {
			cells[i] = column.text(&row)
		}
		_ = out.Write(cells)
	}
	out.Flush()
	return request.IgnoreGone(out.Error())
}
