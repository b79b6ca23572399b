package api

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// A notebook remembers what was recorded.
type notebook struct {
	mu  sync.Mutex
	all []metering.Record
	err error
}

func (n *notebook) Record(u metering.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, u)
	return n.err
}

// taken is what was recorded since it was asked last, without what differs
// from run to run.
func (n *notebook) taken(t *testing.T) []metering.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	for i := range all {
		require.NotEmpty(t, all[i].Request)
		require.False(t, all[i].Time.IsZero())
		all[i].Request, all[i].Time = "", epoch
	}
	return all
}

func TestUsageIsRecordedForEachRequest(t *testing.T) {
	s := newStage(t, Limits{})
	book := &notebook{}
	s.server.Meter = book
	s.deploy("d1", 1)
	s.replicas.sing = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{PromptTokens: 5, CachedTokens: 2, CompletionTokens: 3}, emit(engines.Chunk{Text: "abc", Tokens: []int{1, 2, 3}, Finish: engines.FinishStop})
	}
	want := metering.Record{Time: epoch, Kind: metering.Completion, Account: "acme", Key: keyNameOf(t, s.keys["inference"]), Deployment: hearer, Model: hearer,
		Complete: true, PromptTokens: 5, CachedPromptTokens: 2, CompletionTokens: 6}
	for _, streamed := range []string{"true", "false"} {
		require.Equal(t, 200, s.complete(`"prompt": "a", "n": 2, "stream": `+streamed).status)
		require.Equal(t, []metering.Record{want}, book.taken(t), "a prompt counts once, its answers each")
	}
	a := s.call("POST", "/inference/v1/chat/completions", "inference", `{"model": "`+hearer+`", "messages": [{"role": "user", "content": "a"}]}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	want.Kind, want.CompletionTokens = metering.Chat, 3
	require.Equal(t, []metering.Record{want}, book.taken(t))

	s.replicas.sing = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, errors.Join(emit(engines.Chunk{Text: "ab", Tokens: []int{1, 2}}), domain.Errorf(domain.Unavailable, "the node is gone"))
	}
	s.complete(`"prompt": "a"`)
	want = metering.Record{Time: epoch, Kind: metering.Completion, Account: want.Account, Key: want.Key, Deployment: hearer, Model: hearer, CompletionTokens: 2}
	require.Equal(t, []metering.Record{want}, book.taken(t), "of an answer that broke off, what was heard")

	require.Equal(t, 400, s.complete(`"prompt": 1`).status)
	require.Empty(t, book.taken(t), "what reaches no model uses nothing")
}

func TestUsageIsRecordedForEachRecording(t *testing.T) {
	s := newStage(t, Limits{})
	book := &notebook{err: errors.New("the stream is full")}
	s.server.Meter = book
	s.hearers(1)
	want := metering.Record{Time: epoch, Kind: metering.Transcription, Account: "acme", Key: keyNameOf(t, s.keys["inference"]), Deployment: hearer, Model: hearer,
		Complete: true, AudioSeconds: 10.5}
	s.transcribed(t, strings.Repeat("la ", 21))
	require.Equal(t, []metering.Record{want}, book.taken(t))
	require.Contains(t, s.logged.String(), "what a request used was not recorded", "which withholds no answer")
	require.Equal(t, 200, s.transcribe(strings.Repeat("la ", 21), "task=translate", "stream=true").status)
	want.Kind = metering.Translation
	require.Equal(t, []metering.Record{want}, book.taken(t))

	s.replicas.hear = func(_ context.Context, _ domain.Replica, _ engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		return engines.Transcript{}, errors.Join(emit(engines.TranscriptEvent{Seconds: 4}), domain.Errorf(domain.Unavailable, "the node is gone"))
	}
	require.Equal(t, 503, s.transcribe("one").status)
	want.Kind, want.Complete, want.AudioSeconds = metering.Transcription, false, 4
	require.Equal(t, []metering.Record{want}, book.taken(t), "of one that broke off, what was listened to")
}

func keyNameOf(t *testing.T, text string) domain.Name {
	name, ok := request.KeyName(text)
	require.True(t, ok)
	return name
}
