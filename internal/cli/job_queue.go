package cli

import (
	"fmt"
	"slices"
	"time"
)

// queuePath is the path of the field that contains the place of a job in the queue.
const queuePath = "queue"

// withQueue returns the columns, with a column for the place in the queue added if an item waits in
// one.
func withQueue(columns []column, items []map[string]any) []column {
	waits := func(item map[string]any) bool { return cell(item, queuePath) != cell(nil, queuePath) }
	if !slices.ContainsFunc(items, waits) {
		return columns
	}
	return append(slices.Clip(columns), column{"QUEUE", queuePath})
}

// queueText formats the place of a job in the queue: "3 of 12, starts about 12:25 (12:10 to 12:40)". It
// returns "-" for a job that does not wait in a queue.
func queueText(queue map[string]any, now time.Time) string {
	if cell(queue, "position") == "-" {
		return "-"
	}
	text := fmt.Sprintf("%s of %s", cell(queue, "position"), cell(queue, "length"))
	estimate, _ := queue["estimatedStartTime"].(map[string]any)
	var times [3]string
	for i, key := range []string{"median", "earliest", "latest"} {
		value, _ := estimate[key].(string)
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return text
		}
		times[i] = nearTime(at.Local(), now.Local())
	}
	return fmt.Sprintf("%s, starts about %s (%s to %s)", text, times[0], times[1], times[2])
}

// nearTime formats a time to the minute, with its date if that is not the date of now.
func nearTime(t, now time.Time) string {
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}
