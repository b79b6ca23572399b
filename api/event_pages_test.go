package api

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/eventlog"
)

// A countedLog counts the events that are read from it.
type countedLog struct {
	*eventlog.Memory
	read atomic.Int64
}

func (l *countedLog) Read(ctx context.Context, filter string, after uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		for e, err := range l.Memory.Read(ctx, filter, after) {
			l.read.Add(1)
			if !yield(e, err) {
				return
			}
		}
	}
}

func (l *countedLog) At(ctx context.Context, position uint64) (eventlog.Event, error) {
	l.read.Add(1)
	return l.Memory.At(ctx, position)
}

// TestEventPageReadsOnlyItsEvents checks that a page in the order of the log reads only the events
// that the page returns, and one more event to detect the next page, for any length of the history.
func TestEventPageReadsOnlyItsEvents(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for i := range 60 {
		s.makeDataset(fmt.Sprintf("d%d", i))
	}
	last := s.events()
	log := &countedLog{Memory: s.log}
	s.server.core.Log = log
	subject := url.QueryEscape(`subject = "accounts/acme/datasets/d1"`)
	for path, readers := range map[string]map[string]int64{ // number of hidden events by reader
		"/v1/accounts/acme/events":                   {"admin": 0, "user": 3},
		"/v1/events":                                 {"operator": 0},
		"/v1/accounts/acme/datasets/d1/events":       {"user": 0},
		"/v1/accounts/acme/events?filter=" + subject: {"user": 0},
	} {
		for alias, hidden := range readers {
			for _, size := range []int{1, 7, 50} {
				for _, order := range []string{"", "&orderBy=position", "&orderBy=position+desc"} {
					s.walkEvents(log, withQuery(path, fmt.Sprintf("pageSize=%d%s", size, order)), alias, size, hidden, last)
				}
			}
		}
	}
}

// walkEvents reads all pages of a list. It requires that each page has at most size events, and
// that the server reads from the log only these events, the hidden events, and one more event for
// each page.
func (s *harness) walkEvents(log *countedLog, path, alias string, size int, hidden int64, last uint64) {
	s.Helper()
	seen, total, token, descending := 0, -1.0, "", strings.HasSuffix(path, "desc")
	var positions []uint64
	for first := true; first || token != ""; first = false {
		log.read.Store(0)
		a := s.call(http.MethodGet, path+"&pageToken="+token, alias, "")
		require.Equal(s, http.StatusOK, a.status, "%s", a.body)
		page := a.json(s)
		events := page["events"].([]any)
		read := int64(len(events)) + 1 + hidden
		if descending {
			read *= 4 // ranges of positions are read until they have enough events
		}
		require.LessOrEqual(s, log.read.Load(), read, "%s", path)
		require.LessOrEqual(s, len(events), size)
		if first {
			total = page["totalSize"].(float64)
		}
		require.Equal(s, total, page["totalSize"], "the same on every page")
		for _, one := range events {
			position, err := strconv.ParseUint(one.(map[string]any)["position"].(string), 10, 64)
			require.NoError(s, err)
			positions = append(positions, position)
			if hidden > 0 {
				require.NotContains(s, one.(map[string]any)["subject"], "/apiKeys/")
			}
		}
		seen += len(events)
		token, _ = page["nextPageToken"].(string)
	}
	require.EqualValues(s, total, seen, "%s", path)
	if descending {
		slices.Reverse(positions)
	}
	require.True(s, slices.IsSorted(positions), "%s: %v", path, positions)
	require.Len(s, slices.Compact(positions), seen, "%s", path)
	require.LessOrEqual(s, positions[seen-1], last)
}

// withQuery appends parameters to a path that may have some.
func withQuery(path, parameters string) string {
	if strings.Contains(path, "?") {
		return path + "&" + parameters
	}
	return path + "?" + parameters
}

// TestNewestEventsOfASparseHistory checks that the newest events of an account, between which others
// have many, are found in any page size, and are those of the list in ascending order.
func TestNewestEventsOfASparseHistory(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for i := range 120 {
		if i%29 == 3 {
			a := s.call(http.MethodPost, "/v1/accounts/other/datasets", "other",
				fmt.Sprintf(`{"datasetId": "o%d", "dataset": {}}`, i))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		}
		s.makeDataset(fmt.Sprintf("d%d", i))
	}
	walk := func(parameters string) (ids []any) {
		for token := ""; ; {
			page := s.call(http.MethodGet, "/v1/accounts/other/events?"+parameters+"&pageToken="+token, "other", "").json(t)
			for _, e := range page["events"].([]any) {
				ids = append(ids, e.(map[string]any)["id"])
			}
			if token, _ = page["nextPageToken"].(string); token == "" {
				return ids
			}
		}
	}
	ascending := walk("pageSize=200")
	require.NotEmpty(t, ascending)
	slices.Reverse(ascending)
	for _, size := range []int{1, 2, 3, 7, 200} {
		require.Equal(t, ascending, walk(fmt.Sprintf("orderBy=position%%20%%20desc&pageSize=%d", size)), "pages of %d", size)
	}
}

// TestEventsAppendedDuringListing checks that all pages of a list of events report the total of the
// first page, and that the last page contains events that were appended during the listing.
func TestEventsAppendedDuringListing(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("d1")
	s.makeDataset("d2")
	const path = "/v1/accounts/other/events?pageSize=1"
	page := s.call(http.MethodGet, path, "other", "").json(t)
	total := page["totalSize"]
	s.ok(http.MethodGet, "/v1/accounts/acme/events", "")
	a := s.call(http.MethodPost, "/v1/accounts/other/datasets", "other", `{"datasetId": "new", "dataset": {}}`)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	var subjects []any
	for page["nextPageToken"] != nil {
		page = s.call(http.MethodGet, path+"&pageToken="+page["nextPageToken"].(string), "other", "").json(t)
		require.Equal(t, total, page["totalSize"])
		subjects = append(subjects, page["events"].([]any)[0].(map[string]any)["subject"])
	}
	require.Equal(t, "accounts/other/datasets/new", subjects[len(subjects)-1])
	require.Greater(t, s.call(http.MethodGet, path, "other", "").json(t)["totalSize"], total, "a new listing counts it")
	for _, wrong := range []string{"&pageToken=x", "&pageSize=2&pageToken=" + "AAAA"} {
		a := s.call(http.MethodGet, path+wrong, "other", "")
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	}
}

// TestSubjectFilterReadsOneSubject checks that a filter that begins with a subject, for which the
// server reads only the events of the subject, returns the same events as a filter for which it
// reads all events.
func TestSubjectFilterReadsOneSubject(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, id := range []string{"d", "e"} {
		s.makeDataset(id)
	}
	list := func(filter string) []any {
		a := s.ok("GET", acme+"/events?orderBy=position+desc&filter="+url.QueryEscape(filter), "").json(t)
		require.Len(t, a["events"], int(a["totalSize"].(float64)))
		return a["events"].([]any)
	}
	narrow, whole := list(`subject = "accounts/acme/datasets/d" AND type = "dataset.created.v1"`),
		list(`type = "dataset.created.v1" AND subject = "accounts/acme/datasets/d"`)
	require.Len(t, narrow, 1)
	require.Equal(t, whole, narrow)
	require.Empty(t, list(`subject = "accounts/other/datasets/d"`))
}
