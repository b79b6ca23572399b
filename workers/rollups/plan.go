package rollups

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog/metering"
)

// A plan sums up the usage of a window: a range of the usage stream and of the log. It is pure: the
// same records and events give the same intents.
type plan struct {
	window  domain.UsageWindow
	numbers map[string]uint64 // by control plane: number of its last record before the window
	// the stream was created again or lost records, so its records may be in an earlier window already
	renewed  bool
	created  bool            // the stream was created again after the previous window
	seen     map[string]bool // IDs of the records of batch requests, which can be repeated
	groups   map[group]*rows
	coverage map[string]domain.UsageRecords
	repeated int64
}

// A group is the usage of an account in a month: either new usage, or corrections of hours that were
// rolled up before.
type group struct {
	account    string
	month      domain.Name
	correction bool
}

type rows struct {
	// amounts of each usage row; a key is the row with its amounts set to zero
	amounts map[domain.UsageRow]domain.UsageAmounts
	records map[string]domain.UsageRecords // by control plane: the usage records that are summed up
}

func newPlan(w domain.UsageWindow, from base) *plan {
	renewed := w.Number > 1 && w.From.Sequence == 0
	return &plan{window: w, numbers: from.numbers, renewed: renewed, created: renewed && from.newStream,
		seen: map[string]bool{}, groups: map[group]*rows{}, coverage: map[string]domain.UsageRecords{}}
}

// rolledUp reports whether a record belongs to an earlier window, which is possible only if the
// stream was renewed. Records of requests that ended after the stream was created are new, even if
// their control plane has begun its numbers again, for example after a restore from a backup.
func (p *plan) rolledUp(r metering.Record) bool {
	if !p.renewed || p.created && !r.Time.Before(p.window.Stream) {
		return false
	}
	return r.Number > 0 && r.Number <= p.numbers[r.Source()] || r.Number == 0 && r.Time.Before(p.window.Since)
}

// addRecord adds a usage record to the plan. repeated says that an earlier window has a record with
// the same ID.
func (p *plan) addRecord(r metering.Record, repeated bool) {
	if p.rolledUp(r) {
		return
	}
	cover(p.coverage, r)
	if r.Repeatable() {
		repeated = repeated || p.seen[r.ID]
		p.seen[r.ID] = true
	}
	if repeated {
		p.repeated++
		return
	}
	row := domain.UsageRow{Hour: r.Time.UTC().Truncate(time.Hour), Key: r.Key, Model: r.Model, Deployment: r.Deployment}
	cover(p.add(r.Account, row, AmountsOf(r)).records, r)
}

// AmountsOf returns the amounts of usage in a record.
func AmountsOf(r metering.Record) domain.UsageAmounts {
	return domain.UsageAmounts{Requests: 1, PromptTokens: int64(r.PromptTokens),
		CachedPromptTokens: int64(r.CachedPromptTokens), CompletionTokens: int64(r.CompletionTokens),
		AudioMicroseconds: int64(math.Round(r.AudioSeconds * 1e6))}
}

func cover(records map[string]domain.UsageRecords, r metering.Record) {
	one, known := records[r.Source()]
	if one.Count++; !known || r.Number < one.From {
		one.From = r.Number
	}
	one.Source, one.To = r.Source(), max(one.To, r.Number)
	records[r.Source()] = one
}

func (p *plan) addCharge(c charge) {
	row := domain.UsageRow{Hour: c.hour, Accelerator: c.accelerator}
	if row.Job = c.workload; c.workload.Collection() == domain.Deployments.Collection {
		row.Job, row.Deployment = "", c.workload
	}
	p.add(c.workload.Account(), row, domain.UsageAmounts{AcceleratorMicroseconds: c.microseconds})
}

func (p *plan) add(account string, row domain.UsageRow, amounts domain.UsageAmounts) *rows {
	key := group{account, domain.UsageMonth(account, row.Hour), !row.Hour.Add(time.Hour).After(p.window.Since)}
	of := p.groups[key]
	if of == nil {
		of = &rows{map[domain.UsageRow]domain.UsageAmounts{}, map[string]domain.UsageRecords{}}
		p.groups[key] = of
	}
	of.amounts[row] = of.amounts[row].Plus(amounts)
	return of
}

// rowsOf returns the rows of a group in the order of domain.CompareUsage.
func (p *plan) rowsOf(g group) (all []domain.UsageRow) {
	for row, amounts := range p.groups[g].amounts {
		if row.UsageAmounts = amounts; amounts != (domain.UsageAmounts{}) {
			all = append(all, row)
		}
	}
	slices.SortFunc(all, domain.CompareUsage)
	return all
}

func (p *plan) sorted() []group {
	return slices.SortedFunc(maps.Keys(p.groups), func(a, b group) int {
		late := func(g group) int {
			if g.correction {
				return 1
			}
			return 0
		}
		return cmp.Or(strings.Compare(string(a.month), string(b.month)), cmp.Compare(late(a), late(b)))
	})
}

// intents returns the commands that record the rows of the plan.
func (p *plan) intents() (all []domain.Intent) {
	var parts []domain.RollUpUsage // commands that record the usage of one month; month is its resource name
	var month domain.Name
	flush := func() {
		for i := range parts {
			parts[i].Part, parts[i].Parts = i+1, len(parts)
			all = append(all, domain.Intend(domain.UsageRollups, month, domain.Command[domain.UsageRollup](parts[i])))
		}
		parts = nil
	}
	for _, g := range p.sorted() {
		if g.month != month {
			flush()
			month = g.month
		}
		records := sortedRecords(p.groups[g].records)
		for part := range slices.Chunk(p.rowsOf(g), domain.MaxUsageRows) {
			parts = append(parts, domain.RollUpUsage{Correction: g.correction, UsagePart: domain.UsagePart{
				Window: p.window.Number, Rows: slices.Clone(part), FromSequence: p.window.From.Sequence,
				ToSequence: p.window.To.Sequence, Records: records}})
			records = nil
		}
	}
	flush()
	return all
}

func sortedRecords(records map[string]domain.UsageRecords) []domain.UsageRecords {
	return slices.SortedFunc(maps.Values(records), func(a, b domain.UsageRecords) int {
		return strings.Compare(a.Source, b.Source)
	})
}

// completed returns the command that completes the window.
func (p *plan) completed() domain.CompleteUsageWindow {
	c := domain.UsageWindowCompleted{Window: p.window.Number, Records: sortedRecords(p.coverage), Repeated: p.repeated}
	for _, of := range p.groups {
		for _, amounts := range of.amounts {
			c.Total = c.Total.Plus(amounts)
		}
	}
	return domain.CompleteUsageWindow{UsageWindowCompleted: c}
}
