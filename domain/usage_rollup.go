package domain

import (
	"cmp"
	"slices"
	"time"
)

// A usage roll-up is the usage of an account in a month, summed up by hour. The rows are in the
// events only; the state says which rows are recorded. The resource UsageLedger says which usage
// records and which events of the log are rolled up: each of them is in exactly one window, and
// windows follow each other without gaps.
//
//	(none) --OpenUsageWindow--> window 1 open --CompleteUsageWindow--> window 1 complete
//	window n complete --OpenUsageWindow--> window n+1 open
//	(none), window n --RollUpUsage--> window n, or a later one
var UsageRollups = NewKind("usageRollups", map[string]Event[UsageRollup]{
	"usageWindow.opened.v1":    UsageWindowOpened{},
	"usageWindow.completed.v1": UsageWindowCompleted{},
	"usage.rolledUp.v1":        UsageRolledUp{},
	"usage.corrected.v1":       UsageCorrected{},
})

// UsageLedger is the name of the resource whose events open and complete windows.
const UsageLedger = Name("accounts/" + System + "/usageRollups/ledger")

// MaxUsageRows is the maximum number of rows in one event.
const MaxUsageRows = 200

// usageMonth is the time format of the resource ID of a month.
const usageMonth = "m2006-01"

// UsageMonth returns the name of the resource with the usage of an account in the month that
// contains t.
func UsageMonth(account string, t time.Time) Name {
	return NewName(account, UsageRollups.Collection, t.UTC().Format(usageMonth))
}

// A UsageRow is the usage in one hour (UTC) of one key, model and deployment, or of the
// accelerators of one type that are allocated to one job or deployment.
type UsageRow struct {
	Hour        time.Time `json:"hour"` // start of the hour of the usage, in UTC
	Key         Name      `json:"apiKey,omitempty"`
	Model       string    `json:"model,omitempty"` // model that the requests name
	Deployment  Name      `json:"deployment,omitempty"`
	Job         Name      `json:"job,omitempty"`
	Accelerator string    `json:"acceleratorType,omitempty"`
	UsageAmounts
}

// UsageAmounts are the amounts of a UsageRow. They are integers, so that sums are exact.
type UsageAmounts struct {
	Requests     int64 `json:"requests,omitempty"`
	PromptTokens int64 `json:"promptTokens,omitempty"`
	// cached tokens of prompts; PromptTokens includes them
	CachedPromptTokens int64 `json:"cachedPromptTokens,omitempty"`
	CompletionTokens   int64 `json:"completionTokens,omitempty"`
	// duration of transcribed audio, rounded in each usage record
	AudioMicroseconds int64 `json:"audioMicroseconds,omitempty"`
	// AcceleratorMicroseconds is the time for which accelerators were allocated, multiplied by
	// their number.
	AcceleratorMicroseconds int64 `json:"acceleratorMicroseconds,omitempty"`
}

// Plus returns the sums of the amounts of a and o.
func (a UsageAmounts) Plus(o UsageAmounts) UsageAmounts {
	return UsageAmounts{a.Requests + o.Requests, a.PromptTokens + o.PromptTokens,
		a.CachedPromptTokens + o.CachedPromptTokens, a.CompletionTokens + o.CompletionTokens,
		a.AudioMicroseconds + o.AudioMicroseconds, a.AcceleratorMicroseconds + o.AcceleratorMicroseconds}
}

// CompareUsage orders rows by hour, then by their other fields without the amounts.
func CompareUsage(a, b UsageRow) int {
	return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Model, b.Model),
		cmp.Compare(a.Deployment, b.Deployment), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Accelerator, b.Accelerator))
}

// UsageRecords describes the usage records of one control plane in a window: Count records, with
// the numbers From to To. Records of earlier versions have neither a control plane nor numbers.
type UsageRecords struct {
	Source string `json:"controlPlane,omitempty"` // ID of the control plane; "" in records of earlier versions
	From   uint64 `json:"from,omitempty"`
	To     uint64 `json:"to,omitempty"`
	Count  int64  `json:"count"`
}

// A UsageCursor is a sequence number in the stream of usage records, together with a log position.
type UsageCursor struct {
	Sequence uint64 `json:"sequence"`
	Position uint64 `json:"position"`
}

// A UsageWindow contains the usage records and the events after From, up to To.
type UsageWindow struct {
	Number uint64      `json:"window"` // number of the window, from 1
	From   UsageCursor `json:"from"`
	To     UsageCursor `json:"to"`
	// Since and Until are full hours. Hours that end at Since or earlier were rolled up before, so
	// rows of this window about them are corrections. Allocations that have not ended count up to
	// Until.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Stream is the time at which the stream of usage records was created. If the stream is created
	// again, its sequences begin again.
	Stream time.Time `json:"stream"`
}

// UsageRollup is the state of UsageLedger, or of one month of an account.
type UsageRollup struct {
	Window UsageWindow `json:"window,omitzero"` // newest window; for a month, only its Number is set
	Part   int         `json:"part,omitempty"`  // for a month: the last recorded part of the window
	Done   bool        `json:"done,omitempty"`  // for the ledger: all rows of the window are recorded
	// NewStream is set in the ledger if the stream of usage records was created again after the
	// previous window.
	NewStream bool `json:"newStream,omitempty"`
	// Numbers are the highest numbers of usage records that are rolled up, by control plane.
	Numbers map[string]uint64 `json:"numbers,omitempty"`
}

// Exists implements State.
func (u UsageRollup) Exists() bool { return u.Window.Number > 0 }

// UsageWindowOpened records the window whose rows are recorded next.
type UsageWindowOpened struct{ UsageWindow }

func (e UsageWindowOpened) Evolve(u *UsageRollup) {
	u.NewStream = u.Exists() && !u.Window.Stream.Equal(e.Stream)
	u.Window, u.Done = e.UsageWindow, false
}

// UsageWindowCompleted records that all rows of a window are recorded. With it, a reader of the
// ledger can prove that no record is missing: the numbers of each control plane continue those of
// its previous window, and their count is To - From + 1.
type UsageWindowCompleted struct {
	Window  uint64         `json:"window"`
	Records []UsageRecords `json:"records,omitempty"` // usage records in the window, one element for each control plane
	// Repeated is how many of the counted records are not in the rows, because an earlier record
	// has the same ID.
	Repeated int64        `json:"repeated,omitempty"`
	Total    UsageAmounts `json:"total"` // sum of all rows of all accounts in the window
}

func (e UsageWindowCompleted) Evolve(u *UsageRollup) {
	numbers := make(map[string]uint64, len(u.Numbers)+len(e.Records))
	for plane, n := range u.Numbers {
		numbers[plane] = n
	}
	for _, one := range e.Records {
		numbers[one.Source] = max(numbers[one.Source], one.To)
	}
	u.Done, u.Numbers = true, numbers
}

// A UsagePart is a part of the rows of an account's month in a window.
type UsagePart struct {
	Window uint64     `json:"window"`
	Part   int        `json:"part"`  // number of this part, from 1
	Parts  int        `json:"parts"` // number of parts of this month in the window
	Rows   []UsageRow `json:"rows"`
	// FromSequence and ToSequence are the Sequence of the window's From and To. Together, the rows
	// of all parts, in both types of event, contain the usage records after FromSequence, up to
	// ToSequence.
	FromSequence uint64 `json:"fromSequence"`
	ToSequence   uint64 `json:"toSequence"`
	// Records describes the usage records in the rows of all parts with this type of event. Only
	// the first of these parts has it.
	Records []UsageRecords `json:"records,omitempty"`
}

// UsagePartOf returns the part that an event records, or false for an event that records no rows.
func UsagePartOf(event Event[UsageRollup]) (UsagePart, bool) {
	switch e := event.(type) {
	case UsageRolledUp:
		return e.UsagePart, true
	case UsageCorrected:
		return e.UsagePart, true
	}
	return UsagePart{}, false
}

func (e UsagePart) evolve(u *UsageRollup) {
	*u = UsageRollup{Window: UsageWindow{Number: e.Window}, Part: e.Part}
}

// UsageRolledUp records rows for hours that were not rolled up before, or adds usage to an hour
// that has not ended.
type UsageRolledUp struct{ UsagePart }

func (e UsageRolledUp) Evolve(u *UsageRollup) { e.evolve(u) }

// UsageCorrected adds usage to hours that were rolled up before, because some usage records arrived
// later.
type UsageCorrected struct{ UsagePart }

func (e UsageCorrected) Evolve(u *UsageRollup) { e.evolve(u) }

// OpenUsageWindow opens the window that follows the newest window, which must be complete.
type OpenUsageWindow struct{ UsageWindow }

func (c OpenUsageWindow) Decide(u UsageRollup, _ time.Time) (Event[UsageRollup], error) {
	last := u.Window
	switch {
	case last.Number >= c.Number:
		return nil, nil // another control plane has opened the same window
	case last.Number+1 != c.Number:
		return nil, precondition("USAGE_WINDOW_OPEN", "window %d cannot be opened: the next window is %d", c.Number,
			last.Number+1)
	case last.Number > 0 && !u.Done:
		return nil, precondition("USAGE_WINDOW_OPEN", "window %d cannot be opened: window %d is not complete", c.Number,
			last.Number)
	case c.Until.Before(last.Until) || !c.Since.Equal(last.Until) || c.From.Position != last.To.Position:
		return nil, precondition("USAGE_WINDOW_GAP", "window %d does not start at the end of window %d", c.Number,
			last.Number)
	}
	return UsageWindowOpened(c), nil
}

// CompleteUsageWindow records that all rows of the open window are recorded.
type CompleteUsageWindow struct{ UsageWindowCompleted }

func (c CompleteUsageWindow) Decide(u UsageRollup, _ time.Time) (Event[UsageRollup], error) {
	switch last := u.Window.Number; {
	case last > c.Window || last == c.Window && u.Done:
		return nil, nil
	case c.Window == 0 || last < c.Window:
		return nil, precondition("USAGE_WINDOW_OPEN", "window %d cannot be completed, because it is not open", c.Window)
	}
	return c.UsageWindowCompleted, nil
}

// RollUpUsage records a part of the rows of an account's month. It records nothing if the part is
// already recorded.
type RollUpUsage struct {
	UsagePart
	Correction bool
}

func (c RollUpUsage) Decide(u UsageRollup, _ time.Time) (Event[UsageRollup], error) {
	if cmp.Or(cmp.Compare(u.Window.Number, c.Window), cmp.Compare(u.Part, c.Part)) >= 0 {
		return nil, nil
	}
	recorded := 0
	if u.Window.Number == c.Window {
		recorded = u.Part
	}
	var v Violations
	v.Require(c.Window > 0, "window", "must be positive")
	v.Require(c.Part == recorded+1, "part", "is %d, but the last recorded part is %d, and parts are recorded in order",
		c.Part, recorded)
	v.Require(len(c.Rows) <= MaxUsageRows, "rows", "must have at most %d rows, not %d", MaxUsageRows, len(c.Rows))
	if err := v.Err(); err != nil {
		return nil, err
	}
	if c.Correction {
		return UsageCorrected{c.UsagePart}, nil
	}
	return UsageRolledUp{c.UsagePart}, nil
}

// SumUsage adds up rows that CompareUsage finds equal, and returns the sums in the order of
// CompareUsage.
func SumUsage(rows []UsageRow) (sum []UsageRow) {
	rows = slices.SortedFunc(slices.Values(rows), CompareUsage)
	for _, row := range rows {
		if n := len(sum); n > 0 && CompareUsage(sum[n-1], row) == 0 {
			sum[n-1].UsageAmounts = sum[n-1].Plus(row.UsageAmounts)
			continue
		}
		sum = append(sum, row)
	}
	return sum
}

// AccountUsage is a usage row, together with the ID of its account.
type AccountUsage struct {
	Account string
	UsageRow
}
