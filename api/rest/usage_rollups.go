package rest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// PendingUsage is the usage that is not recorded in the log yet. rollups.Runner implements it, and
// records the usage of each hour.
type PendingUsage interface {
	// Pending returns the pending usage, the number of the last window of the usage stream that is
	// recorded completely, and the end of the last hour that is recorded.
	Pending(ctx context.Context) (rows []domain.AccountUsage, window uint64, until time.Time, err error)
}

// A UsageRow is the usage of one group in one period: see the query parameter groupBy.
type UsageRow struct {
	StartTime          *time.Time   `json:"startTime"`
	EndTime            *time.Time   `json:"endTime"`
	Account            string       `json:"account,omitempty"`
	APIKey             string       `json:"apiKey,omitempty"`
	Model              string       `json:"model,omitempty"`
	Deployment         string       `json:"deployment,omitempty"`
	Job                string       `json:"job,omitempty"`
	AcceleratorType    string       `json:"acceleratorType,omitempty"`
	Requests           domain.Count `json:"requests"`
	PromptTokens       domain.Count `json:"promptTokens"`
	CachedPromptTokens domain.Count `json:"cachedPromptTokens"`
	CompletionTokens   domain.Count `json:"completionTokens"`
	AudioSeconds       float64      `json:"audioSeconds"`
	AcceleratorSeconds float64      `json:"acceleratorSeconds"`
	Complete           bool         `json:"complete"`
}

// usageState wraps a UsageRow as the domain.State of a row of the world, so that query.List, which
// takes such rows, can filter and order the usage.
type usageState struct {
	UsageRow
	key string // name of the row; lists order rows that are otherwise equal by it
}

// Exists implements domain.State.
func (usageState) Exists() bool { return true }

var usageFields = fieldsOf[UsageRow]()

const (
	// maxUsageTime is the longest period whose usage a client can request at once.
	maxUsageTime = 400 * 24 * time.Hour
	// maxUsageLists bounds the concurrent requests of an account for usage, because each reads the
	// usage events of its period.
	maxUsageLists = 4
	// maxUsageRows is the maximum number of rows of usage before filters and pages apply.
	maxUsageRows = 100_000
	csvMedia     = "text/csv"
)

// usageGroups maps each value of groupBy to a function that copies the field by which it groups
// from one row to another.
var usageGroups = map[string]func(of, from *UsageRow){
	"account":         func(of, from *UsageRow) { of.Account = from.Account },
	"apiKey":          func(of, from *UsageRow) { of.APIKey = from.APIKey },
	"model":           func(of, from *UsageRow) { of.Model = from.Model },
	"deployment":      func(of, from *UsageRow) { of.Deployment = from.Deployment },
	"job":             func(of, from *UsageRow) { of.Job = from.Job },
	"acceleratorType": func(of, from *UsageRow) { of.AcceleratorType = from.AcceleratorType },
}

// Values of groupBy that select the periods of rows.
const (
	byHour = "hour"
	byDay  = "day"
	byNone = "none"
)

var _ = register(usageOperations)

func usageOperations(s *Service) []request.Operation {
	about := "Adds up the requests to models, and the time for which accelerators were allocated. The sums of past " +
		"hours are recorded as events in the log; the rows of the current hour have complete set to false. If format is " +
		"csv, or the request accepts text/csv, the response is CSV with all rows."
	parameters := append(slices.Clone(request.ListParameters),
		request.Parameter{Name: "startTime", Kind: wire.Text,
			Description: "Start of the period (RFC 3339), rounded down to an hour. The default is the start of the current " +
				"month (UTC)."},
		request.Parameter{Name: "endTime", Kind: wire.Text,
			Description: "End of the period (RFC 3339), rounded up to an hour, at most 400 days after startTime. The " +
				"default is now."},
		request.Parameter{Name: "groupBy", Kind: wire.List, Description: "Fields by which usage is grouped, separated by " +
			"commas: hour, day, account, apiKey, model, deployment, job, acceleratorType; none returns a single row. The " +
			"default is day."},
		request.Parameter{Name: "format", Kind: wire.Text, Description: "Format of the response: json (the default) or csv."})
	return []request.Operation{
		{ID: "listUsage", Method: "GET", Path: request.CollectionPath + "usage", Tag: "usage",
			Summary: "List the usage of the account", Permission: request.Read, Description: about, Query: parameters,
			Response: request.PageType("usage", reflect.TypeFor[UsageRow]()), TextMedia: []string{csvMedia},
			Handle: s.handle(func(c *call) (any, error) { return listUsage(c, c.Account) })},
		{ID: "listAllUsage", Method: "GET", Path: "/v1/usage", Tag: "usage", Summary: "List the usage of all accounts",
			Gate: request.ByOperator, Description: about, Query: parameters,
			Response: request.PageType("usage", reflect.TypeFor[UsageRow]()), TextMedia: []string{csvMedia},
			Handle: s.handle(func(c *call) (any, error) { return listUsage(c, "*") })},
	}
}

// A usageQuery has the parameters of a request for usage.
type usageQuery struct {
	account    string // account whose usage is requested; "*" means all accounts
	start, end time.Time
	groups     []func(of, from *UsageRow)
	period     string // byHour, byDay or byNone
	csv        bool
}

// readUsageQuery reads the query parameters of a request for usage, and adds violations.
func readUsageQuery(c *call, p *request.Params, account string) usageQuery {
	now := c.Now().UTC()
	q := usageQuery{account: account, start: time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC),
		end: now, period: byNone}
	before := len(p.Violations)
	for _, bound := range []struct {
		name string
		at   *time.Time
	}{{"startTime", &q.start}, {"endTime", &q.end}} {
		if given := p.Text(bound.name); given != "" {
			parsed, err := time.Parse(time.RFC3339, strings.Replace(given, " ", "+", 1))
			p.Violations.Require(err == nil, bound.name, "must be a time such as 2026-03-01T12:00:00Z, not %s",
				wire.Quote(given))
			*bound.at = parsed.UTC()
		}
	}
	areTimes := len(p.Violations) == before
	q.start = q.start.Truncate(time.Hour)
	if rounded := q.end.Truncate(time.Hour); rounded.Before(q.end) {
		q.end = rounded.Add(time.Hour)
	}
	p.Violations.Require(!areTimes || q.start.Before(q.end), "endTime", "must be after startTime (%[2]s), not %[1]s",
		q.end.Format(time.RFC3339), q.start.Format(time.RFC3339))
	p.Violations.Require(!areTimes || q.end.Sub(q.start) <= maxUsageTime, "endTime", "must be at most %d days after "+
		"startTime (%s): request shorter periods", maxUsageTime/(24*time.Hour), q.start.Format(time.RFC3339))
	given := strings.Split(cmp.Or(strings.Join(p.Texts("groupBy"), ","), byDay), ",")
	for _, name := range given {
		name = wire.Camel(strings.TrimSpace(name))
		group := usageGroups[name]
		switch {
		case group != nil:
			q.groups = append(q.groups, group)
		case (name == byHour || name == byDay) && q.period == byNone:
			q.period = name
		case name == byNone && len(given) == 1:
		default:
			p.Violations.Add("groupBy", "must not contain %s: give none alone, or some of %s and "+
				"at most one of hour and day", wire.Quote(name), strings.Join(slices.Sorted(maps.Keys(usageGroups)), ", "))
		}
	}
	format := p.Text("format")
	p.Violations.Require(slices.Contains([]string{"", "json", "csv"}, format), "format", "must be json or csv, not %s",
		wire.Quote(format))
	q.csv = format == "csv" || format == "" && strings.Contains(c.Request.Header.Get("Accept"), csvMedia)
	return q
}

func listUsage(c *call, account string) (any, error) {
	p := c.Params()
	list, mask := request.ReadListQuery(c.Call, p, reflect.TypeFor[UsageRow]())
	q := readUsageQuery(c, p, account)
	if err := p.Err(); err != nil {
		_, also := query.All(noUsage, renderUsage, usageFields, list)
		return nil, request.JoinErrors(err, also)
	}
	leave, ok := c.Busy.Enter("usage of "+c.Principal.Account, maxUsageLists)
	if !ok {
		return nil, &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_USAGE_LISTS",
			Message: fmt.Sprintf("accounts/%s has %d requests for usage in progress, which is the limit: wait until one ends",
				c.Principal.Account, maxUsageLists)}
	}
	defer leave()
	sums, err := sumUsage(c, q)
	if err != nil {
		return nil, err
	}
	rows := func(yield func(*projections.Row[usageState]) bool) {
		for _, one := range sums {
			if !yield(&projections.Row[usageState]{Name: domain.Name(one.key), State: one}) {
				return
			}
		}
	}
	if q.csv {
		all, err := query.All(rows, renderUsage, usageFields, list)
		if err != nil {
			return nil, err
		}
		return nil, writeUsage(c, all, mask)
	}
	page, err := query.List(rows, renderUsage, usageFields, list)
	if err != nil {
		return nil, err
	}
	return request.ListResponse("usage", page.Items, page.NextPageToken, page.TotalSize, mask)
}

func noUsage(func(*projections.Row[usageState]) bool) {}

func renderUsage(row *projections.Row[usageState], out *UsageRow) { *out = row.State.UsageRow }

// A usageSum adds up usage by group and period. The amounts are exact until they are rendered.
type usageSum struct {
	// amounts by group and period. A key of the map has only the fields of groupBy and, as its field
	// key, the start of the period.
	amounts map[usageState]domain.UsageAmounts
	// groups and periods with usage that is not recorded in the log yet
	pending map[usageState]bool
	query   usageQuery
}

func (u *usageSum) add(account string, row domain.UsageRow, pending bool) error {
	if row.Hour.Before(u.query.start) || !row.Hour.Before(u.query.end) {
		return nil
	}
	full := UsageRow{Account: "accounts/" + account, APIKey: string(row.Key), Model: row.Model,
		Deployment: string(row.Deployment), Job: string(row.Job), AcceleratorType: row.Accelerator}
	var key usageState
	for _, keep := range u.query.groups {
		keep(&key.UsageRow, &full)
	}
	start := u.query.start
	switch hour := row.Hour.UTC(); u.query.period {
	case byHour:
		start = hour
	case byDay:
		start = hour.Truncate(24 * time.Hour)
	}
	key.key = start.Format(time.RFC3339)
	u.amounts[key] = u.amounts[key].Plus(row.UsageAmounts)
	if u.pending[key] = u.pending[key] || pending; len(u.amounts) > maxUsageRows {
		return &domain.Error{Code: domain.FailedPrecondition, Reason: "TOO_MUCH_USAGE",
			Message: fmt.Sprintf("the usage has more than %d rows: request a shorter period, or a groupBy with fewer fields",
				maxUsageRows)}
	}
	return nil
}

// sumUsage returns the rows of usage that a request selects.
func sumUsage(c *call, q usageQuery) ([]usageState, error) {
	sum := &usageSum{map[usageState]domain.UsageAmounts{}, map[usageState]bool{}, q}
	window := ^uint64(0)
	if c.Usage != nil {
		rows, complete, _, err := c.Usage.Pending(c.Ctx)
		if c.Ctx.Err() != nil {
			return nil, c.Ctx.Err()
		}
		if err != nil {
			c.Logger.Warn("the usage that is not recorded in the log yet cannot be read; a request for usage "+
				"failed", "request", c.ID, "error", err)
			return nil, &domain.Error{Code: domain.Unavailable, Reason: "USAGE_UNAVAILABLE",
				Message: "the usage of the current hour cannot be read now: try again in some seconds"}
		}
		window = complete
		for _, one := range rows {
			if q.account != "*" && one.Account != q.account {
				continue
			}
			if err := sum.add(one.Account, one.UsageRow, true); err != nil {
				return nil, err
			}
		}
	}
	month := time.Date(q.start.Year(), q.start.Month(), 1, 0, 0, 0, 0, time.UTC)
	for ; month.Before(q.end); month = month.AddDate(0, 1, 0) {
		for e, err := range c.Log.Read(c.Ctx, domain.UsageMonth(q.account, month).Subject(), 0) {
			if err != nil {
				return nil, err
			}
			event, err := domain.UsageRollups.Decode(e.Record)
			if err != nil {
				return nil, err
			}
			part, ok := domain.UsagePartOf(event)
			if !ok || part.Window > window {
				continue // recorded after the call of Pending, so the pending rows contain it
			}
			for _, row := range part.Rows {
				if err := sum.add(e.Name.Account(), row, false); err != nil {
					return nil, err
				}
			}
		}
	}
	return sum.rows(c.Now()), nil
}

// rows returns the sums as rows, ordered by time and then by the fields of groupBy.
func (u *usageSum) rows(now time.Time) (all []usageState) {
	for key, n := range u.amounts {
		row, start := key, u.query.start
		end := u.query.end
		if u.query.period != byNone {
			start, _ = time.Parse(time.RFC3339, key.key)
			end = start.Add(time.Hour)
			if u.query.period == byDay {
				end = start.Add(24 * time.Hour)
			}
		}
		row.StartTime, row.EndTime = &start, &end
		row.key = strings.Join([]string{key.key, key.Account, key.APIKey, key.Model, key.Deployment, key.Job,
			key.AcceleratorType}, " ")
		row.Requests, row.PromptTokens = domain.Count(n.Requests), domain.Count(n.PromptTokens)
		row.CachedPromptTokens, row.CompletionTokens = domain.Count(n.CachedPromptTokens), domain.Count(n.CompletionTokens)
		row.AudioSeconds, row.AcceleratorSeconds = float64(n.AudioMicroseconds)/1e6, float64(n.AcceleratorMicroseconds)/1e6
		row.Complete = !u.pending[key] && !end.After(now)
		all = append(all, row)
	}
	return all
}
