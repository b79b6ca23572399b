package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

func transcriptionOperations(s *Server) (all []request.Operation) {
	for _, one := range []struct{ id, path, summary, about string }{
		{"createTranscription", "/v1/audio/transcriptions", "Write down what is said in a recording", ""},
		{"createTranslation", "/v1/audio/translations", "Write down in English what is said in a recording", "As createTranscription, with the task translate. "},
		{"createInferenceTranscription", "/inference/v1/audio/transcriptions", "Write down what is said in a recording, at the address of inference", "The same as createTranscription. "},
		{"createInferenceTranslation", "/inference/v1/audio/translations", "Write down in English what is said in a recording, at the address of inference", "The same as createTranslation. "},
	} {
		translation := one.id == "createTranslation" || one.id == "createInferenceTranslation"
		all = append(all, request.Operation{ID: one.id, Method: "POST", Path: one.path, Tag: "inference", Summary: one.summary, Gate: request.ToModels,
			Description: one.about + "The form's parts may come in any order. Every option at fault is named before a model is looked for, and before a URL is fetched; " +
				"options that a model cannot honour are refused by their names as well. Silence is an empty transcript. Here the key may also be sent without the word Bearer.",
			Form: reflect.TypeFor[TranscriptionForm](), Response: reflect.TypeFor[Transcript](), AltResponse: reflect.TypeFor[VerboseTranscript](), TextMedia: []string{"text/plain", "application/x-subrip", "text/vtt"},
			Streamed: reflect.TypeFor[TranscriptEvent](), ResponseHeaders: transcriptionReplies, Handle: s.handle(func(c *call) (any, error) { return c.transcribe(translation) })})
	}
	return all
}

// transcriptionReplies are the headers that tell how a transcript came about; a
// stream has only the first, since the others are known at its end.
var transcriptionReplies = []request.Parameter{
	{Name: "anneal-warning", Kind: wire.Text, Description: "A field that is not known, or has no effect, and was ignored; one header for each of the first 32, and one that counts the others."},
	{Name: "anneal-audio-seconds", Kind: wire.Text, Description: "How long the recording is, in seconds."},
	{Name: "anneal-server-processing-time", Kind: wire.Text, Description: "Seconds until the answer."},
	{Name: "anneal-deployment", Kind: wire.Text, Description: "The deployment that answered."},
	{Name: "anneal-backend-host", Kind: wire.Text, Description: "The node that answered."},
}

// A transcription is one recording being listened to.
type transcription struct {
	*call
	out   request.Stream
	q     *transcriptionRequest
	to    target
	start time.Time

	script  *script
	told    float64 // seconds up to which segments were told, of a stream that begins anew on another replica
	seconds float64 // that were listened to
	shown   time.Time
	heard   engines.Transcript
	at      seat
}

// transcribe answers a form with a recording.
func (c *call) transcribe(translation bool) (any, error) {
	unread := c.Params()
	if err := unread.Err(); err != nil && (c.server.Strict || len(unread.Values) == 0) {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	leave, ok := c.server.busy.Enter("transcriptions of "+c.Principal.Account, c.server.Limits.Transcriptions)
	if !ok {
		return nil, &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_REQUESTS",
			Message: fmt.Sprintf("accounts/%s has %d transcriptions under way: wait for one to end", c.Principal.Account, c.server.Limits.Transcriptions)}
	}
	defer leave()
	in, err := c.readRecording()
	defer in.discard()
	if err != nil {
		return nil, err
	}
	q, err := in.read(translation)
	if err != nil {
		return nil, err
	}
	c.Refresh() // the upload may have taken long
	to, err := c.address(q.model)
	if err != nil {
		return nil, err
	}
	if err := to.mustListen(); err != nil {
		return nil, err
	}
	if err := c.RequireActive(to.Name.Account()); err != nil { // the operator asks in other accounts, and names lead there
		return nil, err
	}
	if q.from != "" {
		if err := in.fetch(q.from); err != nil {
			return nil, err
		}
	}
	c.warnOfUnknown(slices.Concat(in.unknown, wire.SortedKeys(unread.Values)))
	for _, name := range q.idle {
		c.Warn("%s has no effect without diarize", name)
	}
	link, err := c.server.Blobs.SignGet(c.Ctx, in.files.Folder+audioFile, c.server.Limits.Transcription)
	if err != nil {
		return nil, err
	}
	q.asked.Audio = engines.AudioFile{URL: link, Size: in.files.Sizes[audioFile]}
	t := &transcription{call: c, out: request.Stream{Call: c.Call}, q: q, to: to, start: time.Now(), script: newScript(q.format)}
	return t.run()
}

func (t *transcription) run() (any, error) {
	ctx, cancel := context.WithTimeout(t.Ctx, t.server.Limits.Transcription)
	defer cancel()
	if err := t.listen(ctx); err != nil {
		if t.seconds > 0 {
			t.metered(t.to.Name, t.q.model, t.used(false))
		}
		if errors.Is(err, context.DeadlineExceeded) && t.Ctx.Err() == nil {
			err = domain.Errorf(domain.DeadlineExceeded, "listening to the recording took longer than the %s that it may take, and came to second %.0f: %s", t.server.Limits.Transcription, t.seconds, howToCut)
		}
		return nil, t.out.Fail(err)
	}
	t.server.served.note(t.to.Name, t.Now())
	t.server.meters.audio.Add(t.heard.Duration)
	t.metered(t.to.Name, t.q.model, t.used(true))
	if t.q.stream {
		return nil, t.close()
	}
	for name, value := range map[string]any{"audio-seconds": t.heard.Duration, "server-processing-time": seconds(time.Since(t.start)), "deployment": t.to.Name, "backend-host": t.at.host} {
		t.Writer.Header().Set("anneal-"+name, fmt.Sprint(value))
	}
	if t.q.format == formatVerbose {
		return t.verbose(), nil
	}
	return t.script.whole(t.q.format), nil
}

// listen asks replicas. Another one than the first begins at the start of the
// recording: what of it was sent on a stream is not sent again.
func (t *transcription) listen(ctx context.Context) (err error) {
	t.at, err = t.put(ctx, inquiry{to: t.to.Name, choose: t.to.choose, ask: func(ctx context.Context, replica domain.Replica, _ string) (gone bool, err error) {
		if t.told = t.script.end(); !t.q.stream {
			t.told, t.script = 0, newScript(t.q.format)
		}
		t.heard, err = t.server.Replicas.Transcribe(ctx, t.to.Name, replica, t.q.asked, func(step engines.TranscriptEvent) error {
			err := t.hear(step)
			gone = gone || err != nil
			return err
		})
		return gone, err
	}})
	t.heard.Language = cmp.Or(t.heard.Language, t.q.asked.Options.Language)
	return err
}

// showAgain is how often a stream tells how far listening has got.
const showAgain = time.Second

// hear takes in the next step, and tells of it on a stream.
func (t *transcription) hear(step engines.TranscriptEvent) error {
	t.seconds = max(t.seconds, clamp(step.Seconds, 0, mostSeconds))
	now := t.Now()
	t.server.served.note(t.to.Name, now) // a long recording under way is use as well
	more := ""
	if step.Segment != nil {
		if segment, ok := since(*step.Segment, t.told); ok {
			more = t.script.add(segment)
		}
	}
	if !t.q.stream {
		return nil
	}
	if more != "" {
		if err := t.delta(more); err != nil {
			return err
		}
	}
	if now.Sub(t.shown) >= showAgain {
		t.shown = now
		return t.out.Event(TranscriptEvent{Type: eventProgress, Seconds: &t.seconds})
	}
	return nil
}

// delta sends what is new of the text, with how it begins when it is the first.
func (t *transcription) delta(more string) error {
	if len(t.script.segments) == 1 && t.script.timed {
		more = t.script.shape.opening() + more
	}
	return t.out.Event(TranscriptEvent{Type: eventDelta, Delta: &more})
}

// close ends a stream with all of the transcript.
func (t *transcription) close() error {
	text := t.script.text.String()
	if len(t.script.segments) == 0 && text != "" { // the file has a beginning, even of silence
		if err := t.out.Event(TranscriptEvent{Type: eventDelta, Delta: &text}); err != nil {
			return request.IgnoreGone(err)
		}
	}
	last := TranscriptEvent{Type: eventDone, Text: &text, Usage: &audioUsage{"duration", t.heard.Duration}}
	if t.q.format == formatVerbose {
		last.Transcript = t.verbose()
	}
	if err := t.out.Event(last); err != nil {
		return request.IgnoreGone(err)
	}
	return t.out.Done()
}

func (t *transcription) verbose() *VerboseTranscript {
	return t.script.verbose(t.q, t.heard)
}
