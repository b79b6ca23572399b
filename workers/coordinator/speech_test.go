package coordinator_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/internal/testutil"
	"anneal/workers/protocol"
)

const speechName = domain.Name("accounts/acme/models/ear")

// readSamples reads recordings that are raw samples.
func readSamples(_ context.Context, path, _ string) (io.ReadCloser, error) { return os.Open(path) }

// deploySpeech creates a deployment of a speech model with one replica on a node.
func (c *cluster) deploySpeech(node string) domain.Replica {
	c.Helper()
	c.put("models/acme/ear/model.bin", []byte("ear"))
	settings := domain.SpeechSettings{Format: domain.SpeechSimulated}
	c.do(domain.Intend(domain.Models, speechName, domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.SpeechModel, Speech: &settings},
		Files: domain.Files{Prefix: "models/acme/ear/", Sizes: map[string]int64{"model.bin": 3}}}))
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{BaseModel: string(speechName), MinReplicaCount: 1,
			SpeechFormat: settings.Format}}))
	return c.serving(c.placeReplica(node).ID)
}

// recording stores some seconds of noise and returns a request for it.
func (c *cluster) recording(seconds int) engines.TranscriptionRequest {
	c.Helper()
	pcm := bytes.Repeat([]byte{0, 1, 0, 255}, seconds*engines.SampleRate/2)
	c.put("audio/one", pcm)
	url, err := c.blobs.SignGet(c.Context(), "audio/one", time.Hour)
	require.NoError(c, err)
	return engines.TranscriptionRequest{Audio: engines.AudioFile{URL: url, Size: int64(len(pcm))}}
}

func discardEvents(engines.TranscriptEvent) error { return nil }

// waitForLoad waits for a heartbeat of a node in which the load of the only replica meets a
// condition.
func (c *cluster) waitForLoad(node, what string, met func(protocol.Load) bool) {
	c.Helper()
	late := time.After(waitTimeout)
	heartbeats := make(chan *nats.Msg, 64)
	subscription, err := c.server.Coordinator().ChanSubscribe(protocol.HeartbeatSubject(node), heartbeats)
	require.NoError(c, err)
	defer func() { require.NoError(c, subscription.Unsubscribe()) }()
	for {
		select {
		case m := <-heartbeats:
			var heartbeat protocol.Heartbeat
			require.NoError(c, protocol.Unmarshal(m.Data, &heartbeat))
			if len(heartbeat.Replicas) == 1 && met(heartbeat.Replicas[0].Load) {
				return
			}
		case <-late:
			require.FailNow(c, "timeout waiting for load", what)
		}
	}
}

func TestTranscription(t *testing.T) {
	c := start(t)
	dir := t.TempDir()
	c.agentIn("n1", dir, simulated.New(simulated.Options{Seed: 7}))
	r := c.deploySpeech("n1")
	request := c.recording(9)

	// The transcript equals the transcript of an engine that is called directly.
	listener, err := simulated.New(simulated.Options{Seed: 7}).Transcribers[simulated.SpeechFormat].LoadSpeech(
		t.Context(), engines.SpeechFiles{})
	require.NoError(t, err)
	pcm, err := c.blobs.Get(t.Context(), "audio/one")
	require.NoError(t, err)
	var want, got []engines.TranscriptEvent
	gather := func(into *[]engines.TranscriptEvent) func(engines.TranscriptEvent) error {
		return func(one engines.TranscriptEvent) error { *into = append(*into, one); return nil }
	}
	wantTranscript, err := listener.Transcribe(t.Context(), pcm, request.Options, gather(&want))
	require.NoError(t, err)
	transcript, err := c.replicas().Transcribe(t.Context(), deploymentName, r, request, gather(&got))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NotEmpty(t, got[0].Segment.Words)
	require.Equal(t, wantTranscript, transcript)
	require.Equal(t, engines.Transcript{Language: "en", Duration: 9}, transcript)
	left := testutil.ReadDir(t, dir+"/work")
	require.Empty(t, left, "the recording is not stored")

	// Invalid options are refused before the recording is downloaded.
	refused := engines.TranscriptionRequest{Audio: engines.AudioFile{URL: "http://127.0.0.1:1/none", Size: 1},
		Options: engines.TranscriptionOptions{Language: "de", Diarize: true}}
	_, err = c.replicas().Transcribe(t.Context(), deploymentName, r, refused, discardEvents)
	var failure *domain.Error
	require.ErrorAs(t, err, &failure)
	require.Equal(t, domain.InvalidArgument, failure.Code)
	require.Len(t, failure.Violations, 2)

	// The error for a missing recording omits its URL, which is a secret.
	gone := request
	gone.Audio.URL = strings.Replace(gone.Audio.URL, "audio/one", "audio/two", 1)
	_, err = c.replicas().Transcribe(t.Context(), deploymentName, r, gone, discardEvents)
	require.ErrorContains(t, err, "the file store responded")
	require.NotContains(t, err.Error(), "http")

	_, err = c.replicas().Complete(t.Context(), deploymentName, r, engines.CompletionRequest{Prompt: "go"},
		func(engines.Chunk) error { return nil })
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

// TestTextModelsDoNotTranscribe checks that a text model refuses a transcription.
func TestTextModelsDoNotTranscribe(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", simulated.New(simulated.Options{}))
	r := c.serving(c.deploy("n1").ID)
	_, err := c.replicas().Transcribe(t.Context(), deploymentName, r, c.recording(1), discardEvents)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

// steppedSpeechEngine returns a speech engine with the given number of slots. A transcription sends a value to
// begun after the first word, and then waits until proceed receives a value or is closed.
func steppedSpeechEngine(slots int) (engine engines.Engine, begun chan struct{}, proceed chan struct{}) {
	begun, proceed = make(chan struct{}, 64), make(chan struct{})
	return simulated.New(simulated.Options{Slots: slots, Fault: func(a simulated.Action) error {
		if a.Name == simulated.TranscribeWord && a.Step == 2 {
			begun <- struct{}{}
			<-proceed
		}
		return nil
	}}), begun, proceed
}

// TestTranscriptionsAreQueued checks that recordings beyond the slots of a replica wait in a
// limited queue, which heartbeats report.
func TestTranscriptionsAreQueued(t *testing.T) {
	c := start(t)
	engine, begun, proceed := steppedSpeechEngine(1)
	c.agent("n1", engine)
	r := c.deploySpeech("n1")
	request := c.recording(2)
	ended := make(chan error, 6)
	for range 6 {
		go func() {
			_, err := c.replicas().Transcribe(t.Context(), deploymentName, r, request, discardEvents)
			ended <- err
		}()
	}
	c.wait("one is being transcribed", begun)
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(<-ended),
		"one is transcribed, four are queued, the sixth is refused")
	c.waitForLoad("n1", "one is transcribed, and four are queued", func(l protocol.Load) bool {
		return l.Active == 1 &&
			l.Queued == 4
	})
	close(proceed)
	for range 5 {
		require.NoError(t, <-ended)
	}
}

// TestTranscriptionsAreDrained checks that a replica that is stopped finishes its transcriptions,
// and starts no new ones.
func TestTranscriptionsAreDrained(t *testing.T) {
	c := start(t)
	engine, begun, proceed := steppedSpeechEngine(2)
	c.agent("n1", engine)
	r := c.deploySpeech("n1")
	request := c.recording(4)
	ended := make(chan error, 1)
	go func() {
		_, err := c.replicas().Transcribe(t.Context(), deploymentName, r, request, discardEvents)
		ended <- err
	}()
	c.wait("it is being transcribed", begun)
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.RemoveReplica{ID: r.ID, Reason: "scaled down"}))
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for {
		brief := request
		brief.Audio.Size++ // so that the download fails
		_, err := c.replicas().Transcribe(ctx, deploymentName, r, brief, discardEvents)
		require.Error(t, err)
		require.NoError(t, ctx.Err())
		if domain.CodeOf(err) == domain.Unavailable {
			break
		}
	}
	close(proceed)
	require.NoError(t, <-ended)
}

// TestTranscriptionStops checks that the engine stops immediately when the client
// disconnects during a transcription.
func TestTranscriptionStops(t *testing.T) {
	c := start(t)
	dir := t.TempDir()
	waits := make(chan struct{})
	c.agentIn("n1", dir, simulated.New(simulated.Options{TokenTime: func(word int) time.Duration {
		if word == 9 {
			close(waits)
			return time.Hour
		}
		return 0
	}}))
	r := c.deploySpeech("n1")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.replicas().Transcribe(ctx, deploymentName, r, c.recording(9), func(engines.TranscriptEvent) error {
		c.wait("the ninth word", waits)
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	c.waitForLoad("n1", "no transcription is active", func(l protocol.Load) bool { return l.Active == 0 })
	left := testutil.ReadDir(t, dir+"/work")
	require.Empty(t, left)
}

// TestAgentIsKilledDuringTranscription checks that another replica can transcribe a recording from
// its start if an agent is killed during the transcription.
func TestAgentIsKilledDuringTranscription(t *testing.T) {
	c := start(t)
	kill := c.child("n1", t.TempDir(), 1)
	r := c.deploySpeech("n1")
	request := c.recording(9)
	replicas := c.replicas()
	replicas.Timeout = 3 * time.Second
	ended := make(chan error, 1)
	go func() {
		_, err := replicas.Transcribe(t.Context(), deploymentName, r, request, discardEvents)
		ended <- err
	}()
	c.waitForLoad("n1", "it is being transcribed", func(l protocol.Load) bool { return l.Active == 1 })
	kill()
	require.Equal(t, domain.Unavailable, domain.CodeOf(<-ended))

	c.agent("n2", simulated.New(simulated.Options{}))
	r = c.serving(c.placeReplica("n2").ID)
	transcript, err := replicas.Transcribe(t.Context(), deploymentName, r, request, discardEvents)
	require.NoError(t, err)
	require.Equal(t, 9.0, transcript.Duration)
}
