package audio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
	"anneal/eventlog/metering"
)

// Operations returns the operations of this package, each at several paths.
func (s *Service) Operations() (all []request.Operation) {
	for _, one := range []struct{ id, path, summary, about string }{
		{"createTranscription", "/v1/audio/transcriptions", "Transcribe a recording", ""},
		{"createTranslation", "/v1/audio/translations", "Transcribe a recording and translate it into English",
			"The same as createTranscription with task translate. "},
		{"createInferenceTranscription", "/inference/v1/audio/transcriptions",
			"Transcribe a recording (path below /inference)", "The same operation as createTranscription, at another path. "},
		{"createInferenceTranslation", "/inference/v1/audio/translations",
			"Transcribe a recording and translate it into English (path below /inference)",
			"The same operation as createTranslation, at another path. "},
	} {
		translation := one.id == "createTranslation" || one.id == "createInferenceTranslation"
		all = append(all, request.Operation{ID: one.id, Method: "POST", Path: one.path, Tag: "inference",
			Summary: one.summary, Gate: request.ToModels, BareKey: true,
			Description: one.about + "The form's parts may be in any order. The server validates the options before it " +
				"looks up the model and downloads a URL. If the model's engine does not support an option, an error names it. " +
				"The transcript of silence is empty. The header Authorization may contain the API key without the word Bearer.",
			Form: reflect.TypeFor[TranscriptionForm](), Response: reflect.TypeFor[Transcript](),
			AltResponse: reflect.TypeFor[VerboseTranscript](),
			TextMedia:   []string{"text/plain", "application/x-subrip", "text/vtt"},
			Streamed:    reflect.TypeFor[TranscriptEvent](), ResponseHeaders: responseHeaders,
			Handle: s.handle(func(c *call) (any, error) { return c.transcribe(translation) })})
	}
	return all
}

// responseHeaders lists the response headers of transcriptions. A stream has only anneal-warning,
// because its headers are sent before the values of the other headers are known.
var responseHeaders = []request.Parameter{
	{Name: "anneal-warning", Kind: wire.Text,
		Description: "Names a field that the server ignored, because it is unknown or has no effect. The response has " +
			"one such header for each of the first 32 fields, and one with the number of further fields."},
	{Name: "anneal-audio-seconds", Kind: wire.Text, Description: "Length of the recording, in seconds."},
	{Name: "anneal-server-processing-time", Kind: wire.Text, Description: "Time that the server took to process the " +
		"request, in seconds."},
	{Name: "anneal-deployment", Kind: wire.Text, Description: "Name of the deployment that processed the request."},
	{Name: "anneal-backend-host", Kind: wire.Text, Description: "Node that processed the request: its name " +
		"for the operator, and an opaque label for others."},
}

// A transcription is the state of one request in progress.
type transcription struct {
	*call
	out    request.Stream
	q      *transcriptionRequest
	target routing.Target
	start  time.Time

	builder *transcriptBuilder
	// end of the last segment that was sent to the client by earlier attempts, in seconds; 0
	// without a stream
	sent         float64
	seconds      float64 // seconds of the recording that are transcribed so far
	lastProgress time.Time
	result       engines.Transcript
	placement    routing.Placement
}

// transcribe handles a request for a transcription or, if translation is true, a translation.
func (c *call) transcribe(translation bool) (any, error) {
	unread := c.Params()
	if err := unread.Err(); err != nil && (c.Strict || len(unread.Values) == 0) {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	leave, ok := c.Busy.Enter("transcriptions of "+c.Principal.Account, c.Limits.Transcriptions)
	if !ok {
		return nil, &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_REQUESTS",
			Message: fmt.Sprintf("accounts/%s has %d transcriptions in progress, which is the limit: wait until one ends",
				c.Principal.Account, c.Limits.Transcriptions)}
	}
	defer leave()
	in, err := c.readForm()
	defer in.Discard()
	if err != nil {
		return nil, err
	}
	q, err := in.parse(translation)
	if err != nil {
		return nil, err
	}
	c.Refresh() // the world may have changed during the upload
	target, err := routing.Resolve(c.Call, q.model)
	if err != nil {
		return nil, err
	}
	if err := target.RequireSpeech(); err != nil {
		return nil, err
	}
	// for the operator and for requests to an alias, the deployment may belong to another account
	if err := c.RequireActive(target.Name.Account()); err != nil {
		return nil, err
	}
	if q.source != "" {
		if err := in.fetch(q.source); err != nil {
			return nil, err
		}
	}
	request.WarnUnknown(c.Call, slices.Concat(in.unknown, wire.SortedKeys(unread.Values)))
	request.WarnInert(c.Call, q.inert)
	link, err := c.Uploads.Blobs.SignGet(c.Ctx, in.Files.Prefix+audioFile, c.Limits.Transcription)
	if err != nil {
		return nil, err
	}
	q.engine.Audio = engines.AudioFile{URL: link, Size: in.Files.Sizes[audioFile]}
	t := &transcription{call: c, out: request.Stream{Call: c.Call}, q: q, target: target, start: time.Now(),
		builder: newTranscriptBuilder(q.format)}
	return t.run()
}

func (t *transcription) run() (any, error) {
	ctx, cancel := context.WithTimeout(t.Ctx, t.Limits.Transcription)
	defer cancel()
	if err := t.send(ctx); err != nil {
		if t.seconds > 0 {
			t.Router.RecordUsage(t.Call, t.target.Name, t.q.model, t.usageRecord(false))
		}
		if errors.Is(err, context.DeadlineExceeded) && t.Ctx.Err() == nil {
			err = domain.Errorf(domain.DeadlineExceeded,
				"the transcription did not end within its time limit of %s; it reached second %.0f of the recording: %s",
				t.Limits.Transcription, t.seconds, splitHint)
		}
		return nil, t.out.Fail(err)
	}
	t.Router.LastServed.Record(t.target, t.target.Name, t.Now())
	t.audioSeconds.Add(t.result.Duration)
	t.Router.RecordUsage(t.Call, t.target.Name, t.q.model, t.usageRecord(true))
	if t.q.stream {
		return nil, t.closeStream()
	}
	for name, value := range map[string]any{"audio-seconds": t.result.Duration,
		"server-processing-time": wire.Seconds(time.Since(t.start)), "deployment": t.target.Name,
		"backend-host": t.placement.Node} {
		t.Writer.Header().Set("anneal-"+name, fmt.Sprint(value))
	}
	if t.q.format == formatVerbose {
		return t.verbose(), nil
	}
	return t.builder.response(t.q.format), nil
}

// bytesPerToken is the length of a recording that counts as one token in the admission queue: 10 ms
// of mono sound with 16,000 samples per second.
const bytesPerToken = 320

// send sends the request to replicas. Each attempt transcribes the recording from its start, but a
// stream leaves out the segments that earlier attempts have sent.
func (t *transcription) send(ctx context.Context) (err error) {
	t.placement, err = t.Router.Send(ctx, t.Call, routing.Request{Deployment: t.target.Name, Choose: t.target.Choose,
		Work: max(1, t.q.engine.Audio.Size/bytesPerToken), MaxWait: t.Limits.Transcription,
		Send: func(ctx context.Context, a *routing.Attempt) (disconnected bool, err error) {
			if t.sent = t.builder.end(); !t.q.stream {
				t.sent, t.builder = 0, newTranscriptBuilder(t.q.format)
			}
			t.result, err = t.Router.Replicas.Transcribe(ctx, t.target.Name, a.Replica, t.q.engine,
				func(event engines.TranscriptEvent) error {
					err := t.handleEvent(event)
					disconnected = disconnected || err != nil
					return err
				})
			return disconnected, err
		}})
	t.result.Language = cmp.Or(t.result.Language, t.q.engine.Options.Language)
	return err
}

// progressInterval is the minimum interval between two progress events of a stream.
const progressInterval = time.Second

// handleEvent adds an event of the engine to the transcript and, if the response is a stream, sends
// it to the client.
func (t *transcription) handleEvent(event engines.TranscriptEvent) error {
	t.seconds = max(t.seconds, clamp(event.Seconds, 0, maxSeconds))
	now := t.Now()
	// a transcription in progress keeps its deployment from being scaled to zero
	t.Router.LastServed.Record(t.target, t.target.Name, now)
	appended := ""
	if event.Segment != nil {
		if segment, ok := trimBefore(*event.Segment, t.sent); ok {
			appended = t.builder.add(segment)
		}
	}
	if !t.q.stream {
		return nil
	}
	if appended != "" {
		if err := t.sendDelta(appended); err != nil {
			return err
		}
	}
	if now.Sub(t.lastProgress) >= progressInterval {
		t.lastProgress = now
		return t.out.Event(TranscriptEvent{Type: eventProgress, Seconds: &t.seconds})
	}
	return nil
}

// sendDelta sends an event with the next part of the transcript. The first one begins with the
// header of the subtitle file.
func (t *transcription) sendDelta(delta string) error {
	if len(t.builder.segments) == 1 && t.builder.isSubtitles {
		delta = t.builder.subtitles.header() + delta
	}
	return t.out.Event(TranscriptEvent{Type: EventDelta, Delta: &delta})
}

// closeStream sends the event with the complete transcript, and ends the stream.
func (t *transcription) closeStream() error {
	text := t.builder.text.String()
	if len(t.builder.segments) == 0 && text != "" { // text is only the header of a subtitle file without cues
		if err := t.out.Event(TranscriptEvent{Type: EventDelta, Delta: &text}); err != nil {
			return request.IgnoreGone(err)
		}
	}
	last := TranscriptEvent{Type: EventDone, Text: &text, Usage: &audioUsage{"duration", t.result.Duration}}
	if t.q.format == formatVerbose {
		last.Transcript = t.verbose()
	}
	if err := t.out.Event(last); err != nil {
		return request.IgnoreGone(err)
	}
	return t.out.Done()
}

func (t *transcription) verbose() *VerboseTranscript {
	return t.builder.verbose(t.q, t.result)
}

// usageRecord returns the usage of the transcription. For an incomplete transcription, it counts
// the seconds that were transcribed.
func (t *transcription) usageRecord(complete bool) metering.Record {
	u := metering.Record{Kind: metering.Transcription, Complete: complete, AudioSeconds: t.seconds}
	if t.q.engine.Options.Translate {
		u.Kind = metering.Translation
	}
	if complete {
		u.AudioSeconds = t.result.Duration
	}
	return u
}
