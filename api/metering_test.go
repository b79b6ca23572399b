package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
	"anneal/internal/testutil"
)

// A usageRecorder is a routing.Meter that keeps usage records in memory.
type usageRecorder struct {
	mu  sync.Mutex
	all []metering.Record
	err error
}

func (n *usageRecorder) Record(u metering.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, u)
	return n.err
}

// taken returns the records since the last call of taken, without the parts that differ from run to
// run.
func (n *usageRecorder) taken(t *testing.T) []metering.Record {
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
	s := newHarness(t, request.Limits{})
	meter := &usageRecorder{}
	s.server.inference.Router.Meter = meter
	s.deploy("d1", 1)
	s.replicas.respond = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{PromptTokens: 5, CachedTokens: 2, CompletionTokens: 3},
			emit(engines.Chunk{Text: "abc", Tokens: []int{1, 2, 3}, Finish: engines.FinishStop})
	}
	want := metering.Record{Time: epoch, Kind: metering.Completion, Account: "acme",
		Key: keyNameOf(t, s.keys["inference"]), Deployment: hearer, Model: hearer,
		Complete: true, PromptTokens: 5, CachedPromptTokens: 2, CompletionTokens: 6}
	for _, streamed := range []string{"true", "false"} {
		require.Equal(t, 200, s.complete(`"prompt": "a", "n": 2, "stream": `+streamed).status)
		require.Equal(t, []metering.Record{want}, meter.taken(t), "a prompt counts once, and each of its choices")
	}
	a := s.call("POST", "/inference/v1/chat/completions", "inference",
		`{"model": "`+hearer+`", "messages": [{"role": "user", "content": "a"}]}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	want.Kind, want.CompletionTokens = metering.Chat, 3
	require.Equal(t, []metering.Record{want}, meter.taken(t))

	require.Equal(t, 200, s.complete(`"prompt": "a", "user": "u", "metadata": {"run": "r", "try": 2, "dry": true}`).status)
	recorded := meter.taken(t)
	require.Len(t, recorded, 1)
	require.Equal(t, "u", recorded[0].User)
	data := testutil.Marshal(t, recorded[0])
	require.Contains(t, string(data), `"user":"u","metadata":{"dry":true,"run":"r","try":2}`)

	s.replicas.respond = func(_ context.Context, _ domain.Replica, _ engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, errors.Join(emit(engines.Chunk{Text: "ab", Tokens: []int{1, 2}}),
			domain.Errorf(domain.Unavailable, "the node is gone"))
	}
	s.complete(`"prompt": "a"`)
	want = metering.Record{Time: epoch, Kind: metering.Completion, Account: want.Account, Key: want.Key,
		Deployment: hearer, Model: hearer, CompletionTokens: 2}
	require.Equal(t, []metering.Record{want}, meter.taken(t), "of an interrupted response, the chunks that were sent")

	require.Equal(t, 400, s.complete(`"prompt": 1`).status)
	require.Empty(t, meter.taken(t), "a request that reaches no model is not recorded")
}

// TestMetadataIsLimited checks for every interface with metadata that the largest metadata that
// the OpenAI API allows in ASCII are accepted, and that larger ones are rejected with an error
// that names the field, the limit and the size.
func TestMetadataIsLimited(t *testing.T) {
	s := servingHarness(t, 1)
	metadata := func(text string) string {
		entries := map[string]string{}
		for i := range metering.MaxMetadata {
			entries[strings.Repeat("k", metering.MaxMetadataKey-2)+fmt.Sprintf("%02d", i)] = strings.Repeat(text,
				metering.MaxMetadataValue)
		}
		data := testutil.Marshal(t, entries)
		return string(data)
	}
	for path, fields := range map[string]string{
		"/inference/v1/completions":      `"prompt": "a"`,
		"/inference/v1/chat/completions": `"messages": [{"role": "user", "content": "a"}]`,
		"/v1/responses":                  `"input": "a"`,
	} {
		for text, status := range map[string]int{"v": 200, "<": 200, "字": 400} {
			a := s.call("POST", path, "inference", `{"model": "`+hearer+`", `+fields+`, "metadata": `+metadata(text)+`}`)
			require.Equal(t, status, a.status, "%s %s: %s", path, text, a.body)
			if status == 400 {
				require.Contains(t, string(a.body),
					"metadata: must have at most 16 KiB as JSON text, not 25697 bytes: shorten the values")
			}
		}
	}
}

func TestUsageIsRecordedForEachRecording(t *testing.T) {
	s := newHarness(t, request.Limits{})
	meter := &usageRecorder{err: errors.New("the stream is full")}
	s.server.inference.Router.Meter = meter
	s.deploySpeechReplicas(1)
	want := metering.Record{Time: epoch, Kind: metering.Transcription, Account: "acme",
		Key: keyNameOf(t, s.keys["inference"]), Deployment: hearer, Model: hearer,
		Complete: true, AudioSeconds: 10.5}
	s.transcribed(t, strings.Repeat("la ", 21))
	require.Equal(t, []metering.Record{want}, meter.taken(t))
	require.Contains(t, s.logged.String(), "the usage of a request was not recorded", "the response is sent nevertheless")
	require.Equal(t, 200, s.transcribe(strings.Repeat("la ", 21), "task=translate", "stream=true").status)
	want.Kind = metering.Translation
	require.Equal(t, []metering.Record{want}, meter.taken(t))

	s.replicas.transcribe = func(_ context.Context, _ domain.Replica, _ engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		return engines.Transcript{},
			errors.Join(emit(engines.TranscriptEvent{Seconds: 4}), domain.Errorf(domain.Unavailable, "the node is gone"))
	}
	require.Equal(t, 503, s.transcribe("one").status)
	want.Kind, want.Complete, want.AudioSeconds = metering.Transcription, false, 4
	require.Equal(t, []metering.Record{want}, meter.taken(t), "of an interrupted one, the audio that was processed")
}

func keyNameOf(t *testing.T, text string) domain.Name {
	name, ok := request.KeyName(text)
	require.True(t, ok)
	return name
}
