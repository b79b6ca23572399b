package api

import (
	"context"
	"iter"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog"
)

// A deletingLog deletes each resource directly after an event of the resource was appended, before
// the append is acknowledged, like a concurrent client that deletes the resource at the earliest
// possible time.
type deletingLog struct {
	*eventlog.Memory
	deletions map[string]string // type of the event that deletes a resource, by collection
	deleted   int
}

func (l *deletingLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	position, err := l.Memory.Append(ctx, w)
	if err != nil {
		return 0, err
	}
	deletion := l.deletions[w.Name.Collection()]
	if deletion == "" || strings.Contains(w.Type, "deleted") {
		return position, nil
	}
	event := eventlog.Event{Record: domain.Record{Type: deletion, Data: []byte("{}")}, ID: uuid.NewString(), Name: w.Name,
		Time: w.Time}
	if _, err := l.Memory.Append(ctx, eventlog.Write{Event: event, Expect: position}); err != nil {
		return 0, err
	}
	l.deleted++
	return position, nil
}

// deletions returns, by collection, the type of an event that deletes a resource, for each
// collection that has such an event.
func deletions(t *testing.T) map[string]string {
	found := map[string]string{}
	note := func(collection, event string, ends bool) {
		if ends && (found[collection] == "" || strings.Contains(event, "purged")) {
			found[collection] = event
		}
	}
	for _, kind := range domain.Kinds {
		endings(t, kind, note)
	}
	require.Greater(t, len(found), 10)
	return found
}

func endings(t *testing.T, kind domain.AnyKind, note func(collection, event string, ends bool)) {
	for event := range kind.EventTypes() {
		if !regexp.MustCompile(`\.(deleted|purged|lifted|unloaded)\.`).MatchString(event) {
			continue
		}
		state, err := kind.FoldRecord(nil, domain.Record{Type: event, Data: []byte("{}")})
		require.NoError(t, err)
		note(kind.CollectionID(), event, !state.(domain.State).Exists())
	}
}

// answersNoResource matches the IDs of POST operations that change nothing, or whose response is
// not the changed resource.
var answersNoResource = regexp.MustCompile(
	`(?i)^(match|preview|estimate|create(completion|chatcompletion|transcription|translation|embedding)` +
		`|get)|UploadEndpoint$`)

// changingRows yields the test cases of operations that change a resource and return the resource.
func changingRows() iter.Seq[row] {
	return func(yield func(row) bool) {
		table := map[string]request.Operation{}
		for _, op := range (&Server{}).operations() {
			table[op.ID] = op
		}
		for _, r := range operationRows() {
			op := table[r.id]
			changes := (op.Method == http.MethodPost || op.Method == http.MethodPatch) && op.Gate != request.Everyone &&
				!answersNoResource.MatchString(r.id)
			if changes && !yield(r) {
				return
			}
		}
	}
}

// bringsFiles reports whether an operation stores or validates files.
func bringsFiles(id string) bool {
	return strings.HasPrefix(id, "upload") || strings.HasPrefix(id, "validate") || id == "createFile"
}

// TestRepliesShowTheirOwnEvent checks that the response of every operation that changes a resource
// is the same when another client deletes the resource before the response is written, and that
// uploads succeed in this case.
func TestRepliesShowTheirOwnEvent(t *testing.T) {
	ends := deletions(t)
	raced := 0
	for r := range changingRows() {
		t.Run(r.id, func(t *testing.T) {
			quiet := newHarness(t, request.Limits{})
			setRow(quiet, r)
			want := transcribed(quiet, sentOnce(quiet, r))

			s := newHarness(t, request.Limits{})
			setRow(s, r)
			racing := &deletingLog{Memory: s.log, deletions: ends}
			other := s.another(func(o *Options) { o.Log = racing })
			got := transcribed(other, sentOnce(other, r))
			if racing.deleted == 0 {
				return // the resource of the operation cannot be deleted
			}
			raced++
			if bringsFiles(r.id) {
				assert.Regexp(t, "^< 200", got, "the upload happened; its validation did not")
				return
			}
			assert.Equal(t, want, got)
		})
	}
	require.Greater(t, raced, 25, "operations whose response was raced")
}

func setRow(s *harness, r row) {
	if r.prepare != nil {
		r.prepare(s)
	}
	s.set(r.scene)
	s.clock.at(epoch.Add(time.Hour))
}

func sentOnce(s *harness, r row) response {
	request := parseRequest(r.request).on(s)
	request.Header.Set("X-Request-Id", "request-1")
	return s.send(request)
}

// TestRepeatedCallsReturnTheirOwnEvent checks, for every operation that changes a resource, that a
// retry with the same idempotency key succeeds when the append of the first attempt was not
// acknowledged and another client has deleted the resource.
func TestRepeatedCallsReturnTheirOwnEvent(t *testing.T) {
	ends := deletions(t)
	raced := 0
	for r := range changingRows() {
		if bringsFiles(r.id) {
			continue
		}
		t.Run(r.id, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			setRow(s, r)
			before := s.events()
			deaf := s.another(func(o *Options) { o.Log = lostAckLog{s.log} })
			first := keyedOnce(deaf, r)
			if s.events() == before {
				return // the operation records nothing
			}
			require.Equal(t, http.StatusServiceUnavailable, first.status, "%s", first.body)
			deleted := false
			for e, err := range s.log.Read(t.Context(), "events.>", before) {
				require.NoError(t, err)
				if deletion := ends[e.Name.Collection()]; deletion != "" {
					event := eventlog.Event{Record: domain.Record{Type: deletion, Data: []byte("{}")}, ID: uuid.NewString(),
						Name: e.Name, Time: e.Time}
					position, err := s.log.Append(t.Context(), eventlog.Write{Event: event, Expect: e.Position})
					require.NoError(t, err)
					require.NoError(t, s.world.WaitFor(t.Context(), position))
					deleted = true
				}
				break
			}
			if !deleted {
				return
			}
			raced++
			again := keyedOnce(s, r)
			require.Equal(t, http.StatusOK, again.status, "%s", again.body)
		})
	}
	require.Greater(t, raced, 20, "operations that were repeated")
}

func keyedOnce(s *harness, r row) response {
	request := parseRequest(r.request).on(s)
	request.Header.Set("Idempotency-Key", "once")
	return s.send(request)
}
