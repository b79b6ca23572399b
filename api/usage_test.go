package api

import (
	"context"
	"encoding/csv"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

const acmeUsage = "/v1/accounts/acme/usage"

func requestsAt(hour time.Time, model string) domain.UsageRow {
	return domain.UsageRow{Hour: hour, Model: model, UsageAmounts: domain.UsageAmounts{Requests: 1}}
}

// fixedUsage is pending usage with the same rows at all times.
type fixedUsage []domain.AccountUsage

func (f fixedUsage) Pending(context.Context) ([]domain.AccountUsage, uint64, time.Time, error) {
	return f, 0, epoch, nil
}

// TestUsageOfPeriods checks that a period has the usage of each of its hours and of no other one, also
// when it begins later in a month than it ends in another.
func TestUsageOfPeriods(t *testing.T) {
	s := newHarness(t, request.Limits{})
	hours := []time.Time{}
	for hour := time.Date(2030, 1, 30, 0, 0, 0, 0, time.UTC); hour.Month() < time.April; hour = hour.Add(time.Hour) {
		hours = append(hours, hour)
	}
	byMonth := map[time.Month][]domain.UsageRow{}
	for _, hour := range hours {
		byMonth[hour.Month()] = append(byMonth[hour.Month()], requestsAt(hour, "m"))
	}
	for _, rows := range byMonth {
		for i := 0; i < len(rows); i += domain.MaxUsageRows {
			s.do(domain.Intend(domain.UsageRollups, domain.UsageMonth("acme", rows[0].Hour),
				domain.Command[domain.UsageRollup](domain.RollUpUsage{UsagePart: domain.UsagePart{Window: 1,
					Part: i/domain.MaxUsageRows + 1, Rows: rows[i:min(i+domain.MaxUsageRows, len(rows))]}})))
		}
	}
	for _, c := range []struct {
		name, start, end string
		hours            int
	}{
		{"end of the day before its begin", "2030-01-31T15:00:00Z", "2030-02-01T10:00:00Z", 19},
		{"one hour", "2030-02-01T00:00:00Z", "2030-02-01T01:00:00Z", 1},
		{"one hour, the last of a month", "2030-01-31T23:00:00Z", "2030-02-01T00:00:00Z", 1},
		{"rounded", "2030-01-31T22:59:59Z", "2030-02-01T00:00:01Z", 3},
		{"day 31 of a month before a shorter one", "2030-01-31T23:00:00Z", "2030-03-01T01:00:00Z", 28*24 + 2},
		{"another time zone", "2030-02-01T00:30:00+05:30", "2030-02-01T05:30:00+05:30", 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.call("GET", acmeUsage+"?"+url.Values{"startTime": {c.start}, "endTime": {c.end}, "groupBy": {"none"}}.
				Encode(), "user", "")
			require.Equal(t, 200, a.status, "%s", a.body)
			require.Contains(t, string(a.body), fmt.Sprintf(`"requests":"%d"`, c.hours))
		})
	}
}

// TestUsageParameters checks that the error about a wrong parameter of usage names the parameter, the
// value and the rule, and nothing else.
func TestUsageParameters(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, c := range []struct {
		query  url.Values
		fields string
		parts  []string
	}{
		{url.Values{"startTime": {"yesterday"}}, "startTime", []string{`\"yesterday\"`, "2026-03-01T12:00:00Z"}},
		{url.Values{"endTime": {"2030-13-01T00:00:00Z"}}, "endTime", []string{"2030-13-01T00:00:00Z"}},
		{url.Values{"startTime": {"2030-01-01T00:00:00"}, "endTime": {"now"}}, "startTime endTime", nil},
		{url.Values{"startTime": {"2030-02-01T00:00:00Z"}}, "endTime", []string{"2030-02-01T00:00:00Z", "must be after"}},
		{url.Values{"startTime": {"2030-01-01T00:00:00Z"}, "endTime": {"2030-01-01T00:00:00Z"}}, "endTime",
			[]string{"must be after startTime"}},
		{url.Values{"startTime": {"2028-01-01T00:00:00Z"}, "endTime": {"2030-01-01T00:00:00Z"}}, "endTime",
			[]string{"400 days", "shorter"}},
		{url.Values{"groupBy": {"colour"}}, "groupBy", []string{`\"colour\"`, "acceleratorType", "model"}},
		{url.Values{"groupBy": {"hour,day"}}, "groupBy", []string{`\"day\"`, "at most one of hour and day"}},
		{url.Values{"groupBy": {"none,model"}}, "groupBy", []string{`\"none\"`}},
		{url.Values{"groupBy": {"model,"}}, "groupBy", []string{`\"\"`}},
		{url.Values{"format": {"xml"}}, "format", []string{`\"xml\"`, "json or csv"}},
		{url.Values{"filter": {"colour = 1"}}, "filter", []string{"colour"}},
		{url.Values{"startTime": {"x"}, "filter": {"colour = 1"}}, "startTime filter", nil},
		{url.Values{"pageSize": {"-1"}}, "pageSize", nil},
	} {
		for _, path := range []string{acmeUsage, "/v1/usage"} {
			alias := map[string]string{acmeUsage: "user", "/v1/usage": "operator"}[path]
			a := s.call("GET", path+"?"+c.query.Encode(), alias, "")
			require.Equal(t, 400, a.status, "%s %s", c.query, a.body)
			for _, part := range c.parts {
				require.Contains(t, string(a.body), part, c.query)
			}
			require.Equal(t, len(strings.Fields(c.fields)), strings.Count(string(a.body), `"field":`), "%s", a.body)
			for _, field := range strings.Fields(c.fields) {
				require.Contains(t, string(a.body), `"field":"`+field+`"`)
			}
		}
	}
}

// TestTooMuchUsage checks that usage with more rows than the limit is refused, and that one with as many
// rows, or with fewer fields, is not.
func TestTooMuchUsage(t *testing.T) {
	const limit = 100_000
	rows := make(fixedUsage, limit+1)
	for i := range rows {
		rows[i] = domain.AccountUsage{Account: "acme", UsageRow: requestsAt(epoch.Truncate(time.Hour), fmt.Sprint("m", i))}
	}
	s := newHarness(t, request.Limits{})
	with := func(rows fixedUsage) *harness { return s.another(func(o *Options) { o.Usage = rows }) }
	a := with(rows).call("GET", acmeUsage+"?groupBy=model", "user", "")
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "TOO_MUCH_USAGE")
	require.Contains(t, string(a.body), "more than 100000 rows: request a shorter period")
	a = with(rows).call("GET", acmeUsage+"?groupBy=none", "user", "")
	require.Contains(t, string(a.body), `"requests":"100001"`)
	a = with(rows[1:]).call("GET", acmeUsage+"?groupBy=model&pageSize=1", "user", "")
	require.Contains(t, string(a.body), `"totalSize":100000`)
}

// TestUsageInCSV checks which requests get CSV, that a spreadsheet takes no value of it for a formula, and
// that it has no usage of other accounts.
func TestUsageInCSV(t *testing.T) {
	s := newHarness(t, request.Limits{})
	hour := epoch.Truncate(time.Hour)
	models := []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", `a"b,c`, "accounts/acme/models/m"}
	present := fixedUsage{{Account: "other", UsageRow: requestsAt(hour, "secret")}}
	for _, model := range models {
		present = append(present, domain.AccountUsage{Account: "acme", UsageRow: requestsAt(hour, model)})
	}
	other := s.another(func(o *Options) { o.Usage = present })
	get := func(query, accept string) response {
		r := other.request("GET", acmeUsage+"?groupBy=model,account"+query, "user", http.NoBody)
		r.Header.Set("Accept", accept)
		return other.send(r)
	}
	for _, c := range []struct {
		query, accept string
		csv           bool
	}{
		{"", "text/csv", true}, {"", "text/csv;q=0.9, */*", true}, {"&format=csv", "application/json", true},
		{"&format=json", "text/csv", false}, {"", "*/*", false},
	} {
		a := get(c.query, c.accept)
		require.Equal(t, 200, a.status, "%s", a.body)
		require.Equal(t, c.csv, strings.HasPrefix(string(a.body), "startTime,endTime,account,"), "%v: %s", c, a.body)
		require.NotContains(t, string(a.body), "secret")
	}
	lines, err := csv.NewReader(strings.NewReader(string(get("&orderBy=model", "text/csv").body))).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 1+len(models))
	for _, line := range lines[1:] {
		for _, value := range line {
			require.NotRegexp(t, "^[-=+@\t\r]", value, "a formula")
		}
	}
	masked := get("&readMask=startTime,model,requests&filter=model:1", "text/csv")
	require.Regexp(t, "^startTime,model,requests\n[^,]*,[^,]*,1\n", string(masked.body))
	require.Contains(t, fmt.Sprint(lines), "'=1+1")
	require.Contains(t, fmt.Sprint(lines), " accounts/acme/models/m ")
}

// disconnecting is pending usage whose reader disconnects meanwhile.
type disconnecting struct{ disconnect context.CancelFunc }

func (d disconnecting) Pending(ctx context.Context) ([]domain.AccountUsage, uint64, time.Time, error) {
	d.disconnect()
	<-ctx.Done()
	return nil, 0, epoch, fmt.Errorf("wait: %w", ctx.Err())
}

// TestUsageWithoutClient checks that a request whose client disconnects is not a failure of the server.
func TestUsageWithoutClient(t *testing.T) {
	s := newHarness(t, request.Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := s.another(func(o *Options) { o.Usage = disconnecting{cancel} })
	response := httptest.NewRecorder()
	other.server.ServeHTTP(response, other.request("GET", acmeUsage, "user", http.NoBody).WithContext(ctx))
	require.Equal(t, statusClientClosed, response.Code, response.Body)
}

// slowUsage is pending usage that is read until release is closed.
type slowUsage struct{ reading, release chan struct{} }

func (u slowUsage) Pending(context.Context) ([]domain.AccountUsage, uint64, time.Time, error) {
	u.reading <- struct{}{}
	<-u.release
	return nil, 0, epoch, nil
}

// TestConcurrentUsage checks that an account reads usage with a bounded number of requests at a time, which
// do not take those of another account.
func TestConcurrentUsage(t *testing.T) {
	const limit = 4
	s := newHarness(t, request.Limits{})
	slow := slowUsage{make(chan struct{}, limit+1), make(chan struct{})}
	other := s.another(func(o *Options) { o.Usage = slow })
	responses := make(chan response, limit+1)
	get := func(path, alias string) { responses <- other.call("GET", path, alias, "") }
	for range limit {
		go get(acmeUsage, "user")
		<-slow.reading
	}
	get(acmeUsage, "user")
	refused := <-responses
	require.Equal(t, 429, refused.status, "%s", refused.body)
	require.Contains(t, string(refused.body), "TOO_MANY_USAGE_LISTS")
	require.Contains(t, string(refused.body), "accounts/acme has 4 requests for usage in progress")
	go get("/v1/usage", "operator")
	<-slow.reading
	close(slow.release)
	for range limit + 1 {
		require.Equal(t, 200, (<-responses).status)
	}
	require.Equal(t, 200, other.call("GET", acmeUsage, "user", "").status)
}
