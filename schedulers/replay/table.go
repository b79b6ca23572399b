package replay

import (
	"fmt"
	"strconv"
	"time"
)

// Variants returns a line for each variant of the report: its title in Table, and its settings.
func (r Report) Variants() (lines []string) {
	for i, result := range r.Results[min(2, len(r.Results)):] {
		lines = append(lines, fmt.Sprintf("variant %d: %s", i+1, result.Name))
	}
	return lines
}

// Table returns the report as rows of cells, with a column for each result. The first row has the
// titles.
func (r Report) Table() [][]string {
	titles := []string{""}
	for i, result := range r.Results {
		if i < 2 {
			titles = append(titles, result.Name)
		} else {
			titles = append(titles, fmt.Sprintf("variant %d", i-1))
		}
	}
	rows := [][]string{titles}
	add := func(title string, cell func(Result) string) {
		row := []string{title}
		for _, result := range r.Results {
			row = append(row, cell(result))
		}
		rows = append(rows, row)
	}
	count := func(title string, n func(Result) int) {
		add(title, func(result Result) string { return strconv.Itoa(n(result)) })
	}
	count("jobs that arrived", func(r Result) int { return r.Jobs.Arrived })
	count("  started", func(r Result) int { return r.Jobs.Started })
	count("  completed", func(r Result) int { return r.Jobs.Completed })
	count("  failed", func(r Result) int { return r.Jobs.Failed })
	count("  cancelled", func(r Result) int { return r.Jobs.Cancelled })
	count("  running at the end", func(r Result) int { return r.Jobs.Running })
	count("  waiting at the end", func(r Result) int { return r.Jobs.Waiting })
	waits := func(title string, of func(Result) Waits) {
		add(title+" mean", func(result Result) string { return of(result).text(of(result).Mean) })
		add("  p50", func(result Result) string { return of(result).text(of(result).P50) })
		add("  p95", func(result Result) string { return of(result).text(of(result).P95) })
		add("  max", func(result Result) string { return of(result).text(of(result).Max) })
	}
	waits("wait until the first start:", func(r Result) Waits { return r.Wait })
	waits("wait of gangs:", func(r Result) Waits { return r.Gangs })
	add("time in the queue: mean", func(r Result) string { return r.Wait.text(r.InQueue) })
	groups := func(of func(Result) []Group) {
		for _, name := range r.names(func(result Result) (names []string) {
			for _, g := range of(result) {
				names = append(names, g.Name)
			}
			return names
		}) {
			add(name+": done, wait, p95", func(result Result) string {
				for _, g := range of(result) {
					if g.Name == name {
						return fmt.Sprintf("%d, %s, %s", g.Completed, g.Wait.text(g.Wait.Mean), g.Wait.text(g.Wait.P95))
					}
				}
				return "-"
			})
		}
	}
	groups(func(r Result) []Group { return r.Accounts })
	groups(func(r Result) []Group { return r.Kinds })
	r.addUtilization(add)
	count("preemptions", func(r Result) int { return r.Preempted })
	count("requeues", func(r Result) int { return r.Requeued })
	count("preempted replicas", func(r Result) int { return r.GaveWay })
	return rows
}

func (r Report) addUtilization(add func(title string, cell func(Result) string)) {
	for _, kind := range r.names(func(result Result) (names []string) {
		for _, u := range result.Devices {
			names = append(names, u.Type)
		}
		return names
	}) {
		add("utilization of "+kind, func(result Result) string {
			for _, u := range result.Devices {
				if u.Type == kind {
					return fmt.Sprintf("%.1f %%", u.Percent)
				}
			}
			return "-"
		})
	}
}

// names returns the names that namesOf returns for the results, without duplicates and in the order
// of their first occurrence.
func (r Report) names(namesOf func(Result) []string) (all []string) {
	known := map[string]bool{}
	for _, result := range r.Results {
		for _, name := range namesOf(result) {
			if !known[name] {
				known[name] = true
				all = append(all, name)
			}
		}
	}
	return all
}

// text formats a time in seconds; "-" if there are no jobs.
func (w Waits) text(seconds float64) string {
	if w.Jobs == 0 {
		return "-"
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}
