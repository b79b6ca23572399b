package cli

import (
	"fmt"
	"slices"
	"time"
)

// queuePath is the path of a job's field with its place in the queue.
const queuePath = "queue"

// withQueue returns columns and, if an item has a place in the queue, a column for it.
func withQueue(columns []column, items []map[string]any) []column {
	waits := func(item map[string]any) bool { return cell(item, queuePath) != cell(nil, queuePath) }
	if !slices.ContainsFunc(items, waits) {
		return columns
	}
	return append(slices.Clip(columns), column{"QUEUE", queuePath})
}

// queueText returns the place of a job in the queue as text, such as "3 of 12, starts about 12:25
// (12:10 to 12:40)"; "-" if the job is not in a queue.
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

// nearTime returns a time to the minute, in the time zone of now, with the date if it is another
// day.
func nearTime(t, now time.Time) string {
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}
