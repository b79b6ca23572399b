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

// A deletingLog deletes each resource directly after an event of it was
// recorded, and before the append is acknowledged: the client that loses the
// most races to another one.
type deletingLog struct {
	*eventlog.Memory
	deletions map[string]string // by collection: the event after which a resource does not exist
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
	event := eventlog.Event{Record: domain.Record{Type: deletion, Data: []byte("{}")}, ID: uuid.NewString(), Name: w.Name, Time: w.Time}
	if _, err := l.Memory.Append(ctx, eventlog.Write{Event: event, Expect: position}); err != nil {
		return 0, err
	}
	l.deleted++
	return position, nil
}

// deletions finds by folding, for each collection that has one, an event that
// ends a resource.
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

// answersNoResource are POSTs that change nothing, or that answer what another
// event produced.
var answersNoResource = regexp.MustCompile(`(?i)^(match|preview|estimate|create(completion|chatcompletion|transcription|translation|embedding)|get)|UploadEndpoint$`)

// changingRows yields the rows of operations that change a resource and answer
// with it.
func changingRows() iter.Seq[row] {
	return func(yield func(row) bool) {
		table := map[string]request.Operation{}
		for _, op := range operations(nil) {
			table[op.ID] = op
		}
		for _, r := range operationRows() {
			op := table[r.id]
			changes := (op.Method == http.MethodPost || op.Method == http.MethodPatch) && op.Gate != request.Everyone && !answersNoResource.MatchString(r.id)
			if changes && !yield(r) {
				return
			}
		}
	}
}

// bringsFiles reports whether an operation stores or validates uploaded files.
func bringsFiles(id string) bool {
	return strings.HasPrefix(id, "upload") || strings.HasPrefix(id, "validate")
}

// TestRepliesShowTheirOwnEvent asks for every operation that changes a
// resource, once undisturbed and once while another client deletes what it
// changed before it can answer. Both answers are the same.
func TestRepliesShowTheirOwnEvent(t *testing.T) {
	ends := deletions(t)
	raced := 0
	for r := range changingRows() {
		t.Run(r.id, func(t *testing.T) {
			quiet := newStage(t, Limits{})
			setRow(quiet, r)
			want := transcribed(quiet, askedOnce(quiet, r))

			s := newStage(t, Limits{})
			setRow(s, r)
			racing := &deletingLog{Memory: s.log, deletions: ends}
			other := s.twin(func(o *Options) { o.Log = racing })
			got := transcribed(other, askedOnce(other, r))
			if racing.deleted == 0 {
				return // what it changes cannot be deleted
			}
			raced++
			if bringsFiles(r.id) {
				assert.Regexp(t, "^< 200", got, "the upload happened; its validation did not")
				return
			}
			assert.Equal(t, want, got)
		})
	}
	require.Greater(t, raced, 25, "operations whose answer could be raced")
}

func setRow(s *stage, r row) {
	if r.stage != nil {
		r.stage(s)
	}
	s.set(r.scene)
	s.clock.at(epoch.Add(time.Hour))
}

func askedOnce(s *stage, r row) answer {
	request := parseRequest(r.request).on(s)
	request.Header.Set("X-Request-Id", "request-1")
	return s.send(request)
}

// TestRepeatedCallsAnswerTheirOwnEvent asks for every operation that changes a
// resource with an idempotency key, loses the answer of the first try, and has
// another client delete the resource. The repeated call answers as the first
// would have.
func TestRepeatedCallsAnswerTheirOwnEvent(t *testing.T) {
	ends := deletions(t)
	raced := 0
	for r := range changingRows() {
		if bringsFiles(r.id) {
			continue
		}
		t.Run(r.id, func(t *testing.T) {
			s := newStage(t, Limits{})
			setRow(s, r)
			before := s.events()
			deaf := s.twin(func(o *Options) { o.Log = deafLog{s.log} })
			first := keyedOnce(deaf, r)
			if s.events() == before {
				return // it records nothing
			}
			require.Equal(t, http.StatusServiceUnavailable, first.status, "%s", first.body)
			deleted := false
			for e, err := range s.log.Read(t.Context(), "events.>", before) {
				require.NoError(t, err)
				if deletion := ends[e.Name.Collection()]; deletion != "" {
					event := eventlog.Event{Record: domain.Record{Type: deletion, Data: []byte("{}")}, ID: uuid.NewString(), Name: e.Name, Time: e.Time}
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

func keyedOnce(s *stage, r row) answer {
	request := parseRequest(r.request).on(s)
	request.Header.Set("Idempotency-Key", "once")
	return s.send(request)
}
