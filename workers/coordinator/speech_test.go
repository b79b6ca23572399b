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
	"anneal/workers/protocol"
)

const speechName = domain.Name("accounts/acme/models/ear")

// raw reads recordings that are samples already.
func raw(_ context.Context, path, _ string) (io.ReadCloser, error) { return os.Open(path) }

// ear makes a deployment of a speech model with one replica on a node.
func (c *cluster) ear(node string) domain.Replica {
	c.Helper()
	c.put("models/acme/ear/model.bin", []byte("ear"))
	settings := domain.SpeechSettings{Format: domain.SpeechSimulated}
	c.do(domain.Intend(domain.Models, speechName, domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.SpeechModel, Speech: &settings},
		Files: domain.Files{Folder: "models/acme/ear/", Sizes: map[string]int64{"model.bin": 3}}}))
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{BaseModel: string(speechName), MinReplicaCount: 1,
			SpeechFormat: settings.Format}}))
	return c.serving(c.placeReplica(node).ID)
}

func (c *cluster) put(key string, content []byte) {
	c.Helper()
	_, err := c.blobs.Put(c.Context(), key, bytes.NewReader(content))
	require.NoError(c, err)
}

// recording stores noise of some seconds, to be fetched by its URL.
func (c *cluster) recording(seconds int) engines.Transcription {
	c.Helper()
	pcm := bytes.Repeat([]byte{0, 1, 0, 255}, seconds*engines.SampleRate/2)
	c.put("audio/one", pcm)
	url, err := c.blobs.SignGet(c.Context(), "audio/one", time.Hour)
	require.NoError(c, err)
	return engines.Transcription{Audio: engines.AudioFile{URL: url, Size: int64(len(pcm))}}
}

func deaf(engines.TranscriptEvent) error { return nil }

// says waits for a beat of a node that tells such a load of its only replica.
func (c *cluster) says(node, what string, so func(protocol.Load) bool) {
	c.Helper()
	late := time.After(patience)
	beats := make(chan *nats.Msg, 64)
	subscription, err := c.server.Coordinator().ChanSubscribe(protocol.HeartbeatSubject(node), beats)
	require.NoError(c, err)
	defer func() { require.NoError(c, subscription.Unsubscribe()) }()
	for {
		select {
		case m := <-beats:
			var beat protocol.Heartbeat
			require.NoError(c, protocol.Unmarshal(m.Data, &beat))
			if len(beat.Replicas) == 1 && so(beat.Replicas[0].Load) {
				return
			}
		case <-late:
			require.FailNow(c, "no beat told so", what)
		}
	}
}

func TestListening(t *testing.T) {
	c := start(t)
	dir := t.TempDir()
	c.agentIn("n1", dir, simulated.New(simulated.Options{Seed: 7}))
	r := c.ear("n1")
	request := c.recording(9)

	// What is heard is what the engine alone hears.
	listener, err := simulated.New(simulated.Options{Seed: 7}).Transcribers[simulated.SpeechFormat].LoadSpeech(
		t.Context(), engines.SpeechFiles{})
	require.NoError(t, err)
	pcm, err := c.blobs.Get(t.Context(), "audio/one")
	require.NoError(t, err)
	var want, got []engines.TranscriptEvent
	gather := func(into *[]engines.TranscriptEvent) func(engines.TranscriptEvent) error {
		return func(one engines.TranscriptEvent) error { *into = append(*into, one); return nil }
	}
	wantHeard, err := listener.Transcribe(t.Context(), pcm, request.Options, gather(&want))
	require.NoError(t, err)
	heard, err := c.replicas().Transcribe(t.Context(), deploymentName, r, request, gather(&got))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NotEmpty(t, got[0].Segment.Words)
	require.Equal(t, wantHeard, heard)
	require.Equal(t, engines.Transcript{Language: "en", Duration: 9}, heard)
	left, err := os.ReadDir(dir + "/work")
	require.NoError(t, err)
	require.Empty(t, left, "the recording is not kept")

	// Options are refused before anything is fetched.
	refused := engines.Transcription{Audio: engines.AudioFile{URL: "http://127.0.0.1:1/none", Size: 1},
		Options: engines.TranscribeOptions{Language: "de", Diarize: true}}
	_, err = c.replicas().Transcribe(t.Context(), deploymentName, r, refused, deaf)
	var fault *domain.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, domain.InvalidArgument, fault.Code)
	require.Len(t, fault.Violations, 2)

	// A recording that is not there is told without its address, which is a secret.
	gone := request
	gone.Audio.URL = strings.Replace(gone.Audio.URL, "audio/one", "audio/two", 1)
	_, err = c.replicas().Transcribe(t.Context(), deploymentName, r, gone, deaf)
	require.ErrorContains(t, err, "the file store responds")
	require.NotContains(t, err.Error(), "http")

	_, err = c.replicas().Complete(t.Context(), deploymentName, r, engines.CompletionRequest{Prompt: "go"},
		func(engines.Chunk) error { return nil })
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

// A model of text does not listen.
func TestModelsOfTextDoNotListen(t *testing.T) {
	c := start(t)
	c.stock()
	c.agent("n1", simulated.New(simulated.Options{}))
	r := c.serving(c.deploy("n1").ID)
	_, err := c.replicas().Transcribe(t.Context(), deploymentName, r, c.recording(1), deaf)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

// hushed is an engine that hears one word and then waits to be let go on.
func hushed(slots int) (engine engines.Engine, begun chan struct{}, goOn chan struct{}) {
	begun, goOn = make(chan struct{}, 64), make(chan struct{})
	return simulated.New(simulated.Options{Slots: slots, Fault: func(a simulated.Action) error {
		if a.Name == simulated.ListenWord && a.Step == 2 {
			begun <- struct{}{}
			<-goOn
		}
		return nil
	}}), begun, goOn
}

// What a replica has no room for waits, up to a bound, and its beats say so.
func TestListeningWaitsInLine(t *testing.T) {
	c := start(t)
	engine, begun, goOn := hushed(1)
	c.agent("n1", engine)
	r := c.ear("n1")
	request := c.recording(2)
	ended := make(chan error, 6)
	for range 6 {
		go func() {
			_, err := c.replicas().Transcribe(t.Context(), deploymentName, r, request, deaf)
			ended <- err
		}()
	}
	c.hear("one is listened to", begun)
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(<-ended), "one is heard, four wait, the sixth is too many")
	c.says("n1", "one is heard, and four wait", func(l protocol.Load) bool { return l.Active == 1 && l.Queued == 4 })
	close(goOn)
	for range 5 {
		require.NoError(t, <-ended)
	}
}

// A replica that is not wanted any more ends what it listens to, and begins
// nothing new.
func TestListeningIsDrained(t *testing.T) {
	c := start(t)
	engine, begun, goOn := hushed(2)
	c.agent("n1", engine)
	r := c.ear("n1")
	request := c.recording(4)
	ended := make(chan error, 1)
	go func() {
		_, err := c.replicas().Transcribe(t.Context(), deploymentName, r, request, deaf)
		ended <- err
	}()
	c.hear("it is listened to", begun)
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.RemoveReplica{ID: r.ID, Reason: "scaled down"}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		brief := request
		brief.Audio.Size++ // which fails where it is begun
		_, err := c.replicas().Transcribe(ctx, deploymentName, r, brief, deaf)
		require.Error(t, err)
		require.NoError(t, ctx.Err())
		if domain.CodeOf(err) == domain.Unavailable {
			break
		}
	}
	close(goOn)
	require.NoError(t, <-ended)
}

// A reader that goes away stops the engine, at once.
func TestListeningStops(t *testing.T) {
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
	r := c.ear("n1")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.replicas().Transcribe(ctx, deploymentName, r, c.recording(9), func(engines.TranscriptEvent) error {
		c.hear("the ninth word", waits)
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	c.says("n1", "nothing is heard any more", func(l protocol.Load) bool { return l.Active == 0 })
	left, err := os.ReadDir(dir + "/work")
	require.NoError(t, err)
	require.Empty(t, left)
}

// The recording of a request whose worker was killed can be listened to by
// another replica, from its beginning.
func TestListenerIsKilled(t *testing.T) {
	c := start(t)
	kill := c.child("n1", t.TempDir(), 1)
	r := c.ear("n1")
	request := c.recording(9)
	replicas := c.replicas()
	replicas.Timeout = 3 * time.Second
	ended := make(chan error, 1)
	go func() {
		_, err := replicas.Transcribe(t.Context(), deploymentName, r, request, deaf)
		ended <- err
	}()
	c.says("n1", "it is being listened to", func(l protocol.Load) bool { return l.Active == 1 })
	kill()
	require.Equal(t, domain.Unavailable, domain.CodeOf(<-ended))

	c.agent("n2", simulated.New(simulated.Options{}))
	r = c.serving(c.placeReplica("n2").ID)
	heard, err := replicas.Transcribe(t.Context(), deploymentName, r, request, deaf)
	require.NoError(t, err)
	require.Equal(t, 9.0, heard.Duration)
}
